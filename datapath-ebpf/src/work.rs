//! Scratch space of a program, in a map on each CPU.
//!
//! The steps that are long or that few packets need are global functions. The verifier checks such
//! a function once, whatever its callers pass. It follows any other function once for each call. A
//! global function takes the context and numbers only (Linux 5.10), so all other values are stored
//! here. The stack has no room for them either: its 512 bytes are for all functions of a call chain
//! together.

use core::hint;
use core::ptr;

use aya_ebpf::btf_maps::PerCpuArray;
use aya_ebpf::macros::btf_map;
use datapath_common::abi::{Addr, Datagram, DatagramKey, FlowKey};
use datapath_common::outcome::{DropReason, Outcome, Verdict};

use crate::cache::{Pending, Target};
use crate::egress::Leaving;
use crate::family::{Ip, Side};
use crate::icmp_error::Inner;
use crate::nat::Request;
use crate::nat::host_socket::SocketTuple;
use crate::transport::Ports;
use crate::verdict::Code;

/// Scratch space of a program. Every part is written before it is read.
pub(crate) struct Work {
    /// The packet's IP header.
    pub(crate) ip: Ip,
    /// The packet's ports.
    pub(crate) ports: Ports,
    /// The packet that an ICMP error quotes.
    pub(crate) inner: Inner,
    /// The change to write into the packet.
    pub(crate) edit: Edit,
    /// The flow to find or to open.
    pub(crate) request: Request,
    /// The packet that leaves the node.
    pub(crate) leaving: Leaving,
    /// The packet, if its outcome may be kept.
    pub(crate) pending: Pending,
    /// Where it was redirected to.
    pub(crate) target: Target,
    /// The datagram that a piece is of.
    pub(crate) datagram: DatagramKey,
    /// Facts about it.
    pub(crate) told: Datagram,
    /// The key of the flow that a reply belongs to.
    pub(crate) flow: FlowKey,
    /// The socket to look for.
    pub(crate) socket: SocketTuple,
    /// See [`Parts::forgotten`].
    number: u32,
}

/// An address and a port to write.
pub(crate) struct Edit {
    pub(crate) side: Side,
    pub(crate) to: Addr,
    pub(crate) to_port: u16,
    /// For an ICMP error: the side of the error itself that gets the address as well.
    pub(crate) outer: Option<Side>,
}

#[btf_map]
static WORK: PerCpuArray<Work, 1> = PerCpuArray::new();

/// This CPU's work. It hands out its parts one by one: references to different ones never overlap.
#[derive(Clone, Copy)]
pub(crate) struct Parts(*mut Work);

/// This CPU's work.
#[inline(always)]
pub(crate) fn work() -> Result<Parts, DropReason> {
    let slot = WORK.get_ptr_mut(0).ok_or(DropReason::HelperFailed)?;
    // The compiler would keep on the stack what it has written there.
    Ok(Parts(hint::black_box(slot)))
}

impl Parts {
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
    pub(crate) fn request(self) -> *mut Request {
        // SAFETY: as for `ip`.
        unsafe { &raw mut (*self.0).request }
    }

    /// The packet that leaves the node.
    #[inline(always)]
    pub(crate) fn leaving(self) -> *mut Leaving {
        // SAFETY: as for `ip`.
        unsafe { &raw mut (*self.0).leaving }
    }

    /// The packet, if its outcome may be kept.
    #[inline(always)]
    pub(crate) fn pending(self) -> *mut Pending {
        // SAFETY: as for `ip`.
        unsafe { &raw mut (*self.0).pending }
    }

