//! The lines of the table, each tried.

use std::collections::BTreeMap;
use std::net::IpAddr;

use ipam::node::{Eni, Origin, Subnet};
use ipam::{AnnouncedBlock, Announcement, EdgeRules, Formula, Request, Want};
use ipnet::IpNet;

use super::support::*;
use super::table;

fn edges(allow_first: bool, allow_last: bool) -> EdgeRules {
    EdgeRules {
        allow_first,
        allow_last,
    }
}

fn block(cidr: &str, edges: EdgeRules) -> AnnouncedBlock {
    AnnouncedBlock {
        edges,
        ..plain("default", cidr)
    }
}

fn eni(prefixes: &[&str], addresses: &[&str]) -> Eni {
    let mut all = Vec::new();
    for text in addresses {
        let (first, last) = text.split_once('-').unwrap_or((text, text));
        match (ip(first), ip(last)) {
            (IpAddr::V4(first), IpAddr::V4(last)) => {
                let range = u32::from(first)..=u32::from(last);
                all.extend(range.map(|n| IpAddr::V4(n.into())));
            }
            (first, _) => all.push(first),
        }
    }
    Eni {
        id: "eni-1".to_owned(),
        number: 1,
        mac: [0x0a, 0x11, 0x22, 0x33, 0x44, 0x55],
        primary_address: "192.0.2.9".parse().ok(),
        subnet: Subnet {
            id: "subnet-1".to_owned(),
            cidr: "192.0.2.0/24".parse().ok(),
            tags: None,
        },
        vpc_cidrs: vec![net("10.0.0.0/8")],
        addresses: all,
        prefixes: prefixes.iter().map(|text| net(text)).collect(),
        tags: BTreeMap::new(),
        excluded: false,
        use_primary_address: false,
    }
}

#[test]
fn demand_is_rounded_up_or_linear() {
    for (used, pre_allocate, needed) in table::ROUNDED_UP {
        let got = Formula::RoundedUp.needed(*used, *pre_allocate);
        assert_eq!(got, *needed, "{used} {pre_allocate}");
        let linear = Formula::Linear.needed(*used, *pre_allocate);
        assert_eq!(linear, used + pre_allocate);
    }
}

#[test]
fn blocks_have_the_addresses_that_their_rules_leave() {
    for (cidr, first, last, count) in table::CAPACITY {
        let allocator = ready(&[block(cidr, edges(*first, *last))]);
        let family = ipam::Family::of(net(cidr).addr());
        let counts = allocator.counts("default", family);
        assert_eq!(counts.free, *count, "{cidr} {first} {last}");
        assert!(counts.add_up(), "{cidr} {first} {last}: {counts:?}");
    }
    for (cidr, first, last, count) in table::USABLE {
        let usable = edges(*first, *last).usable(net(cidr));
        assert_eq!(usable, *count, "{cidr} {first} {last}");
    }
    for (cidr, first, address) in table::FIRST {
        let mut allocator = ready(&[block(cidr, edges(*first, true))]);
        let family = ipam::Family::of(net(cidr).addr());
        let lease = allocator
            .allocate(&any("a", "default", family), at(0))
            .unwrap();
        assert_eq!(lease.address, ip(address), "{cidr}");
    }
    for (cidr, inside, beyond) in table::WINDOW {
        let mut allocator = ready(&[block(cidr, edges(false, false))]);
        allocator.allocate(&exactly("a", inside), at(0)).unwrap();
        let error = allocator
            .allocate(&exactly("b", beyond), at(0))
            .unwrap_err();
        assert!(
            error.to_string().contains("only the first 65536"),
            "{error}"
        );
    }
}

