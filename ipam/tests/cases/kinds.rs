//! Two kinds of resource on the same machine: pods on ENIs and plain pools, and the agent's own
//! addresses, whose pools stand elsewhere.

use std::collections::BTreeMap;
use std::net::IpAddr;

use ipam::node::{
    AllocatedPool, Eni, NodePools, Origin, PodsOnEnis, Pool, Pools, RequestedPool, Subnet,
};
use ipam::{
    AgentAddresses, AgentPools, AllocateError, Allocator, Barrier, Demand, Draining, EdgeRules,
    Family, Formula, Kind, Life, Manager, Problem, Request, Settings, State, Want,
};

use super::support::*;

pub(crate) fn eni(number: u8, addresses: &[&str], prefixes: &[&str]) -> Eni {
    Eni {
        id: format!("eni-{number}"),
        number,
        mac: [0x0a, 0, 0, 0, 0, number],
        primary_address: format!("10.0.{number}.9").parse().ok(),
        subnet: Subnet {
            id: format!("subnet-{number}"),
            cidr: format!("10.0.{number}.0/24").parse().ok(),
            tags: Some(BTreeMap::new()),
        },
        vpc_cidrs: vec![net("10.0.0.0/16"), net("100.64.0.0/16")],
        addresses: addresses.iter().map(|text| ip(text)).collect(),
        prefixes: prefixes.iter().map(|text| net(text)).collect(),
        tags: BTreeMap::new(),
        excluded: false,
        use_primary_address: false,
    }
}

fn allocated(pool: &str, edges: EdgeRules, cidrs: &[&str]) -> AllocatedPool {
    AllocatedPool {
        pool: pool.to_owned(),
        edges,
        cidrs: cidrs.iter().map(|text| net(text)).collect(),
    }
}

pub(crate) fn on_enis<F: Fn(&str) -> Option<bool>>(pools: Pools, skips: F) -> PodsOnEnis<F> {
    PodsOnEnis {
        pools,
        skips_masquerade: skips,
        plain_is_native: false,
        masqueraded: Family::ALL.into(),
    }
}

/// An allocator without leases, on a node without endpoints.
fn restored(settings: Settings) -> Allocator {
    Allocator::restore(settings, State::default(), Some(&[]), at(0)).0
}

/// A manager that everything is ready for.
pub(crate) fn manage<K: Kind>(kind: K, settings: Settings, document: K::Document) -> Manager<K> {
    let mut manager = Manager::new(kind, restored(settings));
    manager.observe(document);
    set_ready(manager.allocator_mut(), &["eni-0", "eni-1", "eni-2"]);
    manager
}

/// A node with an ENI of both families, and with one that is excluded.
fn with_an_excluded_eni() -> NodePools {
    NodePools {
        enis: vec![
            eni(
                1,
                &["10.0.1.5", "2001:db8::1"],
                &["10.0.1.16/28", "2001:db8:1::/80"],
            ),
            Eni {
                excluded: true,
                ..eni(2, &["10.0.2.5"], &[])
            },
        ],
        pre_allocate: Some(3),
        ..NodePools::default()
    }
}

