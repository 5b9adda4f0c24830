//! A pool that is deleted while pods have addresses of it.

use serde_json::{Value, json};
use testkit::fabric::eventually::{check, eventually};

use crate::cluster::{Cluster, SOON};

const POOLS: &str = "/apis/cilium.io/v2alpha1/ciliumpodippools";

impl Cluster {
    /// Makes the pool of ENI 1's addresses, of which pods keep their source.
    fn make_blue(&self) {
        let subnet = format!("subnet-0fab{:013x}", self.eni(1).number);
        let pool = json!({
            "apiVersion": "cilium.io/v2alpha1", "kind": "CiliumPodIPPool",
            "metadata": {"name": "blue", "annotations": {
                "ipam.towpath.dev/subnet-ids": subnet,
                "ipam.cilium.io/skip-masquerade": "true"
            }},
            "spec": {"ipv4": {"cidrs": ["10.0.0.0/16"], "maskSize": 32}}
        });
        let answer = self.server.admin().post(POOLS, &pool).unwrap();
        answer.expect(201).unwrap();
    }

    /// The policy of pool blue, as the datapath has it; null where nothing is of the pool.
    fn skips(&self) -> Value {
        let masquerade = self
            .fabric
            .agent
            .ask("GET", "/v1/masquerade", None)
            .unwrap();
        let mut pools = masquerade["pools"].as_array().into_iter().flatten();
        let blue = pools.find(|pool| pool["name"] == "blue");
        blue.map_or(Value::Null, |pool| {
            pool["policy"]["skip-masquerade"].clone()
        })
    }

    fn notes_of_blue(&self) -> Vec<Value> {
        let masquerade = self
            .fabric
            .agent
            .ask("GET", "/v1/masquerade", None)
            .unwrap();
        let notes = masquerade["notes"].as_array().into_iter().flatten();
        let is_deletion = |note: &&Value| {
            note.to_string()
                .contains("pool blue: its document was deleted")
        };
        notes.filter(is_deletion).cloned().collect()
    }

    fn until_noted(&self, expected: usize) {
        let look = || {
            let notes = self.notes_of_blue();
            check(notes.len() == expected, || format!("{notes:?}"))
        };
        eventually(SOON, "the pool's deletion is noted", look).unwrap();
    }
}

#[test]
fn pods_keep_the_policy_of_a_pool_that_is_deleted_until_the_last_one_goes() {
    let mut cluster = Cluster::ready().unwrap();
    cluster.make_blue();
    cluster.namespace("plain", &json!({})).unwrap();
    let named = json!({"ipam.cilium.io/ip-pool": "blue"});
    let running = cluster.pod("plain", "running", &named).unwrap();
    let added = || {
        let (status, answer) = running.try_add(&cluster.fabric);
        check(status == 200, || answer.to_string())
    };
    eventually(SOON, "the pod is added", added).unwrap();
    assert_eq!(cluster.skips(), true);

    let admin = cluster.server.admin();
    let deleted = admin.delete(&format!("{POOLS}/blue")).unwrap();
    deleted.expect(200).unwrap();
    cluster.until_noted(1);
    assert_eq!(cluster.skips(), true);
    // ENI 1 stays the pool's.
    let plain = cluster.pod("plain", "plain", &json!({})).unwrap();
    assert_ne!(plain.add(&cluster.fabric).1, 1);

    cluster.restart().unwrap();
    cluster.wait_until_ready().unwrap();
    cluster.until_noted(1);
    assert_eq!(cluster.skips(), true);

    running.delete(&cluster.fabric);
    cluster.until_noted(0);
    assert_eq!(cluster.notes_of_blue(), Vec::<Value>::new());
    cluster.fabric.finish().unwrap();
}
