//! Destinations and their classes, as the datapath should know them.

mod unroutable;

use std::collections::{BTreeMap, BTreeSet};
use std::net::{IpAddr, Ipv6Addr};

use api::types::ExemptCidr;
use datapath_common::abi::DestinationClass;
use ipnet::{IpNet, Ipv4Net};

use super::builder::Builder;
use super::host_networks::HostNetworks;
use crate::intent::masquerade::{AgentCidrs, class_names};
use crate::intent::{ClusterServices, Intent};
use crate::kernel::{MapEntry, Object, Observed, Scope};

/// The instance metadata service (AWS, "Use the Instance Metadata Service to access instance
/// metadata").
pub(super) const METADATA: [&str; 2] = ["169.254.169.254/32", "fd00:ec2::254/128"];
pub(super) const LINK_LOCAL_V4: &str = "169.254.0.0/16";
pub(super) const LINK_LOCAL_V6: &str = "fe80::/10";

/// One thing that is known of a destination, and where from.
struct Known {
    net: IpNet,
    class: DestinationClass,
    source: String,
}

/// Adds an entry for every prefix that something is known of; what is exempt, for people.
pub(super) fn add(builder: &mut Builder<'_>, hosts: &HostNetworks) -> Vec<ExemptCidr> {
    let mut known = known(builder.intent, builder.observed);
    known.extend(hosts.all.iter().map(|net| Known {
        net: *net,
        class: DestinationClass::SERVICE.union(DestinationClass::ROUTED),
        source: "the host's routes, or host-cidrs".to_owned(),
    }));
    for (net, class) in classes(&known) {
        let entry = MapEntry::Destination(net, class);
        builder.put(Scope::Node, Object::MapEntry(entry));
    }
    let reported = DestinationClass::EXEMPT
        .union(DestinationClass::METADATA)
        .union(DestinationClass::ROUTED);
    let exempt = known
        .into_iter()
        .filter(|known| known.class.intersects(reported));
    let mut exempt: Vec<ExemptCidr> = exempt
        .map(|known| ExemptCidr {
            cidr: known.net,
            class: class_names(known.class).join(", "),
            source: known.source,
        })
        .collect();
    exempt.sort();
    exempt.dedup_by(|a, b| (a.cidr, &a.class) == (b.cidr, &b.class));
    exempt
}

/// Everything that is known of destinations, each thing with its source.
fn known(intent: &Intent, observed: &Observed) -> Vec<Known> {
    let mut all = Vec::new();
    let mut put = |net: IpNet, class, source: &str| {
        all.push(Known {
            net: net.trunc(),
            class,
            source: source.to_owned(),
        });
    };
    for eni in intent.node.enis.values() {
        for net in eni.blocks.iter().filter(|_| eni.excluded.is_none()) {
            put(*net, DestinationClass::BLOCK, &eni.id);
        }
        for net in &eni.vpc_cidrs {
            put(*net, DestinationClass::VPC, &format!("VPC of {}", eni.id));
        }
    }
    for (net, pool) in intent.plain_blocks() {
        put(net, DestinationClass::BLOCK, &format!("pool {pool}"));
    }
    for net in services(intent, observed) {
        put(net, DestinationClass::SERVICE, "services");
    }
    for net in &intent.settings.masquerade.native {
        let source = "masquerade.native-routing-cidrs";
        put(*net, DestinationClass::NATIVE, source);
    }
    for net in METADATA.iter().filter_map(|text| text.parse().ok()) {
        put(net, DestinationClass::METADATA, "instance metadata");
    }
    for (text, _) in unroutable::PREFIXES {
        if let Ok(net) = text.parse() {
            put(net, DestinationClass::UNROUTABLE, "no network routes it");
        }
    }
    let agent = agent(intent, observed);
    for (net, source) in &agent.cidrs {
        put(*net, DestinationClass::MASQ_AGENT, source);
    }
    for (text, masqueraded) in [
        (LINK_LOCAL_V4, agent.masq_link_local),
        (LINK_LOCAL_V6, agent.masq_link_local_ipv6),
    ] {
        if let Some(net) = text.parse().ok().filter(|_| !masqueraded) {
            put(
                net,
                DestinationClass::LINK_LOCAL,
                "always, unless an ip-masq-agent file masquerades it",
            );
        }
    }
    all
}

