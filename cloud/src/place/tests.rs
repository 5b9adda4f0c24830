//! The choice among subnets.

use super::*;
use crate::test_fixture::{location, subnet};

const NOW: Time = Time::from_millis(1_000_000);

fn subnets(list: &[Subnet]) -> Subnets {
    list.iter().map(|it| (it.id.clone(), it.clone())).collect()
}

fn best(all: &Subnets, kind: Kind, addresses: u32, pressure: &Pressure) -> Option<String> {
    let location = location();
    let places = location.places(all, kind.family(), pressure, NOW).ok()?;
    places
        .best(kind, addresses, pressure, NOW)
        .map(|it| it.id.to_string())
}

#[test]
fn the_own_subnet_comes_first_if_it_has_room_for_all() {
    let all = subnets(&[subnet("own", 20), subnet("same", 100)]);
    let free = Pressure::default();
    assert_eq!(best(&all, Kind::Address, 19, &free).as_deref(), Some("own"));
    assert_eq!(
        best(&all, Kind::Address, 20, &free).as_deref(),
        Some("same")
    );
    assert_eq!(
        best(&all, Kind::Address, 500, &free).as_deref(),
        Some("own")
    );
}

#[test]
fn of_siblings_the_one_with_most_room_less_what_is_in_flight() {
    let all = subnets(&[subnet("own", 1), subnet("b", 25), subnet("c", 30)]);
    let mut pressure = Pressure::default();
    assert_eq!(
        best(&all, Kind::Address, 8, &pressure).as_deref(),
        Some("c")
    );
    pressure.begin(&"c".into(), 9);
    assert_eq!(
        best(&all, Kind::Address, 8, &pressure).as_deref(),
        Some("b")
    );
    pressure.end(&"c".into(), 9, Some(NOW));
    assert_eq!(
        best(&all, Kind::Address, 8, &pressure).as_deref(),
        Some("b")
    );
    pressure.read(NOW);
    assert_eq!(
        best(&all, Kind::Address, 8, &pressure).as_deref(),
        Some("b")
    );
    pressure.read(NOW.after(Duration::from_millis(1)));
    assert_eq!(
        best(&all, Kind::Address, 8, &pressure).as_deref(),
        Some("c")
    );
}

#[test]
fn another_zone_never_counts_and_another_route_table_only_without_room_in_the_own() {
    let far = Subnet {
        zone: "b".to_owned(),
        ..subnet("far", 250)
    };
    let public = Subnet {
        route_table: Some("rtb-2".into()),
        ..subnet("public", 200)
    };
    let all = subnets(&[subnet("own", 5), far.clone(), public.clone()]);
    let mut pressure = Pressure::default();
    assert_eq!(
        best(&all, Kind::Address, 60, &pressure).as_deref(),
        Some("own")
    );
    assert_eq!(
        best(&all, Kind::Prefix, 16, &pressure),
        None,
        "rules do not mix"
    );
    pressure.refuse(&"own".into(), 5, Kind::Address, NOW);
    assert_eq!(
        best(&all, Kind::Address, 60, &pressure).as_deref(),
        Some("public")
    );
    let all = subnets(&[subnet("own", 1), far, public]);
    assert_eq!(
        best(&all, Kind::Address, 1, &Pressure::default()).as_deref(),
        Some("public")
    );
}

#[test]
fn a_full_subnet_is_forgotten_after_a_while_or_when_it_empties() {
    let own = subnet("own", 40);
    let mut pressure = Pressure::default();
    pressure.refuse(&own.id, 40, Kind::Prefix, NOW);
    assert_eq!(pressure.room(&own, Kind::Prefix, NOW), 0);
    assert_eq!(
        pressure.room(&own, Kind::Address, NOW),
        40,
        "of that kind alone"
    );
    let emptier = subnet("own", 56);
    assert_eq!(pressure.room(&emptier, Kind::Prefix, NOW), 56);
    assert_eq!(pressure.room(&subnet("own", 55), Kind::Prefix, NOW), 0);
    let later = NOW.after(FULL_FOR);
    assert_eq!(pressure.room(&own, Kind::Prefix, later), 40);
    assert_eq!(pressure.full().count(), 1);
    pressure.forget(later);
    assert_eq!(pressure.full().count(), 0);
}

#[test]
fn prefixes_are_found_in_a_sibling_before_the_own_subnet_gives_addresses() {
    let all = subnets(&[subnet("own", 500), subnet("same", 100)]);
    let mut pressure = Pressure::default();
    pressure.refuse(&"own".into(), 500, Kind::Prefix, NOW);
    assert_eq!(
        best(&all, Kind::Prefix, 16, &pressure).as_deref(),
        Some("same")
    );
    assert_eq!(
        best(&all, Kind::Address, 16, &pressure).as_deref(),
        Some("own")
    );
}

#[test]
fn subnets_with_ipv6_alone_serve_ipv6() {
    let v6 = Subnet {
        ipv4: None,
        ipv6: "2001:db8::/64".parse().ok(),
        free: 0,
        ..subnet("v6", 0)
    };
    let all = subnets(&[subnet("own", 50), v6]);
    let free = Pressure::default();
    assert_eq!(best(&all, Kind::PrefixV6, 0, &free).as_deref(), Some("v6"));
    assert_eq!(best(&all, Kind::Address, 1, &free).as_deref(), Some("own"));
}

#[test]
fn no_place_is_named() {
    let (node, free) = (location(), Pressure::default());
    let nothing = subnets(&[]);
    let none = node.places(&nothing, Family::V4, &free, NOW).unwrap_err();
    assert_eq!(
        none.to_string(),
        "no subnet of IPv4 matches the node's VPC and zone in VPC vpc-1 and zone a"
    );
    let mut named = location();
    named.ids = ["subnet-9".into()].into();
    named.tags = [("tier".to_owned(), "pods".to_owned())].into();
    let none = named.places(&nothing, Family::V4, &free, NOW).unwrap_err();
    let expected = "no subnet of IPv4 matches subnet-ids subnet-9,tier=pods in VPC vpc-1";
    assert!(none.to_string().starts_with(expected), "{none}");
    let all = subnets(&[subnet("own", 1), subnet("same", 0)]);
    let full = node.places(&all, Family::V4, &free, NOW).unwrap_err();
    assert!(
        full.to_string()
            .starts_with("no room in subnets own, same:"),
        "{full}"
    );
}
