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
pub(crate) use self::obstacle::{Obstacle, Reported, date_of};
pub(crate) use self::publication::Publication;
pub(crate) use self::published::Published;
pub(crate) use self::release::{Ended, ReleasePolicy, Releases, Snapshot};
use crate::writes::Writes;
use crate::{Part, Settings};

/// The longest wait for what EC2 does not show.
const SLOWEST: Duration = Duration::from_mins(1);

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
    pub(crate) reads: InstanceReads,
    pub(crate) releases: Releases,
    /// Another node has the instance.
    pub(crate) rival: Option<String>,
    /// The result of the last plan.
    pub(crate) next: Next,
    pub(crate) reported: Reported,
    pub(crate) writes: Writes,
    /// Changes of a part that the API server took and did not keep.
    dropped: BTreeMap<Part, (Time, Value)>,
}

/// Reads of a node's instance.
#[derive(Debug, Default)]
pub(crate) struct InstanceReads {
    /// Those that began earlier do not count.
    pub(crate) since: Time,
    pub(crate) doubts: Doubts,
    /// The time of the next search for a primary ENI.
    pub(crate) search: Time,
    /// The number of searches.
    searches: u32,
}

impl InstanceReads {
    fn begin(now: Time) -> Self {
        Self {
            since: now,
            ..Self::default()
        }
    }

    /// Schedules the next search for the primary ENI, at growing intervals. Returns the number of
    /// searches before it.
    pub(crate) fn search_again(&mut self, now: Time) -> u32 {
        let count = self.searches;
        let wait = Duration::from_secs(2 << count.min(5)).min(SLOWEST);
        self.search = now.after(wait);
        self.searches = count.saturating_add(1);
        count
    }
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
            reads: InstanceReads::begin(now),
            rival: None,
            next: Next::default(),
            reported: Reported::default(),
            writes: Writes::default(),
            dropped: BTreeMap::new(),
        }
    }

    /// Updates the member from its object. ENIs in the status of an object of another uid or
    /// instance are ignored.
    pub(crate) fn set(&mut self, object: Value, settings: &Settings, now: Time) {
        let document = NodeDocument::read(&object);
        let node = translate::node(&document, self.node.pending, settings);
        let is_other =
            document.meta.uid != self.document.meta.uid || node.instance != self.node.instance;
        self.published = if is_other || !self.published.is_believed {
            Published::disbelieved(&object)
        } else {
            Published::read(&object)
        };
        if is_other {
            self.reads = InstanceReads::begin(now);
            self.reported.forget_line();
        }
        // An object that goes back in its version is one of a restored API server, and one of
        // another uid can be.
        let is_restored = is_other || is_older(&object, &self.object);
        let before = Some(&self.object).filter(|_| !is_restored);
        let snapshot = Snapshot {
            object: &object,
            published: &self.published,
            document: &document,
        };
        self.releases.observe(snapshot, before, now);
        if is_restored {
            self.releases.void_marks();
        }
        if document.meta.version != self.document.meta.version {
            self.writes.renewed();
        }
        self.object = object;
        self.document = document;
        self.node = node;
    }

    /// Begins an epoch: nothing is in flight, and nothing is known.
    pub(crate) fn begin_epoch(&mut self, now: Time) {
        self.reads = InstanceReads::begin(now);
        self.releases.begin_epoch(now);
        let snapshot = Snapshot {
            object: &self.object,
            published: &self.published,
            document: &self.document,
        };
        self.releases.observe(snapshot, Some(&self.object), now);
        self.next = Next::default();
        self.reported.obstacles.clear();
        self.writes = Writes::default();
        self.dropped.clear();
    }

    /// The operator leaves the node alone.
    pub(crate) fn is_left_alone(&self) -> bool {
        self.document.meta.is_ignored || self.document.meta.is_deleted
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
        self.writes.fault().map(str::to_owned).or_else(dropped)
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
