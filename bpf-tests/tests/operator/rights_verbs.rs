//! The rights of the operator, verb by verb: each that is taken away is named.

use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use serde_json::{Value, json};
use testkit::cloud::Operator;
use testkit::fabric::eventually::{check, eventually};
use testkit::kubernetes::proxy::{Does, Kind, Rule};

use super::bed::{Bed, SOON, instance_id, node_name};
use super::pools::POOLS;
use super::rights::{CLUSTER_ROLE, ROLE, put, put_back, roles};
use super::taint::add_agent;

const LEASE: &str = "/apis/coordination.k8s.io/v1/namespaces/kube-system/leases/towpath-operator";
/// An object goes when its Node has been absent for five minutes.
const REMOVED: Duration = Duration::from_mins(8);
/// The resources that are followed, by their names in the log.
const FOLLOWED: [(&str, &str); 5] = [
    ("ciliumnodes", "follow CiliumNodes: "),
    ("ciliumpodippools", "follow CiliumPodIPPools: "),
    ("servicecidrs", "follow ServiceCIDRs: "),
    ("nodes", "follow Nodes: "),
    ("pods", "follow pods that wait: "),
];

/// Takes a verb of a resource away from the one rule that has it for objects of that name.
fn take(bed: &Bed, path: &str, (verb, resource, name): (&str, &str, Option<&str>)) -> Result<()> {
    let mut role = bed.plane.server.admin().get(path)?.expect(200)?;
    let rules = role["rules"].as_array_mut().context("a role has rules")?;
    let mut taken = 0;
    for rule in rules.iter_mut() {
        let has = |key: &str, text: &str| {
            let list = rule[key].as_array();
            list.is_some_and(|list| list.contains(&json!(text)))
        };
        let is_meant = has("resources", resource) && has("verbs", verb);
        if is_meant && name.is_none_or(|name| has("resourceNames", name)) {
            let verbs = rule["verbs"].as_array_mut().context("a rule has verbs")?;
            verbs.retain(|it| it != verb);
            taken += 1;
        }
    }
    ensure!(taken == 1, "{taken} rules of {path} have {verb} {resource}");
    rules.retain(|rule| rule["verbs"] != json!([]));
    put(bed, path, &role)
}

/// The API server's words for a verb that is not allowed.
fn refusal(verb: &str, resource: &str) -> String {
    format!("cannot {verb} resource \"{resource}\"")
}

/// Waits until a verb of the command line shows that a right is missing.
fn shows(operator: &Operator, verb: &str, refusal: &str) -> Result<()> {
    let look = || {
        let shown = operator.ask(verb)?;
        check(shown.contains(refusal), || shown)
    };
    eventually(SOON, refusal, look).map(drop)
}

#[test]
fn each_verb_of_what_is_followed_is_named() {
    let bed = Bed::create(1).unwrap();
    let roles = roles(&bed).unwrap();
    // A server without streams has to list.
    let (proxy, kubeconfig) = bed.proxy().unwrap();
    let status = json!({"kind": "Status", "code": 422, "reason": "Invalid", "message": "none"});
    proxy.rule(Rule::all(
        Kind::Stream,
        Does::Answer(422, Vec::new(), status),
    ));
    let listing = json!({"kubernetes": {"kubeconfig": kubeconfig}});
    let mut number = 0;
    for (verb, settings) in [("watch", json!({})), ("list", listing)] {
        for (resource, named) in FOLLOWED {
            take(&bed, CLUSTER_ROLE, (verb, resource, None)).unwrap();
            let operator = bed.start(number, &settings).unwrap();
            operator
                .log_has(&[named, &refusal(verb, resource)])
                .unwrap();
            operator.kill().unwrap();
            put_back(&bed, &roles).unwrap();
            number += 1;
        }
    }
    bed.finish().unwrap();
}

#[test]
fn each_verb_of_the_leases_is_named() {
    let bed = Bed::create(1).unwrap();
    let roles = roles(&bed).unwrap();
    let (ours, foreign) = ("towpath-operator", "cilium-operator-resource-lock");
    let cases = [
        ("create", None, "renew the lease: "),
        ("get", Some(ours), "renew the lease: "),
        ("patch", Some(ours), "renew the lease: "),
        ("get", Some(foreign), "look for another operator: "),
    ];
    for (number, (verb, name, named)) in (0..).zip(cases) {
        take(&bed, ROLE, (verb, "leases", name)).unwrap();
        let operator = bed.start(number, &json!({"log-level": "info"})).unwrap();
        operator
            .log_has(&[named, &refusal(verb, "leases")])
            .unwrap();
        operator.kill().unwrap();
        put_back(&bed, &roles).unwrap();
        if verb != "create" {
            continue;
        }
        // The other verbs count once there is a Lease.
        let maker = bed.start(9, &json!({})).unwrap();
        let look = || bed.plane.server.admin().get(LEASE)?.expect(200);
        eventually(SOON, "there is a Lease", look).unwrap();
        assert!(maker.stop().unwrap());
    }
    bed.finish().unwrap();
}

