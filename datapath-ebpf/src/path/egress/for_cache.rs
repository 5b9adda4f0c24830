//! Queries of the flow cache before it makes the entry of a pod's packet: the policy for the
//! packet, and its translated flow.

use datapath_common::abi::PodTuple;
use datapath_common::masquerade::{PolicyOutcome, rule};
use datapath_common::outcome::DropReason;

use super::{Origin, exit, goes_up, leave_by};
use crate::nat::{self, Mapping};
use crate::packet::Packet;
use crate::scratch::{EgressContext, ScratchRef, Sender, Version};

/// The policy for the flow of a packet.
pub(crate) enum EgressPolicy {
    /// It is not translated.
    Exempt,
    /// It is translated, if it is a new one; it is this sender's.
    Flow(Sender),
}

/// The policy for a packet, if that alone decides; all else is for [`super::leave`].
#[inline(always)]
pub(crate) fn ask(mut leaving: EgressContext) -> Option<EgressPolicy> {
    match rule(&leaving.input) {
        PolicyOutcome::Drop(_) => None,
        PolicyOutcome::Untranslated(_) => (!nat::may_be_exempt()).then_some(EgressPolicy::Exempt),
        PolicyOutcome::Translated(exit) => {
            leave_by(&mut leaving, exit);
            Some(EgressPolicy::Flow(leaving.sender))
        }
    }
}

/// A pod's flow, and the packet that it is looked for with.
#[derive(Clone, Copy)]
pub(crate) struct SentFlow {
    pub(crate) version: Version,
    pub(crate) sender: Sender,
    pub(crate) tuple: PodTuple,
    /// Flags of the packet's TCP header, else 0.
    pub(crate) tcp_flags: u8,
}

/// The translated flow of a packet without a flow mark that can open one: an existing flow, or a
/// new one at the ENI of the policy. None for a packet that takes the host's stack.
#[inline(always)]
pub(crate) fn flow(
    packet: &Packet,
    scratch: ScratchRef,
    sent: SentFlow,
) -> Result<Option<Mapping>, DropReason> {
    let SentFlow {
        version,
        sender,
        tuple,
        tcp_flags,
    } = sent;
    nat::ask(scratch, tuple, sender, tcp_flags);
    let mapping = match nat::known() {
        Some(mapping) => mapping,
        None => open(packet, scratch, version, sender.policy)?,
    };
    Ok((!goes_up(mapping, Origin::Pod)).then_some(mapping))
}

/// Opens the requested flow at the ENI of the policy.
#[inline(always)]
pub(super) fn open(
    packet: &Packet,
    scratch: ScratchRef,
    version: Version,
    policy: u8,
) -> Result<Mapping, DropReason> {
    let (_, snat) = exit(version, policy)?;
    nat::open(scratch, packet, snat)
}
