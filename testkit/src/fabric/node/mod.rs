//! A node in a VPC: its ENIs, the agent, pods.

pub mod agent;
pub(super) mod cgroup;
pub mod document;
pub mod manager;
pub(super) mod places;
pub(super) mod pod;
pub mod program;
pub(crate) mod reboot;
pub(super) mod seen;
pub(super) mod service;

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;
use std::sync::Arc;
use std::thread;
use std::time::Duration;

use anyhow::{Context as _, Result, bail};
use ipam::Family;
use ipnet::IpNet;
use serde_json::{Value, json};

use self::agent::{Agent, START};
use self::document::document_of;
use self::pod::Pod;
use super::eventually::{check, eventually};
use super::layout::Eni;
use super::record::Record;
use super::spec::Spec;
use super::vpc::Vpc;
use super::{Netns, dump};
use crate::fabric::source_check::{self, Cell};
use crate::fabric::vpc::gateway;
use crate::fabric::vpc::join::{self, Seat};
use crate::fabric::world::World;

/// A node in its VPC.
///
/// Dropping it removes everything, except the VPC while other nodes are in it. When a source check
/// of its ENIs counted a foreign packet, it panics: no test passes with one.
#[derive(Debug)]
pub struct Fabric {
    /// The agent.
    pub agent: Agent,
    /// The node's ENIs, as the cloud has them.
    pub enis: Vec<Eni>,
    /// The VPC.
    pub vpc: Arc<Vpc>,
    /// The node's namespace.
    pub node: Netns,
    pub(super) pods: Vec<Arc<Pod>>,
    spec: Spec,
    pub(super) index: u8,
    pub(super) world: Option<Arc<World>>,
    pub(super) checks: Checks,
    pub(super) attached: BTreeSet<u8>,
    pub(super) record: Arc<Record>,
    /// The first node's record: if the VPC's namespaces are left behind, they are removed with it.
    pub(super) home: Arc<Record>,
}

/// Exceptions and results of the checks of a node's packets.
#[derive(Debug, Default)]
pub(super) struct Checks {
    /// Sources that may leave the VPC untranslated, each with its destination.
    pub(super) allowed: Vec<gateway::Allowed>,
    /// Foreign packets of counters that are gone.
    past: BTreeMap<Cell, u64>,
    /// They were made, as the node has ended in order.
    are_done: bool,
}

impl Fabric {
    /// Makes a fabric, proves that its source checks count, writes the node document. The agent is
    /// not started.
    ///
    /// # Errors
    /// When something cannot be made, or a source check does not count.
    pub fn create(spec: &Spec) -> Result<Self> {
        let record = Arc::new(Record::create()?);
        let agent = join::prepare_agent(&record, spec)?;
        let prefix = record.prefix();
        let vpc = Vpc::create(&prefix, spec.mtu)?;
        let mut world = None;
        if spec.world {
            world = Some(Arc::new(World::create(&prefix, &vpc.router, spec.mtu)?));
        }
        let seat = Seat {
            index: 0,
            vpc: Arc::new(vpc),
            world,
            home: Arc::clone(&record),
        };
        Self::enter(seat, record, agent, spec)
    }

    /// Makes a node in its VPC.
    pub(super) fn enter(
        seat: Seat,
        record: Arc<Record>,
        agent: Agent,
        spec: &Spec,
    ) -> Result<Self> {
        let (enis, node) = (spec.enis(seat.index)?, join::make_node(&record)?);
        seat.vpc.members.enter(seat.index, &enis)?;
        let mut fabric = Self {
            agent,
            enis,
            vpc: seat.vpc,
            node,
            pods: Vec::new(),
            spec: spec.clone(),
            index: seat.index,
            world: seat.world,
            checks: Checks::default(),
            attached: BTreeSet::new(),
            record,
            home: seat.home,
        };
        fabric.pass_gateways()?;
        let numbers: Vec<_> = fabric.enis.iter().map(|eni| eni.number).collect();
        for number in numbers {
            if !spec.late.contains(&number) {
                fabric.attach(number)?;
            }
        }
        fabric.configure_primary()?;
        fabric.publish()?;
        Ok(fabric)
    }

    /// A fabric with the agent running and ready.
    ///
    /// # Errors
    /// As [`Self::create`]; when the agent does not become ready in time.
    pub fn ready(spec: &Spec) -> Result<Self> {
        let mut fabric = Self::create(spec)?;
        match fabric.start_agent() {
            Ok(()) => Ok(fabric),
            Err(error) => Err(error.context(fabric.describe())),
        }
    }

