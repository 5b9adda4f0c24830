//! ENIs that the node document excludes from use by pods.

use ipam::Family;
use serde_json::{Value, json};
use testkit::fabric::eventually::check;
use testkit::fabric::traffic::ping;
use testkit::fabric::{Fabric, Pod, Spec, source_check};

use crate::support::{CHANGE, End, PEER, carry_all, wait_for_eni, within};

/// The reported rule.
const RULE: &str = "its number 0 is below spec.eni.first-interface-index 1";

fn endpoint(fabric: &Fabric, pod: &Pod) -> anyhow::Result<Value> {
    let list = fabric.agent.ask("GET", "/v1/endpoints", None)?;
    let owner = json!(pod.owner());
    let mut endpoints = list.as_array().into_iter().flatten();
    let found = endpoints.find(|endpoint| endpoint["owner"] == owner);
    found
        .cloned()
        .ok_or_else(|| anyhow::anyhow!("{} is not listed: {list}", pod.name))
}

/// Waits until an endpoint has a state, and its reason contains all of this.
#[track_caller]
fn wait_for_endpoint(fabric: &Fabric, pod: &Pod, state: &str, names: &[&str]) {
    within(CHANGE, &format!("{} is {state}", pod.name), || {
        let endpoint = endpoint(fabric, pod)?;
        let readiness = &endpoint["readiness"];
        let reason = readiness["reason"].as_str().unwrap_or_default();
        check(
            readiness["state"] == state && names.iter().all(|name| reason.contains(name)),
            || endpoint.to_string(),
        )
    });
}

#[test]
fn pods_leave_an_eni_below_the_first_interface_index_alone() {
    let mut fabric = Fabric::ready(&Spec::default()).unwrap();
    let (excluded, pod) = (fabric.add_pod(0, 0).unwrap(), fabric.add_pod(1, 0).unwrap());
    let mut document = fabric.document();
    document["spec"]["eni"]["first-interface-index"] = json!(1);
    fabric.agent.write_document(&document).unwrap();

    let eni = wait_for_eni(&fabric, 0, "excluded");
    assert_eq!(eni["readiness"]["reason"], RULE, "{eni}");
    let id = fabric.eni(0).unwrap().id();
    let names = [format!("ENI 0 ({id})"), format!("excluded: {RULE}")];
    let names = names.each_ref().map(String::as_str);
    wait_for_endpoint(&fabric, &excluded, "not-ready", &names);
    // It was the pod's ENI: its packets must not take another one, nor this one.
    source_check::forget_flows(&fabric.vpc.router).unwrap();
    for family in Family::ALL {
        let (from, to) = (excluded.at(family), fabric.peer(family));
        ping(from, to.address, &["-W", "0.2"]).unwrap_err();
        let taken = fabric.enis_between(from.address, to.address);
        assert_eq!(taken.unwrap(), [].into(), "{family:?}");
    }
    carry_all(&fabric, End::Pod(&pod), PEER, &[1]);
    carry_all(&fabric, PEER, End::Pod(&pod), &[1]);

    let refused = fabric.make_pod(0, 1).unwrap();
    let error = fabric.add_endpoint(&refused).unwrap_err().to_string();
    assert!(error.contains("eni-excluded"), "{error}");
    assert!(names.iter().all(|name| error.contains(name)), "{error}");
    let added = fabric.add_pod(1, 1).unwrap();
    carry_all(&fabric, End::Pod(&added), PEER, &[1]);

    fabric.publish().unwrap();
    wait_for_endpoint(&fabric, &excluded, "ready", &[]);
    carry_all(&fabric, End::Pod(&excluded), PEER, &[0]);
    fabric.finish().unwrap();
}
