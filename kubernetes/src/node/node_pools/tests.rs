use ipam::DEFAULT_POOL;
use proptest::prelude::*;

use super::*;

fn net(text: &str) -> IpNet {
    text.parse().unwrap()
}

fn kept(pool: &str, edges: EdgeRules, cidrs: &[&str]) -> KeptBlocks {
    KeptBlocks {
        pool: pool.to_owned(),
        edges,
        cidrs: cidrs.iter().map(|cidr| net(cidr)).collect(),
    }
}

fn entry(pool: &str, cidrs: &[&str]) -> Allocated {
    Allocated {
        pool: pool.to_owned(),
        cidrs: cidrs.iter().map(|cidr| (*cidr).to_owned()).collect(),
        ..Allocated::default()
    }
}

fn on_enis() -> BTreeSet<String> {
    BTreeSet::from([DEFAULT_POOL.to_owned(), "blue".to_owned()])
}

#[test]
fn what_is_written_has_upstream_names_and_leaves_out_what_is_nothing() {
    let demand = Demand::from([
        (
            "default".to_owned(),
            [(Family::V4, 24), (Family::V6, 8)].into(),
        ),
        ("mars".to_owned(), [(Family::V4, 1)].into()),
    ]);
    let desired = NodeDemand {
        wanted: Wanted {
            requested: demand,
            allocated: vec![
                kept("default", EdgeRules::ALL, &["10.0.1.5/32", "10.0.1.16/28"]),
                kept("mars", EdgeRules::default(), &["10.20.0.0/27"]),
            ],
        },
        ..NodeDemand::default()
    };
    let next = desired.next(&NodePools::default()).unwrap();
    let object = json!({"metadata": {"name": "one", "uid": "u", "resourceVersion": "7"}});
    assert_eq!(
        patch(&object, &next),
        json!({
            "metadata": {"uid": "u", "resourceVersion": "7"},
            "spec": {"ipam": {"pools": {
                "requested": [
                    {"pool": "default", "needed": {"ipv4-addrs": 24, "ipv6-addrs": 8}},
                    {"pool": "mars", "needed": {"ipv4-addrs": 1}}
                ],
                "allocated": [
                    {"pool": "default", "allowFirstIP": true, "allowLastIP": true,
                     "cidrs": ["10.0.1.5/32", "10.0.1.16/28"]},
                    {"pool": "mars", "cidrs": ["10.20.0.0/27"]}
                ]
            }}}
        })
    );
    // The object that the server then has needs no change.
    let mut object = object;
    object["spec"] = patch(&object, &next)["spec"].clone();
    assert_eq!(pools_of(&object), Some(next.clone()));
    assert_eq!(desired.next(&next), None);
}

#[test]
fn stale_demand_is_replaced_and_blocks_that_enis_lost_are_shown_no_more() {
    let there = NodePools {
        requested: vec![Requested {
            pool: "gone".to_owned(),
            needed: Needed {
                ipv4_addrs: 99,
                ipv6_addrs: 0,
            },
        }],
        allocated: vec![
            entry("default", &["10.0.1.5/32", "10.0.1.6/32"]),
            entry("blue", &["10.0.2.1/32"]),
        ],
    };
    let desired = NodeDemand {
        agent: None,
        wanted: Wanted {
            requested: Demand::new(),
            allocated: vec![kept("default", EdgeRules::ALL, &["10.0.1.6/32"])],
        },
        // A pod still has the address of an ENI that went.
        held: BTreeSet::from(["10.0.1.5".parse().unwrap(), "10.0.2.1".parse().unwrap()]),
        on_enis: on_enis(),
        flat: None,
    };
    let next = desired.next(&there).unwrap();
    assert_eq!(next.requested, []);
    let shown: Vec<_> = next.allocated.iter().flat_map(|e| &e.cidrs).collect();
    assert_eq!(shown, ["10.0.1.6/32"]);
    // The operator may not have shown them yet.
    let releasing = NodeDemand {
        agent: Some("1.0.0".to_owned()),
        ..desired
    };
    let next = releasing.next(&there).unwrap();
    let shown: Vec<_> = next.allocated.iter().flat_map(|e| &e.cidrs).collect();
    assert_eq!(shown, ["10.0.2.1/32", "10.0.1.5/32", "10.0.1.6/32"]);
}

