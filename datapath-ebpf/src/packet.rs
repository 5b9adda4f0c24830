//! Access to a packet: the one place that checks bounds.

use core::ptr;

use aya_ebpf::bindings::__sk_buff;
use aya_ebpf::bindings::{TC_ACT_REDIRECT, bpf_redir_neigh};
use aya_ebpf::helpers::generated::{bpf_redirect_neigh, bpf_redirect_peer, bpf_skb_pull_data};
use aya_ebpf::programs::TcContext;
use datapath_common::headers::Ethernet;
use datapath_common::outcome::DropReason;
use zerocopy::{FromBytes, Immutable, IntoBytes};

use crate::mark::Mark;

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

    /// Length of the frame in bytes, Ethernet header included.
    #[inline(always)]
    pub(crate) fn length(&self) -> u32 {
        field!(self, len)
    }

    /// Length of what follows the Ethernet header, in bytes.
    #[inline(always)]
    pub(crate) fn ip_room(&self) -> u32 {
        // No frame is shorter than its Ethernet header, which was read before.
        self.length().saturating_sub(IP_OFFSET as u32)
    }

    /// Device that the packet is on.
    #[inline(always)]
    pub(crate) fn ifindex(&self) -> u32 {
        field!(self, ifindex)
    }

    /// Whether the frame's destination is the device's own MAC.
    #[inline(always)]
    pub(crate) fn is_for_host(&self) -> bool {
        /// `PACKET_HOST` of include/uapi/linux/if_packet.h.
        const PACKET_HOST: u32 = 0;
        field!(self, pkt_type) == PACKET_HOST
    }

    /// Whether the frame came with a VLAN tag, which the kernel keeps beside the packet.
    #[inline(always)]
    pub(crate) fn has_vlan_tag(&self) -> bool {
        field!(self, vlan_present) != 0
    }

    /// Payload of each packet that this one stands for; 0 when it stands for itself alone.
    #[inline(always)]
    pub(crate) fn gso_size(&self) -> u32 {
        field!(self, gso_size)
    }

    /// Replaces our bits of the mark.
    #[inline(always)]
    pub(crate) fn set_mark(&mut self, mark: Mark) {
        self.ctx.set_mark(mark.within(field!(self, mark)));
    }

    /// Clears the whole mark: it belongs to this network namespace, and redirection into another
    /// one does not clear it.
    #[inline(always)]
    fn clear_mark(&mut self) {
        self.ctx.set_mark(0);
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

    /// A pointer to a `T` within the packet, aligned when `offset` is even: a frame begins at an
    /// even address.
    #[inline(always)]
    fn bounded<T>(&mut self, offset: usize) -> Result<*mut T, DropReason> {
        const { assert!(align_of::<T>() <= 2) };
        if let Some(start) = self.linear(offset) {
            return Ok(start);
        }
        self.pull((offset + size_of::<T>()) as u32)?;
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

    /// Has the kernel gather the first `length` bytes where the program sees them.
    #[inline(always)]
    fn pull(&mut self, length: u32) -> Result<(), DropReason> {
        if length > self.length() {
            return Err(DropReason::Truncated);
        }
        // SAFETY: the context is valid. The call may move the packet; `&mut self` says that no
        // reference into it is alive.
        match unsafe { bpf_skb_pull_data(self.ctx.skb.skb, length) } {
            0 => Ok(()),
            _ => Err(DropReason::HelperFailed),
        }
    }

    /// Sends the packet, as it is, into the namespace of the peer of a veth device.
    #[inline(always)]
    pub(crate) fn redirect_to_peer(&mut self, ifindex: u32) -> Result<(), DropReason> {
        self.clear_mark();
        // SAFETY: the helper only notes the device; it exists since 5.10.
        redirected(unsafe { bpf_redirect_peer(ifindex, 0) })
    }

    /// Sends the packet out of a device to a next hop; the kernel resolves and writes the MACs.
    #[inline(always)]
    pub(crate) fn redirect_to_neighbour(
        &mut self,
        ifindex: u32,
        next_hop: &mut bpf_redir_neigh,
    ) -> Result<(), DropReason> {
        // SAFETY: the helper copies `next_hop`, whose size it is given; the gateway exists since
        // 5.10.
        redirected(unsafe {
            bpf_redirect_neigh(ifindex, next_hop, size_of::<bpf_redir_neigh>() as i32, 0)
        })
    }
}

/// What a redirect helper's answer means.
#[inline(always)]
fn redirected(code: i64) -> Result<(), DropReason> {
    if code == i64::from(TC_ACT_REDIRECT) {
        Ok(())
    } else {
        Err(DropReason::HelperFailed)
    }
}