    /// Configures the primary like a host's network manager: addresses and default routes.
    pub(super) fn configure_primary(&self) -> Result<()> {
        let primary = self.eni(0)?;
        let device = primary.device();
        let v6 = primary
            .own_address(Family::V6)
            .context("the primary's IPv6 address")?;
        let mut batch = format!(
            "link set {device} up\n\
             addr add {v6}/128 dev {device} nodad\n\
             route add default via fe80:ec2::1 dev {device}\n"
        );
        if let Some(v4) = primary.own_address(Family::V4) {
            let (length, gateway) = (primary.subnet().prefix_len(), primary.gateway_v4());
            let _infallible = write!(
                batch,
                "addr add {v4}/{length} dev {device}\n\
                 route add default via {gateway} dev {device}\n"
            );
        }
        self.node.ip(&batch)?;
        self.vpc.wait_for_link(primary)
    }

    /// The ENI of a number.
    ///
    /// # Errors
    /// When there is none.
    pub fn eni(&self, number: u8) -> Result<&Eni> {
        let found = self.enis.iter().find(|eni| eni.number == number);
        found.with_context(|| format!("the fabric has no ENI {number}"))
    }

    /// The node document for the ENIs in their present state.
    #[must_use]
    pub fn document(&self) -> Value {
        let mut document = document_of(self.index, &self.enis);
        if let Some(instance) = &self.spec.instance {
            document["spec"]["instance-id"] = json!(instance.id);
            document["spec"]["eni"]["instance-type"] = json!(instance.kind);
        }
        if self.world.is_some() {
            document["spec"]["ipam"] = document::direct_pool(&self.enis);
        }
        document
    }

    /// Writes the node document of the fabric's specification, or the one for the ENIs in their
    /// present state.
    ///
    /// # Errors
    /// When it cannot be written.
    pub fn publish(&self) -> Result<()> {
        match &self.spec.document {
            Some(text) => self.agent.write_document_text(text),
            None => self.agent.write_document(&self.document()),
        }
    }

    /// Starts the agent, or starts it again, and waits until it is ready.
    ///
    /// # Errors
    /// When it does not become ready in time: its status.
    pub fn start_agent(&mut self) -> Result<()> {
        self.agent.start(&self.node, &[])?;
        self.wait_until_ready()
    }

    /// Waits until the agent answers and every attached ENI is ready, or excluded.
    ///
    /// # Errors
    /// When it does not become ready in time: its status; at once when its process ended.
    pub fn wait_until_ready(&mut self) -> Result<()> {
        let (agent, attached) = (&mut self.agent, &self.attached);
        let mut died = false;
        eventually(START, "the agent is ready", || {
            died = !agent.is_running();
            if died {
                return Ok(());
            }
            let status = agent.ask("GET", "/v1/status", None)?;
            let enis = status["enis"].as_array().into_iter().flatten();
            let ready = enis
                .filter(|eni| {
                    ["ready", "excluded"]
                        .map(Value::from)
                        .contains(&eni["readiness"]["state"])
                })
                .filter_map(|eni| eni["number"].as_u64());
            let ready: BTreeSet<_> = ready.collect();
            let missing = attached
                .iter()
                .find(|number| !ready.contains(&u64::from(**number)));
            check(
                missing.is_none() && status["health"]["state"] != "not-ready",
                || format!("health {}, ENIs {}", status["health"], status["enis"]),
            )
        })?;
        if died {
            bail!("the agent ended before it was ready");
        }
        Ok(())
    }

    /// Attaches an ENI that is in the list.
    ///
    /// # Errors
    /// When it is attached already.
    pub fn attach(&mut self, number: u8) -> Result<()> {
        self.tell_vpc();
        let eni = self.eni(number)?;
        self.vpc.attach(&self.node, eni, self.spec.mtu)?;
        if let (Some(own), 1..) = (eni.own_address(Family::V6), number) {
            // A stand-in for DHCPv6; the primary has its addresses from its configuration.
            let device = eni.device();
            self.node
                .ip(&format!("addr add {own}/128 dev {device} nodad"))?;
        }
        self.attached.insert(number);
        Ok(())
    }

    /// Detaches an ENI, as the cloud does: its device goes.
    ///
    /// # Errors
    /// When it is not attached.
    pub fn detach(&mut self, number: u8) -> Result<()> {
        self.save_counts()?;
        self.attached.remove(&number);
        self.vpc.detach(self.eni(number)?)
    }

