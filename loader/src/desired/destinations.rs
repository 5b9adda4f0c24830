//! What the datapath is to know of destinations.

use std::collections::BTreeMap;

use datapath_common::abi::DestinationClass;
use ipnet::IpNet;

use super::builder::Builder;
use crate::intent::Intent;
use crate::kernel::{MapEntry, Scope};
use crate::object::Object;

/// Adds an entry for every prefix that something is known of.
pub(super) fn add(builder: &mut Builder<'_>) {
    for (net, class) in classes(builder.intent) {
        let entry = MapEntry::Destination(net, class);
        builder.put(Scope::Node, Object::MapEntry(entry));
    }
}

/// Every prefix with the classes of all prefixes that contain it: the programs look at the longest
/// match only.
fn classes(intent: &Intent) -> BTreeMap<IpNet, DestinationClass> {
    let enis = || intent.node.enis.values();
    let blocks = enis()
        .filter(|eni| eni.excluded.is_none())
        .flat_map(|eni| &eni.blocks);
    let vpc = enis().flat_map(|eni| &eni.vpc_cidrs);
    let services = intent.settings.services.iter();
    let of = |class| move |net: &IpNet| (net.trunc(), class);
    let all = blocks
        .map(of(DestinationClass::BLOCK))
        .chain(vpc.map(of(DestinationClass::VPC)))
        .chain(services.map(of(DestinationClass::SERVICE)));

    let mut own: BTreeMap<IpNet, DestinationClass> = BTreeMap::new();
    for (net, class) in all {
        let known = own.entry(net).or_default();
        *known = known.union(class);
    }
    own.keys()
        .map(|net| {
            let containing = (0..=net.prefix_len())
                .filter_map(|length| IpNet::new(net.addr(), length).ok())
                .filter_map(|wider| own.get(&wider.trunc()));
            let class = containing.fold(DestinationClass::NONE, |all, one| all.union(*one));
            (*net, class)
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fixture::intent;

    #[test]
    fn a_prefix_has_the_classes_of_all_that_contain_it() {
        let mut intent = intent();
        intent.settings.services = ["10.0.0.0/8", "10.0.1.64/28", "172.20.0.0/16"]
            .map(|net| net.parse().unwrap())
            .into();
        let classes = classes(&intent);
        let class = |net: &str| classes[&net.parse::<IpNet>().unwrap()];
        let (block, service, vpc) = (
            DestinationClass::BLOCK,
            DestinationClass::SERVICE,
            DestinationClass::VPC,
        );
        assert_eq!(class("10.0.0.0/8"), service);
        assert_eq!(class("10.0.0.0/16"), service.union(vpc));
        assert_eq!(class("10.0.1.64/28"), service.union(vpc).union(block));
        assert_eq!(class("172.20.0.0/16"), service);
    }
}
