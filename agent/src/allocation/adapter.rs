//! Conversion of node and pool documents to the types of `ipam`, which has none of Kubernetes.
//! Pure.

use std::collections::BTreeSet;
use std::net::IpAddr;

use api::ids::{EniNumber, MacAddr};
use api::types::EniRef;
use api::types::{Refused, RefusedKind};
use ipam::Family;
use ipam::node::{BindingError, Eni, EniAddress, NodePools, PodsOnEnis, Pools, Subnet};
use ipnet::IpNet;
use kubernetes::node::crd_mode::FlatPool;
use loader::intent;
use loader::intent::masquerade;

/// Function that is true for a pool that skips masquerading; `None` while that is unknown.
pub(crate) type SkipsMasquerade = Box<dyn Fn(&str) -> Option<bool> + Send + Sync>;

/// The addresses in the node document. `hosts` are addresses that the host has or answers for,
/// which no pod gets.
pub(crate) fn node_pools(node: &intent::Node, hosts: BTreeSet<IpAddr>) -> NodePools {
    let flat = node.flat.as_ref();
    let enis = node.enis.values();
    NodePools {
        enis: enis.map(|of| eni(of, &given(of, flat))).collect(),
        allocated: match flat {
            None => node.allocated.clone(),
            // An agent in the other mode left them.
            Some(_) => Vec::new(),
        },
        requested: Vec::new(),
        is_versioned: node.is_versioned,
        pre_allocate: node.pre_allocate,
        addresses: node
            .addresses
            .internal
            .iter()
            .copied()
            .chain(hosts)
            .collect(),
    }
}

/// The pools with their bindings, and the refused binding of the default pool, which is ignored.
pub(crate) fn pools(
    documents: Option<&masquerade::Pools>,
    default: &str,
) -> (Pools, Option<Refused>) {
    let by_name = documents.map(masquerade::Pools::for_allocation);
    let mut by_name = by_name.unwrap_or_default();
    let binding = by_name.get_mut(default);
    let binding = binding.and_then(|pool| pool.binding.take());
    let refused = binding.map(|_| Refused {
        kind: RefusedKind::Annotation,
        entry: format!("pool {default}"),
        reason: format!(
            "metadata.annotations: {}",
            BindingError::DefaultPool(default.to_owned())
        ),
    });
    (Pools::new(by_name, default).unwrap_or_default(), refused)
}

/// Sets the pools that are bound to each ENI. A binding overrides tags that exclude the ENI.
///
/// Such tags are there for Cilium's operator. It does not know bound pools, and would count the
/// ENI's addresses as the default pool's.
pub(crate) fn bind<'a>(enis: impl IntoIterator<Item = &'a mut intent::Eni>, pools: &Pools) {
    for given in enis {
        let of_pools = eni(given, &given.blocks);
        given.bound_to = pools.bound_to(&of_pools).map(str::to_owned).collect();
        if !given.bound_to.is_empty() && given.excluded == given.excluded_by_tags {
            given.excluded = None;
        }
    }
}

/// Includes the ENIs whose addresses pods use, while the bindings of pools are unknown. Otherwise
/// these pods would lose their egress path until then.
pub(crate) fn keep_used<'a>(
    enis: impl IntoIterator<Item = &'a mut intent::Eni>,
    used: &BTreeSet<IpAddr>,
) {
    for given in enis {
        let is_used = used.iter().any(|address| given.owns(*address));
        if is_used && given.excluded == given.excluded_by_tags {
            given.excluded = None;
        }
    }
}

/// Warnings for ENIs with bound pools that Cilium's operator counts as the default pool's.
pub(crate) fn conflicts(node: &intent::Node) -> impl Iterator<Item = String> {
    let enis = node.enis.values();
    let counted = enis.filter(|eni| !eni.bound_to.is_empty() && eni.excluded.is_none());
    let counted = counted.filter(|eni| eni.excluded_by_tags.is_none());
    counted.map(|eni| {
        format!(
            "ENI {} ({}) is bound to pool {}, and its tags do not match \
             spec.eni.exclude-interface-tags: beside Cilium's operator, which counts its addresses as \
             those of the default pool, that pool gets too few; give the ENI such tags",
            eni.number,
            eni.id,
            eni.bound_to.join(" and ")
        )
    })
}

/// The allocator's resource kind for pods.
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

/// The ENI's addresses for pods: its blocks, or the listed single addresses that it has. Spec and
/// status are written one after the other, so the ENI may lack an address that is listed.
fn given(eni: &intent::Eni, flat: Option<&FlatPool>) -> BTreeSet<IpNet> {
    let Some(flat) = flat else {
        return eni.blocks.difference(&eni.kept).copied().collect();
    };
    let own = flat.addresses.iter().filter(|(_, id)| **id == eni.id);
    let own = own.filter(|(address, _)| eni.owns(**address));
    own.map(|(address, _)| IpNet::from(*address)).collect()
}

