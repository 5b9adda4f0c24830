//! The decision on maps as the agent fills them.

use std::collections::BTreeSet;

use ::flows::model::Model;
use datapath_common::abi::{Flow, FlowKey, Moved, TrackedFlow, TransportAddr};
use datapath_common::masquerade::MetadataPolicy;

use super::*;
use loader::intent::Intent;
use loader::intent::masquerade::MasqueradeSettings;
use loader::kernel::Object;
use loader::kernel::fixture::{host, intent, plug, pod_link};
use loader::plan::plan;

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

/// The maps of a node, its settings and its flows.
struct Scene {
    entries: BTreeMap<MapKey, MapEntry>,
    settings: DatapathSettings,
    lookups: CompatLookups,
    flows: Model,
}

impl Scene {
    fn of(intent: &Intent) -> Self {
        let masquerade = &intent.settings.masquerade;
        Self {
            entries: maps(intent),
            settings: DatapathSettings {
                masquerade_v4: masquerade.ipv4,
                masquerade_v6: masquerade.ipv6,
                metadata: masquerade.metadata,
                ..DatapathSettings::default()
            },
            lookups: CompatLookups::NONE,
            flows: Model::new(),
        }
    }

    fn explain(&self, protocol: &str, source: &str, destination: &str) -> Option<Explanation> {
        let live = Live {
            entries: &self.entries,
            settings: &self.settings,
            lookups: self.lookups,
            tables: &self.flows,
        };
        live.explain(&Packet::from(&tuple(protocol, source, destination)))
            .unwrap()
    }

    /// The verdict, and why.
    fn says(&self, protocol: &str, source: &str, destination: &str) -> (Verdict, String) {
        let explained = self.explain(protocol, source, destination).unwrap();
        (explained.verdict, explained.why)
    }

    fn identity(&self, pod: &str) -> u32 {
        match self.entries[&MapKey::Address(pod.parse().unwrap())] {
            MapEntry::Address(_, entry) => entry.identity(),
            other => panic!("{other:?}"),
        }
    }

    fn take_eni(&mut self, number: u8) {
        self.entries.remove(&MapKey::Eni(EniNumber(number)));
    }

    /// Notes a flow of the host's stack.
    fn note(&self, tuple: &Tuple, eni: Option<u8>) {
        let key = Packet::from(tuple).tuple().unwrap();
        let endpoint = self.identity(&tuple.source.address.to_string());
        let note = TrackedFlow::new(&key, 0, endpoint, 0).by(eni);
        self.flows.maps().notes.stack.insert(key, note);
    }
}

fn tuple(protocol: &str, source: &str, destination: &str) -> Tuple {
    Tuple::new(
        protocol.parse().unwrap(),
        source.parse().unwrap(),
        destination.parse().unwrap(),
    )
    .unwrap()
}

fn explain(intent: &Intent, source: &str, destination: &str) -> Option<Explanation> {
    Scene::of(intent).explain("tcp", source, destination)
}

#[test]
fn a_flow_of_the_stack_goes_up_whatever_its_destination_is() {
    let mut scene = Scene::of(&masquerading());
    // Beyond the VPC, in it, another pod, the host.
    for destination in ["1.1.1.1:9", "10.0.9.9:9", "10.0.1.65:9", "10.0.0.10:9"] {
        let flow = tuple("tcp", "10.0.0.20:7", destination);
        scene.note(&flow, Some(1));
        scene.settings.path = DatapathMode::Direct;
        let direct = scene.says("tcp", "10.0.0.20:7", destination);
        assert_ne!(direct.1, "stack-flow", "no programs that go by notes");
        scene.settings.path = DatapathMode::ServiceNat;
        let explained = scene.explain("tcp", "10.0.0.20:7", destination).unwrap();
        assert_eq!(
            (explained.verdict, explained.why.as_str()),
            (Verdict::Stack, "stack-flow")
        );
        let last = explained.steps.last().unwrap();
        assert!(last.answer.contains("ENI 1"), "{last:?}");
        let other = scene.says("udp", "10.0.0.20:7", destination);
        assert_ne!(other.1, "stack-flow", "another protocol's flow");
    }
    // The answers of a pod to ports that it has used through the stack would find that note.
    let turned = scene.says("tcp", "10.0.1.65:9", "10.0.0.20:7");
    assert_eq!(turned, (Verdict::Stack, "stack-flow".to_owned()));
}

