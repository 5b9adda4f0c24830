//! Detection of another operator that assigns ENIs or blocks to nodes of the same cluster. Two
//! operators would take each other's addresses, or assign one block to two nodes.
//!
//! It is detected by objects of `kube-system`, not by its pods: while a pod is being replaced there
//! is none for a moment.

use std::fmt;
use std::time::Duration;

use serde_json::Value;

use crate::lease::Sighting;

/// The namespace of all objects here.
pub const NAMESPACE: &str = "kube-system";
/// The Lease of Cilium's operator (`leaderElectionResourceLockName` in `operator/cmd/root.go`).
pub const CILIUM_LEASE: &str = "cilium-operator-resource-lock";
/// The Deployment of Cilium's operator, as its Helm chart calls it.
pub const CILIUM_DEPLOYMENT: &str = "cilium-operator";
/// The `ConfigMap` of Cilium's settings, as its Helm chart calls it.
pub const CILIUM_CONFIG: &str = "cilium-config";
/// The `DaemonSet` of Amazon's VPC CNI. Its pods make ENIs themselves.
pub const VPC_CNI: &str = "aws-node";
/// The time after which Cilium's Lease is free, unless its record has a longer one
/// (`defaultLeaderElectionConfig` in `operator/cmd/leader_election.go`).
pub const CILIUM_DURATION: Duration = Duration::from_secs(15);

/// The values of Cilium's option `ipam` with which its operator creates ENIs, or grants blocks of
/// pools.
const MODES: [&str; 2] = ["eni", "multi-pool"];
/// The binary whose option `ipam` is `eni` by default (`operator/cmd/flags.go`).
const AWS_BINARY: &str = "cilium-operator-aws";

/// The objects that show another operator; none where the cluster has none.
#[derive(Clone, Copy, Debug)]
pub struct Signs<'a> {
    /// [`CILIUM_LEASE`], as it is followed.
    pub lease: &'a Sighting,
    /// [`CILIUM_DEPLOYMENT`].
    pub deployment: Option<&'a Value>,
    /// [`CILIUM_CONFIG`].
    pub config: Option<&'a Value>,
    /// [`VPC_CNI`].
    pub vpc_cni: Option<&'a Value>,
}

/// The operator that has the cluster. Its text names it, and the remedy.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Holder {
    /// Cilium's, in mode `eni` or `multi-pool`.
    Cilium {
        /// The Lease's holder.
        identity: String,
        /// The place of the option that says so.
        option: String,
    },
    /// Amazon's VPC CNI.
    VpcCni,
}

impl fmt::Display for Holder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Cilium { identity, option } => write!(
                f,
                "Cilium's operator gives addresses in this cluster: Lease {NAMESPACE}/{CILIUM_LEASE} is \
                 held by {identity}, and {option}; to hand over, stop it (kubectl -n {NAMESPACE} scale \
                 deployment {CILIUM_DEPLOYMENT} --replicas=0)"
            ),
            Self::VpcCni => write!(
                f,
                "Amazon VPC CNI makes ENIs in this cluster: there is a DaemonSet \
                 {NAMESPACE}/{VPC_CNI}; to hand over, delete it (kubectl -n {NAMESPACE} delete \
                 daemonset {VPC_CNI})"
            ),
        }
    }
}

/// Judges who has the cluster. `now` is on the clock of the Lease's sighting.
#[must_use]
pub fn holder(signs: Signs<'_>, now: Duration) -> Option<Holder> {
    if signs.vpc_cni.is_some() {
        return Some(Holder::VpcCni);
    }
    let identity = signs.lease.holder()?;
    if now >= signs.lease.expiry(CILIUM_DURATION) {
        return None;
    }
    Some(Holder::Cilium {
        identity: identity.to_owned(),
        option: option(signs)?,
    })
}

/// The place that sets Cilium's option `ipam` to one of these modes. As in Cilium itself, the order
/// of precedence is: argument, environment, `ConfigMap`, default of the binary.
fn option(signs: Signs<'_>) -> Option<String> {
    let containers = &signs.deployment.unwrap_or(&Value::Null)["spec"]["template"]["spec"];
    let containers = containers["containers"].as_array();
    let containers: Vec<&Value> = containers.into_iter().flatten().collect();
    let deployment = format!("Deployment {CILIUM_DEPLOYMENT}");
    let words: Vec<&str> = containers.iter().flat_map(|one| words(one)).collect();
    if let Some(mode) = argument(&words) {
        return is_ours(mode).then(|| format!("{deployment} has the argument --ipam={mode}"));
    }
    let variables = containers.iter().flat_map(|one| list(&one["env"]));
    let mut variables = variables.filter(|variable| variable["name"] == "CILIUM_IPAM");
    if let Some(mode) = variables.find_map(|variable| variable["value"].as_str()) {
        return is_ours(mode).then(|| format!("{deployment} has the variable CILIUM_IPAM={mode}"));
    }
    let config = &signs.config.unwrap_or(&Value::Null)["data"]["ipam"];
    if let Some(mode) = config.as_str() {
        return is_ours(mode).then(|| format!("ConfigMap {CILIUM_CONFIG} has ipam: {mode}"));
    }
    let is_aws = |word: &&str| word.rsplit('/').next() == Some(AWS_BINARY);
    let binary = words.iter().any(is_aws);
    binary.then(|| format!("{deployment} runs {AWS_BINARY}, which does by default"))
}

/// True of a mode in which Cilium's operator does what ours does.
fn is_ours(mode: &str) -> bool {
    MODES.contains(&mode)
}

/// The words of a container's command line.
fn words(container: &Value) -> impl Iterator<Item = &str> {
    let command = list(&container["command"]);
    let words = command.chain(list(&container["args"]));
    words.filter_map(Value::as_str)
}

