//! Static IPs, with the rights of `deploy/iam/policy.json` and `deploy/iam/static-ip.json` in EC2.

use anyhow::Result;
use serde_json::json;
use testkit::cloud::policy_with_static_ips;
use testkit::fabric::eventually::{check, eventually};

use super::bed::{Bed, NODES, SOON, instance_id, node_name, world};

/// The only address with the tags.
const ADDRESS: &str = "198.51.100.1";

/// Makes a node ask for the address.
fn ask(bed: &Bed, number: usize) -> Result<()> {
    let path = format!("{NODES}/{}", node_name(number));
    let tags = json!({"spec": {"ipam": {"static-ip-tags": {"role": "egress"}}}});
    let admin = bed.plane.server.admin();
    admin.merge(&path, &tags)?.expect(200).map(drop)
}

/// Waits until the status of a node has the address.
fn has_address(bed: &Bed, number: usize) -> Result<()> {
    let look = || {
        let ipam = bed.node(number)?["status"]["ipam"].take();
        check(ipam["assigned-static-ip"] == ADDRESS, || ipam.to_string())
    };
    let found = eventually(SOON, "the node has the address", look);
    found.map(drop).inspect_err(|_| println!("{}", bed.logs()))
}

#[test]
fn of_two_nodes_one_has_the_only_address_and_the_other_names_its_tags() {
    let mut world = world(2);
    world["addresses"] = json!([
        {"id": "eipalloc-1", "ip": ADDRESS, "tags": {"role": "egress"}},
        {"id": "eipalloc-2", "ip": "198.51.100.2", "tags": {"role": "other"}}
    ]);
    let policy = policy_with_static_ips("vpc-1").unwrap();
    world["principals"] = json!({"any": {"secret": "any", "policy": policy}});
    let bed = Bed::of_world(world).unwrap();
    let first = bed.start(0, &json!({})).unwrap();
    for number in 0..2 {
        bed.add_node(number, 8).unwrap();
        bed.node_has(number, 8).unwrap();
    }
    ask(&bed, 0).unwrap();
    has_address(&bed, 0).unwrap();
    ask(&bed, 1).unwrap();
    let look = || {
        let error = bed.node(1)?["status"]["ipam"]["operator-status"]["error"].take();
        let text = error.as_str().unwrap_or_default();
        let is_named = text.starts_with("StaticIpMissing: ") && text.contains("role=egress");
        check(is_named, || error.to_string())
    };
    eventually(SOON, "the missing address is named", look).unwrap();
    // A new leader finds what the first one did.
    first.kill().unwrap();
    bed.free_lease().unwrap();
    let second = bed.start(1, &json!({})).unwrap();
    has_address(&bed, 0).unwrap();
    let calls = bed.cloud.peek(|cloud| {
        let log = cloud.log().filter(|it| it.action == "AssociateAddress");
        log.count()
    });
    assert_eq!(calls, 1);
    // With the end of its instance the address is free.
    let instance = instance_id(0);
    let ended = bed.cloud.with(|cloud, now| cloud.terminate(&instance, now));
    ended.unwrap();
    let look = || {
        let ipam = bed.node(1)?["status"]["ipam"].take();
        check(ipam["assigned-static-ip"] == ADDRESS, || ipam.to_string())
    };
    eventually(2 * SOON, "the other node has it now", look).unwrap();
    assert!(second.stop().unwrap());
    // Its object still names the addresses of the instance that ended.
    let path = format!("{NODES}/{}", node_name(0));
    bed.plane
        .server
        .admin()
        .delete(&path)
        .unwrap()
        .expect(200)
        .unwrap();
    bed.finish().unwrap();
}