#[test]
fn pods_on_enis_get_all_that_an_endpoint_needs() {
    let kind = on_enis(Pools::default(), |pool| Some(pool == "default"));
    let settings = settings(Formula::Linear, "default=8");
    let mut manager = manage(kind, settings, with_an_excluded_eni());

    let single = manager.one(&any("a", "default", V4), at(0)).unwrap();
    assert_eq!(single.lease.address, ip("10.0.1.5"));
    assert_eq!(
        (single.pool.as_str(), single.skip_masquerade),
        ("default", true)
    );
    let details = single.details.unwrap();
    assert_eq!(details.origin, Origin::Address);
    assert_eq!((details.eni.as_str(), details.number), ("eni-1", 1));
    assert_eq!(details.mac, [0x0a, 0, 0, 0, 0, 1]);
    assert_eq!(details.gateway, Some(ip("10.0.1.1")));
    assert_eq!(details.subnet, "10.0.1.0/24".parse().ok());
    assert_eq!(
        details.vpc_cidrs,
        [net("10.0.0.0/16"), net("100.64.0.0/16")]
    );

    let of_prefix = manager
        .one(&any("b", "default", V4), at(0))
        .unwrap()
        .details
        .unwrap();
    assert_eq!(of_prefix.origin, Origin::Prefix(net("10.0.1.16/28")));
    manager.one(&any("a", "default", V6), at(0)).unwrap();
    let v6 = manager
        .one(&any("b", "default", V6), at(0))
        .unwrap()
        .details
        .unwrap();
    assert_eq!(v6.gateway, Some(ip("fe80:ec2::1")));
    assert_eq!(v6.origin, Origin::Prefix(net("2001:db8:1::/80")));
    assert!(
        manager.one(&exactly("c", "10.0.2.5"), at(0)).is_err(),
        "excluded"
    );
}

#[test]
fn blocks_of_enis_are_written_once_and_are_no_second_announcement() {
    let document = with_an_excluded_eni();
    let kind = on_enis(Pools::default(), |pool| Some(pool == "default"));
    let settings = settings(Formula::Linear, "default=8");
    let mut manager = manage(kind, settings, document.clone());
    for owner in ["a", "b"] {
        for family in [V4, V6] {
            let request = any(owner, "default", family);
            manager.one(&request, at(0)).unwrap();
        }
    }
    let mut written = document;
    assert!(manager.publish(&mut written));
    let needed = BTreeMap::from([(V4, 5), (V6, 5)]);
    let pool = "default".to_owned();
    assert_eq!(written.requested, [RequestedPool { pool, needed }]);
    let kept = [
        "10.0.1.5/32",
        "10.0.1.16/28",
        "2001:db8::1/128",
        "2001:db8:1::/80",
    ];
    assert_eq!(
        written.allocated,
        [allocated("default", EdgeRules::ALL, &kept)]
    );
    assert!(!manager.publish(&mut written), "nothing changed");
    manager.observe(written);
    assert_eq!(
        manager.allocator().blocks().len(),
        4,
        "our own writing is no second announcement"
    );
}

#[test]
fn the_own_address_of_an_eni_is_a_pods_only_when_it_is_asked_to() {
    let with = |number: u8, use_primary_address| Eni {
        use_primary_address,
        ..eni(number, &["10.0.1.5", &format!("10.0.{number}.9")], &[])
    };
    let blocks = |eni: &Eni| {
        eni.blocks()
            .iter()
            .map(ToString::to_string)
            .collect::<Vec<_>>()
    };
    assert_eq!(blocks(&with(1, false)), ["10.0.1.5/32"]);
    assert_eq!(blocks(&with(1, true)), ["10.0.1.5/32", "10.0.1.9/32"]);
    assert_eq!(
        blocks(&with(0, true)),
        ["10.0.1.5/32"],
        "the primary's is the host's"
    );
}

#[test]
fn the_nodes_own_address_is_never_a_pods() {
    let document = NodePools {
        enis: vec![eni(1, &[], &["10.0.1.16/28"])],
        addresses: [ip("10.0.1.20")].into(),
        ..NodePools::default()
    };
    let kind = on_enis(Pools::default(), |_| Some(false));
    let mut manager = manage(kind, settings(Formula::Linear, ""), document);
    let error = manager.one(&exactly("a", "10.0.1.20"), at(0)).unwrap_err();
    assert!(matches!(error, AllocateError::Barred { .. }), "{error}");
    assert_eq!(manager.allocator().counts("default", V4).free, 15);
}