    /// Where it was redirected to.
    #[inline(always)]
    pub(crate) fn target(self) -> *mut Target {
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
    pub(crate) fn told(self) -> *mut Datagram {
        // SAFETY: as for `ip`.
        unsafe { &raw mut (*self.0).told }
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
    // SAFETY: `part` is one of [`Parts`]: this CPU's own, and written before. No program of ours
    // interrupts another one, since all run with soft interrupts off, and no part is written while
    // another reference to it exists.
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

/// Return value of a global function that acts or fails: 0, or the number of a drop reason.
#[inline(always)]
pub(crate) fn to_number(result: Result<(), DropReason>) -> u32 {
    match result {
        Ok(()) => 0,
        Err(reason) => reason as u32,
    }
}

/// Result that the return value of such a function stands for. All reasons that these functions
/// give are listed here.
#[inline(always)]
pub(crate) fn from_number(number: u32) -> Result<(), DropReason> {
    match number {
        0 => Ok(()),
        number => Err(reason(number)),
    }
}

/// The reason with a number that a global function gave.
#[inline(always)]
pub(crate) fn reason(number: u32) -> DropReason {
    const NO_PORT: u32 = DropReason::NoPort as u32;
    const FLOWS_FULL: u32 = DropReason::FlowsFull as u32;
    const QUOTA_EXCEEDED: u32 = DropReason::QuotaExceeded as u32;
    const INBOUND_FULL: u32 = DropReason::InboundFull as u32;
    const INBOUND_QUOTA: u32 = DropReason::InboundQuotaExceeded as u32;
    const STACK_FULL: u32 = DropReason::StackFull as u32;
    const SCTP_PORT_TAKEN: u32 = DropReason::SctpPortTaken as u32;
    const TRUNCATED: u32 = DropReason::Truncated as u32;
    const NO_FLOW: u32 = DropReason::NoFlow as u32;
    const MALFORMED_HEADER: u32 = DropReason::MalformedHeader as u32;
    match number {
        NO_PORT => DropReason::NoPort,
        FLOWS_FULL => DropReason::FlowsFull,
        QUOTA_EXCEEDED => DropReason::QuotaExceeded,
        INBOUND_FULL => DropReason::InboundFull,
        INBOUND_QUOTA => DropReason::InboundQuotaExceeded,
        STACK_FULL => DropReason::StackFull,
        NO_FLOW => DropReason::NoFlow,
        SCTP_PORT_TAKEN => DropReason::SctpPortTaken,
        TRUNCATED => DropReason::Truncated,
        MALFORMED_HEADER => DropReason::MalformedHeader,
        _ => DropReason::HelperFailed,
    }
}

/// Next step of a program for a packet.
#[derive(Clone, Copy)]
pub(crate) enum Step {
    /// Nothing more.
    Done(Verdict),
    /// Send it out of the node, for a pod.
    Leave,
    /// Let it go on, as the host's.
    Host,
    /// Translate it back, if it answers a translated flow of the ENI with this number.
    Answer(u8),
}

impl Step {
    /// Return value of a global function for [`Self::Leave`]; it is no outcome's number.
    pub(crate) const LEAVE: u32 = Outcome::SLOTS;
    /// Return value of a global function for [`Self::Host`].
    pub(crate) const HOST: u32 = Outcome::SLOTS + 1;
    /// Return value of a global function for [`Self::Answer`], without the number of the ENI.
    const ANSWER: u32 = 0x100;

    /// Return value of a global function that takes the first steps.
    #[inline(always)]
    pub(crate) fn to_number(result: Result<Self, DropReason>) -> u32 {
        match result {
            Ok(Self::Done(verdict)) => Code::from(verdict).to_register(),
            Ok(Self::Leave) => Self::LEAVE,
            Ok(Self::Host) => Self::HOST,
            Ok(Self::Answer(eni)) => Self::ANSWER | u32::from(eni),
            Err(reason) => Code::from(reason).to_register(),
        }
    }

    /// The ENI of a [`Self::Answer`].
    #[inline(always)]
    pub(crate) fn answered_eni(number: u32) -> Option<u8> {
        (number & Self::ANSWER != 0).then_some(number.to_le_bytes()[0])
    }
}
