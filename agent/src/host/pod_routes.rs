//! Running pods whose routes follow those of new ones.

use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, Instant};

use api::ids::EndpointId;
use loader::intent::Endpoint;

use super::netns;

/// Number of pods that are checked in one pass, so that a new pod does not wait for all of them.
const BATCH: usize = 16;

/// Time after a failure until a pod is checked again.
const RETRY: Duration = Duration::from_secs(30);

/// The pods whose routes are known to be in the desired state.
#[derive(Debug, Default)]
pub(crate) struct Followed {
    done: BTreeSet<EndpointId>,
    failed: BTreeMap<EndpointId, Instant>,
}

impl Followed {
    /// Every pod has to be checked again.
    pub(crate) fn forget_all(&mut self) {
        *self = Self::default();
    }

    /// A pod has its routes.
    pub(crate) fn done(&mut self, id: EndpointId) {
        self.failed.remove(&id);
        self.done.insert(id);
    }

    /// A pod's routes could not be changed. True at the first time.
    pub(crate) fn failed(&mut self, id: EndpointId, now: Instant) -> bool {
        self.failed.insert(id, now).is_none()
    }

    /// The pods to check now, and true if there are more. Removes those that are gone.
    pub(crate) fn next<'a>(
        &mut self,
        endpoints: &'a BTreeMap<EndpointId, Endpoint>,
        now: Instant,
    ) -> (Vec<&'a Endpoint>, bool) {
        self.done.retain(|id| endpoints.contains_key(id));
        self.failed.retain(|id, _| endpoints.contains_key(id));
        let is_due = |id: &EndpointId| {
            let failed = self.failed.get(id);
            !self.done.contains(id) && failed.is_none_or(|at| now.duration_since(*at) >= RETRY)
        };
        let open = endpoints.iter().filter(|(id, endpoint)| {
            // The namespace of an orphan is unknown.
            is_due(id) && !endpoint.is_orphan() && !netns::is_gone(endpoint)
        });
        let mut due: Vec<_> = open.map(|(_, endpoint)| endpoint).take(BATCH + 1).collect();
        let has_more = due.len() > BATCH;
        due.truncate(BATCH);
        (due, has_more)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use loader::kernel::fixture;

    fn pods(count: usize) -> BTreeMap<EndpointId, Endpoint> {
        let pod = |n| {
            let mut endpoint = fixture::endpoint(&format!("pod{n}"), &["10.0.0.20"]);
            endpoint.netns = "/proc/self/ns/net".into();
            (endpoint.id(), endpoint)
        };
        (0..count).map(pod).collect()
    }

    #[test]
    fn all_pods_are_looked_at_once_in_groups() {
        let now = Instant::now();
        let pods = pods(40);
        let mut followed = Followed::default();
        let mut sizes = Vec::new();
        loop {
            let (due, has_more) = followed.next(&pods, now);
            sizes.push(due.len());
            for endpoint in due {
                followed.done(endpoint.id());
            }
            if !has_more {
                break;
            }
        }
        assert_eq!(sizes, [16, 16, 8]);
        assert!(followed.next(&pods, now).0.is_empty());
        followed.forget_all();
        assert_eq!(followed.next(&pods, now).0.len(), 16);
    }

    #[test]
    fn a_failure_is_told_once_and_tried_again_later() {
        let now = Instant::now();
        let pods = pods(2);
        let ids: Vec<_> = pods.keys().copied().collect();
        let mut followed = Followed::default();
        assert!(followed.failed(ids[0], now));
        let (due, _) = followed.next(&pods, now);
        assert_eq!(due.iter().map(|e| e.id()).collect::<Vec<_>>(), ids[1..]);
        assert_eq!(followed.next(&pods, now + RETRY).0.len(), 2);
        assert!(!followed.failed(ids[0], now + RETRY));
        // A pod of the same id that comes later is another one.
        let none = BTreeMap::new();
        followed.next(&none, now);
        assert_eq!(followed.next(&pods, now).0.len(), 2);
    }

    #[test]
    fn a_pod_without_a_known_namespace_is_left_alone() {
        let mut pods = pods(1);
        for endpoint in pods.values_mut() {
            endpoint.netns = "/nowhere/netns".into();
        }
        let mut followed = Followed::default();
        assert!(followed.next(&pods, Instant::now()).0.is_empty());
    }
}
