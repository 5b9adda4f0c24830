//! An API server that is unreachable, or refuses: log and status have the whole cause and its URL.

use std::fs;

use anyhow::Context as _;
use serde_json::{Value, json};
use testkit::fabric::eventually::{check, eventually};

use crate::cluster::{Cluster, SOON};

/// Path of the binding of the account's rights.
const BINDING: &str = "/apis/rbac.authorization.k8s.io/v1/clusterrolebindings/towpath";

impl Cluster {
    /// Makes the agent use another kubeconfig, and waits until its status and its log contain these
    /// parts.
    fn is_told(&mut self, kubeconfig: &Value, parts: &[&str]) {
        let path = self.folder().join("unreachable.kubeconfig");
        fs::write(&path, kubeconfig.to_string()).unwrap();
        let settings = json!({"kubernetes": {"kubeconfig": path}});
        self.fabric.agent.configure(&settings).unwrap();
        self.start().unwrap();
        self.status_is("the status has all of it", |status| {
            let reasons = status["health"]["reasons"].as_array();
            let mut reasons = reasons.into_iter().flatten().map(Value::to_string);
            reasons.any(|reason| parts.iter().all(|part| reason.contains(part)))
        })
        .unwrap();
        self.log_has(&[&["CiliumNode"], parts].concat());
        // Other followed resources have the same cause in the log.
        self.log_has(&[&["the pools are not followed"], parts].concat());
        self.fabric.agent.stop().unwrap();
    }

    /// Waits for a line of the log with all of these parts.
    fn log_has(&self, parts: &[&str]) {
        let look = || {
            let log = self.fabric.agent.log();
            let mut lines = log.lines();
            let is_there = lines.any(|line| parts.iter().all(|part| line.contains(part)));
            check(is_there, || format!("no line has {parts:?}"))
        };
        let log = || self.fabric.agent.log();
        eventually(SOON, "a line of the log", look)
            .with_context(log)
            .unwrap();
    }

    fn kubeconfig_for(&self, server: &str) -> Value {
        let token = &self.token;
        let path = self.server.kubeconfig("other", server, token).unwrap();
        serde_json::from_slice(&fs::read(path).unwrap()).unwrap()
    }
}

#[test]
fn a_connection_that_fails_is_told_with_its_cause_and_the_url() {
    let mut cluster = Cluster::prepare(false).unwrap();
    let closed = "https://127.0.0.1:1/";
    let config = cluster.kubeconfig_for(closed);
    cluster.is_told(&config, &[closed, "Connection refused"]);

    let nowhere = "https://nowhere.invalid:6443/";
    let config = cluster.kubeconfig_for(nowhere);
    cluster.is_told(&config, &[nowhere, "failed to lookup address"]);

    // The server gets another certificate, and the agent still has the old one.
    let url = cluster.server.url();
    let mut config = cluster.kubeconfig_for(&url);
    let old = cluster.folder().join("old.crt");
    let certificate = cluster.server.certificate();
    fs::copy(&certificate, &old).unwrap();
    config["clusters"][0]["cluster"]["certificate-authority"] = json!(old);
    cluster.server.kill();
    fs::remove_dir_all(certificate.parent().unwrap()).unwrap();
    cluster.server.resume().unwrap();
    cluster.is_told(&config, &[&url, "invalid peer certificate"]);
    cluster.fabric.finish().unwrap();
}

#[test]
fn a_token_that_is_not_known_is_told_with_the_url() {
    let mut cluster = Cluster::prepare(false).unwrap();
    let url = cluster.server.url();
    let mut config = cluster.kubeconfig_for(&url);
    config["users"][0]["user"]["token"] = json!("of-nobody");
    cluster.is_told(&config, &[&url, "401", "Unauthorized"]);
    cluster.fabric.finish().unwrap();
}

#[test]
fn a_write_that_is_refused_is_told_with_the_url() {
    let cluster = Cluster::ready().unwrap();
    let pods = ["blue", "red"].map(|pool| {
        let named = json!({"ipam.cilium.io/ip-pool": pool});
        cluster.namespace(pool, &named).unwrap();
        (pool, cluster.pod(pool, pool, &json!({})).unwrap())
    });
    let admin = cluster.server.admin();
    admin.delete(BINDING).unwrap().expect(200).unwrap();
    let url = cluster.server.url();
    // The server may still accept the first write. Once it refuses an event, the other pod's demand
    // is refused too.
    let refused = ["an event is not written", "the CiliumNode is not written"];
    for ((pool, pod), what) in pods.iter().zip(refused) {
        // For pods that are already followed, no right to read is needed.
        let known = || {
            let (_, answer) = pod.try_add(&cluster.fabric);
            let message = answer["error"]["message"].to_string();
            check(message.contains(&format!("pool {pool}")), || message)
        };
        eventually(SOON, "the pod's pool is unknown", known).unwrap();
        cluster.log_has(&[what, "refused with 403", "forbidden", &url]);
    }
    cluster.fabric.finish().unwrap();
}
