//! Scratch space of a program, in a map on each CPU: plain data of all layers, whose behaviour is
//! implemented in the layers.
//!
//! The steps that are long or that few packets need are global functions. The verifier checks such
//! a function once, whatever its callers pass. It follows any other function once for each call. A
//! global function takes the context and numbers only (Linux 5.10), so all other values are stored
//! here. The stack has no room for them either: its 512 bytes are for all functions of a call chain
//! together.

mod cache;
mod egress;
mod flow;
mod packet;

use core::{hint, ptr};

use aya_ebpf::btf_maps::PerCpuArray;
use aya_ebpf::macros::btf_map;
use datapath_common::abi::{Datagram, DatagramKey, FlowKey};
use datapath_common::outcome::DropReason;

pub(crate) use cache::{
    CacheFill, Entry, FAMILY, FAMILY_V4, FAMILY_V6, Key, NextHop, RedirectTarget, Stamp, edit, exit,
};
pub(crate) use egress::EgressContext;
pub(crate) use flow::{FlowQuery, PortClaim, Sender, SocketTuple};
pub(crate) use packet::{AddrField, Edit, FragmentKind, Inner, Ip, Ports, Version};

/// Scratch space of a program. Every part is written before it is read.
pub(crate) struct Scratch {
    /// The packet's IP header.
    pub(crate) ip: Ip,
    /// The packet's ports.
    pub(crate) ports: Ports,
    /// The packet that an ICMP error quotes.
    pub(crate) inner: Inner,
    /// The change to write into the packet.
    pub(crate) edit: Edit,
    /// The flow to find or to open.
    pub(crate) request: FlowQuery,
    /// The packet that leaves the node.
    pub(crate) leaving: EgressContext,
    /// The packet, if its outcome may be kept.
    pub(crate) pending: CacheFill,
    /// Where it was redirected to.
    pub(crate) target: RedirectTarget,
    /// The datagram that a piece is of.
    pub(crate) datagram: DatagramKey,
    /// Facts about it.
    pub(crate) recorded: Datagram,
    /// The key of the flow that a reply belongs to.
    pub(crate) flow: FlowKey,
    /// The socket to look for.
    pub(crate) socket: SocketTuple,
    /// See [`ScratchRef::forgotten`].
    number: u32,
}

#[btf_map]
static SCRATCH: PerCpuArray<Scratch, 1> = PerCpuArray::new();

/// This CPU's scratch space. It hands out its parts one by one: references to different ones never
/// overlap.
#[derive(Clone, Copy)]
pub(crate) struct ScratchRef(*mut Scratch);

/// This CPU's scratch space.
#[inline(always)]
pub(crate) fn scratch() -> Result<ScratchRef, DropReason> {
    let slot = SCRATCH.get_ptr_mut(0).ok_or(DropReason::HelperFailed)?;
    // The compiler would keep on the stack what it has written there.
    Ok(ScratchRef(hint::black_box(slot)))
}

impl ScratchRef {
    /// This number as a value that the verifier does not know.
    ///
    /// The verifier then checks the following code once, instead of once for each of a few
    /// constants.
    #[inline(always)]
    pub(crate) fn forgotten(self, number: u32) -> u32 {
        // SAFETY: the slot is a map's value, which stays readable and writable while the program
        // runs; no reference to this part exists.
        unsafe {
            let part = &raw mut (*self.0).number;
            part.write_volatile(number);
            part.read_volatile()
        }
    }

    /// The packet's IP header.
    #[inline(always)]
    pub(crate) fn ip(self) -> *mut Ip {
        // SAFETY: the slot is a map's value, which stays readable and writable while the program
        // runs; so it is for all parts.
        unsafe { &raw mut (*self.0).ip }
    }

    /// The packet's ports.
    #[inline(always)]
    pub(crate) fn ports(self) -> *mut Ports {
        // SAFETY: as for `ip`.
        unsafe { &raw mut (*self.0).ports }
    }

    /// The packet that an ICMP error quotes.
    #[inline(always)]
    pub(crate) fn inner(self) -> *mut Inner {
        // SAFETY: as for `ip`.
        unsafe { &raw mut (*self.0).inner }
    }

    /// The change to write into the packet.
    #[inline(always)]
    pub(crate) fn edit(self) -> *mut Edit {
        // SAFETY: as for `ip`.
        unsafe { &raw mut (*self.0).edit }
    }

    /// The flow to find or to open.
    #[inline(always)]
    pub(crate) fn request(self) -> *mut FlowQuery {
        // SAFETY: as for `ip`.
        unsafe { &raw mut (*self.0).request }
    }

    /// The packet that leaves the node.
    #[inline(always)]
    pub(crate) fn leaving(self) -> *mut EgressContext {
        // SAFETY: as for `ip`.
        unsafe { &raw mut (*self.0).leaving }
    }

    /// The packet, if its outcome may be kept.
    #[inline(always)]
    pub(crate) fn pending(self) -> *mut CacheFill {
        // SAFETY: as for `ip`.
        unsafe { &raw mut (*self.0).pending }
    }

    /// Where it was redirected to.
    #[inline(always)]
    pub(crate) fn target(self) -> *mut RedirectTarget {
        // SAFETY: as for `ip`.
        unsafe { &raw mut (*self.0).target }
    }

    /// The datagram that a piece is of.
    #[inline(always)]
    pub(crate) fn datagram(self) -> *mut DatagramKey {
        // SAFETY: as for `ip`.
        unsafe { &raw mut (*self.0).datagram }
    }

    /// Facts about it.
    #[inline(always)]
    pub(crate) fn recorded(self) -> *mut Datagram {
        // SAFETY: as for `ip`.
        unsafe { &raw mut (*self.0).recorded }
    }

    /// The key of the flow that a reply belongs to.
    #[inline(always)]
    pub(crate) fn flow(self) -> *mut FlowKey {
        // SAFETY: as for `ip`.
        unsafe { &raw mut (*self.0).flow }
    }

    /// The socket to look for.
    #[inline(always)]
    pub(crate) fn socket(self) -> *mut SocketTuple {
        // SAFETY: as for `ip`.
        unsafe { &raw mut (*self.0).socket }
    }
}

/// A part to read.
#[inline(always)]
pub(crate) fn read<T>(part: *mut T) -> &'static T {
    // SAFETY: `part` is one of [`ScratchRef`]: this CPU's own, and written before. No program of
    // ours interrupts another one, since all run with soft interrupts off, and no part is written
    // while another reference to it exists.
    unsafe { &*part }
}

/// A part to write. It is plain data, of which nothing is to be dropped.
#[inline(always)]
pub(crate) fn write<T>(part: *mut T, value: T) {
    // SAFETY: as for `read`.
    unsafe { part.write(value) };
}

/// A value of one part that is to be written into another. For memory that may overlap, the
/// compiler emits a call to `memmove`, which copies byte by byte. A volatile read avoids that.
#[inline(always)]
pub(crate) fn copied<T: Copy>(value: &T) -> T {
    // SAFETY: a reference.
    unsafe { ptr::read_volatile(value) }
}