/// Plain pools beside ENIs: masqueraded unless the VPC routes them, and never mistaken for an ENI's
/// blocks.
#[test]
fn plain_pools_stand_beside_enis() {
    let pool = |families: &[Family]| Pool {
        families: families.iter().copied().collect(),
        binding: None,
    };
    let by_name = BTreeMap::from([("mars".to_owned(), pool(&[V4]))]);
    let pools = Pools::new(by_name, "default").unwrap();
    let of_vpc = Eni {
        vpc_cidrs: vec!["10.0.0.0/16".parse().unwrap()],
        ..eni(1, &["10.0.1.5"], &[])
    };
    let document = NodePools {
        enis: vec![of_vpc],
        allocated: vec![
            allocated("default", EdgeRules::ALL, &["10.0.1.5/32", "10.0.7.7/32"]),
            allocated(
                "mars",
                EdgeRules::default(),
                &["10.10.0.0/29", "10.0.9.0/28"],
            ),
        ],
        ..NodePools::default()
    };
    let mut kind = on_enis(pools, |pool: &str| Some(pool == "mars"));
    let settings = settings(Formula::Linear, "");
    let mut manager = Manager::new(kind.clone(), restored(settings));
    let changes = manager.observe(document);
    let problems: Vec<String> = changes.problems.iter().map(ToString::to_string).collect();
    assert_eq!(
        problems,
        [
            "block 10.0.7.7/32 of pool default is left out: no ENI of the node has it",
            "block 10.0.9.0/28 of pool mars is left out: it is of the VPC's CIDRs, and no ENI of the \
             node has it",
            "pool mars is masqueraded despite its skip-masquerade annotation: no ENI backs it, and \
             plain-pools.native is not set",
        ]
    );
    let mars = manager.one(&any("a", "mars", V4), at(0)).unwrap();
    assert_eq!(mars.lease.address, ip("10.10.0.1"));
    assert_eq!((mars.details, mars.skip_masquerade), (None, false));
    let error = manager.one(&any("b", "mars", V6), at(0)).unwrap_err();
    assert!(matches!(error, AllocateError::NoFamily { .. }), "{error}");

    kind.plain_is_native = true;
    let changes = manager.reconfigure(kind);
    assert_eq!(changes.problems.len(), 2);
    assert!(
        manager
            .one(&any("a", "mars", V4), at(0))
            .unwrap()
            .skip_masquerade
    );
}

/// Addresses that could not send beyond the node are not offered, and the error names the setting.
#[test]
fn a_plain_pool_of_a_family_that_is_not_masqueraded_gives_nothing() {
    let pool = Pool {
        families: Family::ALL.into(),
        binding: None,
    };
    let pools = Pools::new(BTreeMap::from([("mars".to_owned(), pool)]), "default").unwrap();
    let cidrs = ["10.10.0.0/29", "fd99::/120"];
    let document = NodePools {
        enis: vec![eni(1, &["10.0.1.5", "2001:db8::1"], &[])],
        allocated: vec![allocated("mars", EdgeRules::default(), &cidrs)],
        ..NodePools::default()
    };
    let mut kind = on_enis(pools, |_: &str| Some(false));
    kind.masqueraded = [V4].into();
    let settings = settings(Formula::Linear, "mars=4");
    let mut manager = Manager::new(kind.clone(), restored(settings));
    let problems = manager.observe(document).problems;
    let texts: Vec<_> = problems.iter().map(ToString::to_string).collect();
    let why = "no ENI backs it, so that its addresses leave masqueraded, and masquerade.ipv6 is not \
               set, nor plain-pools.native";
    let left_out = format!("block fd99::/120 of pool mars is left out: {why}");
    assert_eq!(texts, [left_out]);
    set_ready(manager.allocator_mut(), &["eni-1"]);
    for request in [any("a", "mars", V6), exactly("a", "fd99::7")] {
        let error = manager.one(&request, at(0)).unwrap_err();
        assert!(error.to_string().contains("masquerade.ipv6"), "{error}");
        assert!(!error.is_temporary());
    }
    manager.one(&any("a", "mars", V4), at(0)).unwrap();
    manager.one(&any("b", "default", V6), at(0)).unwrap();
    let demand = manager.allocator().demand();
    assert_eq!(demand["mars"].keys().collect::<Vec<_>>(), [&V4]);

    kind.plain_is_native = true;
    assert_eq!(manager.reconfigure(kind).problems, []);
    manager.one(&any("a", "mars", V6), at(0)).unwrap();
}

