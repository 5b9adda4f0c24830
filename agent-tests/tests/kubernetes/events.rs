//! Events of the agent in the cluster: pods without an address, and policies that nothing enforces.

use std::collections::BTreeSet;
use std::time::{Duration, Instant};

use anyhow::Context as _;
use serde_json::{Value, json};
use testkit::fabric::document::{NODE_NAME, document};
use testkit::fabric::eventually::{check, eventually};
use testkit::kubernetes::Kubectl;

use crate::cluster::{Cluster, NODE, SOON};

/// Address of a test agent's metrics.
const METRICS: &str = "127.0.0.1:9985";

/// Waits until a namespace has a single event, which fulfils a condition.
fn event_is(cluster: &Cluster, namespace: &str, is: impl Fn(&Value) -> bool) -> Value {
    let path = format!("/api/v1/namespaces/{namespace}/events");
    let look = || {
        let events = cluster.server.admin().get(&path)?.expect(200)?;
        let items = events["items"].as_array().unwrap();
        check(items.len() == 1 && is(&items[0]), || events.to_string())?;
        Ok(items[0].clone())
    };
    eventually(SOON, "there is one event", look).unwrap().0
}

/// Reports if the API server's metrics show a watch of a resource.
fn is_watched(cluster: &Cluster, resource: &str) -> bool {
    let metrics = cluster.server.admin().get("/metrics").unwrap().body;
    let resource = format!("resource=\"{resource}\"");
    metrics.as_str().unwrap().lines().any(|line| {
        line.starts_with("apiserver_longrunning_requests{")
            && line.contains("verb=\"WATCH\"")
            && line.contains(&resource)
            && !line.ends_with(" 0")
    })
}

/// The event is about the pod `web`, and from the agent.
fn is_about_the_pod(cluster: &Cluster, event: &Value) {
    assert_eq!(event["source"]["component"], "towpath");
    assert_eq!(event["reportingComponent"], "towpath");
    let about = &event["involvedObject"];
    let there = cluster
        .server
        .admin()
        .get("/api/v1/namespaces/blue/pods/web");
    let there = there.unwrap().expect(200).unwrap();
    assert_eq!(about["uid"], there["metadata"]["uid"]);
    assert_eq!(
        (&about["kind"], &about["name"]),
        (&json!("Pod"), &json!("web"))
    );
}

/// kubectl and the newer API show the same event.
fn kubectl_and_the_newer_api_show_it(cluster: &Cluster) {
    let kubectl = Kubectl::new(&cluster.server, &cluster.fabric.node, cluster.folder()).unwrap();
    let shown = kubectl.succeed(&["events", "--namespace", "blue"]).unwrap();
    assert!(
        shown.contains("PoolUnknown") && shown.contains("Pod/web"),
        "{shown}"
    );
    let newer = cluster
        .server
        .admin()
        .get("/apis/events.k8s.io/v1/namespaces/blue/events");
    let newer = newer.unwrap().expect(200).unwrap();
    assert_eq!(newer["items"][0]["deprecatedCount"], 4, "{newer}");
    assert_eq!(newer["items"][0]["reportingController"], "towpath");
}

/// Makes two pools that select the pods of the namespace `green`.
fn make_two_pools(cluster: &Cluster) {
    for name in ["one", "two"] {
        let pool = json!({
            "apiVersion": "cilium.io/v2alpha1", "kind": "CiliumPodIPPool",
            "metadata": {"name": name},
            "spec": {
                "ipv4": {"cidrs": ["10.20.0.0/16"], "maskSize": 28},
                "podSelector": {"matchLabels": {"io.kubernetes.pod.namespace": "green"}}
            }
        });
        let pools = "/apis/cilium.io/v2alpha1/ciliumpodippools";
        let answer = cluster.server.admin().post(pools, &pool).unwrap();
        answer.expect(201).unwrap();
    }
}