/// Two /28: 32 addresses, or 28. Two of them are used, one block goes, and comes back when needed.
#[test]
fn a_block_that_was_released_is_taken_again() {
    let blocks = ["10.0.0.0/28", "10.0.0.16/28"];
    let all = blocks.map(|cidr| block(cidr, EdgeRules::ALL));
    assert_eq!(ready(&all).counts("default", V4).free, 32);

    let free = |allocator: &ipam::Allocator| -> u64 {
        let views = allocator.blocks();
        let usable = views.iter().filter(|view| view.life == ipam::Life::Usable);
        usable.map(|view| view.counts.free).sum()
    };
    let mut allocator = ready(&all);
    for name in ["a", "b"] {
        get(&mut allocator, name, 0).unwrap();
    }
    let released = allocator.rebalance().released;
    assert_eq!(released, [net("10.0.0.16/28")]);
    assert_eq!(free(&allocator), 14);
    let mut more = announce(&all);
    more.pre_allocate = Some(20);
    allocator.observe(more);
    assert_eq!(free(&allocator), 14, "announcing alone takes nothing again");
    assert_eq!(allocator.rebalance().retaken, [net("10.0.0.16/28")]);
    assert_eq!(free(&allocator), 30);
}

/// Blocks of plain pools on a node with ENIs: the demand is rounded up, and unneeded blocks are
/// released. None of these is reclaimed while it is still announced.
#[test]
fn plain_pools_give_back_and_never_take_again() {
    let blocks = [
        plain("mars", "10.9.0.0/28"),
        plain("mars", "10.9.0.16/28"),
        block("10.0.0.0/28", EdgeRules::ALL),
        block("10.0.0.16/28", EdgeRules::ALL),
    ];
    let announced = |blocks: &[AnnouncedBlock]| Announcement {
        plain: ["mars".to_owned()].into(),
        ..announce(blocks)
    };
    let mut allocator = fresh(settings(Formula::Linear, "mars=4,default=4"));
    allocator.observe(announced(&blocks));
    set_ready(&mut allocator, &["eni-1", "eni-2"]);
    let of_mars = |name: &str| any(name, "mars", V4);
    allocator.allocate(&of_mars("a"), at(0)).unwrap();
    let demand = allocator.demand();
    assert_eq!((demand["mars"][&V4], demand["default"][&V4]), (8, 4));
    assert_eq!(allocator.give_back_plain(), [net("10.9.0.16/28")]);
    assert_eq!(allocator.give_back_plain(), [], "once");
    assert!(allocator.released().eq([net("10.9.0.16/28")]));

    // More pods than are left: there is more demand, and the block stays given back.
    let others = (0..20).map(|n| allocator.allocate(&of_mars(&format!("b{n}")), at(1)));
    assert_eq!(others.flatten().count(), 13);
    assert!(allocator.demand()["mars"][&V4] > 13);
    allocator.observe(announced(&blocks));
    assert_eq!(allocator.give_back_plain(), []);
    assert!(allocator.allocate(&of_mars("c"), at(1)).is_err());

    // It went, and comes back: it is given from again.
    allocator.observe(announced(&blocks[..1]));
    assert_eq!(allocator.released().count(), 0);
    allocator.observe(announced(&blocks));
    allocator.allocate(&of_mars("c"), at(1)).unwrap();
}

#[test]
fn enis_become_blocks() {
    for (prefixes, addresses, blocks) in table::ENI_BLOCKS {
        let found: Vec<IpNet> = eni(prefixes, addresses).blocks().into_iter().collect();
        let wanted: Vec<IpNet> = blocks.iter().map(|text| net(text)).collect();
        assert_eq!(found, wanted);
    }
    for (prefix, address, has) in table::ENI_HAS {
        assert_eq!(eni(&[prefix], &[]).has(ip(address)), *has, "{address}");
    }
    for (address, subnet, number, gateway) in table::ENI_RESULT {
        let mut eni = eni(&[], &[address]);
        eni.subnet.cidr = subnet.parse().ok();
        eni.number = *number;
        let found = eni.describe(ip(address).into(), ip(address));
        assert_eq!(found.gateway, Some(ip(gateway)));
        assert_eq!((found.number, found.mac), (*number, eni.mac));
        assert_eq!(found.origin, Origin::Address);
    }
}