fn eni(eni: &intent::Eni, blocks: &BTreeSet<IpNet>) -> Eni {
    let is_address = |net: &&IpNet| net.prefix_len() == net.max_prefix_len();
    let (addresses, prefixes): (Vec<&IpNet>, Vec<&IpNet>) = blocks.iter().partition(is_address);
    Eni {
        id: eni.id.clone(),
        number: eni.number.0,
        mac: eni.mac.0,
        primary_address: eni.primary_address,
        subnet: Subnet {
            id: eni.subnet_id.clone(),
            cidr: eni.subnet,
            // The document has no tags of subnets.
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

/// The ENI of an address, as an answer of the API names it.
pub(crate) fn eni_ref(of: &EniAddress) -> EniRef {
    EniRef {
        number: EniNumber(of.number),
        id: of.eni.clone(),
        mac: MacAddr(of.mac),
    }
}

/// The requested families of addresses, by default the configured ones.
pub(crate) fn families(
    requested: &BTreeSet<Family>,
    configured: &BTreeSet<Family>,
) -> BTreeSet<Family> {
    if requested.is_empty() {
        configured.clone()
    } else {
        requested.clone()
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use ipam::Kind as _;

    use super::*;
    use loader::kernel::fixture;

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
                    given.blocks.extend(given.own_address().map(IpNet::from));
                }
                let blocks = match excluded {
                    None => given.blocks.clone(),
                    Some(_) => BTreeSet::new(),
                };
                assert_eq!(eni(&given, &given.blocks).blocks(), blocks);
            }
        }
    }

    #[test]
    fn a_pool_that_is_bound_to_an_eni_counts_more_than_the_tags_that_exclude_it() {
        let binding = |subnet: &str| {
            let annotation = ("ipam.towpath.dev/subnet-ids".to_owned(), subnet.to_owned());
            ipam::node::Binding::parse(&[annotation].into()).unwrap()
        };
        let pool = |subnet: &str| ipam::node::Pool {
            families: [Family::V4].into(),
            binding: binding(subnet),
        };
        let by_name = [
            ("blue".to_owned(), pool("subnet-1")),
            ("red".to_owned(), pool("subnet-2")),
        ];
        let pools = Pools::new(by_name.into(), "default").unwrap();
        let mut node = fixture::intent().node;
        let reason = Some("its tags match".to_owned());
        let mut exclude = |number: u8, excluded: &Option<String>| {
            let eni = node.enis.get_mut(&EniNumber(number)).unwrap();
            eni.excluded_by_tags.clone_from(&reason);
            eni.excluded.clone_from(excluded);
        };
        exclude(0, &reason);
        exclude(1, &reason);
        // Its number excludes the ENI, too. No pool overrides that.
        exclude(2, &Some("its number".to_owned()));
        let mut unknown = node.clone();
        keep_used(
            unknown.enis.values_mut(),
            &[IpAddr::from([10, 0, 1, 65])].into(),
        );
        let excluded = unknown.enis.values().map(|eni| eni.excluded.is_some());
        assert_eq!(excluded.collect::<Vec<_>>(), [true, false, true]);
        bind(node.enis.values_mut(), &pools);
        let of = |number| &node.enis[&EniNumber(number)];
        assert_eq!((of(0).bound_to.len(), of(0).excluded.is_some()), (0, true));
        assert_eq!(of(1).bound_to, ["blue"]);
        assert_eq!(
            (of(1).excluded.is_some(), eni(of(1), &of(1).blocks).excluded),
            (false, false)
        );
        assert_eq!(of(2).excluded.as_deref(), Some("its number"));
        assert_eq!(conflicts(&node).count(), 0);

        let eni = node.enis.get_mut(&EniNumber(1)).unwrap();
        eni.excluded_by_tags = None;
        let conflicts: Vec<_> = conflicts(&node).collect();
        assert_eq!(conflicts.len(), 1, "{conflicts:?}");
        assert!(
            conflicts[0].starts_with("ENI 1 (eni-1) is bound to pool blue, and its tags do not"),
            "{conflicts:?}"
        );
    }

    #[test]
    fn single_addresses_are_those_that_their_eni_has() {
        let mut node = fixture::intent().node;
        let pool = [
            ("10.0.1.20", "eni-1"),
            ("10.0.1.65", "eni-1"),
            ("10.0.2.20", "eni-1"),
            ("10.0.2.65", "eni-9"),
            ("10.0.2.99", "eni-2"),
        ];
        let pool = pool.map(|(address, id)| (address.parse().unwrap(), id.to_owned()));
        node.flat = Some(FlatPool {
            addresses: pool.into(),
            release: BTreeMap::new(),
        });
        node.allocated.push(ipam::node::AllocatedPool {
            pool: "default".to_owned(),
            edges: ipam::EdgeRules::ALL,
            cidrs: vec!["10.0.1.64/28".parse().unwrap()],
        });
        let document = node_pools(&node, BTreeSet::new());
        let kind = kind(
            Pools::default(),
            &fixture::intent().settings,
            Box::new(|_| Some(false)),
        );
        let announced = kind.read(&document);
        let blocks: Vec<_> = announced
            .blocks
            .iter()
            .map(|b| b.cidr.to_string())
            .collect();
        assert_eq!(blocks, ["10.0.1.20/32", "10.0.1.65/32"]);
        assert_eq!(announced.problems, []);
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
            .filter_map(|eni| Some((eni.number, eni.gateway(Family::V4)?)))
            .collect();
        for (number, gateway) in gateways {
            let same = fixture::eni(number).gateway(Family::V4);
            assert_eq!(Some(gateway), same, "ENI {number}");
        }
    }
}
