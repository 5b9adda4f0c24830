//! An instance that was replaced under the same name: the object is still that of the earlier one.

use serde_json::json;
use testkit::fabric::document::document;

use crate::cluster::{Cluster, NODE};

#[test]
fn nothing_is_applied_of_an_object_that_names_another_instance() {
    let mut cluster = Cluster::prepare(false).unwrap();
    let settings = json!({"kubernetes": {"create-node": false}});
    cluster.fabric.agent.configure(&settings).unwrap();
    // Even its MACs are here, as of ENIs that were attached again.
    let mut object = document(&cluster.fabric.enis);
    object["spec"]["instance-id"] = json!("i-0bad");
    let admin = cluster.server.admin();
    let nodes = NODE.rsplit_once('/').unwrap().0;
    admin.post(nodes, &object).unwrap().expect(201).unwrap();
    cluster.operate().unwrap();
    cluster.start().unwrap();
    let refused = "another machine's";
    cluster
        .status_is("both instances are named", |status| {
            let reasons = status["health"]["reasons"].to_string();
            [refused, "i-0bad", "i-0fab000000000001"].map(|part| reasons.contains(part))
                == [true; 3]
        })
        .unwrap();
    let rules = cluster.fabric.node.run("ip -4 rule").unwrap();
    let routes = cluster.fabric.node.run("ip route show table 220");
    assert_eq!(rules.lines().count(), 3, "{rules}");
    assert_eq!(routes.unwrap_or_default(), "");

    let own = json!({"spec": {"instance-id": "i-0fab000000000001"}});
    let patched = cluster.server.admin().merge(NODE, &own).unwrap();
    patched.expect(200).unwrap();
    cluster.wait_until_ready().unwrap();
    // It is overwritten while pods run: what was good stays in force.
    let other = json!({"spec": {"instance-id": "i-0bad"}, "status": {"eni": {"enis": null}}});
    let patched = cluster.server.admin().merge(NODE, &other).unwrap();
    patched.expect(200).unwrap();
    let status = cluster
        .status_is("it is reported", |status| {
            status["health"]["reasons"].to_string().contains(refused)
        })
        .unwrap();
    assert_eq!(status["health"]["state"], "degraded", "{status}");
    cluster.namespace("plain", &json!({})).unwrap();
    cluster
        .pod("plain", "one", &json!({}))
        .unwrap()
        .add(&cluster.fabric);
    cluster.fabric.finish().unwrap();
}

#[test]
fn without_a_metadata_service_the_macs_tell() {
    let mut cluster = Cluster::prepare(false).unwrap();
    cluster.metadata.fail(usize::MAX);
    let settings = json!({"kubernetes": {"create-node": false}});
    cluster.fabric.agent.configure(&settings).unwrap();
    let mut object = document(&cluster.fabric.enis);
    object["spec"]["instance-id"] = json!("i-0bad");
    let nodes = NODE.rsplit_once('/').unwrap().0;
    let admin = cluster.server.admin();
    admin.post(nodes, &object).unwrap().expect(201).unwrap();
    cluster.operate().unwrap();
    cluster.start().unwrap();
    cluster.wait_until_ready().unwrap();
    let mut status = document(&cluster.fabric.enis)["status"].clone();
    for (i, eni) in status["eni"]["enis"]
        .as_object_mut()
        .unwrap()
        .values_mut()
        .enumerate()
    {
        eni["mac"] = json!(format!("0a:00:00:00:bd:{i:02x}"));
    }
    let path = format!("{NODE}/status");
    let patched = cluster
        .server
        .admin()
        .merge(&path, &json!({"status": status}))
        .unwrap();
    patched.expect(200).unwrap();
    cluster
        .status_is("the MACs are another machine's", |status| {
            let reasons = status["health"]["reasons"].to_string();
            reasons.contains("another machine's") && reasons.contains("instance i-0bad")
        })
        .unwrap();
    cluster.fabric.finish().unwrap();
}
