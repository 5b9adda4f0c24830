//! Kubelets that take more pods than there are addresses.

use std::time::Duration;

use fleet::Input;
use kubernetes::operation::report::Reason;
use serde_json::json;

use super::bed::{Bed, world};

const MINUTE: Duration = Duration::from_mins(1);

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
