//! Detection of another operator that assigns addresses in the cluster.

use std::time::Duration;

use anyhow::{Context as _, Result};
use apiserver::client::in_time;
use apiserver::lease::now;
use apiserver::{cause, objects};
use kube::api::DynamicObject;
use kube::{Api, Client};
use kubernetes::holder::{
    CILIUM_CONFIG, CILIUM_DEPLOYMENT, CILIUM_LEASE, Holder, NAMESPACE, Signs, VPC_CNI, holder,
};
use kubernetes::lease::{Lease, Sighting};
use serde_json::Value;
use tokio::sync::watch;
use tokio::time::sleep;

use crate::run::Beat;

/// Interval of reads. Cilium's operator renews its Lease several times within its duration.
const LOOK: Duration = Duration::from_secs(5);

/// The newest answer to the question.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Verdict {
    /// The cluster was not read yet: nothing may be changed.
    #[default]
    Unknown,
    /// It cannot be read, for this reason: nothing may be changed.
    Unreadable(String),
    /// There is no other operator.
    Free,
    /// There is one: nothing may be changed.
    Held(Holder),
}

/// Watches for another operator. Ends with the last receiver. Must be called inside a tokio
/// runtime.
#[must_use]
pub(crate) fn follow(client: Client, beat: Beat) -> watch::Receiver<Verdict> {
    let (sender, receiver) = watch::channel(Verdict::Unknown);
    tokio::spawn(async move {
        let mut look = Look::new(client);
        loop {
            beat.beat();
            let verdict = look.verdict().await;
            sender.send_if_modified(|known| {
                let is_changed = *known != verdict;
                *known = verdict;
                is_changed
            });
            tokio::select! {
                () = sender.closed() => return,
                () = sleep(LOOK) => {}
            }
        }
    });
    receiver
}

/// State of the reads so far.
pub struct Look {
    client: Client,
    lease: Option<Sighting>,
}

impl Look {
    /// State before the first read.
    #[must_use]
    pub const fn new(client: Client) -> Self {
        Self {
            client,
            lease: None,
        }
    }

    /// Reads once.
    pub async fn verdict(&mut self) -> Verdict {
        match self.look().await {
            Ok(Some(holder)) => Verdict::Held(holder),
            Ok(None) => Verdict::Free,
            Err(error) => Verdict::Unreadable(cause::chain(error.as_ref())),
        }
    }

    async fn look(&mut self) -> Result<Option<Holder>> {
        let lease = objects::leases(&self.client, NAMESPACE);
        let lease = read(&lease, "Lease", CILIUM_LEASE).await?;
        let lease = lease.as_ref().map(Lease::read);
        let at = now().context("read the clock")?;
        let sighting = match self.lease.take() {
            Some(seen) => seen.then(at, lease),
            None => Sighting::first(at, lease),
        };
        let lease = self.lease.insert(sighting);
        let deployments = objects::deployments(&self.client, NAMESPACE);
        let deployment = read(&deployments, "Deployment", CILIUM_DEPLOYMENT).await?;
        let configs = objects::config_maps(&self.client, NAMESPACE);
        let config = read(&configs, "ConfigMap", CILIUM_CONFIG).await?;
        let daemon_sets = objects::daemon_sets(&self.client, NAMESPACE);
        let vpc_cni = read(&daemon_sets, "DaemonSet", VPC_CNI).await?;
        let signs = Signs {
            lease,
            deployment: deployment.as_ref(),
            config: config.as_ref(),
            vpc_cni: vpc_cni.as_ref(),
        };
        Ok(holder(signs, now().context("read the clock")?))
    }
}