/// A plain pool.
fn pool(name: &str, cidrs: &[&str]) -> Value {
    json!({
        "apiVersion": "cilium.io/v2alpha1", "kind": "CiliumPodIPPool", "metadata": {"name": name},
        "spec": {"ipv4": {"cidrs": cidrs, "maskSize": 28}}
    })
}

/// Takes both rights away that events need, one after the other. There is a pool `172.16.0.0/24`.
fn refuse_events(bed: &Bed, roles: &[Value; 2], operator: &Operator) -> Result<()> {
    let admin = bed.plane.server.admin();
    let named = "an event is not written: ";
    take(bed, CLUSTER_ROLE, ("create", "events", None))?;
    // A CIDR of another pool is refused, and an event names it.
    let red = pool("red", &["172.16.0.0/28", "172.17.0.0/28"]);
    admin.post(POOLS, &red)?.expect(201)?;
    operator.log_has(&["WARN", named, &refusal("create", "events")])?;
    put_back(bed, roles)?;
    take(bed, CLUSTER_ROLE, ("patch", "events", None))?;
    let look = || {
        let events = admin
            .get("/api/v1/namespaces/default/events")?
            .expect(200)?;
        check(events.to_string().contains("PoolRefused"), || {
            events.to_string()
        })
    };
    eventually(SOON, "the event is written", look)?;
    // The second event of that reason is a change of the first one.
    let more = json!({"spec": {"ipv4": {"cidrs": ["172.16.0.0/28", "172.16.0.16/28"]}}});
    admin.merge(&format!("{POOLS}/red"), &more)?.expect(200)?;
    operator.log_has(&["WARN", named, &refusal("patch", "events")])?;
    put_back(bed, roles)
}

#[test]
fn each_verb_of_what_is_written_is_named() {
    let bed = Bed::create(1).unwrap();
    let roles = roles(&bed).unwrap();
    let admin = bed.plane.server.admin();
    let settings = json!({"taint": {"after": "10s"}, "log-level": "info"});
    let operator = bed.start(0, &settings).unwrap();
    take(&bed, CLUSTER_ROLE, ("patch", "ciliumnodes", None)).unwrap();
    bed.add_node(0, 8).unwrap();
    shows(&operator, "why node-0", &refusal("patch", "ciliumnodes")).unwrap();
    put_back(&bed, &roles).unwrap();
    bed.node_has(0, 8).unwrap();

    take(&bed, CLUSTER_ROLE, ("patch", "ciliumnodes/status", None)).unwrap();
    bed.request(0, 9).unwrap();
    shows(
        &operator,
        "why node-0",
        &refusal("patch", "ciliumnodes/status"),
    )
    .unwrap();
    put_back(&bed, &roles).unwrap();
    bed.node_has(0, 9).unwrap();

    take(&bed, CLUSTER_ROLE, ("patch", "ciliumpodippools", None)).unwrap();
    admin
        .post(POOLS, &pool("green", &["172.16.0.0/24"]))
        .unwrap()
        .expect(201)
        .unwrap();
    shows(&operator, "pools", &refusal("patch", "ciliumpodippools")).unwrap();
    put_back(&bed, &roles).unwrap();

    take(&bed, CLUSTER_ROLE, ("patch", "nodes", None)).unwrap();
    add_agent(&bed, 0, false).unwrap();
    operator
        .log_has(&["write the taint", &refusal("patch", "nodes")])
        .unwrap();
    put_back(&bed, &roles).unwrap();

    refuse_events(&bed, &roles, &operator).unwrap();
    assert!(operator.stop().unwrap());
    bed.finish().unwrap();
}

/// It takes as long as an object without a Node stays.
#[test]
fn the_right_to_delete_nodes_is_named() {
    if std::env::var_os("TOWPATH_FULL").is_none() {
        return;
    }
    let bed = Bed::create(1).unwrap();
    take(&bed, CLUSTER_ROLE, ("delete", "ciliumnodes", None)).unwrap();
    let operator = bed.start(0, &json!({})).unwrap();
    bed.add_node(0, 8).unwrap();
    bed.node_has(0, 8).unwrap();
    let node = format!("/api/v1/nodes/{}", node_name(0));
    bed.plane
        .server
        .admin()
        .delete(&node)
        .unwrap()
        .expect(200)
        .unwrap();
    let instance = instance_id(0);
    bed.cloud
        .with(|cloud, now| cloud.terminate(&instance, now))
        .unwrap();
    let refusal = refusal("delete", "ciliumnodes");
    let look = || {
        let shown = operator.ask("why node-0")?;
        check(shown.contains(&refusal), || shown)
    };
    eventually(REMOVED, "the refused deletion is named", look).unwrap();
    assert!(operator.stop().unwrap());
}
