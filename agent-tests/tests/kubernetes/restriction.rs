//! Pools that admit some pods only: who is refused, by name, and how it is counted.

use std::net::SocketAddr;

use serde_json::{Value, json};
use testkit::fabric::eventually::{check, eventually};

use crate::cluster::{Cluster, SOON};

const POOLS: &str = "/apis/cilium.io/v2alpha1/ciliumpodippools";
const METRICS: &str = "127.0.0.1:9797";

impl Cluster {
    fn pool(&self, name: &str, restrict: &str, selector: &Value) {
        let pool = json!({
            "apiVersion": "cilium.io/v2alpha1", "kind": "CiliumPodIPPool",
            "metadata": {"name": name, "annotations": {"ipam.towpath.dev/restrict": restrict}},
            "spec": {
                "ipv4": {"cidrs": ["10.20.0.0/16"], "maskSize": 28}, "namespaceSelector": selector
            }
        });
        let made = self.server.admin().post(POOLS, &pool).unwrap();
        made.expect(201).unwrap();
    }

    /// The number of pools that the metric says are refused.
    fn refused_annotations(&self) -> anyhow::Result<u64> {
        let text = self
            .fabric
            .node
            .run(&format!("curl -sS http://{METRICS}/metrics"))?;
        let value = text
            .lines()
            .find_map(|line| line.strip_prefix("towpath_refused_entries{kind=\"annotation\"} "));
        Ok(value.unwrap_or_default().parse()?)
    }
}

#[test]
fn a_pod_that_a_pool_does_not_admit_is_refused_by_name_and_only_bad_ones_are_counted() {
    let cluster = Cluster::prepare(false).unwrap();
    let address: SocketAddr = METRICS.parse().unwrap();
    let settings = json!({"metrics": {"address": address}});
    cluster.fabric.agent.configure(&settings).unwrap();
    let cluster = cluster.made_ready().unwrap();
    let tenant = json!({"matchLabels": {"kubernetes.io/metadata.name": "tenant"}});
    cluster.pool("selected", "selectors", &tenant);
    cluster.pool("named", "namespaces=tenant", &Value::Null);
    cluster.namespace("other", &json!({})).unwrap();
    for (pool, restriction) in [("selected", "selectors"), ("named", "namespaces=tenant")] {
        let wants = json!({"ipam.cilium.io/ip-pool": pool});
        let pod = cluster.pod("other", pool, &wants).unwrap();
        let is_refused = || {
            let (_, answer) = pod.try_add(&cluster.fabric);
            let message = answer["error"]["message"].to_string();
            let parts = [
                pool,
                &format!("other/{pool}"),
                "ipam.towpath.dev/restrict",
                restriction,
            ];
            check(parts.iter().all(|part| message.contains(part)), || message)
        };
        eventually(SOON, "the pod is refused by name", is_refused).unwrap();
    }
    // Both restrictions are good: a refused pod is no refused entry.
    assert_eq!(cluster.refused_annotations().unwrap(), 0);
    cluster.pool("odd", "nobody-knows", &Value::Null);
    let is_counted = || {
        let count = cluster.refused_annotations()?;
        check(count == 1, || count.to_string())
    };
    eventually(SOON, "the restriction is counted", is_counted).unwrap();
    let odd = json!({"ipam.cilium.io/ip-pool": "odd"});
    let pod = cluster.pod("other", "odd", &odd).unwrap();
    let (status, answer) = pod.try_add(&cluster.fabric);
    let message = answer["error"]["message"].to_string();
    assert_ne!(status, 200);
    assert!(message.contains("nobody-knows"), "{message}");
    cluster.fabric.finish().unwrap();
}
