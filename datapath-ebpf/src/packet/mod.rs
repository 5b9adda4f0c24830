//! Access to a packet: the one place that checks bounds.

pub(crate) mod family;
pub(crate) mod fragment;
mod fragment_ring;
pub(crate) mod icmp_error;
pub(crate) mod link_local;
pub(crate) mod rewrite;
pub(crate) mod transport;

#[cfg(target_arch = "bpf")]
use core::arch::asm;
use core::{hint, ptr};

use aya_ebpf::bindings::__sk_buff;
use aya_ebpf::helpers::generated::{
    bpf_csum_update, bpf_l4_csum_replace, bpf_skb_pull_data, bpf_skb_store_bytes,
};
use aya_ebpf::programs::TcContext;
use datapath_common::headers::Ethernet;
use datapath_common::outcome::DropReason;
use zerocopy::{FromBytes, Immutable, IntoBytes};

use crate::base::mark::Mark;

/// Where the IP header begins.
pub(crate) const IP_OFFSET: usize = size_of::<Ethernet>();

/// The frame that a program was called for.
pub(crate) struct Packet {
    ctx: TcContext,
}

/// Reads a field of the `__sk_buff`. Volatile, because the verifier takes no wider load than the
/// field, and no load through a moved context pointer.
macro_rules! field {
    ($packet:expr, $field:ident) => {{
        let skb: *const __sk_buff = $packet.ctx.skb.skb;
        // SAFETY: the kernel hands every program a valid context.
        unsafe { ptr::read_volatile(&raw const (*skb).$field) }
    }};
}

impl Packet {
    #[inline(always)]
    pub(crate) fn new(ctx: TcContext) -> Self {
        Self { ctx }
    }

    /// The context, for aya-log.
    #[cfg(feature = "debug-log")]
    #[inline(always)]
    pub(crate) fn context(&self) -> &TcContext {
        &self.ctx
    }

    /// The context as the helpers take it.
    #[inline(always)]
    pub(crate) fn skb(&self) -> *mut __sk_buff {
        self.ctx.skb.skb
    }

    /// Length of the frame in bytes, Ethernet header included.
    #[inline(always)]
    pub(crate) fn length(&self) -> u32 {
        field!(self, len)
    }

    /// Length of what follows the Ethernet header, in bytes.
    #[inline(always)]
    pub(crate) fn ip_room(&self) -> usize {
        // No frame is shorter than its Ethernet header, which was read before.
        (self.length() as usize).saturating_sub(IP_OFFSET)
    }

    /// Device that the packet is on.
    #[inline(always)]
    pub(crate) fn ifindex(&self) -> u32 {
        field!(self, ifindex)
    }

    /// True if the frame's destination is the device's own MAC.
    #[inline(always)]
    pub(crate) fn is_for_host(&self) -> bool {
        /// `PACKET_HOST` of `include/uapi/linux/if_packet.h`.
        const PACKET_HOST: u32 = 0;
        field!(self, pkt_type) == PACKET_HOST
    }

    /// True if the frame came with a VLAN tag, which the kernel keeps beside the packet.
    #[inline(always)]
    pub(crate) fn has_vlan_tag(&self) -> bool {
        field!(self, vlan_present) != 0
    }

    /// Payload of each packet that this one stands for; 0 when it stands for itself alone.
    #[inline(always)]
    pub(crate) fn gso_size(&self) -> usize {
        field!(self, gso_size) as usize
    }

    /// Device that received the packet; 0 for one that the host made.
    #[inline(always)]
    pub(crate) fn ingress_ifindex(&self) -> u32 {
        field!(self, ingress_ifindex)
    }

    /// True if an ENI's egress has nothing more to do with the packet.
    #[inline(always)]
    pub(crate) fn is_done(&self) -> bool {
        Mark::is_done(field!(self, mark))
    }

    /// True if the stack carries the packet for an exception's sake.
    #[inline(always)]
    pub(crate) fn is_exception(&self) -> bool {
        Mark::is_exception(field!(self, mark))
    }

    /// True if the mark has bits of ours.
    #[inline(always)]
    pub(crate) fn is_marked(&self) -> bool {
        Mark::is_ours(field!(self, mark))
    }

    /// Replaces our bits of the mark.
    #[inline(always)]
    pub(crate) fn set_mark(&mut self, mark: Mark) {
        self.ctx.set_mark(mark.within(field!(self, mark)));
    }

