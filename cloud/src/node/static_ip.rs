//! The static IP of a node: an Elastic IP address of its primary ENI.

use super::deficit::Plan;
use super::view::View;
use super::{Condition, Reason, Step};
use crate::Tags;
use crate::elastic::StaticIp;

/// The primary ENI gets an Elastic IP address with the tags that the node asks for.
pub(super) fn associate(view: &View<'_>) -> Plan {
    let wish = &view.node.rules.static_ip;
    let Some(primary) = view.primary.filter(|_| !wish.tags.is_empty()) else {
        return Plan::Nothing;
    };
    let Some(listing) = &view.world.facts.addresses else {
        let detail = "Elastic IP addresses are not read yet";
        return Plan::Stuck(Condition::new(Reason::UnlistedAddresses, detail));
    };
    let tags = texts(&wish.tags);
    let stuck = |detail: String| Plan::Stuck(Condition::new(Reason::StaticIpMissing, detail));
    match listing.static_ip(wish, primary, &view.world.memory.claims) {
        StaticIp::Assigned(_) => Plan::Nothing,
        StaticIp::Free(elastic) => Plan::Step(Step::Associate {
            eni: primary.id.clone(),
            allocation: elastic.id.clone(),
            address: elastic.address,
        }),
        StaticIp::Other(elastic) => stuck(format!(
            "{} has the Elastic IP address {}, which lacks tags of spec.ipam.static-ip-tags \
             ({tags}), expected none or one with all of them; disassociate it",
            primary.id, elastic.address,
        )),
        StaticIp::Missing { matching } => stuck(format!(
            "no Elastic IP address with all tags of spec.ipam.static-ip-tags ({tags}) is free, \
             expected one; {matching} have these tags, of {} in the region",
            listing.all.len()
        )),
    }
}

fn texts(tags: &Tags) -> String {
    let pairs: Vec<String> = tags
        .iter()
        .map(|(key, value)| format!("{key}={value}"))
        .collect();
    pairs.join(",")
}
