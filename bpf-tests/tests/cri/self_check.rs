//! The bed by itself: containerd runs pods with the reference plugins, and leaves nothing behind.

use std::fs;
use std::path::Path;

use bpf_tests::cri::{Bed, Containerd, Plugins, PodRequest, Setup};
use bpf_tests::fabric::{Fabric, Spec};
use serde_json::json;

fn runs_pods(containerd: Containerd, plugins: Plugins) {
    let fabric = Fabric::create(&Spec::default()).unwrap();
    let network = json!({
        "cniVersion": "1.0.0",
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
    });
    let setup = Setup {
        containerd,
        plugins,
        own_plugins: Vec::new(),
        network: Some(&network),
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
    // What follows ends with pods still running: they go with the fabric.
    bed.cri.run_pod(&PodRequest::new("left")).unwrap();
    let (folder, cgroup) = (fabric.file(""), fabric.cgroup());
    drop(bed);
    fabric.finish().unwrap();
    assert!(!folder.exists());
    for entry in fs::read_dir("/sys/fs/cgroup").unwrap() {
        assert!(!entry.unwrap().path().join(&cgroup).exists());
    }
    let folder = folder.to_string_lossy().trim_end_matches('/').to_owned();
    let mounts = fs::read_to_string("/proc/self/mounts").unwrap();
    assert!(!mounts.contains(&folder), "{mounts}");
    let left: Vec<_> = processes_that_name(&folder);
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
