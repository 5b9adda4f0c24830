//! Scenarios and numbers of Cilium's own tests of its operator's allocator for multi-pool mode.

use ipam::cluster::Ledger;

use super::{blocks, granted, open, pool, shortfalls, want};

/// A ledger with one pool and one node that has nothing.
fn one(spec: ipam::cluster::PoolSpec) -> Ledger {
    let mut ledger = Ledger::default();
    ledger.set_pool("p", spec);
    ledger.set_node("n", "1", blocks("p", &[]));
    ledger
}

#[test]
fn blocks_are_numbered_from_the_start_of_their_cidr() {
    for (cidr, mask, index, block) in [
        ("127.123.3.0/16", 24, 0, "127.123.0.0/24"),
        ("127.123.0.0/16", 24, 15, "127.123.15.0/24"),
        ("192.168.5.219/28", 32, 5, "192.168.5.213/32"),
        ("2001:db8:1234:3::/48", 64, 0, "2001:db8:1234::/64"),
        ("2001:db8:1234:3::/48", 64, 15, "2001:db8:1234:f::/64"),
        (
            "2001:db8:85a3::8a2e:370:7334/50",
            63,
            6425,
            "2001:db8:85a3:3232::/63",
        ),
        ("2001:db8::/32", 48, 6425, "2001:db8:1919::/48"),
        (
            "2001:db8:1234:ff00::/56",
            72,
            15,
            "2001:db8:1234:ff00:f00::/72",
        ),
        (
            "2001:db8:1234:ff00::/56",
            72,
            6425,
            "2001:db8:1234:ff19:1900::/72",
        ),
        (
            "2001:db8:1234:0:1234::/80",
            96,
            15,
            "2001:db8:1234:0:1234:f::/96",
        ),
    ] {
        let mut ledger = one(open(pool(&[cidr], (mask, mask))));
        // Each block as far as the wanted one, by one address at a time.
        let mut last = String::new();
        for number in 0..=index {
            ledger.set_node("n", &format!("v{number}"), blocks("p", &[]));
            ledger.set_node("keeper", "1", blocks("p", &[]));
            let wanted = want("p", u32::from(mask <= 32), u32::from(mask > 32));
            let found = granted(&mut ledger, "n", &wanted);
            assert_eq!(found.len(), 1, "{cidr} {number}");
            last.clone_from(&found[0]);
        }
        assert_eq!(last, block, "{cidr} /{mask} {index}");
    }
}

#[test]
fn the_first_and_the_last_address_count_as_the_pool_says() {
    let small = pool(&["10.0.0.0/29"], (30, 0));
    let mut strict = one(small.clone());
    let all = ["10.0.0.0/30", "10.0.0.4/30"];
    assert_eq!(granted(&mut strict, "n", &want("p", 4, 0)), all);
    let mut loose = one(open(small));
    assert_eq!(granted(&mut loose, "n", &want("p", 4, 0)), all[..1]);
    let mut red = one(pool(&["10.20.0.0/16"], (28, 0)));
    let three = ["10.20.0.0/28", "10.20.0.16/28", "10.20.0.32/28"];
    assert_eq!(granted(&mut red, "n", &want("p", 36, 0)), three);
    let mut more = one(pool(&["10.100.0.0/16"], (24, 0)));
    more.set_node("n", "2", blocks("p", &["10.100.0.0/24"]));
    assert_eq!(
        granted(&mut more, "n", &want("p", 300, 0)),
        ["10.100.1.0/24"]
    );
}

#[test]
fn both_families_are_served_and_blocks_outlive_their_pool() {
    let spec = pool(&["10.100.0.0/16", "fd00:100::/80"], (24, 96));
    let mut ledger = one(spec.clone());
    let first = ["10.100.0.0/24", "fd00:100::/96"];
    assert_eq!(granted(&mut ledger, "n", &want("p", 10, 10)), first);
    ledger.set_node("n", "2", blocks("p", &first));
    ledger.set_node("m", "1", blocks("p", &[]));
    let second = ["10.100.1.0/24", "fd00:100::1:0:0/96"];
    assert_eq!(granted(&mut ledger, "m", &want("p", 10, 10)), second);
    ledger.set_node("m", "2", blocks("p", &second));

    ledger.lose_pool("p");
    assert_eq!(ledger.view("p").orphans.len(), 4);
    ledger.set_node("o", "1", blocks("p", &[]));
    let gone = shortfalls(&mut ledger, "o", &want("p", 1, 0));
    assert_eq!(gone.len(), 1);
    assert!(gone[0].contains("no CiliumPodIPPool p"), "{gone:?}");

    let mut only_v6 = spec.clone();
    only_v6.spaces.remove(&ipam::Family::V4);
    ledger.set_pool("p", only_v6);
    assert_eq!(ledger.view("p").orphans.len(), 2, "IPv4");
    let wanted = want("p", 10, 10);
    assert_eq!(granted(&mut ledger, "o", &wanted), ["fd00:100::2:0:0/96"]);
    let lacks = shortfalls(&mut ledger, "o", &wanted);
    assert_eq!(lacks, ["CiliumPodIPPool p has no usable IPv4 CIDR"]);

    ledger.set_pool("p", spec);
    assert!(ledger.view("p").orphans.is_empty());
    let third = ["10.100.2.0/24", "fd00:100::2:0:0/96"];
    assert_eq!(granted(&mut ledger, "o", &wanted), third);
}

#[test]
fn blocks_that_a_node_lists_are_taken_before_anything_is_granted() {
    let mut ledger = Ledger::default();
    let listed = ["10.100.10.0/24", "10.100.20.0/24"];
    // Whatever comes first, the pool or the node.
    ledger.set_node("n", "1", blocks("p", &listed));
    ledger.set_pool("p", pool(&["10.100.0.0/16", "fd00:100::/80"], (24, 96)));
    assert!(granted(&mut ledger, "n", &want("p", 400, 0)).is_empty());
    ledger.set_node("m", "1", blocks("p", &[]));
    let found = granted(&mut ledger, "m", &want("p", 10, 10));
    assert_eq!(found, ["10.100.0.0/24", "fd00:100::/96"]);
}