/// Reads an object; `None` where there is none.
async fn read(api: &Api<DynamicObject>, kind: &str, name: &str) -> Result<Option<Value>> {
    let object = in_time(api.get_opt(name)).await;
    let object = object.with_context(|| format!("read {kind} {NAMESPACE}/{name}"))?;
    Ok(object.map(objects::value).transpose()?)
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;
    use std::convert::Infallible;
    use std::sync::{Arc, Mutex};

    use http_body_util::Full;
    use hyper::body::Bytes;
    use hyper::{Request, Response};
    use kube::client::Body;
    use serde_json::json;

    use super::*;
    use crate::run::Health;

    const LEASES: &str = "/apis/coordination.k8s.io/v1/namespaces/kube-system/leases/";
    const APPS: &str = "/apis/apps/v1/namespaces/kube-system/";
    const CONFIG: &str = "/api/v1/namespaces/kube-system/configmaps/cilium-config";

    /// Answers by path: an object, or a refusal with its code.
    type Objects = Arc<Mutex<BTreeMap<String, Result<Value, u16>>>>;

    fn client(objects: &Objects) -> Client {
        let objects = Arc::clone(objects);
        let service = tower::service_fn(move |request: Request<Body>| {
            let answer = objects.lock().unwrap().get(request.uri().path()).cloned();
            async move {
                let (code, body) = match answer.unwrap_or(Err(404)) {
                    Ok(object) => (200, object),
                    Err(code) => {
                        let reason = if code == 404 { "NotFound" } else { "" };
                        let status = json!({
                            "kind": "Status", "code": code, "message": "no", "reason": reason,
                        });
                        (code, status)
                    }
                };
                let body = Full::from(Bytes::from(body.to_string()));
                Ok::<_, Infallible>(Response::builder().status(code).body(body).unwrap())
            }
        });
        Client::new(service, "default")
    }

    #[tokio::test]
    async fn each_sign_is_read_where_it_is() {
        let objects = Objects::default();
        let mut look = Look::new(client(&objects));
        assert_eq!(look.verdict().await, Verdict::Free);
        let put = |path: String, object| {
            objects.lock().unwrap().insert(path, object);
        };
        let lease = json!({
            "metadata": {"resourceVersion": "1", "uid": "u"},
            "spec": {"holderIdentity": "one", "leaseDurationSeconds": 15, "renewTime": "t"},
        });
        put(format!("{LEASES}{CILIUM_LEASE}"), Ok(lease));
        assert_eq!(look.verdict().await, Verdict::Free, "it makes no ENIs");
        put(CONFIG.to_owned(), Ok(json!({"data": {"ipam": "eni"}})));
        let Verdict::Held(Holder::Cilium { identity, option }) = look.verdict().await else {
            panic!("not held")
        };
        assert_eq!(identity, "one");
        assert!(option.contains("ConfigMap"), "{option}");
        let container = json!({"args": ["--ipam=cluster-pool"]});
        let deployment = json!({"spec": {"template": {"spec": {"containers": [container]}}}});
        put(format!("{APPS}deployments/cilium-operator"), Ok(deployment));
        assert_eq!(look.verdict().await, Verdict::Free);
        put(format!("{APPS}daemonsets/aws-node"), Ok(json!({})));
        assert_eq!(look.verdict().await, Verdict::Held(Holder::VpcCni));
    }

    #[tokio::test]
    async fn a_sign_that_cannot_be_read_frees_nothing_and_is_named() {
        for (path, name) in [
            (
                format!("{LEASES}{CILIUM_LEASE}"),
                "Lease kube-system/cilium-operator-resource-lock",
            ),
            (
                format!("{APPS}deployments/cilium-operator"),
                "Deployment kube-system/cilium-operator",
            ),
            (CONFIG.to_owned(), "ConfigMap kube-system/cilium-config"),
            (
                format!("{APPS}daemonsets/aws-node"),
                "DaemonSet kube-system/aws-node",
            ),
        ] {
            let objects = Objects::default();
            objects.lock().unwrap().insert(path, Err(403));
            let beat = Health::default().worker("the search", Duration::MAX);
            let verdict = follow(client(&objects), beat)
                .wait_for(|it| *it != Verdict::Unknown)
                .await
                .unwrap()
                .clone();
            let Verdict::Unreadable(reason) = verdict else {
                panic!("{name}: {verdict:?}")
            };
            assert!(
                reason.starts_with(&format!("read {name}: refused with 403")),
                "{reason}"
            );
        }
    }
}
