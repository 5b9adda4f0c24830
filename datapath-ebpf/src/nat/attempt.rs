//! The flow that this CPU is opening.

use core::hint;

use datapath_common::abi::{Addr, Flow, FlowKey, HOST, PodTuple, PortBlockKey, TransportAddr};
use datapath_common::progress;

use crate::base::clock;
use crate::base::maps::ATTEMPT;
use crate::scratch::{PortClaim, Sender};

/// This CPU's. No other program comes in between: a CPU runs one at a time.
#[inline(always)]
pub(in crate::nat) fn attempt() -> Option<&'static mut PortClaim> {
    // The compiler has to read again the fields that a global function has written.
    let attempt = hint::black_box(ATTEMPT.get_ptr_mut(0)?);
    // SAFETY: a map's value of this CPU's own. Callers hold one of these references at a time.
    Some(unsafe { &mut *attempt })
}

/// The first packet of a flow, and the state of the port that it gets first.
#[derive(Clone, Copy)]
pub(in crate::nat) struct Opening {
    /// Flags of the packet's TCP header, else 0.
    pub(in crate::nat) tcp_flags: u8,
    /// True if no flow has the first candidate port, or if that is assumed.
    pub(in crate::nat) is_vacant: bool,
}

impl PortClaim {
    /// Prepares the attempt for a flow with this translation address.
    #[inline(always)]
    pub(in crate::nat) fn prepare(
        &mut self,
        tuple: &PodTuple,
        sender: Sender,
        snat: Addr,
        opening: Opening,
    ) {
        let Opening {
            tcp_flags,
            is_vacant,
        } = opening;
        let key = FlowKey::new(
            sender.policy,
            tuple.protocol,
            TransportAddr::new(tuple.remote, tuple.remote_port),
            0,
        );
        let now = clock::now();
        let flow = self.flow();
        *flow = Flow::new(
            &key,
            TransportAddr::new(tuple.pod, tuple.pod_port),
            sender.endpoint,
            now,
        );
        flow.progress_out = progress::of_packet(tuple.protocol, tcp_flags);
        self.key = key;
        self.snat = snat;
        self.tries = 0;
        self.pod_port = tuple.pod_port;
        self.is_host = sender.endpoint == HOST;
        self.is_vacant = is_vacant;
        self.has_no_room = false;
        self.in_reserve = false;
    }

    /// Identity of the endpoint that owns the flow.
    #[inline(always)]
    pub(in crate::nat) fn endpoint(&mut self) -> u32 {
        self.flow().endpoint
    }

    /// The flow.
    #[inline(always)]
    pub(in crate::nat) fn flow(&mut self) -> &mut Flow {
        const { assert!(size_of::<Flow>().is_multiple_of(8) && align_of::<Flow>() == 8) };
        // SAFETY: the words have the size and alignment of a flow, and any bytes are one.
        unsafe { &mut *(&raw mut self.flow).cast::<Flow>() }
    }

    /// True if the port is the one on the inside.
    #[inline(always)]
    pub(in crate::nat) fn has_own_port(&self) -> bool {
        self.key.port == self.pod_port
    }

    /// The key of a block of the destination.
    #[inline(always)]
    pub(in crate::nat) fn block_key(&self, number: u8) -> PortBlockKey {
        let key = &self.key;
        PortBlockKey::new(
            key.eni,
            key.protocol,
            TransportAddr::new(key.remote, key.remote_port),
            number,
        )
    }
}
