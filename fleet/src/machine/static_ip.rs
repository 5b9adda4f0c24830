//! Elastic IP addresses as static IPs of nodes.

use cloud::elastic::{Elastic, Listing, READ_AGAIN, StaticIp};
use cloud::inventory::SETTLES;
use ipam::Time;
use kubernetes::operation::patch;

use super::Fleet;
use crate::member::{Member, Publication};
use crate::reads::Regular;

impl Fleet {
    /// Requests the Elastic IP addresses for a node with a static IP if their last read is too long
    /// ago. Otherwise returns the time of the next read.
    pub(super) fn want_addresses(&mut self, name: &str, now: Time) -> Option<Time> {
        let member = self.nodes.members.get(name)?;
        if member.node.rules.static_ip.tags.is_empty() {
            return None;
        }
        let pause = match self.static_ip(member) {
            Some(StaticIp::Assigned(_)) => self.settings.reads.network,
            _ => READ_AGAIN,
        };
        let listing = self.topology.facts.addresses.as_ref();
        let due = listing.map(|it| it.begun.after(pause));
        if due.is_none_or(|it| it <= now) {
            self.reads.demand(Regular::Addresses);
        }
        due.filter(|it| *it > now)
    }

    /// Takes a complete read of Elastic IP addresses in.
    pub(super) fn take_addresses(&mut self, all: Vec<Elastic>, begun: Time) {
        self.memory.claims.read(begun);
        self.topology.facts.addresses = Some(Listing { begun, all });
        let with_tags = |it: &Member| !it.node.rules.static_ip.tags.is_empty();
        let members = self.nodes.members.iter().filter(|(_, it)| with_tags(it));
        self.nodes
            .dirty
            .extend(members.map(|(name, _)| name.clone()));
    }

    /// The static IP of a node as the status is to name it. Reads of a new leader can be older than
    /// the status, so that they remove nothing for a while.
    pub(super) fn assigned_static_ip(&self, member: &Member) -> patch::StaticIp {
        match self.static_ip(member) {
            Some(StaticIp::Assigned(elastic)) => patch::StaticIp::Assigned(elastic.address),
            Some(_) if self.is_late_enough(member) => patch::StaticIp::Missing,
            _ => patch::StaticIp::Kept,
        }
    }

    /// Shows the static IP of a node at its primary ENI as well. Old reads of the ENI lack it.
    pub(super) fn show_at_primary(&self, publication: &mut Publication, member: &Member) {
        let inventory = &self.memory.inventory;
        let primary = member.instance().and_then(|it| inventory.primary_of(it));
        let is_asked = !member.node.rules.static_ip.tags.is_empty();
        let Some(id) = primary.map(|it| it.id.as_str()).filter(|_| is_asked) else {
            return;
        };
        let Some(entry) = publication.enis.get_mut(id) else {
            return;
        };
        match publication.static_ip {
            patch::StaticIp::Assigned(address) => entry.public_ip = Some(address),
            patch::StaticIp::Kept => {
                let shown = &member.object["status"]["eni"]["enis"][id]["public-ip"];
                let shown = shown.as_str().and_then(|text| text.parse().ok());
                entry.public_ip = entry.public_ip.or(shown);
            }
            patch::StaticIp::Missing => {}
        }
    }

    /// The static IP of a node whose status is about another instance.
    pub(super) fn no_static_ip(member: &Member) -> patch::StaticIp {
        if member.node.rules.static_ip.tags.is_empty() {
            return patch::StaticIp::Kept;
        }
        patch::StaticIp::Missing
    }

    fn is_late_enough(&self, member: &Member) -> bool {
        let from = member.reads.since.after(SETTLES);
        let inventory = &self.memory.inventory;
        let listing = self.topology.facts.addresses.as_ref();
        let read = member.instance().and_then(|it| inventory.read_of(it));
        listing.is_some_and(|it| it.begun >= from) && read.is_some_and(|it| it >= from)
    }

    /// The static IP that a node has or can have; none if it asks for none, or before the reads.
    fn static_ip(&self, member: &Member) -> Option<StaticIp<'_>> {
        let wish = Some(&member.node.rules.static_ip).filter(|it| !it.tags.is_empty())?;
        let primary = self.memory.inventory.primary_of(member.instance()?)?;
        let listing = self.topology.facts.addresses.as_ref()?;
        Some(listing.static_ip(wish, primary, &self.memory.claims))
    }
}
