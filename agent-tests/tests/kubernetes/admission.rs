//! The admission policies of `deploy/kubernetes/admission`: the token of one agent changes its own
//! node's objects alone.

use serde_json::{Value, json};
use testkit::fabric::document::NODE_NAME;
use testkit::fabric::eventually::{check, eventually};
use testkit::kubernetes::{Answer, Component, read_manifest};

use crate::cluster::{Cluster, NODE, SOON};

/// Another node of the cluster.
const OTHER: &str = "another-node";
/// The key of the start-up taint.
const TAINT: &str = "node.towpath.dev/agent-not-ready";

/// Makes a pod of the agent on a node, and a token that is bound to it, as its kubelet asks for.
fn token_on(cluster: &Cluster, node: &str) -> String {
    let (namespace, account) = (Component::NAMESPACE, Component::Agent.account());
    let admin = cluster.server.admin();
    let pod = json!({
        "apiVersion": "v1", "kind": "Pod", "metadata": {"name": format!("towpath-{node}")},
        "spec": {
            "nodeName": node, "serviceAccountName": account,
            "containers": [{"name": "agent", "image": "none"}]
        }
    });
    let pods = format!("/api/v1/namespaces/{namespace}/pods");
    let pod = admin.post(&pods, &pod).unwrap().expect(201).unwrap();
    let metadata = &pod["metadata"];
    let bound = json!({
        "apiVersion": "v1", "kind": "Pod", "name": metadata["name"], "uid": metadata["uid"]
    });
    cluster
        .server
        .token_bound_to(namespace, account, &bound)
        .unwrap()
}

/// Applies the policies, and waits until they are in force.
fn enforce(cluster: &Cluster, token: &str) {
    for name in ["own-node", "own-ciliumnode"] {
        let path = format!("kubernetes/admission/{name}.yaml");
        cluster
            .server
            .apply(&read_manifest(&path).unwrap())
            .unwrap();
    }
    let refused = || {
        // Until then it would come to something.
        let answer = spoil(cluster, token, &format!("/api/v1/nodes/{OTHER}?dryRun=All"))?;
        check(answer.code == 422, || answer.to_string())?;
        let answer = change_ciliumnode(cluster, token, OTHER)?;
        check(answer.code == 422, || answer.to_string())
    };
    eventually(SOON, "the policies are in force", refused).unwrap();
}

/// Tries to taint a Node with an agent's token.
fn spoil(cluster: &Cluster, token: &str, path: &str) -> anyhow::Result<Answer> {
    let taints = json!([{"key": "stolen", "effect": "NoExecute"}]);
    let patch = json!({"spec": {"taints": taints}});
    cluster.server.with_token(token).merge(path, &patch)
}

fn change_ciliumnode(cluster: &Cluster, token: &str, node: &str) -> anyhow::Result<Answer> {
    let path = format!("/apis/cilium.io/v2/ciliumnodes/{node}");
    let patch = json!({"spec": {"instance-id": "i-stolen"}});
    cluster.server.with_token(token).merge(&path, &patch)
}

/// Of the status of its own Node an agent sets two conditions, and nothing else.
fn its_own_status_is_not_its_to_spoil(cluster: &Cluster, token: &str) {
    let agent = cluster.server.with_token(token);
    let path = format!("/api/v1/nodes/{NODE_NAME}/status");
    let try_it = |status: &Value| {
        let path = format!("{path}?dryRun=All");
        agent.merge(&path, &json!({"status": status})).unwrap()
    };
    let condition = |of: &str| json!({"conditions": [{"type": of, "status": "True"}]});
    for (status, reason) in [
        (condition("Ready"), "no condition of a Node but"),
        (
            json!({"capacity": {"pods": "1"}}),
            "nothing of a Node's status",
        ),
        (json!({"addresses": []}), "nothing of a Node's status"),
    ] {
        let answer = try_it(&status);
        assert!(message(&answer).contains(reason), "{status}: {answer}");
    }
    for of in ["NetworkUnavailable", "TowpathAddressesExhausted"] {
        let answer = try_it(&condition(of));
        assert_eq!(answer.code, 200, "{of}: {answer}");
    }
    // Nor does it take away one that another has set.
    let admin = cluster.server.admin();
    let ready = admin.merge(&path, &json!({"status": condition("Ready")}));
    ready.unwrap().expect(200).unwrap();
    let answer = try_it(&json!({"conditions": null}));
    assert!(
        message(&answer).contains("no condition of a Node but"),
        "{answer}"
    );
}

fn message(answer: &Answer) -> &str {
    answer.body["message"].as_str().unwrap_or_default()
}

