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
    /// A flow within the node.
    const fn new(name: &'static str, from: End, to: End, why: &'static str) -> Self {
        Self {
            name,
            from,
            to,
            eni: None,
            source: Source::None,
            why,
            only: None,
        }
    }

    /// Expects the flow at an ENI, with this owner of the source address.
    const fn by(mut self, eni: u8, source: Source) -> Self {
        self.eni = Some(eni);
        self.source = source;
        self
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
        Plan::new("pod-to-pod-same-eni", Pod(0), Pod(1), "local"),
        Plan::new("pod-to-pod-other-eni", Pod(0), Pod(2), "local"),
        Plan::new("pod-to-vpc", Pod(0), Peer, "exempt-vpc").by(0, Itself),
        Plan::new("pod-to-vpc", Pod(2), Peer, "exempt-vpc").by(1, Itself),
        Plan::new("pod-to-node", Pod(2), Node, "host"),
        Plan::new("node-to-pod", Node, Pod(2), "host"),
        Plan::new("vpc-to-pod", Peer, Pod(0), "inbound").by(0, Itself),
        Plan::new("vpc-to-pod", Peer, Pod(2), "inbound").by(1, Itself),
        Plan::new("pod-to-internet", Pod(0), INTERNET, "translated").by(0, Eni(0)),
        Plan::new("pod-to-internet", Pod(2), INTERNET, "translated").by(1, Eni(1)),
        Plan::new("direct-to-internet", DIRECT, INTERNET, "skip-pool").by(1, Itself),
        Plan::new("pod-to-peering", Pod(0), Peering, "exempt-native").by(0, Itself),
        Plan::new("pod-to-listed", Pod(2), LISTED, "exempt-masq-agent").by(1, Itself),
        // IPv6 has no link-local services except those on the link itself.
        Plan::new("pod-to-link-local", Pod(2), TIME, "exempt-link-local")
            .by(1, Itself)
            .only(Family::V4),
        Plan::new("internet-to-pod", INTERNET, Pod(1), "inbound").by(0, Itself),
    ]
};