    /// Changes the addresses and prefixes of ENIs, in the VPC and in the document.
    ///
    /// # Errors
    /// When the router refuses.
    pub fn set_blocks(&mut self, changes: &[(u8, Vec<IpNet>)]) -> Result<()> {
        self.save_counts()?;
        for (number, blocks) in changes {
            let eni = self.enis.iter_mut().find(|eni| eni.number == *number);
            let eni = eni.with_context(|| format!("no ENI {number}"))?;
            eni.blocks.clone_from(blocks);
            self.vpc.deliver(eni)?;
        }
        self.tell_vpc();
        self.publish()
    }

    /// The foreign packets counted so far, by the keys of this node's ENIs and family.
    ///
    /// # Errors
    /// When the counters cannot be read.
    pub fn foreign(&self) -> Result<BTreeMap<Cell, u64>> {
        let mut counts = self.checks.past.clone();
        for (cell, count) in source_check::foreign(&self.vpc.router)? {
            if source_check::is_of(self.index, cell.0) {
                *counts.entry(cell).or_default() += count;
            }
        }
        Ok(counts)
    }

    fn save_counts(&mut self) -> Result<()> {
        self.checks.past = self.foreign()?;
        source_check::reset(&self.vpc.router, self.index)
    }

    /// The folder below which the agent pins.
    #[must_use]
    pub fn pin_root(&self) -> std::path::PathBuf {
        self.record.bpffs().join("towpath")
    }

    /// Takes the state of the node.
    ///
    /// # Errors
    /// When a tool fails.
    pub fn state(&self) -> Result<super::state::State> {
        super::state::snapshot(&self.node, &self.pin_root())
    }

    /// Ends the fabric in order, and checks that no foreign packet was counted, nor an untranslated
    /// one that had to be translated.
    ///
    /// # Errors
    /// When a packet was counted: by ENI and family, or by source.
    pub fn finish(mut self) -> Result<()> {
        self.checks.are_done = true;
        self.check_foreign()
            .inspect_err(|_| eprintln!("{}", self.describe()))
    }

    /// Makes the checks of [`Self::finish`], and removes the source checks, so that later
    /// measurements do not include their cost. Afterwards there are no counts.
    ///
    /// # Errors
    /// When a foreign packet was counted, and when nft refuses.
    pub fn lift_checks(&mut self) -> Result<()> {
        self.check_foreign()?;
        self.save_counts()?;
        for number in &self.attached {
            let table = self.eni(*number)?.router_device();
            let router = &self.vpc.router;
            router.run(&format!("nft delete table netdev {table}"))?;
        }
        Ok(())
    }

    fn check_foreign(&self) -> Result<()> {
        thread::sleep(SETTLE);
        let mut counts = self.foreign()?;
        counts.retain(|_, count| *count > 0);
        check(counts.is_empty(), || {
            let which = source_check::strange(&self.vpc.router);
            let name = self.name();
            format!(
                "packets left {name} by an ENI that does not own their source: {counts:?}; {which:?}"
            )
        })?;
        let leaks = self.leaks()?;
        check(leaks.is_empty(), || {
            format!("packets left the VPC with an address of a pod: {leaks:?}")
        })
    }

    /// Leaves everything up when this value is dropped.
    ///
    /// # Errors
    /// When the fabric's folder cannot be written to.
    pub fn keep(&mut self) -> Result<()> {
        self.agent.leave_running();
        self.record.keep()?;
        self.home.keep()
    }

    /// The state that a person needs to understand a failure.
    #[must_use]
    pub fn describe(&self) -> String {
        dump::describe(self)
    }
}

/// The time until packets in flight are counted.
const SETTLE: Duration = Duration::from_millis(20);

impl Drop for Fabric {
    fn drop(&mut self) {
        let verdict = match (thread::panicking(), self.checks.are_done) {
            (true, _) => {
                eprintln!("{}", self.describe());
                Ok(())
            }
            (false, true) => Ok(()),
            (false, false) => self
                .check_foreign()
                .inspect_err(|_| eprintln!("{}", self.describe())),
        };
        if let Err(error) = self.leave_vpc() {
            eprintln!("{} cannot leave its VPC: {error:#}", self.name());
        }
        if let Err(error) = verdict {
            panic!("{error:#}");
        }
    }
}
