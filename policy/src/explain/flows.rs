//! Look-up of the flow of a packet, in the same places as the programs.

use anyhow::Result;
use api::ids::EniNumber;
use datapath_common::abi::{Flow, FlowKey, PodTuple, TransportAddr};
use datapath_common::headers::protocol;
use flows::NoteKind;
use ipam::Family;

use super::Live;

/// The sender of a packet, and the ENIs by which its flow may leave.
#[derive(Clone, Copy)]
pub(super) struct Sender {
    /// The pod's identity. The next pod with the address has another one, and does not inherit this
    /// pod's flows.
    pub(super) endpoint: u32,
    /// The one that policy gives to a new flow.
    pub(super) policy: u8,
    /// The one that owns the source address.
    pub(super) owner: u8,
}

/// A translated flow as seen from the outside.
#[derive(Clone, Copy)]
pub(super) struct Mapping {
    /// The ENI by which it leaves.
    pub(super) eni: u8,
    /// Its port.
    pub(super) port: u16,
    /// True if its packets take the host's stack.
    pub(super) takes_stack: bool,
}

/// The ENI by which a flow came in that takes the host's stack.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum IngressEni {
    /// By this ENI, whose mark its answers get.
    Eni(EniNumber),
    /// By a device that is no ENI: its answers get no mark.
    Elsewhere,
}

/// The key of a tuple's flow with this ENI and port on the outside.
pub(super) fn key(tuple: &PodTuple, eni: u8, port: u16) -> FlowKey {
    FlowKey::new(
        eni,
        tuple.protocol,
        TransportAddr::new(tuple.remote, tuple.remote_port),
        port.to_be(),
    )
}

impl Live<'_> {
    /// The port that the flow of a pod's tuple gets if it is free.
    pub(super) fn candidate(&self, tuple: &PodTuple) -> u16 {
        let ports = self.settings.ports.current();
        let is_kept = tuple.protocol == protocol::SCTP;
        ports.candidate(tuple.pod, u16::from_be(tuple.pod_port), is_kept)
    }

    /// The translated flow of a packet.
    pub(super) fn known(&self, tuple: &PodTuple, sender: Sender) -> Result<Option<Mapping>> {
        let candidate = self.candidate(tuple);
        if let Some(found) = self.at(tuple, sender, (sender.policy, candidate))? {
            return Ok(Some(found));
        }
        let family = Family::of(tuple.pod.into());
        if let Some(moved) = self.tables.moved_to(family, tuple)?
            && let Some(found) = self.at(tuple, sender, (moved.eni, u16::from_be(moved.port)))?
        {
            return Ok(Some(found));
        }
        let other = if sender.policy == sender.owner {
            EniNumber::PRIMARY.0
        } else {
            sender.owner
        };
        if !self.lookups.elsewhere || other == sender.policy {
            return Ok(None);
        }
        self.at(tuple, sender, (other, candidate))
    }

    /// The flow at a place, if it is the sender's.
    fn at(
        &self,
        tuple: &PodTuple,
        sender: Sender,
        (eni, port): (u8, u16),
    ) -> Result<Option<Mapping>> {
        let (family, key) = (Family::of(tuple.pod.into()), key(tuple, eni, port));
        let is_own = |flow: &Flow| {
            let is_alive = flow.dead == 0 && flow.is_of(&key);
            let has_inside = flow.pod == tuple.pod && flow.pod_port == tuple.pod_port;
            is_alive && has_inside && flow.endpoint == sender.endpoint
        };
        let found = self.tables.flow(family, &key)?.filter(is_own);
        Ok(found.map(|flow| Mapping {
            eni,
            port,
            takes_stack: flow.stack != 0,
        }))
    }

    /// The ENI by which a flow of an endpoint came in that takes the host's stack.
    pub(super) fn stack_note(&self, tuple: &PodTuple, endpoint: u32) -> Result<Option<IngressEni>> {
        let note = self.tables.note(NoteKind::Stack, tuple)?;
        let note = note.filter(|note| note.dead == 0 && note.endpoint == endpoint);
        Ok(note.map(|note| {
            let mark = note.mark();
            mark.map_or(IngressEni::Elsewhere, |eni| IngressEni::Eni(EniNumber(eni)))
        }))
    }

    /// True if a flow of an endpoint was opened from the outside.
    pub(super) fn is_inbound(&self, tuple: &PodTuple, endpoint: u32) -> Result<bool> {
        let note = self.tables.note(NoteKind::Inbound, tuple)?;
        Ok(note.is_some_and(|note| note.dead == 0 && note.endpoint == endpoint))
    }
}
