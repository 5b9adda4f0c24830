//! Many pools on shared ENIs: which ENI serves which pool.

use std::collections::BTreeMap;

use ipam::node::{Binding, BindingError, Eni, NodePools, POOL_TAG, Pool, Pools};
use ipam::{Formula, Kind, Problem};

use super::kinds::{eni, manage, on_enis};
use super::support::*;

const ENI_TAGS: &str = "ipam.towpath.dev/eni-tags";
const SUBNET_IDS: &str = "ipam.towpath.dev/subnet-ids";
const SUBNET_TAGS: &str = "ipam.towpath.dev/subnet-tags";
const SECURITY_GROUPS: &str = "ipam.towpath.dev/security-groups";

fn map(pairs: &[(&str, &str)]) -> BTreeMap<String, String> {
    let pairs = pairs.iter();
    pairs
        .map(|(k, v)| ((*k).to_owned(), (*v).to_owned()))
        .collect()
}

/// A pool with these annotations.
pub(crate) fn pool(annotations: &[(&str, &str)]) -> Pool {
    Pool {
        families: [V4, V6].into(),
        binding: Binding::parse(&map(annotations)).unwrap(),
    }
}

fn pools(all: &[(&str, &[(&str, &str)])]) -> Pools {
    let by_name = all
        .iter()
        .map(|(name, a)| ((*name).to_owned(), pool(a)))
        .collect();
    Pools::new(by_name, "default").unwrap()
}

fn tagged(number: u8, tags: &[(&str, &str)]) -> Eni {
    let mut eni = eni(number, &[&format!("10.0.{number}.5")], &[]);
    eni.tags = map(tags);
    eni
}

/// The pool of each ENI's block, and the problems.
fn served(pools: Pools, enis: Vec<Eni>) -> (Vec<Option<String>>, Vec<String>) {
    let document = NodePools {
        enis,
        ..NodePools::default()
    };
    let announcement = on_enis(pools, |_| Some(false)).read(&document);
    let blocks = announcement.blocks.into_iter();
    let problems = announcement.problems.iter().map(Problem::to_string);
    (blocks.map(|block| block.pool).collect(), problems.collect())
}

fn names(pools: &[&str]) -> Vec<Option<String>> {
    pools.iter().map(|pool| Some((*pool).to_owned())).collect()
}

#[test]
fn enis_serve_the_pool_that_is_bound_to_them() {
    let enis = || {
        let mut tagged_subnet = tagged(3, &[]);
        tagged_subnet.subnet.tags = Some(map(&[("usage", "pods")]));
        vec![
            tagged(0, &[]),
            tagged(1, &[("team", "a"), ("env", "prod"), ("other", "x")]),
            tagged(2, &[("team", "a"), ("env", "dev")]),
            tagged_subnet,
        ]
    };
    let by_tags = pools(&[("blue", &[(ENI_TAGS, "team=a, env=prod")])]);
    let of_blue = names(&["default", "blue", "default", "default"]);
    assert_eq!(served(by_tags, enis()), (of_blue, vec![]));
    let by_subnets = pools(&[
        ("blue", &[(SUBNET_IDS, "subnet-1,subnet-2")]),
        ("red", &[(SUBNET_TAGS, "usage=pods")]),
        ("plain", &[]),
    ]);
    let of_both = names(&["default", "blue", "blue", "red"]);
    assert_eq!(served(by_subnets, enis()), (of_both, vec![]));
    let both_asked = pools(&[("blue", &[(ENI_TAGS, "team=a"), (SUBNET_IDS, "subnet-2")])]);
    let of_one = names(&["default", "default", "blue", "default"]);
    assert_eq!(served(both_asked, enis()), (of_one, vec![]));
}

