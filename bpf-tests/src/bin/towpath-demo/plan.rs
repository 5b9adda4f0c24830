//! The flows that the demo tries, and their expected results.

use ipam::Family;
use testkit::fabric::world::Site;

/// One end of a flow.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum End {
    /// A pod of the node, by its index.
    Pod(usize),
    Node,
    /// In the VPC.
    Peer,
    /// In a network that is peered with the VPC, and set as native.
    Peering,
    /// Outside of the VPC.
    Site(Site),
}

/// The owner of the source address that the other end sees in the node's packets.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Source {
    /// No packet leaves the node.
    None,
    /// The pod's or the node's own address.
    Itself,
    /// An address of an ENI.
    Eni(u8),
}

/// A flow, and its expected result.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Plan {
    pub(crate) name: &'static str,
    /// The end that opens the flow.
    pub(crate) from: End,
    /// The end that answers.
    pub(crate) to: End,
    /// The ENI that it should take.
    pub(crate) eni: Option<u8>,
    pub(crate) source: Source,
    pub(crate) why: &'static str,
    /// The only family of the flow, if it is not tried in both.
    only: Option<Family>,
}

impl Plan {
    const fn new(
        name: &'static str,
        (from, to): (End, End),
        eni: Option<u8>,
        source: Source,
        why: &'static str,
    ) -> Self {
        Self {
            name,
            from,
            to,
            eni,
            source,
            why,
            only: None,
        }
    }

    /// Limits the flow to one family.
    const fn only(mut self, family: Family) -> Self {
        self.only = Some(family);
        self
    }

    /// The families of the flow.
    pub(crate) fn families(&self) -> impl Iterator<Item = Family> {
        let only = self.only;
        let families = Family::ALL.into_iter();
        families.filter(move |family| only.is_none_or(|only| only == *family))
    }

    /// Ends of the flow, the one on the node first.
    pub(crate) fn outward(&self) -> (End, End) {
        match self.from {
            End::Site(_) => (self.to, self.from),
            _ => (self.from, self.to),
        }
    }
}

const INTERNET: End = End::Site(Site::Internet);
const LISTED: End = End::Site(Site::Listed);
const TIME: End = End::Site(Site::Time);
/// The pod of the pool that skips masquerade.
const DIRECT: End = End::Pod(3);

/// All flows that the demo tries.
pub(crate) const FLOWS: [Plan; 15] = {
    use End::{Node, Peer, Peering, Pod};
    use Source::{Eni, Itself};
    [
        Plan::new(
            "pod-to-pod-same-eni",
            (Pod(0), Pod(1)),
            None,
            Source::None,
            "local",
        ),
        Plan::new(
            "pod-to-pod-other-eni",
            (Pod(0), Pod(2)),
            None,
            Source::None,
            "local",
        ),
        Plan::new("pod-to-vpc", (Pod(0), Peer), Some(0), Itself, "exempt-vpc"),
        Plan::new("pod-to-vpc", (Pod(2), Peer), Some(1), Itself, "exempt-vpc"),
        Plan::new("pod-to-node", (Pod(2), Node), None, Source::None, "host"),
        Plan::new("node-to-pod", (Node, Pod(2)), None, Source::None, "host"),
        Plan::new("vpc-to-pod", (Peer, Pod(0)), Some(0), Itself, "inbound"),
        Plan::new("vpc-to-pod", (Peer, Pod(2)), Some(1), Itself, "inbound"),
        Plan::new(
            "pod-to-internet",
            (Pod(0), INTERNET),
            Some(0),
            Eni(0),
            "translated",
        ),
        Plan::new(
            "pod-to-internet",
            (Pod(2), INTERNET),
            Some(1),
            Eni(1),
            "translated",
        ),
        Plan::new(
            "direct-to-internet",
            (DIRECT, INTERNET),
            Some(1),
            Itself,
            "skip-pool",
        ),
        Plan::new(
            "pod-to-peering",
            (Pod(0), Peering),
            Some(0),
            Itself,
            "exempt-native",
        ),
        Plan::new(
            "pod-to-listed",
            (Pod(2), LISTED),
            Some(1),
            Itself,
            "exempt-masq-agent",
        ),
        // IPv6 has no link-local services except those on the link itself.
        Plan::new(
            "pod-to-link-local",
            (Pod(2), TIME),
            Some(1),
            Itself,
            "exempt-link-local",
        )
        .only(Family::V4),
        Plan::new(
            "internet-to-pod",
            (INTERNET, Pod(1)),
            Some(0),
            Itself,
            "inbound",
        ),
    ]
};
