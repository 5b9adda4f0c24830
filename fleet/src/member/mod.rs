//! One node as the fleet keeps it.

mod doubt;
mod obstacle;
mod publication;
mod published;
mod release;
mod translate;
mod words;

use std::collections::BTreeMap;
use std::time::Duration;

use cloud::node::{Next, Node};
use cloud::{EniId, InstanceId, VpcId};
use ipam::Time;
use kubernetes::operation::node::NodeDocument;
use serde_json::Value;

pub(crate) use self::doubt::{Doubts, Evidence};
pub(crate) use self::obstacle::{Obstacle, Shown, date_of};
pub(crate) use self::publication::Publication;
pub(crate) use self::published::Published;
pub(crate) use self::release::{Ended, ReleasePolicy, Releases, Snapshot};
use crate::{Part, Settings, WorkId};

/// The longest wait for what EC2 does not show, and after writes that failed.
const SLOWEST: Duration = Duration::from_mins(1);

/// The wait after a conflict, unless an event shows a newer object before.
const CONFLICT: Duration = Duration::from_secs(1);

/// Time after which a change that the API server did not keep is retried, since the resource
/// definition may have changed by then.
const DROPPED_FOR: Duration = Duration::from_mins(10);

/// A node.
#[derive(Debug)]
pub(crate) struct Member {
    pub(crate) object: Value,
    pub(crate) document: NodeDocument,
    /// The node as a plan takes it.
    pub(crate) node: Node,
    /// The ENIs in its status, as far as they are believed.
    pub(crate) published: Published,
    /// Reads of its instance that began earlier do not count.
    pub(crate) since: Time,
    pub(crate) doubts: Doubts,
    pub(crate) releases: Releases,
    /// Another node has the instance.
    pub(crate) rival: Option<String>,
    /// The result of the last plan.
    pub(crate) next: Next,
    /// The reasons for which it does not get on, those of the plan included.
    pub(crate) obstacles: Vec<Obstacle>,
    pub(crate) shown: Shown,
    /// The write in flight.
    pub(crate) write: Option<WorkId>,
    /// Changes of a part that the API server took and did not keep.
    pub(crate) dropped: BTreeMap<Part, (Time, Value)>,
    /// Writes wait until then.
    pub(crate) barred: Time,
    pub(crate) write_failures: u32,
    /// The reason of the last write's failure.
    pub(crate) write_fault: Option<String>,
    /// The warning of the kubelet's number that an event was recorded for.
    pub(crate) max_pods_warning: Option<String>,
    /// The time of the next search for a primary ENI, and the number of those before.
    pub(crate) look: (Time, u32),
}

impl Member {
    pub(crate) fn new(object: Value, pending: u32, settings: &Settings, now: Time) -> Self {
        let document = NodeDocument::read(&object);
        let published = Published::read(&object);
        let mut releases = Releases::new(ReleasePolicy::of(settings));
        let snapshot = Snapshot {
            object: &object,
            published: &published,
            document: &document,
        };
        releases.observe(snapshot, None, now);
        Self {
            node: translate::node(&document, pending, settings),
            published,
            releases,
            object,
            document,
            since: now,
            doubts: Doubts::default(),
            rival: None,
            next: Next::default(),
            obstacles: Vec::new(),
            shown: Shown::default(),
            write: None,
            dropped: BTreeMap::new(),
            barred: Time::default(),
            write_failures: 0,
            write_fault: None,
            max_pods_warning: None,
            look: (Time::default(), 0),
        }
    }

    /// Updates the member from its object. ENIs in the status of an object of another uid or
    /// instance are ignored.
    pub(crate) fn set(&mut self, object: Value, settings: &Settings, now: Time) {
        let document = NodeDocument::read(&object);
        let node = translate::node(&document, self.node.pending, settings);
        let is_other = document.uid != self.document.uid || node.instance != self.node.instance;
        self.published = if is_other || !self.published.is_believed {
            Published::disbelieved(&object)
        } else {
            Published::read(&object)
        };
        if is_other {
            self.since = now;
            self.doubts = Doubts::default();
            self.look = (Time::default(), 0);
            self.shown = Shown::default();
        }
        // An object that goes back in its version is one of a restored API server.
        let is_restored = !is_other && is_older(&object, &self.object);
        let before = Some(&self.object).filter(|_| !is_other && !is_restored);
        let snapshot = Snapshot {
            object: &object,
            published: &self.published,
            document: &document,
        };
        self.releases.observe(snapshot, before, now);
        if is_restored {
            self.releases.void_marks();
        }
        if document.version != self.document.version && self.write_failures == 0 {
            self.barred = Time::default();
        }
        self.object = object;
        self.document = document;
        self.node = node;
    }

