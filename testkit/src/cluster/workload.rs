//! Workloads that the controllers and the scheduler place, and the pods that they come to.

use std::net::IpAddr;
use std::time::Duration;

use anyhow::{Context as _, Result};
use ipam::Family;
use jiff::Timestamp;
use serde_json::{Value, json};

use super::{Cluster, SOON, Worker};
use crate::cri::IMAGE;
use crate::fabric::eventually::{check, eventually};
use crate::fabric::{Netns, Place};

/// A pod that runs, as the API server has it.
#[derive(Debug)]
pub struct PodAt {
    /// Its name.
    pub name: String,
    /// The node that it is on.
    pub node: String,
    /// Its addresses, one of each family that it has.
    pub addresses: Vec<IpAddr>,
    /// Its network namespace.
    pub netns: Netns,
}

/// The times after which the last of some pods was made, scheduled and ready, in whole seconds. The
/// waits of the controllers, the scheduler and the kubelets are in them.
#[derive(Clone, Copy, Debug)]
pub struct Start {
    /// Until its object was there.
    pub made: Duration,
    /// Until it had a node.
    pub scheduled: Duration,
    /// Until it was ready.
    pub ready: Duration,
}

impl PodAt {
    /// The pod's end of a flow.
    ///
    /// # Errors
    /// When it has no address of the family.
    pub fn at(&self, family: Family) -> Result<Place<'_>> {
        let mut addresses = self.addresses.iter();
        let address = addresses.find(|address| Family::of(**address) == family);
        let address = *address.with_context(|| format!("{} has no {family:?}", self.name))?;
        Ok(Place {
            netns: &self.netns,
            address,
        })
    }
}

/// A Deployment of pods that serve their own name over HTTP at port 8080. Its pods are spread over the
/// nodes.
#[must_use]
pub fn deployment(namespace: &str, name: &str, replicas: u32) -> Value {
    let labels = json!({"app": name});
    json!({
        "apiVersion": "apps/v1", "kind": "Deployment",
        "metadata": {"name": name, "namespace": namespace},
        "spec": {
            "replicas": replicas,
            "selector": {"matchLabels": labels},
            "template": {
                "metadata": {"labels": labels},
                "spec": {
                    "terminationGracePeriodSeconds": 0,
                    "enableServiceLinks": false,
                    "topologySpreadConstraints": [{
                        "maxSkew": 1, "topologyKey": "kubernetes.io/hostname",
                        "whenUnsatisfiable": "ScheduleAnyway",
                        "labelSelector": {"matchLabels": labels}
                    }],
                    "containers": [{
                        "name": "web", "image": IMAGE, "imagePullPolicy": "Never",
                        "command": ["sh", "-c", "hostname > /tmp/index.html && exec httpd -f -p 8080 -h /tmp"],
                        "readinessProbe": {"httpGet": {"port": 8080}, "periodSeconds": 1}
                    }]
                }
            }
        }
    })
}

impl Cluster {
    /// Waits for `kubectl rollout status` to say that a workload is there.
    ///
    /// # Errors
    /// When it is not in time: what kubectl says, and the pods.
    pub fn rolled_out(&self, namespace: &str, workload: &str) -> Result<()> {
        let timeout = format!("--timeout={}s", SOON.as_secs());
        let kubectl = self.kubectl()?;
        let words = ["-n", namespace, "rollout", "status", workload, &timeout];
        kubectl.succeed(&words).map(drop).with_context(|| {
            let pods = kubectl.run(&["-n", namespace, "describe", "pods"]);
            pods.map_or_else(|error| format!("{error:#}"), |pods| pods.text)
        })
    }

    /// The pods of a label that run and are ready.
    ///
    /// # Errors
    /// When there are not so many in time.
    pub fn pods(&self, namespace: &str, label: &str, count: usize) -> Result<Vec<PodAt>> {
        let path = format!("/api/v1/namespaces/{namespace}/pods?labelSelector={label}");
        let look = || {
            let list = self.admin().get(&path)?.expect(200)?;
            let pods = list["items"].as_array().into_iter().flatten();
            let pods = pods.filter(|pod| is_ready(pod)).cloned();
            let pods: Vec<Value> = pods.collect();
            check(pods.len() == count, || {
                format!("{} of {count} pods of {label} are ready", pods.len())
            })?;
            Ok(pods)
        };
        let (pods, _) = eventually(SOON, label, look)?;
        pods.iter().map(|pod| self.pod_at(namespace, pod)).collect()
    }

    /// The parts of a start of the pods of a label, from a moment on.
    ///
    /// # Errors
    /// When the API server does not answer, or a pod is without its times.
    pub fn parts_of_start(&self, namespace: &str, label: &str, since: Timestamp) -> Result<Start> {
        let path = format!("/api/v1/namespaces/{namespace}/pods?labelSelector={label}");
        let list = self.admin().get(&path)?.expect(200)?;
        let pods: Vec<&Value> = list["items"].as_array().into_iter().flatten().collect();
        let last = |of: fn(&Value) -> Option<&str>| -> Result<Duration> {
            let times = pods.iter().map(|pod| -> Result<Timestamp> {
                Ok(of(pod).context("a pod without its time")?.parse()?)
            });
            let last = times.collect::<Result<Vec<_>>>()?.into_iter().max();
            let after = last.unwrap_or(since).duration_since(since);
            Ok(Duration::try_from(after).unwrap_or_default())
        };
        Ok(Start {
            made: last(|pod| pod["metadata"]["creationTimestamp"].as_str())?,
            scheduled: last(|pod| since_when(pod, "PodScheduled"))?,
            ready: last(|pod| since_when(pod, "Ready"))?,
        })
    }

    fn pod_at(&self, namespace: &str, pod: &Value) -> Result<PodAt> {
        let text = |pointer: &str| -> Result<String> {
            let value = pod.pointer(pointer).and_then(Value::as_str);
            Ok(value
                .with_context(|| format!("a pod has no {pointer}"))?
                .to_owned())
        };
        let (name, node) = (text("/metadata/name")?, text("/spec/nodeName")?);
        let addresses = pod["status"]["podIPs"].as_array().into_iter().flatten();
        let addresses = addresses
            .filter_map(|entry| entry["ip"].as_str())
            .map(|ip| Ok(ip.parse()?));
        Ok(PodAt {
            addresses: addresses.collect::<Result<_>>()?,
            netns: self.worker(&node)?.netns_of(namespace, &name)?,
            name,
            node,
        })
    }

    /// The node of a name.
    ///
    /// # Errors
    /// When there is none.
    pub fn worker(&self, name: &str) -> Result<&Worker> {
        let mut workers = self.workers.iter();
        let worker = workers.find(|worker| worker.name() == name);
        worker.with_context(|| format!("the cluster has no node {name}"))
    }
}

/// True if a pod is ready and is not being deleted.
fn is_ready(pod: &Value) -> bool {
    let conditions = pod["status"]["conditions"].as_array();
    let mut conditions = conditions.into_iter().flatten();
    pod["metadata"]["deletionTimestamp"].is_null()
        && conditions.any(|condition| condition["type"] == "Ready" && condition["status"] == "True")
}

/// Time of the last change of a pod's condition.
fn since_when<'a>(pod: &'a Value, condition: &str) -> Option<&'a str> {
    let conditions = pod["status"]["conditions"].as_array()?;
    let found = conditions.iter().find(|one| one["type"] == condition)?;
    found["lastTransitionTime"].as_str()
}
