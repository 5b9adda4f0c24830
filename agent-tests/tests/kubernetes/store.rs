//! The API server's store ends, comes back, and forgets what was.

use serde_json::{Value, json};
use testkit::fabric::eventually::eventually;
use testkit::kubernetes::ApiServer;

use crate::cluster::{Cluster, NODE, SOON};

/// Compacts the store: every revision but the last is gone.
fn compact(server: &ApiServer) {
    let ask = |path: &str, body: &Value| -> Value {
        let mut curl = server.netns().command("curl");
        curl.args(["--silent", "--show-error", "--fail", "--data"])
            .arg(body.to_string())
            .arg(format!("{}/v3/kv/{path}", server.store()));
        let text = testkit::fabric::command::run(&mut curl).unwrap();
        serde_json::from_str(&text).unwrap()
    };
    // "L3JlZ2lzdHJ5" is /registry, as the store's gateway wants it.
    let range = ask("range", &json!({"key": "L3JlZ2lzdHJ5", "limit": 1}));
    let revision = range["header"]["revision"].clone();
    assert!(revision.is_string(), "{range}");
    ask(
        "compaction",
        &json!({"revision": revision, "physical": true}),
    );
}

#[test]
fn the_agent_follows_the_cluster_through_restarts_and_compaction() {
    let mut cluster = Cluster::ready().unwrap();
    cluster.changes_are_seen(0, "nothing").unwrap();

    // The store is away, and the server with it.
    cluster.server.kill_store();
    cluster.namespace_fails();
    cluster.server.start_store().unwrap();
    let back = || cluster.server.admin().get(NODE)?.expect(200);
    eventually(SOON, "the server has its store again", back).unwrap();
    cluster.changes_are_seen(1, "the store was away").unwrap();

    // The revision at which the agent's watches stand is gone when they begin again.
    cluster.server.kill();
    cluster.server.resume().unwrap();
    cluster
        .changes_are_seen(2, "the server began again")
        .unwrap();
    compact(&cluster.server);
    cluster.server.kill();
    cluster.server.resume().unwrap();
    cluster
        .changes_are_seen(3, "the store forgot the past")
        .unwrap();
    cluster.fabric.finish().unwrap();
}

impl Cluster {
    /// Nothing can be written.
    fn namespace_fails(&self) {
        let object = json!({
            "apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "never"}
        });
        let answer = self.server.admin().post("/api/v1/namespaces", &object);
        assert!(answer.is_err() || answer.is_ok_and(|answer| answer.code >= 500));
    }
}
