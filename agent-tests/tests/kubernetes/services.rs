//! Service destinations that the cluster tells.

use serde_json::{Value, json};
use testkit::fabric::eventually::{check, eventually};
use testkit::kubernetes::proxy::{Does, Kind, Rule};

use crate::cluster::{Cluster, SERVICE_CIDR, SOON};

const SERVICES: &str = "/api/v1/namespaces/default/services";

/// Waits until the datapath has a prefix, or has not.
fn wait_until_known(cluster: &Cluster, net: &str, is_known: bool) {
    let look = || {
        let objects = cluster.fabric.agent.ask("GET", "/v1/routes", None)?;
        let objects = objects.to_string();
        check(objects.contains(net) == is_known, || objects)
    };
    eventually(SOON, net, look).unwrap();
}

fn is_not_ready(status: &Value, part: &str) -> bool {
    status["health"]["state"] == "not-ready"
        && status["health"]["reasons"].to_string().contains(part)
}

#[test]
fn external_addresses_of_services_are_followed_and_an_outage_keeps_them() {
    let mut cluster = Cluster::ready().unwrap();
    let service = json!({
        "apiVersion": "v1", "kind": "Service", "metadata": {"name": "web"},
        "spec": {
            "type": "LoadBalancer", "ports": [{"port": 80}],
            "externalIPs": ["198.51.100.77", "10.0.7.7"]
        }
    });
    let admin = cluster.server.admin();
    admin.post(SERVICES, &service).unwrap().expect(201).unwrap();
    let addresses = |status: &Value| status["cluster"]["service-addresses"].as_u64();
    let status = cluster
        .status_is("its address is known", |status| {
            addresses(status) == Some(1)
        })
        .unwrap();
    assert_eq!(
        status["cluster"]["configured-services"],
        json!([SERVICE_CIDR])
    );
    let notes = status["cluster"]["notes"].to_string();
    assert!(
        notes.contains("10.0.7.7 of a Service is left to the VPC: it is within the VPC"),
        "{notes}"
    );
    wait_until_known(&cluster, "198.51.100.77", true);
    wait_until_known(&cluster, "10.0.7.7", false);
    // The load balancer gets one.
    let ingress = json!({"status": {"loadBalancer": {"ingress": [{"ip": "203.0.113.9"}]}}});
    let answer = cluster
        .server
        .admin()
        .merge(&format!("{SERVICES}/web/status"), &ingress);
    answer.unwrap().expect(200).unwrap();
    cluster
        .status_is("both are known", |status| addresses(status) == Some(2))
        .unwrap();
    cluster.server.kill();
    cluster
        .status_is("the outage is reported", |status| {
            let reasons = status["health"]["reasons"].to_string();
            reasons.contains("keeping the known external addresses") && addresses(status) == Some(2)
        })
        .unwrap();
    wait_until_known(&cluster, "203.0.113.9", true);
    cluster.server.resume().unwrap();
    let answer = cluster.server.admin().delete(&format!("{SERVICES}/web"));
    answer.unwrap().expect(200).unwrap();
    cluster
        .status_is("they are gone", |status| addresses(status) == Some(0))
        .unwrap();
    wait_until_known(&cluster, "198.51.100.77", false);
    cluster.fabric.finish().unwrap();
}

#[test]
fn a_node_that_knows_no_service_cidr_is_not_ready_and_says_what_to_set() {
    let mut cluster = Cluster::prepare(true).unwrap();
    // As a server before 1.31 answers.
    for path in [
        "/networking.k8s.io/v1/servicecidrs",
        "/networking.k8s.io/v1beta1/servicecidrs",
    ] {
        let absent =
            json!({"kind": "Status", "status": "Failure", "code": 404, "reason": "NotFound"});
        let answer = Does::Answer(404, Vec::new(), absent);
        cluster.proxy().rule(Rule::all(Kind::List(path), answer));
    }
    let settings = json!({"services": {"cidrs": []}});
    cluster.fabric.agent.configure(&settings).unwrap();
    cluster.start().unwrap();
    cluster.node().unwrap();
    cluster.operate().unwrap();
    let missing = "no service CIDR is known: the API server has no ServiceCIDR objects, and \
                   services.cidrs is empty";
    cluster
        .status_is("the setting is named", |status| {
            is_not_ready(status, missing)
        })
        .unwrap();
    let look = || {
        let agent = &cluster.fabric.agent;
        let (code, answer) = agent.request("GET", "/v1/ready", None)?;
        check(code == 503 && answer.to_string().contains(missing), || {
            answer.to_string()
        })
    };
    eventually(SOON, "nothing else is missing", look).unwrap();
    // That there are none can be said.
    cluster.fabric.agent.kill().unwrap();
    let none = json!({"services": {"cidrs": "none"}});
    cluster.fabric.agent.configure(&none).unwrap();
    cluster
        .fabric
        .agent
        .start(&cluster.fabric.node, &[])
        .unwrap();
    cluster.wait_until_ready().unwrap();
    cluster.fabric.finish().unwrap();
}

#[test]
fn service_cidrs_are_those_of_the_cluster_and_are_followed() {
    let cluster = Cluster::prepare(false).unwrap();
    let settings = json!({"services": {"cidrs": []}});
    cluster.fabric.agent.configure(&settings).unwrap();
    let cluster = cluster.made_ready().unwrap();
    // The server makes the first one itself, of its flag.
    wait_until_known(&cluster, SERVICE_CIDR, true);
    let more = json!({
        "apiVersion": "networking.k8s.io/v1", "kind": "ServiceCIDR", "metadata": {"name": "more"},
        "spec": {"cidrs": ["10.97.0.0/16"]}
    });
    let admin = cluster.server.admin();
    let path = "/apis/networking.k8s.io/v1/servicecidrs";
    admin.post(path, &more).unwrap().expect(201).unwrap();
    wait_until_known(&cluster, "10.97.0.0/16", true);
    // A service may have an address of it now.
    let service = json!({
        "apiVersion": "v1", "kind": "Service", "metadata": {"name": "more"},
        "spec": {"clusterIP": "10.97.7.7", "ports": [{"port": 80}]}
    });
    let made = || admin.post(SERVICES, &service)?.expect(201);
    eventually(SOON, "the service is made", made).unwrap();
    admin.delete(&format!("{SERVICES}/more")).unwrap();
    admin.delete(&format!("{path}/more")).unwrap();
    wait_until_known(&cluster, "10.97.0.0/16", false);
    wait_until_known(&cluster, SERVICE_CIDR, true);
    cluster.fabric.finish().unwrap();
}