#[test]
fn nothing_is_given_while_the_policy_of_its_pool_is_unknown() {
    let document = NodePools {
        enis: vec![eni(1, &["10.0.1.5"], &[])],
        ..NodePools::default()
    };
    let kind = on_enis(Pools::default(), |_| None);
    let mut manager = manage(kind, settings(Formula::Linear, ""), document);
    let error = manager.one(&any("a", "default", V4), at(0)).unwrap_err();
    assert_eq!(
        error.to_string(),
        "whether pool default skips masquerade is not known yet"
    );
    assert!(error.is_temporary());
    assert_eq!(manager.allocator().leases().count(), 0);
}

#[test]
fn pods_on_plain_pools_keep_to_their_pools_rules() {
    let document = NodePools {
        allocated: vec![
            allocated("green", EdgeRules::default(), &["10.10.0.0/24"]),
            allocated(
                "red",
                EdgeRules::ALL,
                &["10.20.0.0/28", "10.20.0.16/28", "10.20.0.32/28"],
            ),
        ],
        ..NodePools::default()
    };
    let kind = PodsOnEnis {
        plain_is_native: true,
        ..on_enis(Pools::default(), |pool: &str| Some(pool == "red"))
    };
    let mut manager = manage(
        kind,
        settings(Formula::RoundedUp, "green=4"),
        document.clone(),
    );
    let green = manager.one(&any("a", "green", V4), at(0)).unwrap();
    assert_eq!(
        (green.lease.address, green.skip_masquerade),
        (ip("10.10.0.1"), false)
    );
    for n in 0..48 {
        let red = manager
            .one(&any(&format!("red-{n}"), "red", V4), at(0))
            .unwrap();
        assert!(red.skip_masquerade);
    }
    let error = manager.one(&any("b", "red", V4), at(0)).unwrap_err();
    assert!(matches!(error, AllocateError::Exhausted { .. }), "{error}");
    let mut written = document.clone();
    assert!(manager.publish(&mut written));
    assert_eq!(written.allocated, document.allocated);
    let needed = |n: u64| BTreeMap::from([(V4, n)]);
    let green = BTreeMap::from([(V4, 8), (V6, 4)]);
    let requested: Vec<_> = written
        .requested
        .iter()
        .map(|r| (r.pool.as_str(), &r.needed))
        .collect();
    assert_eq!(requested, [("green", &green), ("red", &needed(49))]);
}

