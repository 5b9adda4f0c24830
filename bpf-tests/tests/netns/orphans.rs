//! A state folder that is lost while the agent is away: no pod loses its network.

use std::fs;

use ipam::Family;
use serde_json::json;
use testkit::fabric::command::ends;
use testkit::fabric::eventually::check;
use testkit::fabric::state::difference;
use testkit::fabric::traffic::Stream;
use testkit::fabric::{Fabric, Spec};

use crate::support::{CHANGE, End, PEER, carry_all, get, nothing_differs, within};

/// Packets a second.
const RATE: u64 = 500;

fn orphans(fabric: &Fabric) -> usize {
    let endpoints = get(fabric, "/v1/endpoints");
    let list = endpoints.as_array().unwrap().iter();
    list.filter(|one| one["orphaned"] == true).count()
}

/// A runtime that checks an orphan hears what is so, and what is not.
#[test]
fn the_check_of_an_orphan_is_true() {
    let mut fabric = Fabric::ready(&Spec::default()).unwrap();
    let pod = fabric.add_pod(1, 0).unwrap();
    fabric.agent.stop().unwrap();
    fs::remove_dir_all(fabric.agent.state_dir()).unwrap();
    fabric.start_agent().unwrap();
    assert_eq!(orphans(&fabric), 1);
    let path = pod.path();
    let answer = get(&fabric, &path);
    assert_eq!(answer["problems"], json!([]), "{answer}");
    assert_eq!(
        answer["attachment"]["owner"]["interface"], "eth0",
        "{answer}"
    );
    let address = pod.address(Family::V4);
    let line = format!("addr del {address}/32 dev eth0");
    pod.netns.ip(&line).unwrap();
    let problems = get(&fabric, &path)["problems"].to_string();
    let expected = format!("the pod's eth0 does not have {address}");
    assert!(problems.contains(&expected), "{problems}");
    let unknown = path.replace("eth0", "eth1");
    let answer = fabric.agent.request("GET", &unknown, None).unwrap();
    assert_eq!(answer.0, 404, "{answer:?}");
    fabric.finish().unwrap();
}

#[test]
fn pods_outlive_the_state_folder() {
    let mut fabric = Fabric::ready(&Spec::default()).unwrap();
    let (one, two) = (fabric.add_pod(1, 0).unwrap(), fabric.add_pod(0, 0).unwrap());
    carry_all(&fabric, End::Pod(&one), PEER, &[1]);
    let before = fabric.state().unwrap();
    let stream = |from, to| Stream::start(from, to, RATE, "udp").unwrap();
    let streams = [
        stream(one.at(Family::V4), fabric.peer(Family::V4)),
        stream(fabric.peer(Family::V6), two.at(Family::V6)),
        stream(two.at(Family::V4), one.at(Family::V4)),
    ];
    fabric.agent.kill().unwrap();
    let folder = fabric.agent.state_dir();
    let old = folder.with_extension("old");
    fs::rename(&folder, &old).unwrap();
    fabric.start_agent().unwrap();
    within(CHANGE, "everything is there", || nothing_differs(&fabric));
    assert_eq!(orphans(&fabric), 2);
    let endpoints = get(&fabric, "/v1/endpoints");
    for endpoint in endpoints.as_array().unwrap() {
        let netns = endpoint["netns"].as_str().unwrap();
        let is_pods = [&one, &two].iter().any(|pod| netns.ends_with(&pod.name));
        assert!(netns.starts_with("/run/netns/") && is_pods, "{endpoint}");
    }
    let table = fabric.agent.cli(&fabric.node, &["endpoints"]).unwrap();
    let table = String::from_utf8(table.stdout).unwrap();
    assert_eq!(table.matches("orphaned").count(), 2, "{table}");
    assert_eq!(difference(&before, &fabric.state().unwrap()), "");

    // The folder comes back, and with it the owners.
    fabric.agent.stop().unwrap();
    fs::remove_dir_all(&folder).unwrap();
    fs::rename(&old, &folder).unwrap();
    fabric.start_agent().unwrap();
    assert_eq!(orphans(&fabric), 0);

    // A part of it is lost.
    fabric.agent.stop().unwrap();
    fs::remove_dir_all(folder.join("endpoints")).unwrap();
    fabric.start_agent().unwrap();
    assert_eq!(orphans(&fabric), 2);
    for stream in streams {
        let report = stream.finish().unwrap();
        assert!(report.lost.is_empty(), "{report}");
    }
    fabric.delete_endpoint(&two).unwrap();
    within(CHANGE, "the deleted one is gone", || {
        check(orphans(&fabric) == 1, || {
            get(&fabric, "/v1/endpoints").to_string()
        })?;
        nothing_differs(&fabric)
    });
    carry_all(&fabric, End::Pod(&one), PEER, &[1]);
    fabric.finish().unwrap();
}

#[test]
fn pods_outlive_state_folder_and_pins_together() {
    let settings = json!({"datapath": {"attach": "clsact"}});
    let spec = Spec {
        settings,
        ..Spec::default()
    };
    let mut fabric = Fabric::ready(&spec).unwrap();
    let (one, two) = (fabric.add_pod(1, 0).unwrap(), fabric.add_pod(0, 0).unwrap());
    fabric.agent.stop().unwrap();
    fs::remove_dir_all(fabric.agent.state_dir()).unwrap();
    fs::remove_dir_all(fabric.pin_root()).unwrap();
    fabric.start_agent().unwrap();
    within(CHANGE, "everything is there", || nothing_differs(&fabric));
    assert_eq!(orphans(&fabric), 2);
    carry_all(&fabric, End::Pod(&one), PEER, &[1]);
    carry_all(&fabric, PEER, End::Pod(&two), &[0]);
    carry_all(&fabric, End::Pod(&one), End::Pod(&two), &[]);
    fabric.finish().unwrap();
}

#[test]
fn the_folder_of_other_pins_is_refused() {
    let mut fabric = Fabric::ready(&Spec::default()).unwrap();
    let pod = fabric.add_pod(1, 0).unwrap();
    fabric.agent.stop().unwrap();
    let folder = fabric.agent.state_dir();
    let id = fs::read_to_string(folder.join("id")).unwrap();
    let other = "0123456789abcdef0123456789abcdef";
    fs::write(folder.join("id"), other).unwrap();
    let before = fabric.state().unwrap();
    let refused = ends(&mut fabric.agent.command(&fabric.node, &["run"])).unwrap();
    let said = String::from_utf8_lossy(&refused.stderr);
    assert!(!refused.status.success());
    let pins = fabric.pin_root().display().to_string();
    for part in [
        id.trim(),
        other,
        &pins,
        &folder.display().to_string(),
        "cleanup",
    ] {
        assert!(said.contains(part), "{part} is not in {said}");
    }
    assert_eq!(difference(&before, &fabric.state().unwrap()), "");
    carry_all(&fabric, End::Pod(&pod), PEER, &[1]);

    // Folder and pins of the version before have no id, and become each other's.
    fs::remove_file(folder.join("id")).unwrap();
    let mut folders = vec![fabric.pin_root()];
    while let Some(folder) = folders.pop() {
        if folder.display().to_string().contains("state-") {
            fs::remove_dir(&folder).unwrap();
            continue;
        }
        let entries = fs::read_dir(folder).unwrap();
        let paths = entries.map(|entry| entry.unwrap().path());
        folders.extend(paths.filter(|path| path.is_dir()));
    }
    fabric.start_agent().unwrap();
    assert_eq!(orphans(&fabric), 0);
    carry_all(&fabric, End::Pod(&pod), PEER, &[1]);
    fabric.finish().unwrap();
}
