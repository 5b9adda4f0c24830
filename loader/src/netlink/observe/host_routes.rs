//! Where others' routes lead packets by their destination alone.

use std::collections::{BTreeMap, BTreeSet};

use ipnet::IpNet;

use super::ParsedRule;
use super::routes::Led;
use crate::constants;

/// The routes that hold for every packet to their networks.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Chosen {
    /// Networks and the devices that lead there.
    pub(super) led: BTreeSet<(IpNet, u32)>,
    /// Networks all of whose addresses are the host's.
    pub(super) local: BTreeSet<IpNet>,
}

/// Chooses the routes of tables to which a rule leads by the destination alone. A table that is
/// chosen by a mark, a source or a device does not apply to a pod's packet. Of a table's routes to
/// one network, those of the lowest metric count.
pub(super) fn choose(rules: &[ParsedRule], routes: &[Led]) -> Chosen {
    let mut led: BTreeMap<u32, BTreeSet<IpNet>> = BTreeMap::new();
    let rules = rules.iter().filter_map(ParsedRule::by_destination);
    for (table, to) in rules.filter(|(table, _)| !constants::is_our_table(*table)) {
        led.entry(table).or_default().insert(to);
    }
    let mut least: BTreeMap<(u32, IpNet), u32> = BTreeMap::new();
    for route in routes {
        let metric = least.entry((route.table, route.net)).or_insert(u32::MAX);
        *metric = route.metric.min(*metric);
    }
    let mut chosen = Chosen::default();
    for route in routes {
        let Led {
            table,
            net,
            ifindex,
            is_local,
            ..
        } = *route;
        if least.get(&(table, net)) != Some(&route.metric) {
            continue;
        }
        for to in led.get(&table).into_iter().flatten() {
            let common = common(net, *to);
            if is_local {
                chosen.local.extend(common);
            } else {
                chosen.led.extend(common.map(|net| (net, ifindex)));
            }
        }
    }
    chosen
}

/// The prefix that two prefixes have in common.
fn common(one: IpNet, other: IpNet) -> Option<IpNet> {
    if other.contains(&one) {
        Some(one)
    } else {
        one.contains(&other).then_some(other)
    }
}

#[cfg(test)]
mod tests {
    use netlink_packet_route::AddressFamily;
    use netlink_packet_route::rule::{RuleAction, RuleAttribute, RuleFlags, RuleMessage};

    use super::*;

    const MAIN: u32 = 254;
    const OTHER: u32 = 99;

    fn rule(table: u32, to: Option<&str>, more: Option<RuleAttribute>) -> RuleMessage {
        let mut message = RuleMessage::default();
        message.header.family = AddressFamily::Inet;
        message.header.action = RuleAction::ToTable;
        message.attributes.push(RuleAttribute::Table(table));
        message.attributes.extend(more);
        if let Some(to) = to {
            let to: IpNet = to.parse().unwrap();
            message.header.dst_len = to.prefix_len();
            let address = RuleAttribute::Destination(to.addr());
            message.attributes.push(address);
        }
        message
    }

    fn chosen(messages: &[RuleMessage], routes: &[(u32, &str)]) -> Vec<String> {
        let rules: Vec<_> = messages.iter().filter_map(ParsedRule::parse).collect();
        let routes = routes.iter().map(|(table, net)| Led {
            table: *table,
            net: net.parse().unwrap(),
            metric: 0,
            ifindex: 7,
            is_local: false,
        });
        let found = choose(&rules, &routes.collect::<Vec<_>>()).led;
        found.into_iter().map(|(net, _)| net.to_string()).collect()
    }

    #[test]
    fn a_table_counts_as_far_as_the_destination_alone_leads_to_it() {
        let routes = [
            (MAIN, "10.8.0.0/24"),
            (OTHER, "10.9.0.0/16"),
            (OTHER, "0.0.0.0/0"),
        ];
        assert!(chosen(&[], &routes).is_empty(), "no rule leads anywhere");
        let main = rule(MAIN, None, None);
        assert_eq!(
            chosen(std::slice::from_ref(&main), &routes),
            ["10.8.0.0/24"]
        );
        let narrower = rule(OTHER, Some("10.9.7.0/24"), None);
        assert_eq!(chosen(&[narrower], &routes), ["10.9.7.0/24"]);
        let wider = rule(OTHER, Some("10.0.0.0/8"), None);
        assert_eq!(
            chosen(&[main, wider], &routes),
            ["10.0.0.0/8", "10.8.0.0/24", "10.9.0.0/16"]
        );
    }

    #[test]
    fn of_routes_to_one_network_those_of_the_least_metric_count() {
        let main: Vec<_> = ParsedRule::parse(&rule(MAIN, None, None))
            .into_iter()
            .collect();
        let net: IpNet = "10.8.0.0/24".parse().unwrap();
        let routes = [(7, 100), (8, 50), (9, 50)].map(|(ifindex, metric)| Led {
            table: MAIN,
            net,
            metric,
            ifindex,
            is_local: false,
        });
        let found = choose(&main, &routes);
        assert_eq!(found.led, BTreeSet::from([(net, 8), (net, 9)]));
    }

    #[test]
    fn rules_that_ask_for_more_say_nothing_of_a_pods_packet() {
        let routes = [(OTHER, "10.9.0.0/16")];
        let source = std::net::IpAddr::from([10, 1, 0, 1]);
        for attribute in [
            RuleAttribute::FwMark(1),
            RuleAttribute::Source(source),
            RuleAttribute::Iifname("eth7".to_owned()),
        ] {
            let mut asks = rule(OTHER, None, Some(attribute.clone()));
            asks.header.src_len = 32;
            assert!(chosen(&[asks], &routes).is_empty(), "{attribute:?}");
        }
        let mut inverted = rule(OTHER, Some("10.9.0.0/16"), None);
        inverted.header.flags |= RuleFlags::Invert;
        assert!(chosen(&[inverted], &routes).is_empty());
        let mut refusing = rule(OTHER, Some("10.9.0.0/16"), None);
        refusing.header.action = RuleAction::Unreachable;
        assert!(chosen(&[refusing], &routes).is_empty());
        let ours = rule(constants::TABLE_PODS, None, None);
        assert!(chosen(&[ours], &[(constants::TABLE_PODS, "10.9.0.0/16")]).is_empty());
    }
}
