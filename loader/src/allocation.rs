//! From the node document and the pool documents to what address management knows of a node. Pure;
//! `ipam` has no types of Kubernetes.

use std::collections::BTreeSet;
use std::net::IpAddr;

use ipam::Family;
use ipam::node::{BindingError, Eni, EniAddress, NodePools, PodsOnEnis, Pools, Subnet};
use ipnet::IpNet;

use crate::api::types::EniRef;
use crate::intent;
use crate::masquerade;
use crate::types::{EniNumber, MacAddr};

/// Whether a pool's addresses keep their source out of the VPC; `None` while that is not known.
pub(crate) type SkipsMasquerade = Box<dyn Fn(&str) -> Option<bool> + Send + Sync>;

/// What the node document says of addresses. `hosts` are addresses that the host has or answers
/// for: never a pod's.
pub(crate) fn node_pools(node: &intent::Node, hosts: BTreeSet<IpAddr>) -> NodePools {
    NodePools {
        enis: node.enis.values().map(eni).collect(),
        allocated: node.allocated.clone(),
        requested: Vec::new(),
        pre_allocate: node.pre_allocate,
        addresses: node.addresses.iter().copied().chain(hosts).collect(),
    }
}

/// The pools and what they are bound to.
///
/// # Errors
/// When the default pool is bound.
pub(crate) fn pools(
    documents: Option<&masquerade::Pools>,
    default: &str,
) -> Result<Pools, BindingError> {
    let by_name = documents.map(masquerade::Pools::for_allocation);
    Pools::new(by_name.unwrap_or_default(), default)
}

/// The kind of resource that pods are here.
pub(crate) fn kind(
    pools: Pools,
    settings: &intent::Settings,
    skips: SkipsMasquerade,
) -> PodsOnEnis<SkipsMasquerade> {
    let families = Family::ALL.into_iter();
    PodsOnEnis {
        pools,
        skips_masquerade: skips,
        plain_is_native: settings.plain_is_native,
        masqueraded: families
            .filter(|family| settings.masquerade.is_on(*family))
            .collect(),
    }
}

fn eni(eni: &intent::Eni) -> Eni {
    let is_address = |net: &&IpNet| net.prefix_len() == net.max_prefix_len();
    let (addresses, prefixes): (Vec<&IpNet>, Vec<&IpNet>) = eni.blocks.iter().partition(is_address);
    Eni {
        id: eni.id.clone(),
        number: eni.number.0,
        mac: eni.mac.0,
        primary_address: eni.primary_address,
        subnet: Subnet {
            id: eni.subnet_id.clone(),
            cidr: eni.subnet,
            // The document has none.
            tags: None,
        },
        vpc_cidrs: eni.vpc_cidrs.clone(),
        addresses: addresses.into_iter().map(IpNet::addr).collect(),
        prefixes: prefixes.into_iter().copied().collect(),
        tags: eni.tags.clone(),
        excluded: eni.excluded.is_some(),
        use_primary_address: eni.use_primary_address,
    }
}

/// The ENI of an address, as an answer names it.
pub(crate) fn eni_ref(of: &EniAddress) -> EniRef {
    EniRef {
        number: EniNumber(of.number),
        id: of.eni.clone(),
        mac: MacAddr(of.mac),
    }
}

/// The families of addresses, by what was asked for or else by the configuration.
pub(crate) fn families(
    asked: &BTreeSet<Family>,
    configured: &BTreeSet<Family>,
) -> BTreeSet<Family> {
    if asked.is_empty() {
        configured.clone()
    } else {
        asked.clone()
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use ipam::Kind as _;

    use super::*;
    use crate::fixture;

    #[test]
    fn what_an_eni_has_for_pods_is_what_it_gives() {
        for excluded in [None, Some("its number".to_owned())] {
            for use_primary_address in [false, true] {
                let mut given = intent::Eni {
                    excluded: excluded.clone(),
                    use_primary_address,
                    ..fixture::eni(1)
                };
                if use_primary_address {
                    given
                        .blocks
                        .insert(IpAddr::from(given.primary_address).into());
                }
                let blocks = match excluded {
                    None => given.blocks.clone(),
                    Some(_) => BTreeSet::new(),
                };
                assert_eq!(eni(&given).blocks(), blocks);
            }
        }
    }

    #[test]
    fn what_the_host_has_is_never_given() {
        let node = fixture::intent().node;
        let hosts = BTreeSet::from([IpAddr::from([10, 0, 1, 66])]);
        let document = node_pools(&node, hosts);
        let settings = fixture::intent().settings;
        let kind = kind(Pools::default(), &settings, Box::new(|_| Some(false)));
        let announced = kind.read(&document);
        for address in ["10.0.1.66", "10.0.0.10", "10.0.1.10"] {
            let net = IpNet::from(address.parse::<IpAddr>().unwrap());
            assert!(announced.excluded.contains(&net), "{address}");
        }
        assert_eq!(announced.blocks.len(), 9);
        let gateways: BTreeMap<u8, IpAddr> = document
            .enis
            .iter()
            .map(|eni| (eni.number, eni.gateway(Family::V4)))
            .collect();
        for (number, gateway) in gateways {
            let same = fixture::eni(number).gateway(Family::V4);
            assert_eq!(gateway, same, "ENI {number}");
        }
    }
}