    /// Clears the whole mark.
    #[inline(always)]
    pub(crate) fn clear_mark(&mut self) {
        self.ctx.set_mark(0);
    }

    /// The first `LENGTH` bytes, if the program sees them without further ado.
    #[inline(always)]
    pub(crate) fn front<const LENGTH: usize>(&self) -> Option<LinearHead> {
        let start = self.ctx.data();
        (start + LENGTH <= self.ctx.data_end()).then_some(LinearHead(start))
    }

    /// A header at `offset`.
    #[inline(always)]
    pub(crate) fn header<T>(&mut self, offset: usize) -> Result<&T, DropReason>
    where
        T: FromBytes + Immutable,
    {
        let start = self.bounded::<T>(offset)?;
        // SAFETY: `bounded` gives a pointer to `size_of::<T>()` bytes of the packet, which no one
        // moves while `self` is borrowed; any bytes are a valid `T`.
        Ok(unsafe { &*start })
    }

    /// A header at `offset`, to write to.
    #[inline(always)]
    pub(crate) fn header_mut<T>(&mut self, offset: usize) -> Result<&mut T, DropReason>
    where
        T: FromBytes + IntoBytes,
    {
        let start = self.bounded::<T>(offset)?;
        // SAFETY: as for `header`; the kernel gave this program a packet of its own, since it
        // writes, and `self` is borrowed mutably, so no other reference exists.
        Ok(unsafe { &mut *start })
    }

    /// A copy of what lies at an offset that only run time knows.
    #[inline(always)]
    pub(crate) fn copy<T>(&self, offset: usize) -> Result<T, DropReason>
    where
        T: FromBytes,
    {
        self.ctx
            .skb
            .load(offset)
            .map_err(|_refused| DropReason::Truncated)
    }

    /// Writes at an offset that only run time knows. `flags` are those of `bpf_skb_store_bytes`.
    #[inline(always)]
    pub(crate) fn store<T>(
        &mut self,
        offset: usize,
        value: &T,
        flags: u32,
    ) -> Result<(), DropReason>
    where
        T: IntoBytes + Immutable,
    {
        let from = ptr::from_ref(value).cast();
        let length = narrow(size_of::<T>());
        // SAFETY: the context is valid, and the helper reads as many bytes of `value` as it has.
        // The call may move the packet; `&mut self` says that no reference into it is alive.
        done(unsafe {
            bpf_skb_store_bytes(
                self.ctx.skb.skb,
                narrow(offset),
                from,
                length,
                u64::from(flags),
            )
        })
    }

    /// Updates a transport checksum after what it covers has grown. `flags` are those of
    /// `bpf_l4_csum_replace`.
    #[inline(always)]
    pub(crate) fn update_checksum(
        &mut self,
        offset: usize,
        growth: u32,
        flags: u32,
    ) -> Result<(), DropReason> {
        let (skb, offset) = (self.ctx.skb.skb, narrow(offset));
        // SAFETY: as for `store`; the helper takes numbers only. A size of 0 in the flags says that
        // the last number is a difference.
        done(unsafe { bpf_l4_csum_replace(skb, offset, 0, u64::from(growth), u64::from(flags)) })
    }

    /// Updates the sum that the kernel may have of the whole packet (`CHECKSUM_COMPLETE`).
    #[inline(always)]
    pub(crate) fn update_sum(&mut self, growth: u32) {
        // The helper refuses a packet without a known sum: nothing has to be done then.
        // SAFETY: the context is valid, and the packet stays where it is.
        let _refused = unsafe { bpf_csum_update(self.ctx.skb.skb, growth) };
    }

    /// A pointer to a `T` within the packet, aligned when `offset` is even: a frame begins at an
    /// even address.
    #[inline(always)]
    fn bounded<T>(&mut self, offset: usize) -> Result<*mut T, DropReason> {
        const { assert!(align_of::<T>() <= 2) };
        if let Some(start) = self.linear(offset) {
            return Ok(start);
        }
        self.pull(offset + size_of::<T>())?;
        self.linear(offset).ok_or(DropReason::Truncated)
    }

