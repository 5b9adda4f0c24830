//! Idle flows that user space passes to the reaper program as packet data.
//!
//! The data is a [`ReapHeader`], then items of one kind. Under a flow's lock the reaper checks
//! again whether it has been idle since, and only then removes it. If user space checked and
//! deleted by itself, it would delete flows that a packet has refreshed in between. The program
//! returns the number of removed flows.

use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

use super::{FlowKey, PodTuple};

/// Most items of one request: packet data of a test run must fit a page with its headroom
/// (`bpf_test_init` in `net/bpf/test_run.c`).
pub const REAP_BATCH: usize = 64;

/// Type of the items.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum ReapKind {
    /// [`ReapFlow`].
    Flows = 0,
    /// [`ReapNote`] of `INBOUND`.
    Inbound = 1,
    /// [`ReapNote`] of `STACK`.
    Stack = 2,
}

/// Head of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct ReapHeader {
    /// Stands for two MACs.
    padding: [u8; 12],
    /// IEEE 802 local experimental ether type 1, so that the kernel takes it for no IP packet.
    ether_type: [u8; 2],
    /// A [`ReapKind`].
    pub kind: u8,
    /// Items that follow.
    pub count: u8,
}

impl ReapHeader {
    /// A head.
    #[must_use]
    pub const fn new(kind: ReapKind, count: u8) -> Self {
        Self {
            padding: [0; 12],
            ether_type: [0x88, 0xb5],
            kind: kind as u8,
            count,
        }
    }
}

/// A translated flow to remove.
#[derive(Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct ReapFlow {
    /// Which.
    pub key: FlowKey,
    /// When its last packet passed as user space saw it, in jiffies: a flow that has moved on since
    /// stays. [`Self::ALWAYS`] removes it in any case.
    pub last_seen: u64,
}

impl ReapFlow {
    /// Instead of a time: remove it in any case.
    pub const ALWAYS: u64 = u64::MAX;
}

/// A note to remove.
#[derive(Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct ReapNote {
    /// Which.
    pub key: PodTuple,
    /// As for [`ReapFlow`].
    pub last_seen: u64,
}

const _: () = assert!(size_of::<ReapHeader>() == 16);
const _: () = assert!(size_of::<ReapHeader>() + REAP_BATCH * size_of::<ReapNote>() < 3200);