#[test]
fn a_plain_block_goes_only_when_nobody_has_an_address_of_it() {
    let there = NodePools {
        requested: Vec::new(),
        allocated: vec![entry(
            "mars",
            &["10.20.0.0/27", "10.20.1.0/27", "fd00::/124", "what"],
        )],
    };
    // The allocator knows none of it: the pool's document says now that it is bound, say.
    let desired = NodeDemand {
        held: BTreeSet::from(["10.20.1.31".parse().unwrap()]),
        on_enis: on_enis(),
        ..NodeDemand::default()
    };
    let next = desired.next(&there).unwrap();
    assert_eq!(next.allocated, [entry("mars", &["10.20.1.0/27", "what"])]);
    assert_eq!(desired.next(&next), None);
}

#[test]
fn of_another_document_only_the_demand_is_written() {
    let there = NodePools {
        requested: Vec::new(),
        allocated: vec![entry("mars", &["10.20.0.0/27"])],
    };
    let desired = NodeDemand {
        wanted: Wanted {
            requested: Demand::from([("mars".to_owned(), [(Family::V4, 3)].into())]),
            allocated: vec![kept("mars", EdgeRules::default(), &["10.99.0.0/27"])],
        },
        ..NodeDemand::default()
    };
    let next = desired.next_requested(&there).unwrap();
    assert_eq!(next.requested.len(), 1);
    assert_eq!(next.allocated, there.allocated);
    assert_eq!(desired.next_requested(&next), None);
}

#[test]
fn in_an_object_of_a_backup_blocks_in_use_are_claimed_and_nothing_else() {
    let there = NodePools {
        requested: Vec::new(),
        allocated: vec![entry("default", &["10.0.1.16/28"])],
    };
    let ours = ["10.0.1.16/28", "10.0.1.32/28", "10.0.1.48/28"];
    let desired = NodeDemand {
        wanted: Wanted {
            requested: Demand::new(),
            allocated: vec![
                kept("default", EdgeRules::default(), &ours),
                kept("mars", EdgeRules::default(), &["10.20.0.0/27"]),
            ],
        },
        held: ["10.0.1.17", "10.0.1.33", "10.20.0.1"]
            .map(|it| it.parse().unwrap())
            .into(),
        on_enis: on_enis(),
        ..NodeDemand::default()
    };
    let next = desired.next_held(&json!({}), &there).unwrap();
    let expected = entry("default", &["10.0.1.16/28", "10.0.1.32/28"]);
    assert_eq!(
        next.allocated,
        [expected],
        "plain blocks may be another node's"
    );
    assert_eq!(desired.next_held(&json!({}), &next), None);
    // The document in force does not show them yet.
    let without = NodeDemand {
        wanted: Wanted::default(),
        ..desired
    };
    let addresses = ["10.0.1.32", "10.0.1.33", "10.0.1.48"];
    let eni = json!({"prefixes": ["10.0.1.32/28", "10.0.1.48/28"], "addresses": addresses});
    let object = json!({"status": {"eni": {"enis": {"eni-1": eni}}}});
    let next = without.next_held(&object, &there).unwrap();
    let claimed: Vec<_> = next.allocated.iter().flat_map(|it| &it.cidrs).collect();
    assert_eq!(claimed, ["10.0.1.16/28", "10.0.1.32/28"]);
}

#[test]
fn what_cannot_be_read_is_not_overwritten() {
    assert_eq!(pools_of(&json!({"spec": {}})), Some(NodePools::default()));
    assert_eq!(
        pools_of(&json!({"spec": {"ipam": {"pools": {"allocated": null}}}})),
        Some(NodePools::default())
    );
    assert_eq!(
        pools_of(&json!({"spec": {"ipam": {"pools": {"allocated": 7}}}})),
        None
    );
}