#[test]
fn a_pod_that_gets_no_address_is_told_why_in_one_event_that_counts() {
    let cluster = Cluster::ready().unwrap();
    let blue = json!({"ipam.cilium.io/ip-pool": "blue"});
    cluster.namespace("blue", &blue).unwrap();
    let pod = cluster.pod("blue", "web", &json!({})).unwrap();
    let (_, answer) = pod.try_add(&cluster.fabric);
    let event = event_is(&cluster, "blue", |event| event["count"] == 1);
    assert_eq!(event["reason"], "PoolUnknown");
    assert_eq!(event["type"], "Warning");
    assert_eq!(event["message"], answer["error"]["message"]);
    is_about_the_pod(&cluster, &event);
    // Several attempts make one event.
    for _ in 0..3 {
        pod.try_add(&cluster.fabric);
    }
    let again = event_is(&cluster, "blue", |event| event["count"] == 4);
    assert_eq!(again["metadata"]["uid"], event["metadata"]["uid"]);
    assert_eq!(again["firstTimestamp"], event["firstTimestamp"]);
    kubectl_and_the_newer_api_show_it(&cluster);

    // Two pools select it: another cause.
    cluster.namespace("green", &json!({})).unwrap();
    make_two_pools(&cluster);
    let pod = cluster.pod("green", "shop", &json!({})).unwrap();
    let add = || {
        let (_, answer) = pod.try_add(&cluster.fabric);
        let message = answer["error"]["message"].as_str().unwrap_or_default();
        check(message.contains("pools one and two all select pod"), || {
            answer.to_string()
        })?;
        pod.delete(&cluster.fabric);
        Ok(())
    };
    eventually(SOON, "both pools are known", add).unwrap();
    let path = "/api/v1/namespaces/green/events";
    let look = || {
        let events = cluster.server.admin().get(path)?.expect(200)?;
        check(events.to_string().contains("PoolAmbiguous"), || {
            events.to_string()
        })
    };
    eventually(SOON, "the event is recorded", look).unwrap();
    cluster.fabric.finish().unwrap();
}

#[test]
fn a_policy_that_netfilter_cannot_enforce_is_told_of_until_it_goes() {
    let cluster = Cluster::ready().unwrap();
    cluster.namespace("shop", &json!({})).unwrap();
    let pod = cluster.pod("shop", "web", &json!({})).unwrap();
    pod.add(&cluster.fabric);
    // A pod without an endpoint here, such as one of the host's network.
    cluster.pod("shop", "other", &json!({})).unwrap();
    let policies = "/apis/networking.k8s.io/v1/namespaces/shop/networkpolicies";
    for (name, selector) in [
        ("deny", json!({})),
        ("of-nobody", json!({"matchLabels": {"app": "nobody"}})),
    ] {
        let policy = json!({
            "apiVersion": "networking.k8s.io/v1", "kind": "NetworkPolicy",
            "metadata": {"name": name}, "spec": {"podSelector": selector, "policyTypes": ["Ingress"]}
        });
        let answer = cluster.server.admin().post(policies, &policy).unwrap();
        answer.expect(201).unwrap();
    }
    let unenforced = |status: &Value| status["cluster"]["unenforced-policies"].clone();
    let expected = json!([{"namespace": "shop", "name": "deny", "pods": ["web"]}]);
    let status = cluster
        .status_is("the policy is reported", |status| {
            unenforced(status) == expected
        })
        .unwrap();
    assert!(is_watched(&cluster, "networkpolicies"));
    // Policies that another kind of engine enforces do not affect the node's readiness.
    assert_eq!(status["health"]["state"], "ready", "{}", status["health"]);
    let event = event_is(&cluster, "shop", |event| event["reason"] == "NotEnforced");
    assert_eq!(event["involvedObject"]["kind"], "NetworkPolicy");
    assert_eq!(event["involvedObject"]["name"], "deny");
    let message = event["message"].as_str().unwrap();
    assert!(message.contains("(web)") && message.contains("datapath.path: stack"));
    let answer = cluster.server.admin().delete(&format!("{policies}/deny"));
    answer.unwrap().expect(200).unwrap();
    cluster
        .status_is("it is gone", |status| unenforced(status) == json!([]))
        .unwrap();
    cluster.fabric.finish().unwrap();
}

#[test]
fn no_policy_is_told_of_where_netfilter_sees_all() {
    let settings = json!({"datapath": {"path": "stack"}});
    let mut cluster = Cluster::create_with(&settings).unwrap();
    cluster.node().unwrap();
    cluster.operate().unwrap();
    cluster.wait_until_ready().unwrap();
    // The agent does not follow them at all. It begins to follow pods last.
    for resource in ["ciliumpodippools", "pods"] {
        let look = || {
            let is_watched = is_watched(&cluster, resource);
            check(is_watched, || format!("nobody watches {resource}"))
        };
        eventually(SOON, "the agent watches", look).unwrap();
    }
    assert!(!is_watched(&cluster, "networkpolicies"));
    cluster.fabric.finish().unwrap();
}

