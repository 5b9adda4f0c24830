//! The `DaemonSet`'s list of capabilities: enough, and none superfluous.

use anyhow::Context as _;
use ipam::Family;
use serde_json::json;
use testkit::fabric::eventually::{check, eventually};
use testkit::fabric::layout::Host;
use testkit::fabric::traffic::Protocol;
use testkit::fabric::world::Site;
use testkit::fabric::{Fabric, Spec};
use testkit::kubernetes::read_manifest;

use crate::cluster::SOON;

/// Capability that only kernels before 5.11 need, as the emulated one of the suite `vm` shows.
const OF_OLD_KERNELS: &str = "SYS_RESOURCE";

/// The capabilities that the `DaemonSet` gives a container.
fn listed(container: usize) -> Vec<String> {
    let daemonset = &read_manifest("kubernetes/base/daemonset.yaml").unwrap()[0];
    let context =
        &daemonset["spec"]["template"]["spec"]["containers"][container]["securityContext"];
    let capabilities = &context["capabilities"];
    assert_eq!(capabilities["drop"], json!(["ALL"]));
    assert_eq!(context["privileged"], json!(null));
    let list = capabilities["add"].as_array().into_iter().flatten();
    list.map(|name| name.as_str().unwrap().to_owned()).collect()
}

/// True if a line of the log reports that the kernel refused something. The machine may forbid to
/// lift the limit on locked memory, which newer kernels do not need.
fn is_refusal(line: &str) -> bool {
    let words = ["Operation not permitted", "Permission denied"];
    !line.contains("locked memory") && words.iter().any(|word| line.contains(word))
}

/// Makes an agent do all of its work on a node, and checks that it reports no refusal.
fn live(capabilities: &[&str]) {
    let mut fabric = Fabric::create(&Spec::with_world(json!({}))).unwrap();
    fabric.agent.confine(capabilities).unwrap();
    fabric.start_agent().unwrap();
    let pods = [0, 1].map(|eni| fabric.add_pod(eni, 0).unwrap());
    for family in Family::ALL {
        let places = [
            fabric.host(Host::Peer, family),
            // Translated.
            fabric.world().unwrap().at(Site::Internet, family),
            pods[0].at(family),
        ];
        for (protocol, to) in Protocol::ALL
            .iter()
            .flat_map(|one| places.iter().map(move |to| (one, to)))
        {
            protocol.exchange(pods[1].at(family), *to).unwrap();
        }
    }
    // A removed object comes back.
    let rules = || fabric.node.run("ip rule show priority 20");
    fabric.node.run("ip rule del priority 20").unwrap();
    eventually(SOON, "the rule is back", || {
        check(!rules()?.is_empty(), || "not yet".to_owned())
    })
    .unwrap();
    fabric.start_agent().unwrap();
    for pod in &pods {
        fabric.agent.ask("DELETE", &pod.path(), None).unwrap();
    }
    let log = fabric.agent.log();
    let refused: Vec<_> = log.lines().filter(|line| is_refusal(line)).collect();
    assert!(refused.is_empty(), "{refused:?}");
    fabric.finish().unwrap();
}

#[test]
fn the_listed_capabilities_are_enough() {
    let agents = listed(0);
    live(&agents.iter().map(String::as_str).collect::<Vec<_>>());
    // The container that installs the plugin needs none.
    assert_eq!(listed(1), [] as [String; 0]);
}

#[test]
fn each_of_them_is_needed() {
    let listed = listed(0);
    for missing in listed.iter().filter(|name| *name != OF_OLD_KERNELS) {
        let mut fabric = Fabric::create(&Spec::default()).unwrap();
        let others = listed.iter().filter(|name| *name != missing);
        let others: Vec<_> = others.map(String::as_str).collect();
        fabric.agent.confine(&others).unwrap();
        fabric.agent.start(&fabric.node, &[]).unwrap();
        let refused = || {
            let log = fabric.agent.log();
            let line = log.lines().find(|line| is_refusal(line));
            line.map(str::to_owned).with_context(|| log.clone())
        };
        let (line, _) = eventually(SOON, missing, refused).unwrap();
        println!("without {missing}: {line}");
        fabric.finish().unwrap();
    }
}
