//! The flows that are tried, and what became of each.

use std::collections::BTreeMap;

use anyhow::Result;
use bpf_tests::fabric::Place;
use bpf_tests::fabric::counters::{self, Name};
use bpf_tests::fabric::source_check;
use bpf_tests::fabric::traffic::Protocol;
use towpath::intent::Family;

use crate::report::Flow;
use crate::stage::Stage;

/// One end of a flow.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum End {
    /// A pod of the node, by its index.
    Pod(usize),
    Node,
    Peer,
}

/// A flow to try, and how it should go.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Trial {
    name: &'static str,
    from: End,
    to: End,
    eni: Option<u8>,
    way: Way,
    family: Family,
    protocol: Protocol,
}

/// The way that packets take, and why.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Way {
    /// Delivered into another pod of the node.
    Local,
    /// Between a pod and the host.
    Host,
    /// Out by the owner ENI: the destination is one that is never masqueraded.
    ExemptVpc,
    /// Opened from outside the node, delivered into the pod.
    Inbound,
    /// The counters tell of no way that is known.
    Unknown,
}

impl Way {
    fn path(self) -> &'static str {
        match self {
            Self::Local | Self::ExemptVpc | Self::Inbound => "direct",
            Self::Host => "stack",
            Self::Unknown => "unknown",
        }
    }

    fn why(self) -> &'static str {
        match self {
            Self::Local => "local",
            Self::Host => "host",
            Self::ExemptVpc => "exempt-vpc",
            Self::Inbound => "inbound",
            Self::Unknown => "unknown",
        }
    }

    /// The way, as the counters tell it.
    fn observed(from: End, moved: &BTreeMap<Name, u64>) -> Self {
        let has = |program: &str, outcome: &str| {
            moved.contains_key(&(program.to_owned(), outcome.to_owned()))
        };
        if from == End::Peer && has("from_network", "local") {
            Self::Inbound
        } else if has("from_endpoint", "eni") {
            Self::ExemptVpc
        } else if has("from_endpoint", "host") {
            Self::Host
        } else if has("from_endpoint", "local") {
            Self::Local
        } else {
            Self::Unknown
        }
    }
}

/// Name, who opens it, who answers, the ENI that it should take, its way.
const FLOWS: [(&str, End, End, Option<u8>, Way); 8] = [
    (
        "pod-to-pod-same-eni",
        End::Pod(0),
        End::Pod(1),
        None,
        Way::Local,
    ),
    (
        "pod-to-pod-other-eni",
        End::Pod(0),
        End::Pod(2),
        None,
        Way::Local,
    ),
    (
        "pod-to-vpc",
        End::Pod(0),
        End::Peer,
        Some(0),
        Way::ExemptVpc,
    ),
    (
        "pod-to-vpc",
        End::Pod(2),
        End::Peer,
        Some(1),
        Way::ExemptVpc,
    ),
    ("pod-to-node", End::Pod(2), End::Node, None, Way::Host),
    ("node-to-pod", End::Node, End::Pod(2), None, Way::Host),
    ("vpc-to-pod", End::Peer, End::Pod(0), Some(0), Way::Inbound),
    ("vpc-to-pod", End::Peer, End::Pod(2), Some(1), Way::Inbound),
];

/// Everything that the demo tries: each flow in both families by each protocol.
pub(crate) fn trials(stage: &Stage) -> Result<Vec<Trial>> {
    let mut trials = Vec::new();
    for (name, from, to, eni, way) in FLOWS {
        for end in [from, to] {
            if let End::Pod(index) = end {
                stage.pod(index)?;
            }
        }
        for family in Family::ALL {
            trials.extend(Protocol::ALL.map(|protocol| Trial {
                name,
                from,
                to,
                eni,
                way,
                family,
                protocol,
            }));
        }
    }
    Ok(trials)
}

impl Trial {
    /// Tries the flow.
    pub(crate) fn run(&self, stage: &Stage) -> Result<Flow> {
        let fabric = &stage.fabric;
        let (from, to) = (self.place(stage, self.from)?, self.place(stage, self.to)?);
        source_check::forget_flows(&fabric.vpc.router)?;
        let before = counters::read(fabric)?;
        let answered = self.protocol.exchange(from, to);
        let moved = counters::moved(&before, &counters::read(fabric)?);
        let way = Way::observed(self.from, &moved);
        let enis = source_check::enis_between(&fabric.vpc.router, from.address, to.address)?;
        let problem = match answered {
            Err(error) => Some(format!("{error:#}")),
            Ok(()) if way != self.way => {
                let (seen, expected) = (way.why(), self.way.why());
                Some(format!("it went as {seen}, not as {expected}: {moved:?}"))
            }
            Ok(()) if !enis.iter().copied().eq(self.eni) => {
                Some(format!("it took ENIs {enis:?}, not {:?}", self.eni))
            }
            Ok(()) => None,
        };
        Ok(Flow {
            name: self.name,
            family: match self.family {
                Family::V4 => "ipv4",
                Family::V6 => "ipv6",
            },
            protocol: self.protocol.to_string(),
            from: from.address.to_string(),
            to: to.address.to_string(),
            ok: problem.is_none(),
            eni: enis.first().copied(),
            path: way.path(),
            why: way.why(),
            problem,
        })
    }

    fn place<'a>(&self, stage: &'a Stage, end: End) -> Result<Place<'a>> {
        match end {
            End::Pod(index) => Ok(stage.pod(index)?.at(self.family)),
            End::Node => stage.fabric.node_at(self.family),
            End::Peer => Ok(stage.fabric.peer(self.family)),
        }
    }
}
