//! Policy routing rules.

use std::collections::BTreeSet;

use ipam::Family;
use loader::kernel::{Action, Rule, Selector, StepKind};
use serde_json::json;

use crate::host::{PROTOCOL, apply_twice, in_netns, ip, ip_json, observe, refused};

const FIELD: u32 = 0x3f00_0000;

fn flag(family: Family) -> &'static str {
    match family {
        Family::V4 => "-4",
        Family::V6 => "-6",
    }
}

fn rule(family: Family, priority: u32, selector: Selector, action: Action) -> Rule {
    Rule {
        family,
        priority,
        selector,
        action,
        protocol: PROTOCOL,
    }
}

/// Every rule that we own, in the order in which they are added.
fn ours(family: Family) -> [Rule; 5] {
    let source = match family {
        Family::V4 => "10.0.1.10/32",
        Family::V6 => "2001:db8::10/128",
    };
    let mark = |value| Selector::Mark { value, mask: FIELD };
    let source = Selector::Source(source.parse().expect("a prefix"));
    [
        rule(family, 20, Selector::All, Action::Table(220)),
        rule(family, 112, Selector::All, Action::Nop),
        rule(family, 110, mark(0), Action::Goto(112)),
        rule(family, 111, mark(0x0200_0000), Action::Table(11)),
        rule(family, 112, source, Action::Table(11)),
    ]
}

#[test]
fn every_rule_of_ours_comes_back_as_asked_and_goes() {
    in_netns(async |netlink| {
        let before = observe(netlink).await.rules;
        for family in Family::ALL {
            for rule in ours(family) {
                apply_twice(netlink, StepKind::AddRule(rule)).await;
                let observed = observe(netlink).await.rules;
                assert!(observed.contains(&rule), "{rule:?} in {observed:?}");
            }
            let shown = ip_json(&format!("{} rule show", flag(family)));
            let of = |priority: u32| {
                let wanted = json!(priority);
                let matching = shown.iter().filter(move |r| r["priority"] == wanted);
                matching.cloned().collect::<Vec<_>>()
            };
            assert_eq!(of(20).len(), 1, "{shown:?}");
            assert_eq!(of(20)[0]["table"], json!("220"));
            assert_eq!(of(110)[0]["goto"], json!(112));
            assert_eq!(of(110)[0]["fwmask"], json!("0x3f000000"));
            assert_eq!(of(111)[0]["fwmark"], json!("0x2000000"));
            assert_eq!(of(111)[0]["table"], json!("11"));
            assert_eq!(of(112).len(), 2, "{shown:?}");
            assert!(shown.iter().any(|r| r.get("nop").is_some()), "{shown:?}");
        }
        for family in Family::ALL {
            for rule in ours(family) {
                apply_twice(netlink, StepKind::DeleteRule(rule)).await;
                assert!(!observe(netlink).await.rules.contains(&rule), "{rule:?}");
            }
        }
        assert_eq!(observe(netlink).await.rules, before);
    });
}

#[test]
fn a_table_above_255_is_read_and_written_whole() {
    in_netns(async |netlink| {
        for family in Family::ALL {
            let rule = rule(family, 30, Selector::All, Action::Table(70_001));
            apply_twice(netlink, StepKind::AddRule(rule)).await;
            let shown = ip_json(&format!("{} rule show priority 30", flag(family)));
            assert_eq!(shown[0]["table"], json!("70001"));
            assert!(observe(netlink).await.rules.contains(&rule));
            apply_twice(netlink, StepKind::DeleteRule(rule)).await;
            assert!(!observe(netlink).await.rules.contains(&rule));
        }
    });
}

/// Expected reading of a rule.
type Check = fn(&Rule) -> bool;

/// Rules that look like ours and are not, with their expected readings.
const LOOKALIKES: [(&str, Check); 12] = [
    ("priority 20 to 10.0.1.99 table 220", foreign_selector),
    ("priority 20 iif lo table 220", foreign_selector),
    ("priority 20 oif lo table 220", foreign_selector),
    ("priority 20 tos 0x10 table 220", foreign_selector),
    ("priority 20 uidrange 0-10 table 220", foreign_selector),
    (
        "priority 20 ipproto udp dport 53 table 220",
        foreign_selector,
    ),
    ("priority 20 not from 10.0.1.99 table 220", foreign_selector),
    (
        "priority 111 from 10.0.1.99 fwmark 0x2000000/0x3f000000 table 11",
        foreign_selector,
    ),
    (
        "priority 20 table 220 suppress_prefixlength 0",
        foreign_action,
    ),
    ("priority 20 blackhole", foreign_action),
    ("priority 20 realms 4 table 220", foreign_action),
    ("priority 111 fwmark 0x2000000 table 11", |rule| {
        rule.selector
            == Selector::Mark {
                value: 0x0200_0000,
                mask: u32::MAX,
            }
    }),
];

