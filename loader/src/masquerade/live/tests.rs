//! The decision on maps as the agent fills them.

use std::collections::BTreeSet;

use datapath_common::masquerade::MetadataPolicy;

use super::*;
use crate::fixture::{host, intent, plug, pod_link};
use crate::intent::Intent;
use crate::object::Object;
use crate::plan::plan;

fn maps(intent: &Intent) -> BTreeMap<MapKey, MapEntry> {
    let mut observed = host();
    for (index, name) in (100..).zip(["a", "b", "c"]) {
        plug(&mut observed, pod_link(index, name));
    }
    let objects = plan(intent, &observed).objects;
    let entries = objects.iter().filter_map(|object| match object {
        Object::MapEntry(entry) => Some((entry.key(), *entry)),
        _ => None,
    });
    entries.collect()
}

fn masquerading() -> Intent {
    let mut intent = intent();
    intent.settings.masquerade = MasqueradeSettings {
        ipv4: true,
        native: BTreeSet::from(["198.51.100.0/24".parse().unwrap()]),
        ..MasqueradeSettings::default()
    };
    intent
}

fn explain(intent: &Intent, source: &str, destination: &str) -> Option<Explanation> {
    let live = Live {
        entries: &maps(intent),
        settings: &intent.settings.masquerade,
    };
    live.explain(&Asked {
        source: source.parse().unwrap(),
        destination: destination.parse().unwrap(),
        has_ports: true,
        flow: Found::NotAsked,
    })
}

#[test]
fn a_flow_of_the_stack_goes_up_whatever_its_destination_is() {
    let intent = masquerading();
    let entries = maps(&intent);
    let live = Live {
        entries: &entries,
        settings: &intent.settings.masquerade,
    };
    let eni = EniNumber(1);
    // Beyond the VPC, in it, another pod, the host.
    for (destination, why) in [
        ("1.1.1.1", "stack-flow"),
        ("10.0.9.9", "stack-flow"),
        ("10.0.1.65", "stack-flow"),
        ("10.0.0.10", "stack-flow"),
    ] {
        let told = live.explain(&Asked {
            source: "10.0.0.20".parse().unwrap(),
            destination: destination.parse().unwrap(),
            has_ports: true,
            flow: Found::Stack { eni },
        });
        let told = told.unwrap();
        assert_eq!((told.verdict, told.why.as_str()), (Verdict::Stack, why));
        let last = told.steps.last().unwrap();
        assert!(last.answer.contains("ENI 1"), "{last:?}");
    }
}

#[test]
fn every_reason_is_given() {
    let intent = masquerading();
    for (source, destination, why, eni, snat) in [
        ("10.0.1.65", "10.0.9.9", "exempt-vpc", Some(1), None),
        ("10.0.1.65", "198.51.100.1", "exempt-native", Some(1), None),
        (
            "10.0.1.65",
            "169.254.169.253",
            "exempt-link-local",
            Some(1),
            None,
        ),
        (
            "10.0.1.65",
            "1.1.1.1",
            "translated",
            Some(1),
            Some("10.0.1.10"),
        ),
        (
            "10.0.0.20",
            "1.1.1.1",
            "translated",
            Some(0),
            Some("10.0.0.10"),
        ),
        (
            "10.0.1.65",
            "169.254.169.254",
            "translated",
            Some(0),
            Some("10.0.0.10"),
        ),
        (
            "2001:db8:0:1:a::65",
            "2001:db8:ffff::1",
            "off",
            Some(1),
            None,
        ),
        ("10.0.1.65", "10.0.2.66", "local", None, None),
        ("10.0.1.65", "10.0.2.67", "no-endpoint", None, None),
        ("10.0.1.65", "10.0.0.10", "host", None, None),
        ("10.0.1.65", "169.254.20.10", "host", None, None),
        ("10.0.1.65", "172.20.0.1", "stack", None, None),
        ("10.0.1.65", "224.0.0.1", "stack", None, None),
    ] {
        let found = explain(&intent, source, destination).unwrap();
        assert_eq!(found.why, why, "{source} {destination}: {found:?}");
        assert_eq!(found.eni, eni.map(EniNumber), "{source} {destination}");
        let snat = snat.map(|text| text.parse().unwrap());
        assert_eq!(found.snat, snat, "{source} {destination}");
        assert!(found.steps.len() >= 2);
    }
    assert_eq!(explain(&intent, "10.0.0.10", "1.1.1.1"), None, "no pod's");
    assert_eq!(explain(&intent, "1.1.1.1", "10.0.1.65"), None, "no pod's");
}

#[test]
fn settings_change_the_answer() {
    let mut intent = masquerading();
    let why = |intent: &Intent, to: &str| explain(intent, "10.0.1.65", to).unwrap();
    intent.settings.masquerade.metadata = MetadataPolicy::Block;
    let blocked = why(&intent, "169.254.169.254");
    assert_eq!(blocked.why, "metadata-blocked");
    assert_eq!(blocked.verdict, Verdict::Dropped);
    intent.settings.masquerade.metadata = MetadataPolicy::Own;
    assert_eq!(why(&intent, "169.254.169.254").why, "exempt-link-local");
    intent.settings.masquerade.external = super::super::ExternalPolicy::PrimaryEni;
    assert_eq!(why(&intent, "1.1.1.1").eni, Some(EniNumber::PRIMARY));
    intent.settings.masquerade.only_default_pool = true;
    assert_eq!(why(&intent, "1.1.1.1").why, "translated");
    intent
        .node
        .pools
        .insert("10.0.1.64/28".parse().unwrap(), "red".to_owned());
    assert_eq!(why(&intent, "1.1.1.1").why, "skip-pool");
    intent.settings.masquerade.ipv4 = false;
    intent.node.pools.clear();
    assert_eq!(why(&intent, "1.1.1.1").why, "off");
}

#[test]
fn a_known_flow_keeps_its_way() {
    let intent = masquerading();
    let entries = maps(&intent);
    let live = Live {
        entries: &entries,
        settings: &intent.settings.masquerade,
    };
    let asked = Asked {
        source: "10.0.1.65".parse().unwrap(),
        destination: "10.0.9.9".parse().unwrap(),
        has_ports: true,
        flow: Found::Translated {
            eni: EniNumber(2),
            port: 50_000,
        },
    };
    let found = live.explain(&asked).unwrap();
    assert_eq!(
        (found.why.as_str(), found.port),
        ("translated", Some(50_000))
    );
    assert_eq!(found.snat, Some("10.0.2.10".parse().unwrap()));
    let inbound = Asked {
        flow: Found::Inbound,
        destination: "1.1.1.1".parse().unwrap(),
        ..asked
    };
    assert_eq!(live.explain(&inbound).unwrap().why, "inbound");
    let portless = Asked {
        flow: Found::Unknown,
        has_ports: false,
        ..inbound
    };
    let dropped = live.explain(&portless).unwrap();
    assert_eq!(dropped.why, "protocol-without-ports");
}
