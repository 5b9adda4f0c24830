//! Facts about a pod's packet that leaves the node.

use datapath_common::abi::{AddressEntry, DestinationClass, EniEntry};
use datapath_common::masquerade::{Exit, FlowRole, KnownFlow, PolicyInput};
use datapath_common::outcome::DropReason;

use crate::base::{PRIMARY_ENI, settings};
use crate::scratch::{self, EgressContext, Sender, Version, scratch};

/// Writes the facts that [`super::leave`] needs about a pod's packet that leaves the node.
#[inline(always)]
pub(crate) fn prepare(
    version: Version,
    source: &AddressEntry,
    owner: &EniEntry,
    class: DestinationClass,
) -> Result<(), DropReason> {
    let leaving = leaving(version, source, owner, class);
    scratch::write(scratch()?.leaving(), leaving);
    Ok(())
}

/// Facts about a pod's packet that leaves the node.
#[inline(always)]
pub(crate) fn leaving(
    version: Version,
    source: &AddressEntry,
    owner: &EniEntry,
    class: DestinationClass,
) -> EgressContext {
    EgressContext {
        sender: Sender {
            endpoint: source.identity(),
            policy: version.addresses(owner).external,
            owner: source.eni(),
        },
        input: PolicyInput {
            flow: KnownFlow::None,
            destination: class,
            pool: source.pool(),
            is_on: version.is_masqueraded(),
            metadata: settings::metadata_policy(),
            role: FlowRole::Portless,
        },
        may_be_translated: true,
    }
}

/// Sets the ENI by which policy sends a new flow.
#[inline(always)]
pub(super) fn leave_by(leaving: &mut EgressContext, exit: Exit) {
    if matches!(exit, Exit::Primary) {
        leaving.sender.policy = PRIMARY_ENI;
    }
}
