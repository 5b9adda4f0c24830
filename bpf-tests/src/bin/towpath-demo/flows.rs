//! The flows of the demo, and the result of each.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;

use anyhow::{Context as _, Result};
use ipam::Family;
use testkit::fabric::Place;
use testkit::fabric::counters::{self, Name};
use testkit::fabric::layout::Host;
use testkit::fabric::source_check;
use testkit::fabric::traffic::Protocol;
use testkit::fabric::world::Site;

use crate::plan::{End, FLOWS, Plan, Source};
use crate::report::Flow;
use crate::stage::Stage;

/// A flow to try, and its expected result.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Trial {
    plan: &'static Plan,
    family: Family,
    protocol: Protocol,
}

/// All flows of the demo: each in its families, by each protocol.
pub(crate) fn trials() -> Vec<Trial> {
    let mut trials = Vec::new();
    for plan in &FLOWS {
        for family in plan.families() {
            trials.extend(Protocol::ALL.map(|protocol| Trial {
                plan,
                family,
                protocol,
            }));
        }
    }
    trials
}

/// A snapshot of all counts: the difference of two snapshots belongs to one flow.
#[derive(Clone, Debug)]
pub(crate) struct Look {
    counters: BTreeMap<Name, u64>,
    /// Flows that left the node, as the VPC saw them.
    left: Vec<source_check::Flow>,
    /// Flows that arrived at the server on the Internet.
    arrived: Vec<source_check::Flow>,
}

impl Look {
    pub(crate) fn take(stage: &Stage) -> Result<Self> {
        let fabric = &stage.fabric;
        Ok(Self {
            counters: counters::read(fabric)?,
            left: source_check::flows(&fabric.vpc.router)?,
            arrived: fabric.world()?.arrived(Site::Internet)?,
        })
    }

    fn since(&self, before: &Self) -> Self {
        Self {
            counters: counters::moved(&before.counters, &self.counters),
            left: source_check::moved(&before.left, &self.left),
            arrived: source_check::moved(&before.arrived, &self.arrived),
        }
    }
}

/// Observations of a flow.
struct Seen {
    why: String,
    /// Counters that moved, which show the path.
    moved: BTreeMap<Name, u64>,
    enis: BTreeSet<u16>,
    /// Source addresses of the node's packets, as the other end or the VPC saw them.
    sources: BTreeSet<IpAddr>,
}

impl Trial {
    /// Tries the flow; `last` is the snapshot before it, and then the one after it.
    pub(crate) fn run(&self, stage: &Stage, last: &mut Look) -> Result<Flow> {
        let plan = self.plan;
        let (from, to) = (self.place(stage, plan.from)?, self.place(stage, plan.to)?);
        let answered = self.protocol.exchange(from, to);
        let now = Look::take(stage)?;
        let mut look = now.since(last);
        *last = now;
        let protocol = self.protocol.number(self.family);
        // Neighbour discovery and late packets of other flows have other protocols or ends.
        for flows in [&mut look.left, &mut look.arrived] {
            flows.retain(|flow| {
                flow.protocol == protocol && [from.address, to.address].contains(&flow.to)
            });
        }
        let at_the_end = match plan.to {
            End::Site(_) => &look.arrived,
            _ => &look.left,
        };
        let seen = Seen {
            why: self.why(stage, from, to, &look.counters)?,
            enis: look.left.iter().map(|flow| flow.eni).collect(),
            sources: at_the_end.iter().map(|flow| flow.from).collect(),
            moved: look.counters,
        };
        let problem = match answered {
            Err(error) => Some(format!("{error:#}")),
            Ok(()) => self.problem(stage, from, &seen)?,
        };
        Ok(Flow {
            name: plan.name,
            family: match self.family {
                Family::V4 => "ipv4",
                Family::V6 => "ipv6",
            },
            protocol: self.protocol.to_string(),
            from: from.address.to_string(),
            to: to.address.to_string(),
            ok: problem.is_none(),
            eni: seen.enis.first().copied(),
            snat: seen.sources.first().map(ToString::to_string),
            path: path(&seen.moved),
            why: seen.why,
            problem,
        })
    }

