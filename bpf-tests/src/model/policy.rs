//! Which packets are translated, said anew: the programs' own decision is what is tested.

use std::net::IpAddr;

use datapath_common::outcome::DropReason;

use super::transport::Part;
use super::world::{Metadata, Pool, World};

/// The policy for a source and a destination.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Policy {
    /// The source stays.
    Keep,
    /// New flows get the address of this ENI.
    Translate(u8),
    /// The same, and nothing leaves otherwise.
    TranslateAll(u8),
    /// Packets to the metadata service are dropped.
    Block,
    /// Packets are dropped for want of an address to translate to.
    Hide,
}

/// The number of the primary ENI.
pub const PRIMARY: u8 = 0;

/// What policy says of packets between a pod and something outside of this node.
#[must_use]
pub fn policy(world: &World, pod: IpAddr, remote: IpAddr) -> Policy {
    let classes = world.classes(remote);
    let entry = world.pod(pod);
    let is_hidden = entry.is_some_and(|entry| entry.pool == Pool::Hidden);
    if classes.metadata {
        return match world.settings.metadata {
            Metadata::Block => Policy::Block,
            Metadata::Own if !is_hidden => Policy::Keep,
            Metadata::Own | Metadata::Primary | Metadata::Stack => translate(PRIMARY, is_hidden),
        };
    }
    let Some(entry) = entry else {
        return Policy::Keep;
    };
    let is_on = world.settings.masquerades(pod);
    if is_hidden && !is_on {
        return Policy::Hide;
    }
    if !is_hidden && (classes.exempt || entry.pool == Pool::Skips || !is_on) {
        return Policy::Keep;
    }
    let exit = world.enis.get(&entry.eni);
    let exit = exit.map_or(entry.eni, |eni| eni.of(pod).external);
    translate(exit, is_hidden)
}

fn translate(eni: u8, is_hidden: bool) -> Policy {
    if is_hidden {
        Policy::TranslateAll(eni)
    } else {
        Policy::Translate(eni)
    }
}

/// True if pods' flows to a remote are translated, unless their pool is not.
#[must_use]
pub fn is_translated(world: &World, remote: IpAddr) -> bool {
    let classes = world.classes(remote);
    if classes.metadata {
        return matches!(world.settings.metadata, Metadata::Primary | Metadata::Stack);
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
        (Policy::Hide, _) => Unknown::Drop(DropReason::NoTranslationAddress),
        (Policy::Translate(_) | Policy::TranslateAll(_), None) => {
            Unknown::Drop(DropReason::NoPorts)
        }
        (Policy::Translate(eni) | Policy::TranslateAll(eni), Some(Part::Opens)) => {
            Unknown::Open(eni)
        }
        (Policy::Translate(_), Some(Part::Accepts)) => Unknown::Inbound(true),
        (Policy::Translate(_), Some(Part::Refuses)) => Unknown::Inbound(false),
        (Policy::Translate(_), Some(Part::Belongs)) | (Policy::TranslateAll(_), Some(_)) => {
            Unknown::Drop(DropReason::NoFlow)
        }
    }
}
