//! Check of the test beds: runtimes run pods with the reference plugins, and leave no leftovers.

use std::fs;
use std::path::Path;

use serde_json::{Value, json};
use testkit::cri::{Bed, Containerd, Plugins, PodRequest, Podman, Setup};
use testkit::fabric::{Fabric, Spec};

/// A network of the reference plugins.
fn bridge(fabric: &Fabric, version: &str) -> Value {
    json!({
        "cniVersion": version,
        "name": "reference",
        "plugins": [{
            "type": "bridge",
            "bridge": "cni0",
            "isGateway": true,
            "ipam": {
                "type": "host-local",
                "dataDir": fabric.file("host-local"),
                "ranges": [[{"subnet": "10.88.0.0/24"}]],
            },
        }],
    })
}

fn runs_pods(containerd: Containerd, plugins: Plugins) {
    let fabric = Fabric::create(&Spec::default()).unwrap();
    let network = bridge(&fabric, "1.0.0");
    let setup = Setup {
        containerd,
        plugins,
        own_plugins: Vec::new(),
        networks: &[("runc", network)],
    };
    let bed = Bed::start(&fabric, &setup).unwrap();
    let requests: Vec<_> = (0..3)
        .map(|number| PodRequest::new(&format!("pod{number}")))
        .collect();
    let pods: Vec<_> = bed
        .cri
        .run_pods(&requests)
        .into_iter()
        .map(Result::unwrap)
        .collect();
    let mut addresses: Vec<_> = pods.iter().flat_map(|pod| pod.addresses.clone()).collect();
    addresses.sort_unstable();
    addresses.dedup();
    assert_eq!(addresses.len(), 3, "{addresses:?}");
    let container = bed.cri.start_container(&pods[0]).unwrap();
    let other = pods[1].addresses[0].to_string();
    let answer = bed
        .cri
        .exec(&container, &["ping", "-c", "1", &other])
        .unwrap();
    assert_eq!(answer.code, 0, "{}", answer.text);
    let answer = bed.cri.exec(&container, &["cat", "/no/such/file"]).unwrap();
    assert_ne!(answer.code, 0, "{}", answer.text);
    for pod in &pods {
        println!("{}: run {:?}", pod.id, pod.took);
    }
    let stopped = bed.cri.stop_pods(&pods);
    println!("stop: {stopped:?}");
    let removed = bed.cri.remove_pods(&pods);
    println!("remove: {removed:?}");
    assert!(stopped.iter().chain(&removed).all(Result::is_ok));
    assert!(bed.cri.known_pods().unwrap().is_empty());
    let links = fabric.node.ip_json("link show").unwrap().to_string();
    assert!(links.contains("cni0") && !links.contains("veth"), "{links}");
    // This run ends with pods still running, which are removed with the fabric.
    bed.cri.run_pod(&PodRequest::new("left")).unwrap();
    drop(bed);
    ends_without_leftovers(fabric);
}

/// Ends a fabric, and looks whether anything of it is still there.
fn ends_without_leftovers(fabric: Fabric) {
    let (folder, cgroup) = (fabric.file(""), fabric.cgroup());
    fabric.finish().unwrap();
    assert!(!folder.exists());
    for entry in fs::read_dir("/sys/fs/cgroup").unwrap() {
        assert!(!entry.unwrap().path().join(&cgroup).exists());
    }
    let folder = folder.to_string_lossy().trim_end_matches('/').to_owned();
    let mounts = fs::read_to_string("/proc/self/mounts").unwrap();
    assert!(!mounts.contains(&folder), "{mounts}");
    let left = processes_that_name(&folder);
    assert!(left.is_empty(), "{left:?}");
}

/// The command lines that hold a text.
fn processes_that_name(text: &str) -> Vec<String> {
    let entries = fs::read_dir("/proc").unwrap();
    let lines = entries.filter_map(|entry| {
        let line = fs::read(Path::new(&entry.ok()?.path()).join("cmdline")).ok()?;
        Some(String::from_utf8_lossy(&line).replace('\0', " "))
    });
    lines.filter(|line| line.contains(text)).collect()
}

#[test]
fn containerd_1() {
    runs_pods(Containerd::One, Plugins::Old);
}

#[test]
fn containerd_2() {
    runs_pods(Containerd::Two, Plugins::New);
}

#[test]
fn podman() {
    let fabric = Fabric::create(&Spec::default()).unwrap();
    let folders = [Plugins::Old.folder().unwrap()];
    let podman = Podman::new(&fabric, &[bridge(&fabric, "0.4.0")], &folders).unwrap();
    let text = podman.run("reference", &[], &["ip", "addr"]).unwrap();
    assert!(text.contains("10.88.0."), "{text}");
    podman
        .run("reference", &[], &["ping", "-c", "1", "10.88.0.1"])
        .unwrap();
    let error = podman
        .run("reference", &[], &["cat", "/no/such/file"])
        .unwrap_err();
    assert!(
        format!("{error:#}").contains("no such file") || error.to_string().contains("No such file"),
        "{error:#}"
    );
    ends_without_leftovers(fabric);
}