fn foreign_selector(rule: &Rule) -> bool {
    rule.selector == Selector::Foreign
}

fn foreign_action(rule: &Rule) -> bool {
    rule.action == Action::Foreign
}

#[test]
fn a_lookalike_is_no_rule_of_ours() {
    for (text, expected) in LOOKALIKES {
        in_netns(async move |netlink| {
            let before = observe(netlink).await.rules;
            ip(&format!("rule add {text}"));
            let after = observe(netlink).await.rules;
            let added: Vec<_> = after.difference(&before).collect();
            assert_eq!(added.len(), 1, "{text}: {added:?}");
            assert!(expected(added[0]), "{text}: {:?}", added[0]);
        });
    }
}

#[test]
fn a_strangers_rule_is_never_deleted_in_the_place_of_ours() {
    in_netns(async |netlink| {
        let ours = rule(Family::V4, 20, Selector::All, Action::Table(220));
        // In front of ours, and all that the kernel compares is equal.
        ip("rule add priority 20 fwmark 0x1 table 220 protocol kernel");
        apply_twice(netlink, StepKind::DeleteRule(ours)).await;
        assert_eq!(ip_json("-4 rule show priority 20").len(), 1);
        apply_twice(netlink, StepKind::AddRule(ours)).await;
        let error = refused(netlink, StepKind::DeleteRule(ours)).await;
        assert_eq!(
            error,
            "the IPv4 rule 20: all lookup 220 cannot be deleted: the kernel would delete the \
             IPv4 rule 20: from all fwmark 0x1/0xffffffff lookup 220 instead"
        );
        assert_eq!(ip_json("-4 rule show priority 20").len(), 2);
        // After our rule it cannot be deleted by mistake.
        ip("rule del priority 20 fwmark 0x1 table 220");
        ip("rule add priority 20 fwmark 0x1 table 220 protocol kernel");
        apply_twice(netlink, StepKind::DeleteRule(ours)).await;
        let left = ip_json("-4 rule show priority 20");
        assert_eq!(left.len(), 1);
        assert_eq!(left[0]["fwmark"], json!("0x1"));
    });
}

#[test]
fn a_goto_that_leads_elsewhere_is_an_error_to_add_over() {
    in_netns(async |netlink| {
        ip("rule add priority 110 fwmark 0x0/0x3f000000 goto 115 protocol kernel");
        let ours = ours(Family::V4)[2];
        let error = refused(netlink, StepKind::AddRule(ours)).await;
        assert!(error.contains("differs only in its target"), "{error}");
    });
}

#[test]
fn a_foreign_rule_cannot_be_written() {
    in_netns(async |netlink| {
        let selector = rule(Family::V4, 20, Selector::Foreign, Action::Table(220));
        let action = rule(Family::V4, 20, Selector::All, Action::Foreign);
        for rule in [selector, action] {
            refused(netlink, StepKind::AddRule(rule)).await;
            refused(netlink, StepKind::DeleteRule(rule)).await;
        }
    });
}

#[test]
fn leftovers_of_other_cnis_are_listed_and_ours_are_not() {
    in_netns(async |netlink| {
        for rule in ours(Family::V4) {
            apply_twice(netlink, StepKind::AddRule(rule)).await;
        }
        let none = BTreeSet::new();
        let others = netlink.others(&none).await.unwrap();
        assert_eq!(others.leftovers, Vec::<String>::new());
        for line in [
            "priority 20 to 10.0.1.99 table main",
            "priority 111 from 10.0.1.99 to 10.0.0.0/16 table 11",
            "priority 109 fwmark 0x80/0x80 table main",
            "priority 512 to 10.0.1.98 table main",
            "priority 1024 fwmark 0x80/0x80 table main",
            "priority 1535 to 10.5.0.0/16 table main",
            "priority 1536 from 10.0.1.98 table 3",
        ] {
            ip(&format!("rule add {line}"));
        }
        let others = netlink.others(&none).await.unwrap();
        assert_eq!(
            others.leftovers,
            [
                "Cilium: IPv4 rule 20: from all to 10.0.1.99/32 lookup 254",
                "Cilium: IPv4 rule 109: from all fwmark 0x80/0x80 lookup 254",
                "Cilium: IPv4 rule 111: from 10.0.1.99/32 to 10.0.0.0/16 lookup 11",
                "Amazon VPC CNI: IPv4 rule 512: from all to 10.0.1.98/32 lookup 254",
                "Amazon VPC CNI: IPv4 rule 1024: from all fwmark 0x80/0x80 lookup 254",
                "Amazon VPC CNI: IPv4 rule 1535: from all to 10.5.0.0/16 lookup 254",
                "Amazon VPC CNI: IPv4 rule 1536: from 10.0.1.98/32 lookup 3",
            ]
        );
    });
}