#[test]
fn the_operators_tag_binds_before_everything_else() {
    let all = || {
        pools(&[
            ("blue", &[(SUBNET_TAGS, "usage=pods")]),
            ("red", &[(SUBNET_IDS, "subnet-1,subnet-2")]),
            ("green", &[(SECURITY_GROUPS, "sg-1")]),
            ("plain", &[]),
        ])
    };
    let of = |pool: &str| {
        let mut eni = tagged(1, &[(POOL_TAG, pool)]);
        eni.subnet.tags = None;
        eni
    };
    for pool in ["blue", "red", "green"] {
        let bound_to: Vec<String> = all().bound_to(&of(pool)).map(str::to_owned).collect();
        assert_eq!(bound_to, [pool]);
        assert_eq!(served(all(), vec![of(pool)]), (names(&[pool]), vec![]));
    }
    assert_eq!(
        served(all(), vec![of("default")]),
        (names(&["default"]), vec![])
    );
    // A name of no bound pool says nothing: people have put such tags on ENIs for other reasons.
    for other in ["true", "plain"] {
        let mut eni = tagged(1, &[(POOL_TAG, other)]);
        eni.subnet.tags = Some(map(&[]));
        assert_eq!(served(all(), vec![eni]), (names(&["red"]), vec![]));
    }
}

#[test]
fn two_pools_on_one_eni_are_an_error_that_names_both() {
    let both = pools(&[
        ("red", &[(SUBNET_IDS, "subnet-1")]),
        ("blue", &[(ENI_TAGS, "team=a")]),
    ]);
    let (served, problems) = served(both, vec![tagged(1, &[("team", "a")]), tagged(2, &[])]);
    assert_eq!(
        served,
        [None, Some("default".to_owned())],
        "the other ENI is not held back"
    );
    assert_eq!(
        problems,
        ["ENI eni-1 serves no pool: pools blue and red are all bound to it; one of them may be"]
    );
}

#[test]
fn an_eni_whose_subnets_tags_are_unknown_serves_nobody() {
    let mut unknown = tagged(1, &[]);
    unknown.subnet.tags = None;
    let bound = || pools(&[("blue", &[(SUBNET_TAGS, "usage=pods")])]);
    let (pool, problems) = served(bound(), vec![unknown.clone()]);
    assert_eq!(pool, [None]);
    assert_eq!(
        problems,
        [
            "ENI eni-1 serves no pool: the tags of its subnet subnet-1 are not known, and pool blue \
          is bound by them"
        ]
    );
    let by_ids = pools(&[("blue", &[(SUBNET_IDS, "subnet-9")])]);
    assert_eq!(
        served(by_ids, vec![unknown]).0,
        names(&["default"]),
        "nobody asks for the tags"
    );
}

#[test]
fn the_default_pool_is_not_bound() {
    let by_name = [("default".to_owned(), pool(&[(ENI_TAGS, "a=b")]))].into();
    let error = Pools::new(by_name, "default").unwrap_err();
    assert_eq!(error, BindingError::DefaultPool("default".to_owned()));
}

/// A pool is bound to an ENI that serves another one: new pods get nothing of it until the last
/// old one is gone, and then they do.
#[test]
fn a_new_binding_waits_for_the_addresses_in_use() {
    let document = NodePools {
        enis: vec![tagged(1, &[("team", "a")])],
        ..NodePools::default()
    };
    let skips = |pool: &str| Some(pool == "blue");
    let options = settings(Formula::Linear, "");
    let mut manager = manage(on_enis(Pools::default(), skips), options, document);
    let old = manager.one(&any("old", "default", V4), at(0)).unwrap();
    assert!(!old.skip_masquerade);
    manager.reconfigure(on_enis(pools(&[("blue", &[(ENI_TAGS, "team=a")])]), skips));
    let again = manager.one(&any("old", "default", V4), at(0)).unwrap();
    assert_eq!(
        (again.pool.as_str(), again.skip_masquerade),
        ("default", false)
    );
    let error = manager.one(&any("new", "blue", V4), at(0)).unwrap_err();
    assert!(error.is_temporary(), "{error}");
    manager.allocator_mut().release(&owner("old"), at(0));
    pass(manager.allocator_mut(), 30);
    let new = manager.one(&any("new", "blue", V4), at(31)).unwrap();
    assert_eq!((new.pool.as_str(), new.skip_masquerade), ("blue", true));
    assert_eq!(new.details.unwrap().eni, "eni-1");
}
