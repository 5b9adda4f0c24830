//! Helpers of the tests of network managers.

use anyhow::Context as _;
use serde_json::Value;
use testkit::fabric::eventually::check;
use testkit::fabric::{Fabric, Pod, Spec};

use crate::support::{
    CHANGE, End, HEAL, PEER, carry_all, get, nothing_differs, within, within_counted,
};

/// A fabric whose devices have the names of a Nitro instance. The agent is not started.
#[track_caller]
pub(crate) fn renamed(spec: &Spec) -> Fabric {
    let fabric = Fabric::create(spec).unwrap();
    fabric
        .node
        .ip("link set eth0 name ens5\nlink set eth1 name ens6")
        .unwrap();
    fabric
}

/// Repairs of a kind so far.
pub(crate) fn repairs_of(status: &Value, kind: &str) -> u64 {
    status["repairs"]["by-kind"][kind].as_u64().unwrap_or(0)
}

/// Expects that the status names a foreign object on ENI 1.
///
/// # Errors
/// When it does not: all named objects.
pub(crate) fn named(
    status: &Value,
    kind: &str,
    object: &str,
    protocol: Option<&str>,
) -> anyhow::Result<()> {
    let foreign_config = status["foreign-config"]
        .as_array()
        .context("no foreign-config")?;
    let found = foreign_config.iter().any(|one| {
        one["eni"] == 1
            && one["kind"] == kind
            && one["object"]
                .as_str()
                .is_some_and(|text| text.contains(object))
            && protocol.is_none_or(|protocol| one["protocol"] == protocol)
            && one["hint"].as_str().is_some_and(|hint| !hint.is_empty())
    });
    check(found, || {
        format!("no {kind} {object} among {foreign_config:#?}")
    })
}

/// Waits until all of our objects are restored, checks that rules were repaired at least this often
/// in total, and that all repairs were counted.
#[track_caller]
pub(crate) fn healed(fabric: &Fabric, what: &str, rules: u64) {
    let time = within_counted(CHANGE, what, || {
        let status = fabric.agent.ask("GET", "/v1/status", None)?;
        check(repairs_of(&status, "rule") >= rules, || {
            status["repairs"].to_string()
        })?;
        nothing_differs(fabric)
    });
    let repairs = get(fabric, "/v1/status")["repairs"].clone();
    println!(
        "{what}: all is back after {} ms: {repairs}",
        time.as_millis()
    );
    assert!(time < HEAL, "{what}: all is back only after {time:?}");
}

/// Expects that each pod, one on each ENI, sends and receives by its own ENI.
#[track_caller]
pub(crate) fn takes(fabric: &Fabric, pods: &[std::sync::Arc<Pod>; 2]) {
    within(CHANGE, "everything is there", || nothing_differs(fabric));
    for (pod, eni) in pods.iter().zip([0, 1]) {
        carry_all(fabric, End::Pod(pod), PEER, &[eni]);
        carry_all(fabric, PEER, End::Pod(pod), &[eni]);
        carry_all(fabric, End::Node, End::Pod(pod), &[]);
    }
    carry_all(fabric, End::Pod(&pods[0]), End::Pod(&pods[1]), &[]);
}