#[test]
fn without_the_owner_eni_nothing_leaves_whatever_policy_says() {
    let mut intent = masquerading();
    intent.settings.masquerade.ipv6 = true;
    let mut scene = Scene::of(&intent);
    let (dropped, why) = (Verdict::Dropped, "eni-not-ready".to_owned());
    let pod = "10.0.1.65";
    for destination in ["10.0.9.9", "198.51.100.1", "169.254.169.253", "1.1.1.1"] {
        scene.entries = maps(&intent);
        assert_ne!(scene.says("tcp", pod, destination).0, dropped);
        scene.take_eni(1);
        assert_eq!(scene.says("tcp", pod, destination), (dropped, why.clone()));
        assert_eq!(scene.says("47", pod, destination), (dropped, why.clone()));
        scene.settings.path = DatapathMode::Stack;
        assert_eq!(scene.says("tcp", pod, destination), (dropped, why.clone()));
        scene.settings.path = DatapathMode::Direct;
    }
    let v6 = scene.says("tcp", "2001:db8:0:1:a::65", "2001:db8:ffff::1");
    assert_eq!(v6, (dropped, why.clone()));
    assert_eq!(scene.says("tcp", pod, "10.0.2.66").0, Verdict::Delivered);
    assert_eq!(scene.says("tcp", pod, "10.0.0.10").0, Verdict::Stack);
    // The exit is another ENI than the owner.
    scene.entries = maps(&intent);
    scene.take_eni(0);
    let metadata = scene.says("tcp", pod, "169.254.169.254");
    assert_eq!(metadata, (dropped, why));
}

#[test]
fn the_way_through_the_stack_is_told_with_what_comes_then() {
    let mut scene = Scene::of(&masquerading());
    scene.settings.path = DatapathMode::Stack;
    for (destination, verdict, why, eni) in [
        ("10.0.9.9", Verdict::Untranslated, "exempt-vpc", Some(1)),
        ("1.1.1.1", Verdict::Translated, "translated", Some(1)),
        ("10.0.2.66", Verdict::Delivered, "local", None),
    ] {
        let explained = scene.explain("tcp", "10.0.1.65", destination).unwrap();
        assert_eq!(
            (explained.verdict, explained.why.as_str()),
            (Verdict::Stack, "stack")
        );
        let then = explained.then.unwrap();
        assert_eq!((then.verdict, then.why.as_str()), (verdict, why));
        assert_eq!(then.eni, eni.map(EniNumber));
        let paths = explained
            .steps
            .iter()
            .filter(|step| step.question == "path");
        let paths: Vec<_> = paths.map(|step| &step.answer).collect();
        assert!(paths[0].contains("datapath.path"), "{paths:?}");
    }
    assert_eq!(
        scene.explain("tcp", "10.0.1.65", "10.0.0.10").unwrap().then,
        None
    );
    // A packet that is dropped after the stack counts as dropped.
    let portless = scene.says("47", "10.0.1.65", "1.1.1.1");
    assert_eq!(
        portless,
        (Verdict::Dropped, "protocol-without-ports".to_owned())
    );
}