    /// The differences from the wanted state.
    fn problem(&self, stage: &Stage, from: Place, seen: &Seen) -> Result<Option<String>> {
        let plan = self.plan;
        let source = match plan.source {
            Source::None => None,
            Source::Itself => Some(match plan.to {
                // The pod answers.
                End::Pod(_) => self.place(stage, plan.to)?.address,
                _ => from.address,
            }),
            Source::Eni(number) => stage.fabric.eni(number)?.own_address(self.family),
        };
        let Seen {
            why,
            moved,
            enis,
            sources,
        } = seen;
        Ok(if why != plan.why {
            Some(format!("why is {why}, not {}: {moved:?}", plan.why))
        } else if !counted(why, moved) {
            Some(format!("the counters do not tell of {why}: {moved:?}"))
        } else if !enis.iter().copied().eq(plan.eni.map(u16::from)) {
            Some(format!("it took ENIs {enis:?}, not {:?}", plan.eni))
        } else if !sources.iter().copied().eq(source) {
            Some(format!("it was seen as {sources:?}, not as {source:?}"))
        } else {
            None
        })
    }

    /// The reason for the flow's path: for a flow that a pod opens, the agent explains it from the
    /// live maps.
    fn why(
        &self,
        stage: &Stage,
        from: Place,
        to: Place,
        moved: &BTreeMap<Name, u64>,
    ) -> Result<String> {
        let fabric = &stage.fabric;
        if let End::Pod(_) = self.plan.from {
            let (protocol, from, to) = (self.protocol, from.address, to.address);
            let path = format!("/v1/masquerade/explain/{protocol}/{from}/{to}");
            let explanation = fabric.agent.ask("GET", &path, None)?;
            let why = explanation["why"].as_str().map(str::to_owned);
            return why.with_context(|| format!("no reason in {explanation}"));
        }
        let from_outside = has(moved, "from_network", "local");
        Ok(if from_outside { "inbound" } else { "host" }.to_owned())
    }

    fn place<'a>(&self, stage: &'a Stage, end: End) -> Result<Place<'a>> {
        let fabric = &stage.fabric;
        match end {
            End::Pod(index) => Ok(stage.pod(index)?.at(self.family)),
            End::Node => fabric.node_at(self.family),
            End::Peer => Ok(fabric.peer(self.family)),
            End::Peering => Ok(fabric.host(Host::Outside, self.family)),
            End::Site(site) => Ok(fabric.world()?.at(site, self.family)),
        }
    }
}

fn has(moved: &BTreeMap<Name, u64>, program: &str, outcome: &str) -> bool {
    moved.contains_key(&(program.to_owned(), outcome.to_owned()))
}

/// True if the counters show the path that a reason stands for.
fn counted(why: &str, moved: &BTreeMap<Name, u64>) -> bool {
    match why {
        "local" | "host" | "translated" => has(moved, "from_endpoint", why),
        "inbound" => has(moved, "from_network", "local"),
        _ => has(moved, "from_endpoint", "eni"),
    }
}

/// The path that carried the packets, by the counters.
fn path(moved: &BTreeMap<Name, u64>) -> &'static str {
    if has(moved, "from_endpoint", "host") {
        "stack"
    } else {
        "direct"
    }
}

/// The source addresses that a site may see untranslated, for the VPC's gateways.
pub(crate) fn untranslated(stage: &Stage) -> Result<Vec<(IpAddr, IpAddr)>> {
    let mut pairs = Vec::new();
    for plan in &FLOWS {
        let (End::Pod(pod), End::Site(site)) = plan.outward() else {
            continue;
        };
        if plan.source == Source::Itself {
            let pod = stage.pod(pod)?;
            let families = plan.families();
            pairs.extend(families.map(|f| (pod.address(f), Site::address(site, f))));
        }
    }
    Ok(pairs)
}
