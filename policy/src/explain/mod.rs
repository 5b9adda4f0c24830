//! The fate of a pod's packet by the live maps: the programs' own order of decisions, in words.

mod answer;
mod flows;
mod leaving;
mod room;

use std::collections::BTreeMap;
use std::net::IpAddr;

use ::flows::{CompatLookups, Tables};
use anyhow::Result;
use api::ids::EniNumber;
use api::types::Explanation;
use api::types::Verdict;
use api::{Protocol, Tuple};
use datapath_common::abi::{
    Addr, AddressEntry, DestinationClass, EniEntry, PodTuple, TransportAddr,
};
use datapath_common::masquerade::MetadataPolicy;
use datapath_common::outcome::DropReason;
use ipam::Family;
use ipnet::IpNet;

pub use self::answer::unknown_source;
use self::answer::{Trace, through_stack};
use self::flows::IngressEni;
use self::leaving::{Leaving, Origin};
use crate::longest;
use loader::bpf::{DatapathMode, DatapathSettings};
use loader::intent::masquerade::class_names;
use loader::kernel::{MapEntry, MapKey};

/// The live maps, and what the programs go by.
#[derive(Clone, Copy)]
pub struct Live<'a> {
    /// The entries of the maps.
    pub entries: &'a BTreeMap<MapKey, MapEntry>,
    /// The settings that the programs were loaded with.
    pub settings: &'a DatapathSettings,
    /// Cases in which the programs look up flows of another policy.
    pub lookups: CompatLookups,
    /// The maps of flows.
    pub tables: &'a dyn Tables,
}

/// A packet to explain: the first of a flow, where there is none yet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Packet {
    /// Its source.
    pub source: IpAddr,
    /// Its destination.
    pub destination: IpAddr,
    /// The IANA number of its protocol.
    pub protocol: u8,
    /// True if its protocol has ports, or ids in their place.
    pub has_ports: bool,
    /// Source and destination port, if both are given.
    pub ports: Option<(u16, u16)>,
}

impl From<&Tuple> for Packet {
    fn from(tuple: &Tuple) -> Self {
        Self {
            source: tuple.source.address,
            destination: tuple.destination.address,
            protocol: tuple.number(),
            has_ports: !matches!(tuple.protocol, Protocol::Other(_)),
            ports: tuple.ports(),
        }
    }
}

impl Packet {
    /// The flow as the pod sees it, if its ports are given.
    fn tuple(&self) -> Option<PodTuple> {
        let (source, destination) = self.ports.filter(|_| self.has_ports)?;
        Some(PodTuple::new(
            self.protocol,
            TransportAddr::new(self.source.into(), source.to_be()),
            TransportAddr::new(self.destination.into(), destination.to_be()),
        ))
    }
}