    /// A pointer to a `T` when all of it is in the part of the packet that the program sees.
    #[inline(always)]
    fn linear<T>(&self, offset: usize) -> Option<*mut T> {
        let start = self.ctx.data() + offset;
        if start + size_of::<T>() > self.ctx.data_end() {
            return None;
        }
        Some(start as *mut T)
    }

    /// Makes the kernel linearize the first `length` bytes, so that the program can read them.
    #[inline(always)]
    fn pull(&mut self, length: usize) -> Result<(), DropReason> {
        if length > self.length() as usize {
            return Err(DropReason::Truncated);
        }
        // SAFETY: the context is valid. The call may move the packet; `&mut self` says that no
        // reference into it is alive.
        done(unsafe { bpf_skb_pull_data(self.ctx.skb.skb, narrow(length)) })
    }
}

/// The first bytes of a packet, in the number requested from [`Packet::front`]. Must not be used
/// after a helper that may move the packet: the verifier would refuse the program.
///
/// Numbers in it may be at any even address. The compiler would load them byte by byte. The kernel,
/// and machines with efficient unaligned access, load them at once (x86 and arm64:
/// `CONFIG_HAVE_EFFICIENT_UNALIGNED_ACCESS`). The verifier knows the number of bytes.
#[derive(Clone, Copy)]
pub(crate) struct LinearHead(usize);

macro_rules! load {
    ($name:ident, $type:ty, $width:literal $(, $narrow:ident)?) => {
        /// The number at an offset, as it lies in the packet.
        #[inline(always)]
        pub(crate) fn $name<const OFFSET: usize>(self) -> $type {
            #[cfg(not(target_arch = "bpf"))]
            let value = {
                let _ = self.0;
                0_u64
            };
            #[cfg(target_arch = "bpf")]
            let value: u64;
            // SAFETY: a load from the packet, or the verifier refuses the program.
            #[cfg(target_arch = "bpf")]
            unsafe {
                asm!(
                    concat!("{value} = *(", $width, " *)({start} + {offset})"),
                    value = out(reg) value,
                    start = in(reg) self.0,
                    offset = const OFFSET,
                    options(nostack, preserves_flags),
                );
            }
            // The compiler would clear the upper bits of each value once more.
            // SAFETY: the kernel's loads do that (Documentation/bpf/standardization/instruction-set.rst).
            unsafe { hint::assert_unchecked(value >> (<$type>::BITS - 1) >> 1 == 0) };
            $(
                #[expect(clippy::cast_possible_truncation, reason = "as wide as the load")]
                let value = value as $narrow;
            )?
            value
        }
    };
}

macro_rules! store {
    ($name:ident, $type:ty, $width:literal) => {
        /// Writes a number at an offset, as it lies in the packet.
        #[inline(always)]
        pub(crate) fn $name<const OFFSET: usize>(self, value: $type) {
            #[cfg(not(target_arch = "bpf"))]
            let _ = (self.0, value);
            // SAFETY: a store to the packet, or the verifier refuses the program.
            #[cfg(target_arch = "bpf")]
            unsafe {
                asm!(
                    concat!("*(", $width, " *)({start} + {offset}) = {value}"),
                    value = in(reg) u64::from(value),
                    start = in(reg) self.0,
                    offset = const OFFSET,
                    options(nostack, preserves_flags),
                );
            }
        }
    };
}

impl LinearHead {
    load!(u8, u8, "u8", u8);
    load!(u16, u16, "u16", u16);
    load!(u32, u32, "u32", u32);
    load!(u64, u64, "u64");

    store!(set_u8, u8, "u8");
    store!(set_u16, u16, "u16");
    store!(set_u32, u32, "u32");

    /// Replaces both MACs by twelve bytes, as words.
    #[inline(always)]
    pub(crate) fn set_macs(self, [first, second, third]: [u32; 3]) {
        self.set_u32::<0>(first);
        self.set_u32::<4>(second);
        self.set_u32::<8>(third);
    }
}

/// An offset or length as helpers take it.
#[inline(always)]
#[expect(
    clippy::cast_possible_truncation,
    reason = "offsets are sums of a few 16-bit lengths"
)]
fn narrow(offset: usize) -> u32 {
    offset as u32
}

/// Result that a helper's return code stands for.
#[inline(always)]
fn done(code: i64) -> Result<(), DropReason> {
    if code == 0 {
        Ok(())
    } else {
        hint::cold_path();
        Err(DropReason::HelperFailed)
    }
}