#[test]
fn demand_follows_use() {
    for (pool, pre_allocate, used, needed) in table::DEMAND {
        let pre_allocation = format!("{pool}={pre_allocate}");
        let mut allocator = fresh(settings(Formula::RoundedUp, &pre_allocation));
        let of_pool = AnnouncedBlock {
            edges: edges(false, true),
            ..plain(pool, "10.0.0.0/27")
        };
        allocator.observe(announce(&[of_pool]));
        for n in 0..*used {
            allocator
                .allocate(&any(&n.to_string(), pool, V4), at(0))
                .unwrap();
        }
        let demand = allocator.demand();
        assert_eq!(demand[*pool][&V4], *needed, "{pool} {used}");
        assert_eq!(
            demand[*pool][&V6],
            u64::from(*pre_allocate),
            "nothing of it is used"
        );
    }
}

/// An address that cools down counts as demand until its cooldown is over.
#[test]
fn demand_falls_once_addresses_have_cooled() {
    let mut allocator = fresh(settings(Formula::RoundedUp, "default=8"));
    allocator.observe(announce(&[block("10.0.0.0/27", edges(false, true))]));
    for n in 0..31 {
        get(&mut allocator, &n.to_string(), 0).unwrap();
    }
    for n in 1..31 {
        allocator.release(&owner(&n.to_string()), at(0));
    }
    assert_eq!(allocator.demand()["default"][&V4], 40);
    pass(&mut allocator, 30);
    assert_eq!(allocator.demand()["default"][&V4], 16);
}

#[test]
fn requests_in_vain_are_demand_for_a_while() {
    let count = |allocator: &ipam::Allocator, pool: &str, family| {
        let demand = allocator.demand();
        let of_pool = demand.get(pool).and_then(|needed| needed.get(&family));
        of_pool.copied().unwrap_or(0)
    };
    let family = |is_v6: bool| if is_v6 { V6 } else { V4 };
    let mut allocator = fresh(settings(Formula::RoundedUp, ""));
    let mut requests = table::PENDING.to_vec();
    requests.sort_by_key(|(_, _, second, _)| *second);
    for (pool, is_v6, second, name) in requests {
        let error = allocator.allocate(&any(name, pool, family(is_v6)), at(second));
        assert!(
            error
                .unwrap_err()
                .to_string()
                .contains("is unknown on this node")
        );
    }
    for (second, pool, is_v6, number) in table::PENDING_COUNTS {
        pass(&mut allocator, *second);
        let found = count(&allocator, pool, family(*is_v6));
        assert_eq!(found, *number, "{pool} {is_v6} at {second}");
    }
}

/// An unknown pool is requested, with one address of each requested family.
#[test]
fn an_unknown_pool_is_asked_for() {
    let mut allocator = fresh(settings(Formula::RoundedUp, "default=16,mars=8"));
    for family in [V4, V6] {
        allocator
            .allocate(&any("a", "jupiter", family), at(0))
            .unwrap_err();
    }
    let demand = allocator.demand();
    let of = |pool: &str| [demand[pool][&V4], demand[pool][&V6]];
    assert_eq!(
        [of("default"), of("mars"), of("jupiter")],
        [[16, 16], [8, 8], [1, 1]]
    );
}

/// Ten single addresses of each family, five in use, one in store: six stay.
#[test]
fn the_linear_form_keeps_what_is_used_and_one_more() {
    let mut allocator = fresh(settings(Formula::Linear, "default=1"));
    let blocks: Vec<_> = (1..=10)
        .flat_map(|n| [format!("10.0.0.{n}/32"), format!("2001:db8::{n:x}/128")])
        .map(|cidr| block(&cidr, EdgeRules::ALL))
        .collect();
    allocator.observe(announce(&blocks));
    for n in 0..5 {
        for family in [V4, V6] {
            let request = Request {
                owner: owner(&n.to_string()),
                pod: None,
                pool: None,
                want: Want::Any(family),
            };
            allocator.allocate(&request, at(0)).unwrap();
        }
    }
    let released = allocator.rebalance().released;
    for family in [V4, V6] {
        let of_family = released
            .iter()
            .filter(|n| ipam::Family::of_net(**n) == family);
        assert_eq!(of_family.count(), 4);
        assert_eq!(allocator.demand()["default"][&family], 6);
    }
    assert_eq!(allocator.rebalance(), ipam::Rebalanced::default());
}
