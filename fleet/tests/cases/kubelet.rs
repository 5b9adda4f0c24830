//! Kubelets that take more pods than there are addresses.

use std::time::Duration;

use fleet::{Input, Settings};
use kubernetes::operation::report::Reason;
use serde_json::json;

use super::bed::{Bed, CLUSTER, world};

const MINUTE: Duration = Duration::from_mins(1);

/// The largest number of pods that a node is not warned of, beside what the CLI shows for its type.
fn most(spec: &serde_json::Value, prefixes: bool, kind: &str) -> Option<u32> {
    let mut settings = Settings::of(CLUSTER);
    settings.enis.prefixes = prefixes;
    let mut bed = Bed::with(&world(), settings);
    bed.add_node("one", kind, "subnet-a");
    bed.change("one", &json!({"spec": spec}));
    bed.lead();
    bed.run(MINUTE);
    let mut is_warned = |pods| {
        let of = Input::MaxPods([("one".to_owned(), pods)].into());
        bed.fleet.take(of, bed.at());
        let findings = bed.fleet.why("one", bed.at()).unwrap().findings;
        findings
            .iter()
            .any(|it| it.starts_with("the kubelet takes"))
    };
    let first = (0..2_000).find(|pods| is_warned(*pods))?;
    assert!(is_warned(u32::MAX), "{kind}");
    Some(first - 1)
}

#[test]
fn the_warning_begins_beyond_the_number_that_the_type_and_the_node_allow() {
    // The numbers of AWS's list, and those of the settings of nodes.
    let cases = [
        (json!({}), false, "m5.large", Some(29)),
        (json!({}), false, "m5.4xlarge", Some(234)),
        (json!({}), true, "m5.large", Some(434)),
        (json!({}), true, "m4.large", Some(20)),
        (json!({}), false, "p5.48xlarge", Some(100)),
        (
            json!({"eni": {"first-interface-index": 1}}),
            false,
            "m5.large",
            Some(20),
        ),
        (
            json!({"eni": {"first-interface-index": 1}}),
            true,
            "m5.large",
            Some(290),
        ),
        (
            json!({"eni": {"use-primary-address": true}}),
            false,
            "m5.large",
            Some(31),
        ),
        (
            json!({"eni": {"use-primary-address": true, "first-interface-index": 1}}),
            false,
            "m5.large",
            Some(22),
        ),
        (
            json!({"eni": {"disable-prefix-delegation": true}}),
            true,
            "m5.large",
            Some(29),
        ),
        (
            json!({"ipam": {"max-allocate": 20}}),
            false,
            "m5.large",
            Some(22),
        ),
        (
            json!({"ipam": {"max-allocate": 200}}),
            false,
            "m5.large",
            Some(29),
        ),
        (json!({}), false, "x9.unknown", None),
    ];
    for (spec, prefixes, kind, expected) in cases {
        // The cloud knows no instance of an unknown type.
        let (kind, spec) = match kind {
            "x9.unknown" => ("m5.large", json!({"eni": {"instance-type": kind}})),
            kind => (kind, spec),
        };
        assert_eq!(
            most(&spec, prefixes, kind),
            expected,
            "{spec} {prefixes} {kind}"
        );
    }
}

/// Addresses that a node has in the end are no more than the warning says, and no fewer.
#[test]
fn a_full_node_has_as_many_addresses_as_the_number_says() {
    let rules = [
        json!({}),
        json!({"first-interface-index": 1}),
        json!({"use-primary-address": true}),
        json!({"use-primary-address": true, "first-interface-index": 1}),
    ];
    for (rules, prefixes) in rules.iter().flat_map(|it| [(it, false), (it, true)]) {
        let spec = json!({"eni": rules});
        let mut settings = Settings::of(CLUSTER);
        settings.enis.prefixes = prefixes;
        settings.pools.advertised = true;
        let mut bed = Bed::with(&world(), settings);
        bed.add_node("one", "m5.large", "subnet-a");
        bed.change("one", &json!({"spec": spec}));
        bed.lead();
        bed.run(MINUTE);
        let advertised = |bed: &Bed| {
            let number = &bed.api.advertised["one"].0["towpath.dev/ipv4-default"];
            number.as_str().unwrap().parse::<u32>().unwrap()
        };
        let before = advertised(&bed);
        bed.request("one", 2_000);
        bed.run(MINUTE * 5);
        let shown = u32::try_from(bed.shown("one")).unwrap();
        let number = most(&spec, prefixes, "m5.large").unwrap();
        let what = format!("{rules} {prefixes}");
        assert_eq!(
            (shown + 2, before, advertised(&bed)),
            (number, shown, shown),
            "{what}"
        );
    }
}

#[test]
fn a_kubelet_that_takes_more_pods_than_addresses_is_named_once() {
    let mut bed = Bed::new(&world());
    bed.add_node("one", "m5.large", "subnet-a");
    bed.lead();
    let of = |pods| Input::MaxPods([("one".to_owned(), pods)].into());
    let reported = |bed: &Bed| {
        let events = bed.events.iter();
        let texts = events.filter(|it| it.reason == Reason::MaxPodsTooHigh);
        texts.map(|it| it.text.clone()).collect::<Vec<_>>()
    };
    // m5.large has 3 ENIs of 9 addresses; EKS itself adds 2 for pods of the host's network.
    bed.fleet.take(of(29), bed.at());
    bed.run(MINUTE * 2);
    assert!(reported(&bed).is_empty());
    bed.fleet.take(of(110), bed.at());
    bed.run(MINUTE * 10);
    let expected = "the kubelet takes 110 pods, and an instance of type m5.large has at most 27 \
                    addresses for pods; set maxPods of the kubelet to 29 or less";
    assert_eq!(reported(&bed), [expected]);
    let why = bed.fleet.why("one", bed.at()).unwrap();
    assert!(
        why.findings.iter().any(|it| it == expected),
        "{:?}",
        why.findings
    );
    // Addresses of another pool are not counted here.
    let requested = json!([{"pool": "default"}, {"pool": "other"}]);
    bed.change(
        "one",
        &json!({"spec": {"ipam": {"pools": {"requested": requested}}}}),
    );
    bed.run(MINUTE);
    let findings = bed.fleet.why("one", bed.at()).unwrap().findings;
    assert!(
        !findings.iter().any(|it| it.contains("kubelet")),
        "{findings:?}"
    );
}
