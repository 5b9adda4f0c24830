//! The agent in a cluster, with exactly the rights of its service account.

use std::fs;

use serde_json::{Value, json};
use testkit::fabric::eventually::{check, eventually};

use crate::cluster::{Cluster, Guest, NODE, SOON, allocated, requested};

/// The node's object is there, and asks for addresses before it has anything.
fn it_makes_its_node(cluster: &Cluster) {
    let made = cluster.node().unwrap();
    let owner = &made["metadata"]["ownerReferences"][0];
    let node = cluster
        .server
        .admin()
        .get("/api/v1/nodes/fabric-node")
        .unwrap();
    assert_eq!(owner["uid"], node.body["metadata"]["uid"]);
    assert_eq!(made["metadata"]["labels"], json!({"zone": "a"}));
    assert_eq!(made["spec"]["eni"]["first-interface-index"], 0);
    let addresses = made["spec"]["addresses"].as_array().unwrap();
    assert_eq!(addresses.len(), 1, "{addresses:?}");
    // It asks before it has anything.
    cluster
        .node_is("8 to spare", |node| requested(node, "default") == Some(8))
        .unwrap();
}

/// A pool that does not exist: the error gives the reason, and the pool is requested at once.
fn a_missing_pool_is_told_and_requested(cluster: &Cluster, pod: &Guest) {
    let (_, answer) = pod.try_add(&cluster.fabric);
    let message = answer["error"]["message"].as_str().unwrap();
    for part in [
        "pool blue: annotation ipam.cilium.io/ip-pool of its namespace",
        "there is no CiliumPodIPPool blue",
    ] {
        assert!(message.contains(part), "{message}");
    }
    assert_eq!(answer["error"]["retry"], true, "{answer}");
    cluster
        .node_is("blue is wanted", |node| requested(node, "blue") == Some(1))
        .unwrap();
}

/// Makes the pool blue, bound to ENI 1.
fn make_blue(cluster: &Cluster) {
    let subnet = format!("subnet-0fab{:013x}", cluster.eni(1).number);
    let pool = json!({
        "apiVersion": "cilium.io/v2alpha1", "kind": "CiliumPodIPPool",
        "metadata": {"name": "blue", "annotations": {"ipam.towpath.dev/subnet-ids": subnet}},
        "spec": {"ipv4": {"cidrs": ["10.0.0.0/16"], "maskSize": 32}}
    });
    let pools = "/apis/cilium.io/v2alpha1/ciliumpodippools";
    cluster
        .server
        .admin()
        .post(pools, &pool)
        .unwrap()
        .expect(201)
        .unwrap();
}

/// The pod of the pool is tried again until it has an address; returns that.
fn a_pod_of_blue_gets_an_address(cluster: &Cluster, pod: &Guest) -> String {
    let add = || {
        let (status, answer) = pod.try_add(&cluster.fabric);
        check(status == 200, || answer.to_string())?;
        Ok(answer)
    };
    let (answer, _) = eventually(SOON, "the pod of pool blue is added", add).unwrap();
    assert_eq!(answer["addresses"][0]["pool"], "blue");
    assert_eq!(answer["addresses"][0]["eni"]["number"], 1);
    answer["addresses"][0]["address"]
        .as_str()
        .unwrap()
        .to_owned()
}

#[test]
fn it_makes_its_node_asks_for_addresses_and_gives_them_by_annotation() {
    let mut cluster = Cluster::create().unwrap();
    it_makes_its_node(&cluster);

    cluster.operate().unwrap();
    cluster.wait_until_ready().unwrap();
    cluster.namespace("plain", &json!({})).unwrap();
    let blue = json!({"ipam.cilium.io/ip-pool": "blue"});
    cluster.namespace("blue", &blue).unwrap();
    let one = cluster.pod("plain", "one", &json!({})).unwrap();
    let (address, _) = one.add(&cluster.fabric);
    let block = format!("{address}/32");
    let node = cluster
        .node_is("9 of them", |node| requested(node, "default") == Some(9))
        .unwrap();
    assert!(
        allocated(&node, "default").contains(&block),
        "{block}: {node}"
    );

    let two = cluster.pod("blue", "two", &json!({})).unwrap();
    a_missing_pool_is_told_and_requested(&cluster, &two);

    make_blue(&cluster);
    let of_blue = a_pod_of_blue_gets_an_address(&cluster, &two);
    // The pod's own annotation counts more.
    let three = cluster
        .pod(
            "blue",
            "three",
            &json!({"ipam.cilium.io/ipv4-pool": "default"}),
        )
        .unwrap();
    assert_eq!(three.add(&cluster.fabric).1, 0);
    let block = format!("{of_blue}/32");
    cluster
        .node_is("its block is the pool's", |node| {
            allocated(node, "blue").contains(&block)
        })
        .unwrap();
    two.delete(&cluster.fabric);
    show(&mut cluster);
    cluster.fabric.finish().unwrap();
}

/// Prints what the agent is and does.
fn show(cluster: &mut Cluster) {
    let id = cluster.fabric.agent.id().unwrap();
    let status = fs::read_to_string(format!("/proc/{id}/status")).unwrap();
    let resident = status.lines().find(|line| line.starts_with("VmRSS"));
    let writes = cluster
        .fabric
        .agent
        .log()
        .matches("CiliumNode written")
        .count();
    println!(
        "resident: {}; writes of the CiliumNode: {writes}",
        resident.unwrap_or_default()
    );
}