#[test]
fn room_is_told_and_what_is_full_drops_the_flow() {
    let mut scene = Scene::of(&masquerading());
    scene.settings.quotas.endpoint = 3;
    let pod = scene.identity("10.0.1.65");
    let outcome = |scene: &Scene, protocol, port| {
        let source = format!("10.0.1.65:{port}");
        let explained = scene.explain(protocol, &source, "1.1.1.1:9").unwrap();
        let room = explained.steps.iter().find(|step| step.question == "room");
        (explained.why, room.map(|step| step.answer.clone()))
    };
    let (why, room) = outcome(&scene, "udp", 50_000);
    assert_eq!(why, "translated");
    assert_eq!(room.unwrap(), "0 of 100 flows, pod 0 of 3");
    // Another flow has the port: SCTP may have no other.
    let taken = |protocol| {
        let remote = Addr::from("1.1.1.1".parse::<IpAddr>().unwrap());
        FlowKey::new(
            1,
            protocol,
            TransportAddr::new(remote, 9_u16.to_be()),
            50_000_u16.to_be(),
        )
    };
    let other = Addr::from("10.0.2.66".parse::<IpAddr>().unwrap());
    scene.flows.maps().open(taken(132), other, 7, 0);
    scene.flows.maps().open(taken(17), other, 7, 0);
    assert_eq!(outcome(&scene, "sctp", 50_000).0, "sctp-port-taken");
    assert_eq!(outcome(&scene, "sctp", 50_001).0, "translated");
    assert_eq!(outcome(&scene, "sctp", 5_001).0, "sctp-port-taken");
    assert_eq!(outcome(&scene, "udp", 50_000).0, "translated");
    scene.flows.maps().quotas.insert(pod, 3);
    let (why, room) = outcome(&scene, "udp", 50_001);
    assert_eq!(why, "quota-exceeded");
    assert!(room.unwrap().contains("pod 3 of 3"));
    scene.flows.maps().quotas.clear();
    for port in 0..98 {
        let remote = Addr::from("1.1.1.2".parse::<IpAddr>().unwrap());
        let key = FlowKey::new(1, 17, TransportAddr::new(remote, port), 50_000_u16.to_be());
        scene.flows.maps().open(key, other, 7, 0);
    }
    let (why, room) = outcome(&scene, "udp", 50_001);
    assert_eq!(why, "flows-full");
    assert!(room.unwrap().starts_with("100 of 100 flows"));
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
    intent.settings.masquerade.metadata = MetadataPolicy::Stack;
    let by_stack = why(&intent, "169.254.169.254");
    assert_eq!(by_stack.verdict, Verdict::Stack);
    let onward = by_stack.then.unwrap();
    assert_eq!(
        (onward.why.as_str(), onward.eni),
        ("translated", Some(EniNumber::PRIMARY))
    );
    assert!(
        by_stack
            .steps
            .iter()
            .any(|step| step.answer.contains("metadata is stack"))
    );
    intent.settings.masquerade.metadata = MetadataPolicy::Own;
    assert_eq!(why(&intent, "169.254.169.254").why, "exempt-link-local");
    intent.settings.masquerade.external = api::types::ExternalPolicy::PrimaryEni;
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
    let mut scene = Scene::of(&masquerading());
    let (pod, own) = ("10.0.1.65:50000", Addr::from(IpAddr::from([10, 0, 1, 65])));
    let identity = scene.identity("10.0.1.65");
    // The table and the pod's quota are full: a flow that is there needs no room.
    scene.settings.quotas.endpoint = 0;
    let remote = Addr::from(IpAddr::from([10, 0, 9, 9]));
    let moved = FlowKey::new(
        2,
        6,
        TransportAddr::new(remote, 9_u16.to_be()),
        60_000_u16.to_be(),
    );
    let mut flow = Flow::new(
        &moved,
        TransportAddr::new(own, 50_000_u16.to_be()),
        identity,
        0,
    );
    scene.flows.maps().flows.insert(moved, flow);
    let key = Packet::from(&tuple("tcp", pod, "10.0.9.9:9"))
        .tuple()
        .unwrap();
    let place = Moved::new(2, 60_000_u16.to_be());
    scene.flows.maps().moved.insert(key, place);
    assert_eq!(scene.says("tcp", pod, "10.0.9.9:9").1, "exempt-vpc");
    scene.lookups = CompatLookups::ALL;
    let found = scene.explain("tcp", pod, "10.0.9.9:9").unwrap();
    assert_eq!(
        (found.why.as_str(), found.port),
        ("translated", Some(60_000))
    );
    assert_eq!(found.snat, Some("10.0.2.10".parse().unwrap()));
    // A flow of a former pod with the same address does not count.
    flow.endpoint = identity ^ 1;
    scene.flows.maps().flows.insert(moved, flow);
    assert_eq!(scene.says("tcp", pod, "10.0.9.9:9").1, "exempt-vpc");

    let key = Packet::from(&tuple("tcp", pod, "1.1.1.1:9"))
        .tuple()
        .unwrap();
    let note = TrackedFlow::new(&key, 0, identity, 0);
    scene.flows.maps().notes.inbound.insert(key, note);
    assert_eq!(scene.says("tcp", pod, "1.1.1.1:9").1, "inbound");
    let dropped = scene.says("47", "10.0.1.65", "1.1.1.1");
    assert_eq!(dropped.1, "protocol-without-ports");
}
