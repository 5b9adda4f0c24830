//! Tables as a kernel copied them out: the answer to [`GET_INFO`], and the entries. They were made by
//!
//! ```text
//! iptables-legacy -N KUBE-FORWARD
//! iptables-legacy -A KUBE-FORWARD -d 10.0.1.20 -j ACCEPT
//! iptables-legacy -A INPUT -s 10.0.1.20 -j ACCEPT
//! iptables-legacy -A FORWARD -j KUBE-FORWARD
//! iptables-legacy -A FORWARD -i tow+ -d 169.254.169.254 -j DROP
//! iptables-legacy -P FORWARD DROP
//! iptables-legacy -t mangle -A FORWARD -s 10.0.1.16/28 -o eth1 -p tcp --tcp-flags SYN,RST SYN \
//!   -j TCPMSS --set-mss 1400
//! iptables-legacy -t mangle -A POSTROUTING -d 10.0.1.20 -p tcp --tcp-flags SYN,RST SYN \
//!   -j TCPMSS --clamp-mss-to-pmtu
//! ip6tables-legacy -N pods
//! ip6tables-legacy -A pods -s fd00::14 -j DROP
//! ```

use super::super::rule::Name;
use super::*;

const FILTER: &str = include_str!("recorded/ipv4-filter.hex");
const MANGLE: &str = include_str!("recorded/ipv4-mangle.hex");
const FILTER_V6: &str = include_str!("recorded/ipv6-filter.hex");

/// A recorded table as it is read: each rule's place and names, and the places of policies to drop.
type Read = (Vec<(String, Vec<Name>)>, Vec<String>);

fn read(family: Family, table: &str, recorded: &str) -> Read {
    let digits: Vec<char> = recorded.chars().filter(char::is_ascii_hexdigit).collect();
    let pairs = digits.chunks(2).map(|pair| pair.iter().collect::<String>());
    let bytes: Vec<u8> = pairs
        .map(|pair| u8::from_str_radix(&pair, 16).unwrap())
        .collect();
    let (head, entries) = bytes.split_at(INFO);
    let info = info(head).unwrap();
    let (rules, policies) = xtables::read(family, table, &info, entries).unwrap();
    let rules = rules.into_iter().map(|rule| (rule.place, rule.names));
    let places = policies.into_iter().map(|policy| policy.place);
    (rules.collect(), places.collect())
}

fn net(text: &str) -> Name {
    Name::Network(text.parse().unwrap())
}

#[test]
fn rules_and_policies_of_a_filter_table_are_read() {
    let rule = vec![net("169.254.169.254/32"), Name::device(b"tow", true)];
    let place = "iptables-legacy filter FORWARD, rule 2".to_owned();
    let policy = "iptables-legacy filter FORWARD".to_owned();
    let found = read(Family::V4, "filter", FILTER);
    assert_eq!(found, (vec![(place, rule)], vec![policy]));
}

#[test]
fn a_clamp_counts_where_packets_are_forwarded_and_alone_where_they_leave() {
    let forward = vec![net("10.0.1.16/28"), Name::device(b"eth1", false), Name::Mss];
    let place = |chain| format!("iptables-legacy mangle {chain}, rule 1");
    let rules = vec![
        (place("FORWARD"), forward),
        (place("POSTROUTING"), vec![Name::Mss]),
    ];
    assert_eq!(read(Family::V4, "mangle", MANGLE), (rules, Vec::new()));
}

#[test]
fn a_chain_of_the_users_own_is_read_by_its_name() {
    let place = "ip6tables-legacy filter pods, rule 1".to_owned();
    let rules = vec![(place, vec![net("fd00::14/128")])];
    assert_eq!(read(Family::V6, "filter", FILTER_V6), (rules, Vec::new()));
}

#[test]
fn a_table_that_is_cut_off_is_none() {
    let head: String = FILTER.lines().take(12).collect();
    let digits = head.len() / 2;
    let bytes: Vec<u8> = (0..digits)
        .map(|at| u8::from_str_radix(&head[at * 2..at * 2 + 2], 16).unwrap())
        .collect();
    let info = info(&bytes).unwrap();
    let cut = xtables::read(Family::V4, "filter", &info, &bytes[INFO..]);
    assert!(cut.is_none());
}