/// Makes the other node with its object, and taints both nodes.
fn make_and_taint_nodes(cluster: &Cluster) {
    let admin = cluster.server.admin();
    let taints = json!({"spec": {"taints": [{"key": TAINT, "effect": "NoSchedule"}]}});
    for name in [NODE_NAME, OTHER] {
        let node = json!({"apiVersion": "v1", "kind": "Node", "metadata": {"name": name}});
        if name == OTHER {
            admin
                .post("/api/v1/nodes", &node)
                .unwrap()
                .expect(201)
                .unwrap();
        }
        let path = format!("/api/v1/nodes/{name}");
        admin.merge(&path, &taints).unwrap().expect(200).unwrap();
    }
    let other = json!({
        "apiVersion": "cilium.io/v2", "kind": "CiliumNode", "metadata": {"name": OTHER}, "spec": {}
    });
    let objects = "/apis/cilium.io/v2/ciliumnodes";
    admin.post(objects, &other).unwrap().expect(201).unwrap();
}

fn another_node_is_not_its_to_spoil(cluster: &Cluster, token: &str) {
    let refused = change_ciliumnode(cluster, token, OTHER).unwrap();
    let own = format!("this token is of node '{NODE_NAME}'");
    assert!(message(&refused).contains(&own), "{refused}");
    let refused = spoil(cluster, token, &format!("/api/v1/nodes/{OTHER}")).unwrap();
    assert!(message(&refused).contains(&own), "{refused}");
    let status = json!({"status": {"conditions": [{"type": "Ready", "status": "False"}]}});
    let path = format!("/api/v1/nodes/{OTHER}/status");
    let answer = cluster
        .server
        .with_token(token)
        .merge(&path, &status)
        .unwrap();
    assert_eq!(answer.code, 422, "{answer}");
}

fn its_own_node_is_not_its_to_spoil(cluster: &Cluster, token: &str) {
    let answer = spoil(cluster, token, &format!("/api/v1/nodes/{NODE_NAME}")).unwrap();
    assert!(message(&answer).contains("adds no taint"), "{answer}");
    let labels = json!({"metadata": {"labels": {"stolen": "yes"}}});
    let path = format!("/api/v1/nodes/{NODE_NAME}");
    let answer = cluster
        .server
        .with_token(token)
        .merge(&path, &labels)
        .unwrap();
    assert!(message(&answer).contains("neither labels nor"), "{answer}");
}

/// An agent with the token does all that it has to, and the other node keeps its taint.
fn it_does_its_work(cluster: &Cluster) {
    let admin = cluster.server.admin();
    let path = format!("/api/v1/nodes/{NODE_NAME}");
    let untainted = || {
        let node = admin.get(&path)?.expect(200)?;
        check(node["spec"]["taints"].is_null(), || {
            node["spec"].to_string()
        })
    };
    eventually(SOON, "its start-up taint is gone", untainted).unwrap();
    let written = |node: &Value| node["spec"]["ipam"]["pools"]["requested"].is_array();
    cluster.node_is("its demand is written", written).unwrap();
    let others = admin.get(&format!("/api/v1/nodes/{OTHER}")).unwrap();
    let others = others.expect(200).unwrap();
    assert_eq!(others["spec"]["taints"][0]["key"], TAINT);
    assert_eq!(admin.get(NODE).unwrap().code, 200);
}

#[test]
fn an_agent_changes_the_objects_of_its_own_node_alone() {
    let mut cluster = Cluster::prepare(false).unwrap();
    make_and_taint_nodes(&cluster);
    let token = token_on(&cluster, NODE_NAME);

    // Rights alone allow both.
    let before = change_ciliumnode(&cluster, &token, OTHER).unwrap();
    assert_eq!(before.code, 200, "{before}");
    enforce(&cluster, &token);
    another_node_is_not_its_to_spoil(&cluster, &token);
    its_own_node_is_not_its_to_spoil(&cluster, &token);
    its_own_status_is_not_its_to_spoil(&cluster, &token);
    // A token of no pod has no node.
    let unbound = cluster.token.clone();
    let answer = change_ciliumnode(&cluster, &unbound, OTHER).unwrap();
    assert!(message(&answer).contains("of node ''"), "{answer}");

    // The agent itself does all that it has to.
    let kubeconfig = cluster
        .server
        .kubeconfig("bound", &cluster.server.url(), &token);
    let settings = json!({"kubernetes": {"kubeconfig": kubeconfig.unwrap()}});
    cluster.fabric.agent.configure(&settings).unwrap();
    cluster = cluster.made_ready().unwrap();
    it_does_its_work(&cluster);
    cluster.fabric.finish().unwrap();
}