#[test]
fn the_agents_own_addresses_are_a_kind_too() {
    let settings = AgentAddresses::settings("gateways");
    let restore = |state: State| {
        let (allocator, _) = Allocator::restore(settings.clone(), state, None, at(0));
        Manager::new(AgentAddresses, allocator)
    };
    let mut manager = restore(State::default());
    let requests = [V4, V6].map(|family| Request {
        owner: owner("towpath-ingress-a"),
        pod: None,
        pool: None,
        want: Want::Any(family),
    });
    let mut document = AgentPools::default();
    assert!(!manager.publish(&mut document), "nothing is read yet");
    let error = manager.allocate(&requests, at(0)).unwrap_err();
    assert!(
        error.to_string().ends_with("waiting for the node document"),
        "{error}"
    );
    // Nothing is pre-allocated, so the demand is that of the failed request.
    manager.observe(document.clone());
    assert!(!manager.publish(&mut document));
    manager.allocate(&requests, at(0)).unwrap_err();
    assert!(manager.publish(&mut document));
    let demand = Demand::from([("gateways".to_owned(), [(V4, 1), (V6, 1)].into())]);
    assert_eq!(document.requested, demand);
    for address in ["10.0.1.70", "2001:db8::70", "10.0.1.71"] {
        document.given.insert(ip(address), "gateways".to_owned());
    }
    manager.observe(document.clone());
    let given = manager.allocate(&requests, at(1)).unwrap();
    let given: Vec<IpAddr> = given.iter().map(|given| given.lease.address).collect();
    assert_eq!(given, [ip("10.0.1.70"), ip("2001:db8::70")]);
    // Surplus addresses are released, and used ones stay, also in the next process.
    manager.allocator_mut().rebalance();
    assert!(manager.publish(&mut document));
    assert_eq!(document.given.keys().copied().collect::<Vec<_>>(), given);
    assert_eq!(document.requested, demand);
    let mut manager = restore(manager.allocator().state());
    assert_eq!(manager.wanted(), None, "nothing is read yet");
    manager.observe(document.clone());
    let again = manager.allocate(&requests, at(2)).unwrap();
    let again: Vec<IpAddr> = again.iter().map(|given| given.lease.address).collect();
    assert_eq!(again, given);
    manager
        .allocator_mut()
        .take_back(&owner("towpath-ingress-a"));
    manager.allocator_mut().rebalance();
    assert!(manager.publish(&mut document));
    assert_eq!(document, AgentPools::default());
}

/// The document is written only by who has read it: an agent that starts does not clear it.
#[test]
fn a_document_is_left_alone_until_everything_is_read() {
    let settings = Settings::default();
    let kind = on_enis(Pools::default(), |_| Some(false));
    let mut manager = Manager::new(kind, restored(settings));
    let stored = NodePools {
        enis: vec![eni(1, &["10.0.1.5"], &[])],
        allocated: vec![allocated("default", EdgeRules::ALL, &["10.0.1.5/32"])],
        ..NodePools::default()
    };
    let mut document = stored.clone();
    assert!(!manager.publish(&mut document));
    manager.observe(stored.clone());
    assert!(!manager.publish(&mut document), "the pools are not read");
    assert_eq!(document, stored);
    manager.allocator_mut().lift(Barrier::POOLS);
    assert!(manager.publish(&mut document));
}

/// An ENI that two pools claim: what is in use stays, and nothing more is given.
#[test]
fn an_undecided_eni_keeps_what_is_in_use() {
    let document = NodePools {
        enis: vec![eni(1, &[], &["10.0.1.16/28"])],
        ..NodePools::default()
    };
    let kind = on_enis(Pools::default(), |_| Some(false));
    let mut manager = manage(kind, settings(Formula::Linear, ""), document);
    let lease = manager.one(&any("a", "default", V4), at(0)).unwrap().lease;
    let bound = || super::bindings::pool(&[("ipam.towpath.dev/subnet-ids", "subnet-1")]);
    let by_name = ["blue", "red"].map(|name| (name.to_owned(), bound()));
    let pools = Pools::new(by_name.into(), "default").unwrap();
    let kind = on_enis(pools, |_| Some(false));
    let changes = manager.allocator_mut().observe(kind.read(&NodePools {
        enis: vec![eni(1, &[], &["10.0.1.16/28"])],
        ..NodePools::default()
    }));
    assert!(matches!(changes.problems[..], [Problem::TwoPools { .. }]));
    assert_eq!(changes.orphaned, []);
    let view = &manager.allocator().blocks()[0];
    assert_eq!(view.life, Life::Draining(Draining::Undecided));
    assert_eq!(view.pool.as_deref(), Some("default"));
    assert_eq!(manager.allocator().lease_of(lease.address), Some(&lease));
    manager.one(&any("b", "default", V4), at(0)).unwrap_err();
    let mut written = NodePools::default();
    manager.publish(&mut written);
    assert_eq!(written.allocated.len(), 1, "it is still the node's");
}
