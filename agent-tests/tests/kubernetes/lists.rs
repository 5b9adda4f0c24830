//! Initial lists of objects, which the agent gets before their changes.

use std::time::Instant;

use serde_json::{Value, json};
use testkit::fabric::eventually::{check, eventually};
use testkit::kubernetes::proxy::{Does, Kind, Request, Rule};

use crate::cluster::{Cluster, SOON};

/// Followed resources, by the ends of their paths. The node's pods are listed.
const FOLLOWED: [&str; 6] = [
    "/v2/ciliumnodes",
    "/ciliumpodippools",
    "/namespaces",
    "/services",
    "/servicecidrs",
    "/networkpolicies",
];

/// A node behind a proxy, with an agent that follows all resources.
fn prepare() -> Cluster {
    let cluster = Cluster::prepare(true).unwrap();
    let settings = json!({"services": {"cidrs": []}});
    cluster.fabric.agent.configure(&settings).unwrap();
    cluster
}

impl Cluster {
    /// The requests for all of a resource since a moment.
    fn requests_for(&self, resource: &'static str, since: Instant) -> Vec<Request> {
        let noted = self.proxy().requests().into_iter();
        let noted = noted
            .filter(|noted| noted.at >= since)
            .map(|one| one.request);
        noted.filter(|one| one.is(Kind::List(resource))).collect()
    }

    /// Waits until all followed resources have been requested since a moment, and a condition on
    /// the requests holds.
    fn all_come(&self, since: Instant, are_as_wanted: impl Fn(&[Request]) -> bool) {
        for resource in FOLLOWED {
            let come = || {
                let requests = self.requests_for(resource, since);
                check(!requests.is_empty() && are_as_wanted(&requests), || {
                    format!("{requests:?}")
                })
            };
            eventually(SOON, resource, come).unwrap();
        }
    }
}

/// The error of an API server that has streams turned off.
fn refusal() -> Value {
    json!({
        "kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Failure",
        "message": "ListOptions.meta.k8s.io \"\" is invalid: sendInitialEvents: Forbidden: \
                    sendInitialEvents is forbidden for watch unless the WatchList feature gate is \
                    enabled",
        "reason": "Invalid", "details": {"group": "meta.k8s.io", "kind": "ListOptions"}, "code": 422
    })
}

#[test]
fn objects_are_streamed_and_nothing_is_listed_but_the_pods_of_the_node() {
    let began = Instant::now();
    let cluster = prepare().made_ready().unwrap();
    // As new as the request: it names no version.
    let is_newest = |one: &Request| !one.query.contains("resourceVersion=");
    let are_streams =
        |requests: &[Request]| requests.iter().all(|one| one.is_stream() && is_newest(one));
    cluster.all_come(began, are_streams);
    let of_pods = cluster.requests_for("/pods", began);
    let is_of_node = |one: &Request| !one.is_stream() && one.query.contains("spec.nodeName");
    assert!(of_pods.iter().all(is_of_node), "{of_pods:?}");
    cluster.changes_are_seen(0, "streams").unwrap();
    cluster.proxy().end_watches();
    cluster.changes_are_seen(1, "all watches ended").unwrap();
    for resource in FOLLOWED {
        let mut requests = cluster.requests_for(resource, began);
        // After an object is deleted, one request checks if its resource is gone as well.
        requests.retain(|one| !one.query.contains("limit=1"));
        assert!(are_streams(&requests), "{resource}: {requests:?}");
    }
    cluster.fabric.finish().unwrap();
}

#[test]
fn a_server_that_does_not_stream_is_asked_for_lists() {
    let cluster = prepare();
    let proxy = cluster.proxy();
    let refused = Does::Answer(422, vec![], refusal());
    proxy.rule(Rule::all(Kind::Stream, refused));
    let began = Instant::now();
    let cluster = cluster.made_ready().unwrap();
    cluster.all_come(began, |requests| {
        requests.iter().any(|one| !one.is_stream())
    });
    cluster.changes_are_seen(0, "lists").unwrap();
    // The agent has learned it, and does not try streams again.
    let known = Instant::now();
    cluster.proxy().end_watches();
    cluster.changes_are_seen(1, "all watches ended").unwrap();
    let mut since = cluster.proxy().requests();
    since.retain(|noted| noted.at >= known && noted.request.is_stream());
    assert!(since.is_empty(), "{since:?}");
    let log = cluster.fabric.agent.log();
    assert_eq!(log.matches("does not stream lists").count(), 1, "{log}");
    cluster.fabric.finish().unwrap();
}