#[test]
fn refused_entries_are_told_of_on_the_node() {
    let cluster = Cluster::ready().unwrap();
    let bad = json!({"status": {"eni": {"enis": {"eni-bad": {
        "id": "eni-bad", "number": 7, "mac": "none", "ip": "10.0.7.10",
        "subnet": {"id": "subnet-bad", "cidr": "10.0.7.0/24"}
    }}}}});
    let answer = cluster
        .server
        .admin()
        .merge(&format!("{NODE}/status"), &bad);
    answer.unwrap().expect(200).unwrap();
    let pool = json!({
        "apiVersion": "cilium.io/v2alpha1", "kind": "CiliumPodIPPool",
        "metadata": {
            "name": "blue", "annotations": {"ipam.towpath.dev/restrict": "nobody-knows"}
        },
        "spec": {"ipv4": {"cidrs": ["10.20.0.0/16"], "maskSize": 28}}
    });
    let pools = "/apis/cilium.io/v2alpha1/ciliumpodippools";
    let answer = cluster.server.admin().post(pools, &pool).unwrap();
    answer.expect(201).unwrap();
    let kubectl = Kubectl::new(&cluster.server, &cluster.fabric.node, cluster.folder()).unwrap();
    let look = || {
        let shown = kubectl.succeed(&["describe", "node", NODE_NAME])?;
        let events = shown.split("Events:").nth(1).unwrap_or_default();
        let both = ["eni-bad.mac", "ipam.towpath.dev/restrict"];
        let is_told = both.iter().all(|entry| events.contains(entry));
        check(is_told && events.contains("RefusedEntry"), || shown.clone())
    };
    let log = || cluster.fabric.agent.log();
    eventually(SOON, "both entries have an event on the Node", look)
        .with_context(log)
        .unwrap();
    let path = "/api/v1/namespaces/default/events";
    let events = cluster.server.admin().get(path).unwrap();
    let events = events.expect(200).unwrap();
    let events = events["items"].as_array().unwrap().iter();
    // The API server records events of its own there.
    let is_ours = |event: &&Value| event["source"]["component"] == "towpath";
    let events: Vec<_> = events.filter(is_ours).collect();
    let messages: BTreeSet<_> = events
        .iter()
        .map(|event| event["message"].as_str())
        .collect();
    assert_eq!(messages.len(), events.len(), "{events:?}");
    for event in events {
        assert_eq!(event["type"], "Warning");
        assert_eq!(event["count"], 1);
        let about = &event["involvedObject"];
        assert_eq!(
            (&about["kind"], &about["uid"]),
            (&json!("Node"), &json!(NODE_NAME))
        );
    }
    cluster.fabric.finish().unwrap();
}

/// The messages of the Node's events with a reason.
fn on_the_node(cluster: &Cluster, reason: &str) -> anyhow::Result<Vec<Value>> {
    let path = "/api/v1/namespaces/default/events";
    let events = cluster.server.admin().get(path)?.expect(200)?;
    let events = events["items"].as_array().cloned().unwrap_or_default();
    let of_reason = |event: &Value| {
        event["reason"] == reason && event["involvedObject"]["uid"] == json!(NODE_NAME)
    };
    Ok(events.into_iter().filter(of_reason).collect())
}

#[test]
fn rules_that_packets_go_past_have_one_event_each_on_the_node() {
    let cluster = Cluster::ready().unwrap();
    let node = &cluster.fabric.node;
    let pre = "{ type filter hook prerouting priority 0 ; }";
    for line in [
        "nft add table ip guard".to_owned(),
        format!("nft add chain ip guard pre {pre}"),
        "nft add rule ip guard pre ip daddr 169.254.169.254 drop".to_owned(),
    ] {
        node.run(&line).unwrap();
    }
    let has_event = |number: usize, part: &str| {
        let look = || {
            let events = on_the_node(&cluster, "RuleBypassed")?;
            let is = |event: &Value| {
                event["message"]
                    .as_str()
                    .is_some_and(|text| text.contains(part))
            };
            let are_single = events.iter().all(|event| event["count"] == 1);
            check(
                events.len() == number && are_single && events.iter().any(is),
                || format!("{events:#?}"),
            )
        };
        let log = || cluster.fabric.agent.log();
        let found = eventually(SOON, "each rule has an event", look);
        found.with_context(log).unwrap();
    };
    has_event(1, "set masquerade.metadata to stack");
    // When the second rule is reported, the first one has been checked again.
    node.run("nft add rule ip guard pre tcp option maxseg size set 1400")
        .unwrap();
    has_event(2, "endpoint.internet-mtu");
    cluster.fabric.finish().unwrap();
}

