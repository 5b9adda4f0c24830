//! An API server that is restored from a backup, and objects that are recreated by hand.

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;

use anyhow::{Result, ensure};
use serde_json::{Value, json};
use testkit::cloud::audit::published;
use testkit::fabric::eventually::{check, eventually};

use super::bed::{Bed, NODES, SOON, node_name};

/// Number of nodes, of which the last two are recreated by hand.
const COUNT: usize = 4;

/// The ENIs of a node's status with their addresses.
fn addresses(bed: &Bed, number: usize) -> Result<BTreeSet<(String, String)>> {
    Ok(published(&bed.node(number)?).into_iter().collect())
}

/// Copies a folder.
fn copy(from: &Path, to: &Path) -> Result<()> {
    let copied = std::process::Command::new("cp")
        .arg("-a")
        .args([from, to])
        .status()?;
    ensure!(
        copied.success(),
        "cp -a {} {}",
        from.display(),
        to.display()
    );
    Ok(())
}

/// Restarts API server and store with the snapshot of the store. Without a snapshot it makes one.
fn set_back(bed: &mut Bed, snapshot: &Path) -> Result<()> {
    let store = bed.plane.server.folder().join("etcd");
    bed.plane.server.kill();
    bed.plane.server.kill_store();
    if snapshot.exists() {
        fs::remove_dir_all(&store)?;
        copy(snapshot, &store)?;
    } else {
        copy(&store, snapshot)?;
    }
    bed.plane.server.start_store()?;
    bed.plane.server.resume()
}

/// Deletes and recreates a node's object, with its present status or without one.
fn make_again(bed: &Bed, number: usize, with_status: bool) -> Result<()> {
    let path = format!("{NODES}/{}", node_name(number));
    let old = bed.node(number)?;
    let admin = bed.plane.server.admin();
    admin.delete(&path)?.expect(200)?;
    let mut new = json!({
        "apiVersion": old["apiVersion"], "kind": old["kind"], "spec": old["spec"],
        "metadata": {"name": node_name(number), "ownerReferences": old["metadata"]["ownerReferences"]}
    });
    let mut made = admin.post(NODES, &new)?.expect(201)?;
    if with_status {
        made["status"] = old["status"].clone();
        // The operator may have written the status already.
        let status = format!("{path}/status");
        new = json!({"status": made["status"].take()});
        admin.merge(&status, &new)?.expect(200)?;
    }
    Ok(())
}

/// Waits until every node shows the same addresses as before.
fn have(bed: &Bed, before: &[BTreeSet<(String, String)>]) -> Result<()> {
    for (number, before) in before.iter().enumerate() {
        let look = || {
            let now = addresses(bed, number)?;
            let lost: Vec<_> = before.difference(&now).collect();
            check(lost.is_empty(), || format!("node {number} lacks {lost:?}"))
        };
        let shown = eventually(SOON, "every address is shown again", look);
        shown.inspect_err(|_| println!("{}", bed.logs()))?;
    }
    Ok(())
}

#[test]
fn no_address_is_lost_when_the_api_server_is_set_back_or_objects_are_made_again() {
    let mut bed = Bed::create(COUNT).unwrap();
    let snapshot = bed.folder().join("snapshot");
    let first = bed.start(0, &json!({})).unwrap();
    for number in 0..COUNT {
        bed.add_node(number, 8).unwrap();
        bed.node_has(number, 8).unwrap();
    }
    set_back(&mut bed, &snapshot).unwrap();
    for number in 0..COUNT {
        bed.request(number, 20).unwrap();
    }
    for number in 0..COUNT {
        bed.node_has(number, 20).unwrap();
    }
    let before: Vec<_> = (0..COUNT)
        .map(|number| addresses(&bed, number).unwrap())
        .collect();
    // The first time the operator has newer state, the second time it starts without any.
    set_back(&mut bed, &snapshot).unwrap();
    make_again(&bed, 2, false).unwrap();
    make_again(&bed, 3, true).unwrap();
    have(&bed, &before).unwrap();
    first.kill().unwrap();
    set_back(&mut bed, &snapshot).unwrap();
    make_again(&bed, 2, true).unwrap();
    make_again(&bed, 3, false).unwrap();
    bed.free_lease().unwrap();
    let second = bed.start(1, &json!({})).unwrap();
    have(&bed, &before).unwrap();
    let log: Vec<Value> = bed.cloud.peek(|cloud| {
        let given_back = ["Unassign", "Detach", "Delete"];
        let is_back = |action: &str| given_back.iter().any(|it| action.starts_with(it));
        let log = cloud.log().filter(|it| is_back(it.action));
        log.map(|it| json!(it.action)).collect()
    });
    assert_eq!(log, Vec::<Value>::new(), "something was given back");
    assert!(second.stop().unwrap());
    bed.finish().unwrap();
}