/// Blocks of a small world: plain ones, and those of ENIs.
fn blocks(plain: bool) -> impl Strategy<Value = BTreeSet<u8>> {
    let base = if plain { 0 } else { 100 };
    prop::collection::btree_set((0..8u8).prop_map(move |n| base + n), 0..6)
}

fn cidr(n: u8) -> String {
    format!("10.{n}.0.0/28")
}

proptest! {
    /// Whatever stands there and whatever the allocator makes of it: nothing in use is lost that is
    /// the node's, nothing is shown that is not, and what was written is left alone.
    #[test]
    fn nothing_is_lost_and_nothing_is_made_up(
        there_plain in blocks(true),
        there_enis in blocks(false),
        kept_plain in blocks(true),
        kept_enis in blocks(false),
        held in prop::collection::btree_set((0..8u8, 0..16u8), 0..6),
    ) {
        let list = |set: &BTreeSet<u8>| set.iter().copied().map(cidr).collect::<Vec<_>>();
        let of = |pool: &str, set: &BTreeSet<u8>| Allocated {
            pool: pool.to_owned(),
            cidrs: list(set),
            ..Allocated::default()
        };
        let there = NodePools {
            requested: Vec::new(),
            allocated: vec![of("mars", &there_plain), of("default", &there_enis)],
        };
        // Of a plain pool the allocator has what the document has.
        let kept_plain: BTreeSet<u8> = kept_plain.intersection(&there_plain).copied().collect();
        let blocks = |set: &BTreeSet<u8>| set.iter().map(|n| net(&cidr(*n))).collect::<Vec<_>>();
        let keep = |pool: &str, set: &BTreeSet<u8>| KeptBlocks {
            pool: pool.to_owned(),
            edges: EdgeRules::default(),
            cidrs: blocks(set),
        };
        let held: BTreeSet<IpAddr> = held
            .into_iter()
            .map(|(block, host)| IpAddr::from([10, block, 0, host]))
            .collect();
        let desired = NodeDemand {
            agent: None,
            wanted: Wanted {
                requested: Demand::new(),
                allocated: vec![keep("mars", &kept_plain), keep("default", &kept_enis)],
            },
            held: held.clone(),
            on_enis: on_enis(),
            flat: None,
        };
        let next = desired.next(&there).unwrap_or_else(|| there.clone());
        let shown: Vec<String> = next.allocated.iter().flat_map(|e| e.cidrs.clone()).collect();
        let distinct: BTreeSet<&String> = shown.iter().collect();
        prop_assert_eq!(distinct.len(), shown.len(), "each once");
        for text in &shown {
            let is_ours = list(&kept_enis).contains(text) || list(&there_plain).contains(text);
            prop_assert!(is_ours, "{} is not the node's", text);
        }
        for text in list(&there_plain) {
            let in_use = held.iter().any(|address| net(&text).contains(address));
            prop_assert!(!in_use || shown.contains(&text), "{} is in use", text);
        }
        for text in list(&kept_enis).iter().chain(&list(&kept_plain)) {
            prop_assert!(shown.contains(text), "{} is kept", text);
        }
        prop_assert_eq!(desired.next(&next), None);
    }
}

#[test]
fn the_agents_mark_comes_and_goes_with_the_next_write() {
    let object = json!({"metadata": {"uid": "u", "resourceVersion": "7"}});
    let there = NodePools::default();
    let plain = NodeDemand::default();
    assert_eq!(plain.patch(&object, &there, None), None);
    let marked = NodeDemand {
        agent: Some("1.0.0".to_owned()),
        ..NodeDemand::default()
    };
    let patch = marked.patch(&object, &there, None).unwrap();
    let expected = json!({
        "metadata": {"uid": "u", "resourceVersion": "7", "annotations": {AGENT: "1.0.0"}},
        "spec": {"ipam": {"pools": there}}
    });
    assert_eq!(patch, expected);
    let mut object = object;
    object["metadata"]["annotations"] = json!({AGENT: "1.0.0"});
    assert_eq!(marked.patch(&object, &there, None), None);
    let patch = plain.patch(&object, &there, None).unwrap();
    assert_eq!(patch["metadata"]["annotations"], json!({AGENT: null}));
}
