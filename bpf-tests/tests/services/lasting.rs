//! Connections of every case that stay open while the agent is killed, while its programs are
//! replaced, and while it removes idle flows. Then both sides send, the server first.

use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail, ensure};
use ipam::Family;
use testkit::fabric::Fabric;
use testkit::fabric::eventually::{check, eventually};
use testkit::fabric::layout::Eni;
use testkit::fabric::state::program_ids;
use testkit::fabric::traffic::Session;

use crate::cases::Case;
use crate::model::Transport;
use crate::request::Request;
use crate::scene::Scene;

/// An open connection, or the error of opening it.
type Opened = (Case, Family, Request, Result<Session>);

/// The connections of all cases.
#[derive(Debug)]
pub(crate) struct Lasting(Vec<Opened>);

impl Lasting {
    /// Opens every connection of every case.
    pub(crate) fn open(scene: &Scene) -> Result<Self> {
        let mut open = Vec::new();
        let cases = Case::ALL.into_iter().chain(Case::BESIDE);
        for case in cases.filter(|case| case.without(Transport::Tcp).is_none()) {
            for family in Family::ALL {
                for request in case.requests(scene, family)? {
                    open.push((case, family, request, request.open(scene)));
                }
            }
        }
        Ok(Self(open))
    }

    /// Makes both sides of a case's connections send, the server first.
    pub(crate) fn speak(&mut self, scene: &Scene, case: Case, family: Family) -> Result<()> {
        let mut spoken = 0;
        let wanted = |(c, f, ..): &&mut Opened| (*c, *f) == (case, family);
        for (_, _, request, session) in self.0.iter_mut().filter(wanted) {
            let label = || request.label(Transport::Tcp);
            let session = match session {
                Ok(session) => session,
                Err(error) => bail!("{}: never opened: {error:#}", label()),
            };
            let server = scene.server(request.server, family)?;
            let mut speak = || -> Result<()> {
                server.speak(session.seen())?;
                session.hear()?;
                session.exchange()
            };
            speak().with_context(label)?;
            spoken += 1;
        }
        ensure!(spoken > 0, "{} has no connection", case.name());
        Ok(())
    }
}

/// The programs at the ENIs and at the pods' devices.
fn programs(fabric: &Fabric) -> Result<Vec<Vec<u32>>> {
    let pods = fabric.pods().iter().map(|pod| pod.host_device());
    let enis = fabric.enis.iter().map(Eni::device);
    enis.chain(pods)
        .map(|device| program_ids(&fabric.node, &device))
        .collect()
}

/// Event that a node's connections must outlive.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Event {
    /// The agent is killed, and starts again.
    Kill,
    /// The agent is replaced in order, and its programs with it.
    Replacement,
    /// The agent looks for flows that have been idle for longer than connection tracking would now
    /// keep new ones. It still has these, so that they must stay.
    Idle,
}

/// The setting for the time that connection tracking keeps an open connection, and its default in
/// seconds (`nf_conntrack_proto_tcp.c`).
const ESTABLISHED: &str = "netfilter/nf_conntrack_tcp_timeout_established";
const DEFAULT: &str = "432000";
/// Value during the test, in seconds, and the margin beyond it: the time of a packet is known to a
/// second.
const SHORT: u64 = 10;
const MARGIN: u64 = 2;
/// A delayed acknowledgement may come until then (`TCP_DELACK_MAX` is 200 ms), and would shorten
/// connection tracking's timeout.
const QUIET: Duration = Duration::from_secs(1);
/// Deadline for the agent's check of idle flows.
const LOOKED: Duration = Duration::from_mins(1);

impl Event {
    pub(crate) const ALL: [Self; 3] = [Self::Kill, Self::Replacement, Self::Idle];

    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Kill => "after a kill",
            Self::Replacement => "after a replacement",
            Self::Idle => "after a flush of idle flows",
        }
    }

    pub(crate) fn happen(self, fabric: &mut Fabric) -> Result<()> {
        let before = programs(fabric)?;
        match self {
            Self::Kill => fabric.agent.kill()?,
            Self::Replacement => drop(fabric.agent.stop()?),
            Self::Idle => return idle(fabric),
        }
        fabric.start_agent()?;
        let after = programs(fabric)?;
        let is_replaced = before.iter().zip(&after).all(|(old, new)| old != new);
        ensure!(is_replaced, "programs are replaced: {before:?}, {after:?}");
        Ok(())
    }
}

/// Waits until the agent has looked for idle flows when all connections were idle for long enough.
fn idle(fabric: &Fabric) -> Result<()> {
    let node = &fabric.node;
    let spoken = Instant::now();
    eventually(LOOKED, "no acknowledgement is due", || {
        check(spoken.elapsed() > QUIET, || "it is".to_owned())
    })?;
    node.sysctls(&[(ESTABLISHED, &SHORT.to_string())])?;
    let start = Instant::now();
    eventually(LOOKED, "the agent looks for idle flows", || {
        let stats = fabric.agent.ask("GET", "/v1/nat/stats", None)?;
        let last = &stats["sweeper"]["last-sweep"]["seconds-ago"];
        let last = last.as_u64().with_context(|| stats.to_string())?;
        let idle = start.elapsed().as_secs().saturating_sub(last);
        check(idle > SHORT + MARGIN, || format!("after {idle} s"))
    })?;
    node.sysctls(&[(ESTABLISHED, DEFAULT)])
}
