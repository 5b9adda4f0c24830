//! Which packets are translated, said anew: the programs' own decision is what is tested.

use std::net::IpAddr;

use datapath_common::outcome::DropReason;

use super::transport::Part;
use super::world::{Metadata, World};

/// What policy says of a source and a destination.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Policy {
    /// The source stays.
    Keep,
    /// New flows get the address of this ENI.
    Translate(u8),
    /// Packets are dropped.
    Block,
}

/// The number of the primary ENI.
pub const PRIMARY: u8 = 0;

/// What policy says of packets between a pod and something outside of this node.
#[must_use]
pub fn policy(world: &World, pod: IpAddr, remote: IpAddr) -> Policy {
    let classes = world.classes(remote);
    if classes.metadata {
        return match world.settings.metadata {
            Metadata::Primary => Policy::Translate(PRIMARY),
            Metadata::Own => Policy::Keep,
            Metadata::Block => Policy::Block,
        };
    }
    let Some(entry) = world.pod(pod) else {
        return Policy::Keep;
    };
    if classes.exempt || entry.skips_masquerade || !world.settings.masquerades(pod) {
        return Policy::Keep;
    }
    Policy::Translate(
        world
            .enis
            .get(&entry.eni)
            .map_or(entry.eni, |eni| eni.of(pod).external),
    )
}

/// Whether pods' flows to a remote are translated, unless their pool is not.
#[must_use]
pub fn is_translated(world: &World, remote: IpAddr) -> bool {
    let classes = world.classes(remote);
    if classes.metadata {
        return world.settings.metadata == Metadata::Primary;
    }
    !classes.exempt && world.settings.masquerades(remote)
}

/// What becomes of a packet whose flow nobody knows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Unknown {
    /// Out by the owner, untranslated.
    Keep,
    /// The same, as an answer to the outside; `true`: to be remembered.
    Inbound(bool),
    /// It opens a flow by this ENI.
    Open(u8),
    /// It is dropped.
    Drop(DropReason),
}

/// What becomes of a packet whose flow nobody knows; `part` is what it is to a flow, `None` for a
/// protocol without ports.
#[must_use]
pub fn unknown(policy: Policy, part: Option<Part>) -> Unknown {
    match (policy, part) {
        (Policy::Keep, _) => Unknown::Keep,
        (Policy::Block, _) => Unknown::Drop(DropReason::MetadataBlocked),
        (Policy::Translate(_), None) => Unknown::Drop(DropReason::NoPorts),
        (Policy::Translate(eni), Some(Part::Opens)) => Unknown::Open(eni),
        (Policy::Translate(_), Some(Part::Accepts)) => Unknown::Inbound(true),
        (Policy::Translate(_), Some(Part::Refuses)) => Unknown::Inbound(false),
        (Policy::Translate(_), Some(Part::Belongs)) => Unknown::Drop(DropReason::NoFlow),
    }
}