#[test]
fn its_node_says_what_the_instance_is_also_when_that_is_known_later() {
    let mut cluster = Cluster::create().unwrap();
    let made = cluster.node().unwrap();
    assert_eq!(made["spec"]["instance-id"], "i-0fab000000000001");
    let eni = json!({
        "first-interface-index": 0, "instance-type": "m5.large",
        "vpc-id": "vpc-0fab0000000000001", "node-subnet-id": "subnet-0fab0000000000000",
        "availability-zone": "eu-west-1a"
    });
    assert_eq!(made["spec"]["eni"], eni);
    // It has gone, and another agent starts: what was known stays, and the status has a reason.
    cluster.metadata.fail(usize::MAX);
    cluster.metadata.set("instance-type", Some("m5.xlarge"));
    cluster.restart().unwrap();
    let endpoint = cluster.metadata.endpoint();
    cluster
        .status_is("it does not answer", |status| {
            let reasons = status["health"]["reasons"].to_string();
            reasons.contains(&format!("metadata service at {endpoint} does not identify"))
                && reasons.contains("503")
                && reasons.contains("kubernetes.metadata-endpoint")
        })
        .unwrap();
    assert_eq!(cluster.node().unwrap()["spec"]["eni"], eni);
    cluster.metadata.fail(0);
    cluster
        .node_is("it is requested again", |node| {
            node["spec"]["eni"]["instance-type"] == "m5.xlarge"
        })
        .unwrap();
    cluster
        .status_is("there is no such reason", |status| {
            !status["health"]["reasons"]
                .to_string()
                .contains("metadata service")
        })
        .unwrap();
    cluster.fabric.finish().unwrap();
}

#[test]
fn pods_are_added_while_the_api_server_is_away_and_it_goes_on_afterwards() {
    let mut cluster = Cluster::ready().unwrap();
    cluster.namespace("plain", &json!({})).unwrap();
    let one = cluster.pod("plain", "one", &json!({})).unwrap();
    let two = cluster.pod("plain", "two", &json!({})).unwrap();
    let (first, _) = one.add(&cluster.fabric);
    cluster
        .node_is("one is seen", |node| requested(node, "default") == Some(9))
        .unwrap();
    cluster.server.kill();
    assert_eq!(one.add(&cluster.fabric).0, first, "again the same");
    let (second, _) = two.add(&cluster.fabric);
    assert_ne!(first, second);
    cluster.server.resume().unwrap();
    let node = cluster
        .node_is("both are seen", |node| {
            requested(node, "default") == Some(10)
        })
        .unwrap();
    for address in [first, second] {
        let block = format!("{address}/32");
        assert!(
            allocated(&node, "default").contains(&block),
            "{block}: {node}"
        );
    }
    cluster.fabric.finish().unwrap();
}

#[test]
fn an_object_that_is_deleted_is_made_anew_and_takes_nothing_from_pods() {
    let cluster = Cluster::ready().unwrap();
    cluster.namespace("plain", &json!({})).unwrap();
    let one = cluster.pod("plain", "one", &json!({})).unwrap();
    let two = cluster.pod("plain", "two", &json!({})).unwrap();
    let (address, _) = one.add(&cluster.fabric);
    let block = format!("{address}/32");
    let uid = cluster.node().unwrap()["metadata"]["uid"].clone();
    cluster
        .server
        .admin()
        .delete(NODE)
        .unwrap()
        .expect(200)
        .unwrap();
    let anew =
        |node: &Value| node["metadata"]["uid"] != uid && requested(node, "default") == Some(9);
    let node = cluster
        .node_is("it is another one, with the demand", anew)
        .unwrap();
    // Its ENIs are not known yet, and what the last one had is still in use.
    assert_eq!(node["status"], Value::Null);
    two.add(&cluster.fabric);
    assert_eq!(one.add(&cluster.fabric).0, address);
    cluster.operate().unwrap();
    cluster
        .node_is("the block in use is listed", |node| {
            allocated(node, "default").contains(&block)
        })
        .unwrap();
    cluster.fabric.finish().unwrap();
}

#[test]
fn its_account_may_do_nothing_else() {
    let cluster = Cluster::create().unwrap();
    cluster.node().unwrap();
    let agent = cluster.server.with_token(&cluster.token);
    let pools = "/apis/cilium.io/v2alpha1/ciliumpodippools";
    for path in [
        NODE,
        pools,
        "/api/v1/nodes/fabric-node",
        "/api/v1/pods",
        "/api/v1/namespaces",
        "/api/v1/services",
        "/apis/networking.k8s.io/v1/networkpolicies",
    ] {
        assert_eq!(agent.get(path).unwrap().code, 200, "{path}");
    }
    for path in [
        "/api/v1/nodes",
        "/api/v1/secrets",
        "/api/v1/configmaps",
        "/api/v1/endpoints",
        "/api/v1/events",
    ] {
        assert_eq!(agent.get(path).unwrap().code, 403, "{path}");
    }
    assert_eq!(agent.delete(NODE).unwrap().code, 403);
    assert_eq!(agent.put(NODE, &json!({})).unwrap().code, 403);
    let label = json!({"metadata": {"labels": {"a": "b"}}});
    for path in ["/api/v1/nodes/fabric-node", "/api/v1/namespaces/default"] {
        assert_eq!(agent.delete(path).unwrap().code, 403, "{path}");
        assert_eq!(agent.put(path, &json!({})).unwrap().code, 403, "{path}");
    }
    for path in [
        "/api/v1/namespaces/default",
        "/api/v1/namespaces/default/services/kubernetes",
        "/apis/networking.k8s.io/v1/namespaces/default/networkpolicies/any",
        // It writes the status of CiliumNodes, and the conditions of Nodes.
        "/api/v1/namespaces/default/status",
    ] {
        assert_eq!(agent.merge(path, &label).unwrap().code, 403, "{path}");
    }
    assert_eq!(agent.post(pools, &json!({})).unwrap().code, 403);
    cluster.fabric.finish().unwrap();
}