impl Live<'_> {
    fn address(&self, address: IpAddr) -> Option<&AddressEntry> {
        match self.entries.get(&MapKey::Address(address)) {
            Some(MapEntry::Address(_, entry)) => Some(entry),
            _ => None,
        }
    }

    fn eni(&self, number: u8) -> Option<&EniEntry> {
        match self.entries.get(&MapKey::Eni(EniNumber(number))) {
            Some(MapEntry::Eni(_, entry)) if entry.ifindex() != 0 => Some(entry),
            _ => None,
        }
    }

    /// The longest prefix of a destination and its classes.
    fn destination(&self, address: IpAddr) -> Option<(IpNet, DestinationClass)> {
        longest(address, |net| {
            match self.entries.get(&MapKey::Destination(net)) {
                Some(MapEntry::Destination(_, class)) => Some(*class),
                _ => None,
            }
        })
    }

    /// True if flows that the host's stack carries are noted.
    fn notes_stack(&self) -> bool {
        self.settings.path == DatapathMode::ServiceNat
    }

    /// The fate of a packet; `None` when its source is no pod's.
    ///
    /// # Errors
    /// When the kernel refuses to read a map.
    pub fn explain(&self, packet: &Packet) -> Result<Option<Explanation>> {
        let Some(pod) = self.address(packet.source).filter(|e| e.is_endpoint()) else {
            return Ok(None);
        };
        let mut trace = Trace::default();
        trace.step("source", format!("a pod's, owned by ENI {}", pod.eni()));
        if let Some(end) = self.on_this_node(packet, pod, &mut trace)? {
            return Ok(Some(end));
        }
        let Some(owner) = self.eni(pod.eni()) else {
            return Ok(Some(trace.without_eni("owner ENI", pod.eni())));
        };
        trace.step("owner ENI", "ready".to_owned());
        let leaving = Leaving {
            packet,
            pod,
            owner,
            class: self
                .destination(packet.destination)
                .map_or(DestinationClass::NONE, |(_, class)| class),
        };
        let detour = self.detour(&[pod]);
        let Some(why) = detour.or_else(|| self.metadata_detour(leaving.class)) else {
            return self.leave(&leaving, Origin::Pod, trace).map(Some);
        };
        trace.detour(why);
        let onward = self.leave(&leaving, Origin::Stack, trace)?;
        Ok(Some(through_stack(onward)))
    }

    /// Why packets between these go through the host's stack, if they do.
    fn detour(&self, pods: &[&AddressEntry]) -> Option<&'static str> {
        if self.settings.path == DatapathMode::Stack {
            Some("datapath.path is stack")
        } else if pods.iter().any(|pod| pod.is_via_stack()) {
            Some(
                "a qdisc or a program on the pod's device would miss packets that bypass the stack",
            )
        } else {
            None
        }
    }

    /// Why packets to a destination go through the host's stack, if it is the metadata service.
    fn metadata_detour(&self, class: DestinationClass) -> Option<&'static str> {
        let goes_up = self.settings.metadata == MetadataPolicy::Stack
            && class.contains(DestinationClass::METADATA);
        goes_up.then_some("masquerade.metadata is stack: the rules of the host decide")
    }

    /// The fate of a packet that ends on this node, whatever the policy.
    fn on_this_node(
        &self,
        packet: &Packet,
        pod: &AddressEntry,
        trace: &mut Trace,
    ) -> Result<Option<Explanation>> {
        let (destination, question) = (packet.destination, "destination's address");
        let address = Addr::from(destination);
        if Family::of(destination) == Family::V6 && address.is_v4() {
            trace.step(question, "an IPv4 address in the form of IPv6".to_owned());
            return Ok(Some(trace.drop(DropReason::MalformedHeader)));
        }
        let up =
            |trace: &mut Trace, answer| Some(trace.end(question, answer, Verdict::Stack, "stack"));
        if address.is_multicast_or_broadcast() {
            return Ok(up(trace, "multicast or broadcast"));
        }
        if address.is_v6_link_local() {
            return Ok(up(trace, "link-local"));
        }
        if let Some(entry) = self.address(destination) {
            let whose = if entry.is_endpoint() {
                "a pod of this node"
            } else {
                "the host's"
            };
            trace.step(question, whose.to_owned());
            return self.within(packet, (pod, entry), trace).map(Some);
        }
        trace.step(question, "none of this node".to_owned());
        let question = "destination's prefix";
        let Some((net, class)) = self.destination(destination) else {
            trace.step(question, "none that is known".to_owned());
            return Ok(None);
        };
        let found = format!("{net} ({})", class_names(class).join(", "));
        if class.contains(DestinationClass::SERVICE) {
            return Ok(Some(trace.end(question, &found, Verdict::Stack, "stack")));
        }
        trace.step(question, found);
        if class.contains(DestinationClass::BLOCK) {
            return Ok(Some(trace.drop(DropReason::NoEndpoint)));
        }
        if !class.contains(DestinationClass::UNROUTABLE) {
            return Ok(None);
        }
        // An answer to what the host has sent from there takes the host's stack.
        let tuple = packet.tuple().filter(|_| self.notes_stack());
        let ingress = tuple.map(|tuple| self.stack_note(&tuple, pod.identity()));
        Ok(Some(match ingress.transpose()?.flatten() {
            Some(ingress) => trace.of_stack(ingress),
            None => trace.drop(DropReason::UnroutableDestination),
        }))
    }

    /// The fate of a packet to another pod, or to the host.
    fn within(
        &self,
        packet: &Packet,
        (pod, to): (&AddressEntry, &AddressEntry),
        trace: &mut Trace,
    ) -> Result<Explanation> {
        if let Some(ingress) = self.taken_up(packet, (pod, to))? {
            return Ok(trace.of_stack(ingress));
        }
        if !to.is_endpoint() {
            return Ok(trace.finish(Verdict::Stack, "host"));
        }
        let Some(why) = self.detour(&[pod, to]) else {
            return Ok(trace.finish(Verdict::Delivered, "local"));
        };
        trace.detour(why);
        Ok(through_stack(trace.finish(Verdict::Delivered, "local")))
    }

    /// The ENI by which the flow of a packet within the node came in that takes the host's stack.
    fn taken_up(
        &self,
        packet: &Packet,
        (pod, to): (&AddressEntry, &AddressEntry),
    ) -> Result<Option<IngressEni>> {
        let Some(tuple) = packet.tuple().filter(|_| self.notes_stack()) else {
            return Ok(None);
        };
        if let Some(ingress) = self.stack_note(&tuple, pod.identity())? {
            return Ok(Some(ingress));
        }
        if !to.is_endpoint() {
            return Ok(None);
        }
        // Its answers would find the note of the other flow on these ports.
        let turned = PodTuple::new(
            tuple.protocol,
            TransportAddr::new(tuple.remote, tuple.remote_port),
            TransportAddr::new(tuple.pod, tuple.pod_port),
        );
        let noted = self.stack_note(&turned, to.identity())?;
        Ok(noted.map(|_| IngressEni::Elsewhere))
    }
}

#[cfg(test)]
mod tests;
