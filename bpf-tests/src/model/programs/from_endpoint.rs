//! Packets that a pod sends.

use std::net::{IpAddr, Ipv4Addr};

use datapath_common::outcome::{DropReason, Verdict};

use crate::model::egress::Origin;
use crate::model::parse::{ICMPV6, Ip};
use crate::model::stack::{Path, Sender};
use crate::model::wire::{byte, number16};
use crate::model::world::{Address, Metadata, Pod};
use crate::model::{Decided, Done, Passage, Way, is_group, is_link_local};

impl Passage<'_> {
    pub(in crate::model) fn pod_sends(&mut self) -> Decided {
        let Some(version) = self.version() else {
            return match number16(&self.frame, 12) {
                None => Err(DropReason::Truncated.into()),
                Some(0x0806) => self.pod_asks_by_arp(),
                Some(0x8100 | 0x88a8) => Err(DropReason::VlanTagged.into()),
                Some(_) => Err(DropReason::NotIp.into()),
            };
        };
        let ip = self.parse(version)?;
        let source = self
            .world
            .pod(ip.source)
            .filter(|pod| pod.ifindex == self.packet.ifindex);
        let Some(source) = source else {
            return self.without_own_source(&ip);
        };
        let owner = self.mark_of(source.eni);
        if is_group(ip.destination) {
            return Ok(self.hand_up(owner, Verdict::Multicast));
        }
        if is_link_local(ip.destination) {
            self.may_use_link_local(ip.destination, false)?;
            return Ok(self.hand_up(owner, Verdict::LinkLocal));
        }
        if let Some(destination) = self.world.addresses.get(&ip.destination).copied() {
            return self.within_node(&ip, &source, destination);
        }
        let classes = self.world.classes(ip.destination);
        if classes.service {
            return Ok(self.hand_up(owner, Verdict::Service));
        }
        if classes.block {
            return Err(DropReason::NoEndpoint.into());
        }
        if classes.unroutable {
            return self.unroutable(&ip, &source);
        }
        let is_metadata = classes.metadata && self.world.settings.metadata == Metadata::Stack;
        if self.takes_stack(&source) || is_metadata {
            self.eni(source.eni)?;
            return Ok(self.hand_up(owner, Verdict::Stack));
        }
        self.leave(&ip, &source, Origin::Pod)
    }

    /// A packet of a pod to the host or to a pod of this node.
    fn within_node(&mut self, ip: &Ip, source: &Pod, destination: Address) -> Decided {
        let owner = self.mark_of(source.eni);
        match self.path(ip, source, Sender::Pod) {
            Path::Direct => {}
            Path::Stack(eni) => {
                return Ok(self.hand_up(self.mark_in_stack(eni), Verdict::StackFlow));
            }
            Path::Reordered => return Ok(self.reorder(ip, owner)),
        }
        match destination {
            Address::Host { .. } => Ok(self.hand_up(owner, Verdict::Host)),
            Address::Pod(pod) if self.takes_stack(source) || self.takes_stack(&pod) => {
                Ok(self.hand_up(owner, Verdict::Stack))
            }
            Address::Pod(pod) => {
                if let Some(verdict) = self.exception(ip, pod.mtu)? {
                    let ours = owner | self.world.settings.marks.exception;
                    return Ok(self.hand_up(ours, verdict));
                }
                self.deliver(ip, &pod);
                Ok((Verdict::Local, Way::Redirect))
            }
        }
    }

    /// A packet to an address that no network routes.
    fn unroutable(&mut self, ip: &Ip, source: &Pod) -> Decided {
        match self.path(ip, source, Sender::Pod) {
            Path::Stack(eni) => {
                return Ok(self.hand_up(self.mark_in_stack(eni), Verdict::StackFlow));
            }
            Path::Reordered => self.tell_reordered(ip),
            Path::Direct => {}
        }
        Err(DropReason::UnroutableDestination.into())
    }

    /// An ARP packet must have the pod's own address as sender, or none.
    fn pod_asks_by_arp(&self) -> Decided {
        let sender: [u8; 4] = self
            .frame
            .get(28..32)
            .and_then(|bytes| bytes.try_into().ok())
            .ok_or(DropReason::Truncated)?;
        let sender = Ipv4Addr::from(sender);
        let is_own = |pod: Pod| pod.ifindex == self.packet.ifindex;
        if sender.is_unspecified() || self.world.pod(sender.into()).is_some_and(is_own) {
            Ok((Verdict::Arp, Way::Pass))
        } else {
            Err(DropReason::SpoofedSource.into())
        }
    }

    /// A device may send from and to four link-local addresses each.
    fn may_use_link_local(&mut self, address: IpAddr, is_source: bool) -> Result<(), DropReason> {
        let key = (self.packet.ifindex, is_source);
        let used = self.state.link_locals.entry(key).or_default();
        if !used.contains(&address) {
            used.push(address);
        }
        let is_counted = used.iter().take(4).any(|one| *one == address);
        is_counted.then_some(()).ok_or(DropReason::LinkLocalLimit)
    }

    /// Neighbour discovery and MLD come from `::` and link-local addresses.
    ///
    /// Between link-local addresses every packet passes.
    fn without_own_source(&mut self, ip: &Ip) -> Decided {
        let may = ip.version == 6 && (ip.source.is_unspecified() || is_link_local(ip.source));
        let is_discovery = || {
            let (mut next, mut at) = (byte(&self.frame, ip.start + 6)?, ip.start + 40);
            if next == 0 {
                next = byte(&self.frame, at)?;
                at += 8 + usize::from(byte(&self.frame, at + 1)?) * 8;
            }
            let kind = byte(&self.frame, at)?;
            (next == ICMPV6 && matches!(kind, 131..=133 | 135 | 136 | 143)).then_some(kind)
        };
        let kind = may.then(is_discovery).flatten();
        let is_on_link = is_link_local(ip.source) && is_link_local(ip.destination);
        let verdict = match kind {
            Some(133) => return Err(DropReason::RouterSolicitation.into()),
            Some(_) => Verdict::NeighbourDiscovery,
            None if is_on_link => Verdict::LinkLocal,
            None => return Err(DropReason::SpoofedSource.into()),
        };
        if is_link_local(ip.source) {
            self.may_use_link_local(ip.source, true)?;
        }
        if is_on_link {
            self.may_use_link_local(ip.destination, false)?;
        }
        Ok((verdict, Way::Pass))
    }

    /// True if a pod's packets take the stack.
    pub(super) fn takes_stack(&self, pod: &Pod) -> bool {
        self.world.settings.path_stack || pod.via_stack
    }

    /// Passes a packet to the stack with these bits of ours.
    pub(in crate::model) fn hand_up(&mut self, ours: u32, verdict: Verdict) -> Done {
        self.set_mark(ours);
        (verdict, Way::Pass)
    }
}
