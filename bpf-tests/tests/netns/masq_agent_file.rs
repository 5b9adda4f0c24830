//! The ip-masq-agent file: off, on, changed, bad, several.

use std::fs;
use std::net::IpAddr;
use std::path::Path;

use ipam::Family;
use serde_json::json;
use testkit::fabric::eventually::check;
use testkit::fabric::traffic::Echo;
use testkit::fabric::world::Site;
use testkit::fabric::{Fabric, Place, document};

use crate::masq::{masquerade, scene, seen_now, site, snat};
use crate::support::{CHANGE, get, within};

/// The name of the file, and of the folder where there are several.
const FILE: &str = "ip-masq-agent";

/// A fabric whose pod may leave untranslated, and an agent that follows a file below a path.
fn follows() -> (Fabric, [std::sync::Arc<testkit::fabric::Pod>; 2]) {
    let file = json!({"enabled": true, "path": "/nowhere"});
    let (mut fabric, pods) = scene(masquerade(&json!({"ip-masq-agent": file})));
    // The fabric's folder is known only once there is one.
    let (pointer, file) = ("/masquerade/ip-masq-agent/path", fabric.file(FILE));
    fabric.agent.set(pointer, &json!(file)).unwrap();
    let addresses: Vec<_> = pods
        .iter()
        .flat_map(|pod| Family::ALL.map(|family| pod.address(family).into()))
        .collect();
    fabric.allow_untranslated(&addresses).unwrap();
    fabric.agent.stop().unwrap();
    fabric.start_agent().unwrap();
    (fabric, pods)
}

fn write(path: &Path, text: &str) {
    document::write_atomically(path, text).unwrap();
}

/// Waits until new flows of a pod to a site are seen with an address.
#[track_caller]
fn becomes(fabric: &Fabric, from: Place, to: Site, wanted: IpAddr) {
    let server = Echo::telling(site(fabric, to, Family::of(wanted)), 0).unwrap();
    within(CHANGE, "new flows follow the file", || {
        let seen = seen_now(from, &server)?;
        check(seen == wanted, || format!("{to:?}: seen as {seen}"))
    });
}

#[test]
fn it_is_off_by_default() {
    let (fabric, [_, pod]) = scene(json!({}));
    let (own, from) = (snat(&fabric, 1, Family::V4), pod.at(Family::V4));
    fabric.check_seen(from, Site::Listed, own, 1).unwrap();
    fabric.finish().unwrap();
}

#[test]
fn a_file_is_followed_while_the_agent_runs() {
    let (fabric, [_, pod]) = follows();
    let (own, from) = (snat(&fabric, 1, Family::V4), pod.at(Family::V4));
    let pod_itself = from.address;
    // No file: the standard list.
    becomes(&fabric, from, Site::Listed, pod_itself);
    becomes(&fabric, from, Site::Internet, own);
    let file = fabric.file(FILE);
    write(
        &file,
        "nonMasqueradeCIDRs: [8.8.4.0/24]\nresyncInterval: 60s\n",
    );
    becomes(&fabric, from, Site::Internet, pod_itself);
    becomes(&fabric, from, Site::Listed, own);
    // A bad one keeps the last good one in force, and says where it is bad.
    write(
        &file,
        "nonMasqueradeCIDRs:\n- 203.0.113.0/24\n- 8.8.4.0/99\n",
    );
    within(CHANGE, "the status shows the bad file", || {
        let status = get(&fabric, "/v1/status").to_string();
        check(
            status.contains("8.8.4.0/99") && status.contains("line 3"),
            || status.clone(),
        )
    });
    becomes(&fabric, from, Site::Internet, pod_itself);
    becomes(&fabric, from, Site::Listed, own);
    // An empty list adds nothing; JSON is as good as YAML.
    write(&file, r#"{"nonMasqueradeCIDRs": []}"#);
    becomes(&fabric, from, Site::Internet, own);
    becomes(&fabric, from, Site::Listed, own);
    // An empty file is as good as none.
    write(&file, "");
    becomes(&fabric, from, Site::Listed, pod_itself);
    fs::remove_file(&file).unwrap();
    becomes(&fabric, from, Site::Listed, pod_itself);
    becomes(&fabric, from, Site::Internet, own);
    fabric.finish().unwrap();
}

#[test]
fn fragments_of_a_folder_are_merged() {
    let (fabric, [pod, _]) = follows();
    let folder = fabric.file(FILE);
    let ready = fabric.file("fragments");
    fs::create_dir(&ready).unwrap();
    write(&ready.join("one"), "nonMasqueradeCIDRs: [8.8.4.0/24]\n");
    write(
        &ready.join("two"),
        r#"{"nonMasqueradeCIDRs": ["2606:4700:10::/64"]}"#,
    );
    fs::rename(&ready, &folder).unwrap();
    for family in Family::ALL {
        let from = pod.at(family);
        becomes(&fabric, from, Site::Internet, from.address);
        becomes(&fabric, from, Site::Listed, snat(&fabric, 0, family));
    }
    fs::remove_file(folder.join("one")).unwrap();
    let v4 = snat(&fabric, 0, Family::V4);
    becomes(&fabric, pod.at(Family::V4), Site::Internet, v4);
    let v6 = pod.at(Family::V6);
    becomes(&fabric, v6, Site::Internet, v6.address);
    fabric.finish().unwrap();
}
