//! The decision to translate a packet, written independently of the programs, whose decision is
//! under test.

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
    /// New flows get the address of this ENI, and no packet leaves untranslated.
    TranslateAll(u8),
    /// Packets to the metadata service are dropped.
    Block,
    /// Packets are dropped because there is no address to translate to.
    Hide,
}

impl Policy {
    /// The reason for which every packet is dropped, if there is one.
    #[must_use]
    pub fn refusal(self) -> Option<DropReason> {
        match self {
            Self::Block => Some(DropReason::MetadataBlocked),
            Self::Hide => Some(DropReason::NoTranslationAddress),
            Self::Keep | Self::Translate(_) | Self::TranslateAll(_) => None,
        }
    }
}

/// The number of the primary ENI.
pub const PRIMARY: u8 = 0;

/// Policy for packets between a pod and a remote outside of this node.
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

/// Action for a packet of an unknown flow.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Unknown {
    /// Send it by the owner ENI, untranslated.
    Keep,
    /// Send it by the owner ENI, untranslated, as an answer to the outside; `true`: store the flow.
    Inbound(bool),
    /// Open a flow by this ENI.
    Open(u8),
    /// Drop it.
    Drop(DropReason),
}

/// Action for a packet of an unknown flow; `part` is its part in a flow, `None` for a protocol
/// without ports.
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