fn list(value: &Value) -> impl Iterator<Item = &Value> {
    value.as_array().into_iter().flatten()
}

/// The option `--ipam` of a command line: with `=`, or with the next word. The last one counts.
fn argument<'a>(words: &[&'a str]) -> Option<&'a str> {
    let mut found = None;
    let mut words = words.iter();
    while let Some(word) = words.next() {
        if let Some(mode) = word.strip_prefix("--ipam=") {
            found = Some(mode);
        } else if *word == "--ipam" {
            found = words.next().copied();
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::lease::Lease;

    fn lease(holder: &str) -> Lease {
        let spec = json!({
            "holderIdentity": holder, "leaseDurationSeconds": 15, "renewTime": "2001-09-09T01:46:40Z"
        });
        Lease::read(&json!({"metadata": {}, "spec": spec}))
    }

    fn deployment(container: &Value) -> Value {
        json!({"spec": {"template": {"spec": {"containers": [container]}}}})
    }

    /// The verdict on Cilium's operator, whose Lease is fresh.
    fn of_cilium(deployment: Option<&Value>, config: Option<&Value>) -> Option<Holder> {
        let signs = Signs {
            lease: &Sighting::first(Duration::ZERO, Some(lease("one"))),
            deployment,
            config,
            vpc_cni: None,
        };
        holder(signs, Duration::from_secs(14))
    }

    #[test]
    fn ciliums_operator_holds_the_cluster_while_its_lease_is_fresh() {
        let config = json!({"data": {"ipam": "eni"}});
        let at = Duration::from_secs;
        let of = |lease: &Sighting, now| {
            let signs = Signs {
                lease,
                deployment: None,
                config: Some(&config),
                vpc_cni: None,
            };
            holder(signs, now)
        };
        let seen = Sighting::first(at(100), Some(lease("one")));
        let found = of(&seen, at(114)).unwrap().to_string();
        for part in [
            "kube-system/cilium-operator-resource-lock is held by one",
            "ConfigMap cilium-config has ipam: eni",
            "scale deployment cilium-operator --replicas=0",
        ] {
            assert!(found.contains(part), "{found}");
        }
        assert_eq!(of(&seen, at(115)), None, "its time stamp is not looked at");
        assert_eq!(
            of(&Sighting::first(at(100), Some(lease(""))), at(100)),
            None
        );
        assert_eq!(of(&Sighting::first(at(100), None), at(100)), None);
    }

    /// Containers, configurations, and a part of the reason for which the operator makes ENIs.
    fn options() -> Vec<(Value, Option<Value>, Option<&'static str>)> {
        let eni = json!({"data": {"ipam": "eni"}});
        let pool = json!({"data": {"ipam": "cluster-pool"}});
        let aws = json!(["cilium-operator-aws"]);
        vec![
            (
                json!({"args": ["--ipam=eni"]}),
                Some(pool.clone()),
                Some("--ipam=eni"),
            ),
            (json!({"args": ["--ipam", "eni"]}), None, Some("--ipam=eni")),
            (
                json!({"args": ["--ipam=multi-pool"]}),
                None,
                Some("--ipam=multi-pool"),
            ),
            (
                json!({"command": ["/x", "--ipam=eni"]}),
                None,
                Some("--ipam=eni"),
            ),
            (
                json!({"args": ["--ipam=crd", "--ipam=eni"]}),
                None,
                Some("--ipam=eni"),
            ),
            (
                json!({"args": ["--ipam=cluster-pool"]}),
                Some(eni.clone()),
                None,
            ),
            (
                json!({"args": ["--ipam"]}),
                Some(eni.clone()),
                Some("cilium-config"),
            ),
            (json!({"args": ["--ipam-x=eni"]}), None, None),
            (
                json!({"env": [{"name": "CILIUM_IPAM", "value": "eni"}]}),
                Some(pool.clone()),
                Some("CILIUM_IPAM"),
            ),
            (
                json!({"env": [{"name": "CILIUM_IPAM", "value": "crd"}]}),
                Some(eni.clone()),
                None,
            ),
            (json!({"command": aws}), None, Some("by default")),
            (
                json!({"command": ["/usr/bin/cilium-operator-aws"]}),
                None,
                Some("by default"),
            ),
            (json!({"command": aws}), Some(pool.clone()), None),
            (
                json!({"command": aws}),
                Some(eni.clone()),
                Some("cilium-config"),
            ),
            (json!({"command": ["cilium-operator-generic"]}), None, None),
            (json!({"command": 7, "args": "x"}), None, None),
        ]
    }

    #[test]
    fn the_option_that_cilium_obeys_decides() {
        for (container, config, part) in options() {
            let found = of_cilium(Some(&deployment(&container)), config.as_ref());
            let found = found.map(|holder| holder.to_string());
            let name = format!("{container} {config:?}: {found:?}");
            assert_eq!(found.is_some(), part.is_some(), "{name}");
            let says = |part: &str| found.as_deref().is_some_and(|text| text.contains(part));
            assert!(part.is_none_or(says), "{name}");
        }
        assert_eq!(
            of_cilium(None, None),
            None,
            "nothing says that it makes ENIs"
        );
    }

    #[test]
    fn the_vpc_cni_holds_the_cluster_while_its_daemon_set_is_there() {
        let idle = json!({"status": {"desiredNumberScheduled": 0}});
        let signs = Signs {
            lease: &Sighting::first(Duration::ZERO, None),
            deployment: None,
            config: None,
            vpc_cni: Some(&idle),
        };
        let found = holder(signs, Duration::ZERO).unwrap();
        assert_eq!(
            found,
            Holder::VpcCni,
            "a label of a node starts its pods again"
        );
        assert!(found.to_string().contains("delete daemonset aws-node"));
    }
}