    /// Begins an epoch: nothing is in flight, and nothing is known.
    pub(crate) fn begin_epoch(&mut self, now: Time) {
        self.since = now;
        self.doubts = Doubts::default();
        self.releases.begin_epoch(now);
        let snapshot = Snapshot {
            object: &self.object,
            published: &self.published,
            document: &self.document,
        };
        self.releases.observe(snapshot, Some(&self.object), now);
        self.next = Next::default();
        self.obstacles.clear();
        self.write = None;
        self.dropped.clear();
        self.barred = Time::default();
        self.write_failures = 0;
        self.write_fault = None;
        self.look = (Time::default(), 0);
    }

    /// The operator leaves the node alone.
    pub(crate) fn is_left_alone(&self) -> bool {
        self.document.is_ignored || self.document.is_deleted
    }

    pub(crate) fn instance(&self) -> Option<&InstanceId> {
        self.node.instance.as_ref()
    }

    pub(crate) fn vpc(&self) -> Option<&VpcId> {
        self.node.location.as_ref().map(|it| &it.vpc)
    }

    /// Drops a change that the API server did not keep: its answer had the same version. The server
    /// drops fields that its resource definition lacks.
    pub(crate) fn drop_change(&mut self, part: Part, change: Value, now: Time) {
        self.dropped.insert(part, (now, change));
    }

    /// Returns true if the API server did not keep this change a while ago.
    pub(crate) fn has_dropped(&self, part: Part, body: &Value, now: Time) -> bool {
        let dropped = self.dropped.get(&part);
        dropped
            .is_some_and(|(at, change)| *change == body[part.key()] && now.since(*at) < DROPPED_FOR)
    }

    /// The reason that the object is not as it should be, if writes of it fail.
    pub(crate) fn write_fault(&self) -> Option<String> {
        let dropped = || {
            let (part, (_, change)) = self.dropped.iter().next()?;
            Some(format!(
                "the API server does not keep these fields of the {part}, expected the resource \
                 definition ciliumnodes.cilium.io of Cilium 1.20 or of deploy/crds: {change}"
            ))
        };
        self.write_fault.clone().or_else(dropped)
    }

    /// Takes the failure of a write in.
    pub(crate) fn fail_write(&mut self, reason: String, retry_after: Option<Duration>, now: Time) {
        let wait = Duration::from_secs(1 << self.write_failures.min(6)).min(SLOWEST);
        self.write_failures = self.write_failures.saturating_add(1);
        self.write_fault = Some(reason);
        self.barred = now.after(retry_after.unwrap_or(wait));
    }

    /// Another writer came first. The next event has its version; without one, a try comes later.
    pub(crate) fn conflicted(&mut self, now: Time) {
        self.barred = now.after(CONFLICT);
    }

    /// Schedules the next search for the primary ENI, at growing intervals. Returns the number of
    /// searches.
    pub(crate) fn look_again(&mut self, now: Time) -> u32 {
        let (_, count) = self.look;
        let wait = Duration::from_secs(2 << count.min(5)).min(SLOWEST);
        self.look = (now.after(wait), count.saturating_add(1));
        count
    }
}

/// Reports if an object is an earlier state of another one.
pub(crate) fn is_older(object: &Value, than: &Value) -> bool {
    let number = |object: &Value| {
        let version = object["metadata"]["resourceVersion"].as_str()?;
        version.parse::<u64>().ok()
    };
    let is_same = object["metadata"]["uid"] == than["metadata"]["uid"];
    is_same
        && number(object)
            .zip(number(than))
            .is_some_and(|(one, other)| one < other)
}

/// ENIs that reads by id lacked, with the beginning of the last one.
pub(crate) type Lacked = BTreeMap<EniId, Time>;