#[test]
fn a_qdisc_that_comes_late_is_told_of_on_the_pod() {
    let cluster = Cluster::ready().unwrap();
    cluster.namespace("plain", &json!({})).unwrap();
    let guest = cluster.pod("plain", "web", &json!({})).unwrap();
    guest.add(&cluster.fabric);
    let node = &cluster.fabric.node;
    node.run("sysctl -qw net.netfilter.nf_conntrack_tcp_loose=0")
        .unwrap();
    let added = Instant::now();
    eventually(SOON, "connections may be open", || {
        check(added.elapsed() > Duration::from_secs(11), String::new)
    })
    .unwrap();
    let devices = node.run("ip -o link show group 0x7477").unwrap();
    let device = devices.split([':', '@']).nth(1).unwrap().trim();
    node.run(&format!(
        "tc qdisc add dev {device} root tbf rate 5gbit burst 10mb latency 50ms"
    ))
    .unwrap();
    let event = event_is(&cluster, "plain", |event| event["count"] == 1);
    assert_eq!(event["reason"], "ConnectionsInvalid");
    assert_eq!(event["involvedObject"]["kind"], "Pod");
    let message = event["message"].as_str().unwrap();
    for part in ["a tbf qdisc", device, "nf_conntrack_tcp_loose"] {
        assert!(message.contains(part), "{message}");
    }
    cluster.fabric.finish().unwrap();
}

#[test]
fn an_object_that_is_refused_whole_is_told_of_on_the_node() {
    let mut cluster = Cluster::prepare(false).unwrap();
    let settings = json!({
        "kubernetes": {"create-node": false},
        "metrics": {"address": METRICS}
    });
    cluster.fabric.agent.configure(&settings).unwrap();
    let admin = cluster.server.admin();
    let nodes = NODE.rsplit_once('/').unwrap().0;
    let mut object = document(&cluster.fabric.enis);
    object["spec"]["instance-id"] = json!("i-0fab000000000001");
    admin.post(nodes, &object).unwrap().expect(201).unwrap();
    cluster = cluster.made_ready().unwrap();
    let counted = |count: u32| {
        let url = format!("http://{METRICS}/metrics");
        let text = cluster.fabric.node.run(&format!("curl -s {url}"))?;
        let line = format!("towpath_refused_entries{{kind=\"document\"}} {count}");
        check(text.lines().any(|one| one == line), || text.clone())
    };
    eventually(SOON, "nothing is refused", || counted(0)).unwrap();
    let other = json!({"spec": {"instance-id": "i-0bad"}});
    let admin = cluster.server.admin();
    admin.merge(NODE, &other).unwrap().expect(200).unwrap();
    let kubectl = Kubectl::new(&cluster.server, &cluster.fabric.node, cluster.folder()).unwrap();
    let look = || {
        let shown = kubectl.succeed(&["describe", "node", NODE_NAME])?;
        let events = shown.split("Events:").nth(1).unwrap_or_default();
        let parts = ["RefusedEntry", "node document: CiliumNode", "i-0bad"];
        check(parts.iter().all(|part| events.contains(part)), || {
            shown.clone()
        })
    };
    eventually(SOON, "it has an event on the Node", look).unwrap();
    eventually(SOON, "it is counted", || counted(1)).unwrap();
    // Pods still get addresses by the last good one.
    cluster.namespace("plain", &json!({})).unwrap();
    let pod = cluster.pod("plain", "one", &json!({})).unwrap();
    pod.add(&cluster.fabric);
    let own = json!({"spec": {"instance-id": "i-0fab000000000001"}});
    admin.merge(NODE, &own).unwrap().expect(200).unwrap();
    eventually(SOON, "it is good again", || counted(0)).unwrap();
    cluster.fabric.finish().unwrap();
}
