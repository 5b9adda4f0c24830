//! Facts about a pod's packet that leaves the node.

use datapath_common::abi::{AddressEntry, DestinationClass, EniEntry};
use datapath_common::fault::Fault;
use datapath_common::masquerade::{Exit, KnownFlow, Opening, PoolPolicy, Question};
use datapath_common::outcome::DropReason;

use crate::family::Version;
use crate::fault;
use crate::nat::{PRIMARY, Sender};
use crate::settings;
use crate::work::{self, work};

/// A pod's packet that leaves the node.
#[derive(Clone, Copy)]
pub(crate) struct Leaving {
    pub(super) sender: Sender,
    pub(super) question: Question,
    /// True if its flow may be a translated one, or one from the outside, whatever policy says of
    /// new ones.
    pub(super) may_be_translated: bool,
}

/// Writes the facts that [`super::leave`] needs about a pod's packet that leaves the node.
#[inline(always)]
pub(crate) fn prepare(
    version: Version,
    source: &AddressEntry,
    owner: &EniEntry,
    class: DestinationClass,
) -> Result<(), DropReason> {
    let leaving = leaving(version, source, owner, class);
    work::write(work()?.leaving(), leaving);
    Ok(())
}

/// Facts about a pod's packet that leaves the node.
#[inline(always)]
pub(crate) fn leaving(
    version: Version,
    source: &AddressEntry,
    owner: &EniEntry,
    class: DestinationClass,
) -> Leaving {
    Leaving {
        sender: Sender {
            endpoint: source.identity(),
            policy: if fault::has(Fault::OwnerExit) {
                source.eni()
            } else {
                version.addresses(owner).external
            },
            owner: source.eni(),
        },
        question: Question {
            flow: KnownFlow::None,
            destination: if fault::has(Fault::ExemptionIgnored) {
                DestinationClass::NONE
            } else {
                class
            },
            pool: if fault::has(Fault::SkipIgnored) {
                PoolPolicy::Masquerade
            } else {
                source.pool()
            },
            is_on: version.is_masqueraded(),
            metadata: settings::metadata_policy(),
            opening: Opening::Portless,
        },
        may_be_translated: true,
    }
}

/// Sets the ENI by which policy sends a new flow.
#[inline(always)]
pub(super) fn leave_by(leaving: &mut Leaving, exit: Exit) {
    match exit {
        Exit::Primary if !fault::has(Fault::MetadataExit) => leaving.sender.policy = PRIMARY,
        Exit::Primary | Exit::External => {}
    }
}