/// The destinations that the host's service NAT translates. Until a cluster's list is complete,
/// those in the datapath, which an earlier agent added, stay.
fn services(intent: &Intent, observed: &Observed) -> BTreeSet<IpNet> {
    let ClusterServices { cidrs, addresses } = &intent.settings.services.cluster;
    let mut all = intent.settings.services.configured.clone();
    all.extend(cidrs.iter().flatten());
    let addresses = addresses.iter().flatten().copied();
    all.extend(
        addresses
            .filter(|address| left_out(intent, *address).is_none())
            .map(IpNet::from),
    );
    if intent.settings.services.cluster.is_whole() {
        return all;
    }
    all.extend(with_class(observed, DestinationClass::SERVICE));
    all
}

/// Reason for which a Service's address does not count as one. Other hosts may send to pods from
/// it, and the pods' answers to them would be lost. A pod's packets to it still reach the host that
/// has it.
#[must_use]
pub fn left_out(intent: &Intent, address: IpAddr) -> Option<&'static str> {
    let special = [LINK_LOCAL_V4, LINK_LOCAL_V6].into_iter().chain(METADATA);
    let mut special = special.filter_map(|text| text.parse::<IpNet>().ok());
    let enis = || intent.node.enis.values();
    if special.any(|net| net.contains(&address)) {
        Some(
            "it is no service's: link-local addresses and the instance metadata service are the node's",
        )
    } else if enis()
        .flat_map(|eni| &eni.vpc_cidrs)
        .any(|net| net.contains(&address))
    {
        Some("it is within the VPC, so a node or a load balancer has it")
    } else {
        None
    }
}

/// The prefixes that the datapath has of a class.
fn with_class(observed: &Observed, wanted: DestinationClass) -> impl Iterator<Item = IpNet> {
    let entries = observed.maps.values();
    entries.filter_map(move |entry| match entry {
        // The host's networks have just been observed in the kernel.
        MapEntry::Destination(_, class) if class.contains(DestinationClass::ROUTED) => None,
        MapEntry::Destination(net, class) if class.contains(wanted) => Some(*net),
        _ => None,
    })
}

/// The CIDRs that ip-masq-agent files exempt. Before the first good content these are the
/// datapath's: an earlier agent put them there, and a bad file changes nothing. Where it has none,
/// the standard list is in force.
fn agent(intent: &Intent, observed: &Observed) -> AgentCidrs {
    if intent.settings.masquerade.agent.is_none() {
        return AgentCidrs::default();
    }
    if let Some(agent) = &intent.policy.agent {
        return AgentCidrs::clone(agent);
    }
    let source = "kept: the ip-masq-agent file cannot be used";
    let is_there = |text: &str| {
        let net: Option<IpNet> = text.parse().ok();
        with_class(observed, DestinationClass::LINK_LOCAL).any(|there| Some(there) == net)
    };
    let kept = AgentCidrs {
        cidrs: with_class(observed, DestinationClass::MASQ_AGENT)
            .map(|net| (net, source.to_owned()))
            .collect(),
        masq_link_local: !is_there(LINK_LOCAL_V4),
        masq_link_local_ipv6: !is_there(LINK_LOCAL_V6),
        ..AgentCidrs::default()
    };
    if kept.cidrs.is_empty() {
        AgentCidrs::standard("the standard list, as the ip-masq-agent file cannot be used")
    } else {
        kept
    }
}

/// Every prefix with the classes of all prefixes that contain it, since the programs use only the
/// longest match.
fn classes(known: &[Known]) -> BTreeMap<IpNet, DestinationClass> {
    let mut own: BTreeMap<IpNet, DestinationClass> = BTreeMap::new();
    for one in known {
        let class = own.entry(one.net).or_default();
        *class = class.union(one.class);
    }
    // The trie has IPv4 as v4-mapped IPv6, so a wide prefix of IPv6 would match IPv4, too. IPv4's
    // own default prefix prevents that.
    if own.keys().any(|net| net.contains(&IpAddr::V6(MAPPED))) {
        own.entry(Ipv4Net::default().into()).or_default();
    }
    own.keys()
        .map(|net| {
            let containing = (0..=net.prefix_len())
                .filter_map(|length| IpNet::new(net.addr(), length).ok())
                .filter_map(|wider| own.get(&wider.trunc()));
            (*net, unroutable::classes(containing.copied()))
        })
        .collect()
}

/// The first v4-mapped address (RFC 4291 section 2.5.5.2).
const MAPPED: Ipv6Addr = Ipv6Addr::new(0, 0, 0, 0, 0, 0xffff, 0, 0);

#[cfg(test)]
mod tests;
