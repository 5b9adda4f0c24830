//! The DaemonSet's list of capabilities: enough, and none too many.

use bpf_tests::fabric::eventually::{check, eventually};
use bpf_tests::fabric::layout::Host;
use bpf_tests::fabric::traffic::Protocol;
use bpf_tests::fabric::world::Site;
use bpf_tests::fabric::{Fabric, Spec};
use bpf_tests::kubernetes::read_manifest;
use serde_json::json;
use towpath::intent::Family;

use crate::cluster::SOON;

/// What only kernels before 5.11 need: the emulated one of the suite `vm` shows it.
const OF_OLD_KERNELS: &str = "SYS_RESOURCE";

/// The capabilities that the DaemonSet gives a container.
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

/// Everything that an agent does to a node, and that it does not complain.
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
    // What somebody removes comes back.
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
    // The machine itself may not let anybody do so; kernels of today do not need it.
    let lines = log.lines().filter(|line| !line.contains("locked memory"));
    for line in lines {
        for word in ["Operation not permitted", "Permission denied"] {
            assert!(!line.contains(word), "{line}");
        }
    }
    fabric.finish().unwrap();
}

#[test]
fn the_listed_capabilities_are_enough() {
    let agents = listed(0);
    live(&agents.iter().map(String::as_str).collect::<Vec<_>>());
    // Who keeps the plugin installed needs none.
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
            check(log.contains("Operation not permitted"), || log.clone())?;
            Ok(log)
        };
        let (log, _) = eventually(SOON, missing, refused).unwrap();
        let line = log.lines().find(|line| line.contains("not permitted"));
        println!("without {missing}: {}", line.unwrap_or_default());
        fabric.finish().unwrap();
    }
}
