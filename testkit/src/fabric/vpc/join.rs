//! Nodes of one VPC: how one enters it, and how it leaves.

use std::sync::Arc;

use anyhow::{Result, ensure};
use serde_json::json;

use super::members::Member;
use super::room::JOINED;
use super::world::World;
use super::{gateway, outside};
use crate::fabric::agent::{self, Agent};
use crate::fabric::document;
use crate::fabric::layout::DIRECT_POOL;
use crate::fabric::record::Record;
use crate::fabric::spec::Spec;
use crate::fabric::vpc::Vpc;
use crate::fabric::{Fabric, Netns};

/// A place for a node in a VPC.
pub(in crate::fabric) struct Seat {
    /// Which node it is, from 0.
    pub(in crate::fabric) index: u8,
    pub(in crate::fabric) vpc: Arc<Vpc>,
    pub(in crate::fabric) world: Option<Arc<World>>,
    /// The record that the VPC's and the world's namespaces go with.
    pub(in crate::fabric) home: Arc<Record>,
}

/// Writes the configuration of a node's agent.
pub(in crate::fabric) fn prepare_agent(record: &Record, spec: &Spec) -> Result<Agent> {
    let mut settings = json!({});
    if spec.world {
        settings = json!({"masquerade": {
            "ipv4": true, "ipv6": true, "pools": outside::pools_folder(record)
        }});
    }
    agent::merge(&mut settings, &spec.settings);
    Agent::prepare(&record.folder(), &record.bpffs(), &settings)
}

/// Makes the namespace of a node.
pub(in crate::fabric) fn make_node(record: &Record) -> Result<Netns> {
    let node = Netns::create(&format!("{}-node", record.prefix()))?;
    node.sysctls(&[
        ("ipv4/ip_forward", "0"),
        ("ipv4/conf/all/rp_filter", "0"),
        // A distribution's default that breaks secondary ENIs: the agent has to cope.
        ("ipv4/conf/default/rp_filter", "1"),
        ("ipv6/conf/default/accept_dad", "0"),
        // The kernel sends a pod six ICMP errors at once, and then one a second. The number that a
        // test causes within a second depends on the machine.
        ("ipv4/icmp_ratelimit", "0"),
        ("ipv6/icmp/ratelimit", "0"),
    ])?;
    Ok(node)
}

impl Fabric {
    /// Makes another node in the VPC, with ENIs in the same subnets, and shows that their source
    /// checks count. Its agent is not started. `node` says which node it is: the first is 0.
    ///
    /// The VPC and its hosts go with the last of its nodes, whichever that is. So does the first node's
    /// folder.
    ///
    /// # Errors
    /// When that node is there already or would be one too many. When its ENIs have what others have.
    /// When only one of the two has a world. As [`Self::create`].
    pub fn join(&self, node: u8, spec: &Spec) -> Result<Self> {
        ensure!(
            (1..=JOINED).contains(&node),
            "a node that joins is one of 1 to {JOINED}, not {node}"
        );
        ensure!(
            spec.world == self.world.is_some(),
            "nodes of one VPC have a world all or none"
        );
        let record = Record::create()?;
        let agent = prepare_agent(&record, spec)?;
        self.vpc.share()?;
        let seat = Seat {
            index: node,
            vpc: Arc::clone(&self.vpc),
            world: self.world.clone(),
            home: Arc::clone(&self.home),
        };
        Self::enter(seat, Arc::new(record), agent, spec)
    }

    /// Which node of its VPC this is, from 0.
    #[must_use]
    pub fn index(&self) -> u8 {
        self.index
    }

    /// The node's name.
    #[must_use]
    pub fn name(&self) -> String {
        document::node_name(self.index)
    }

    /// Makes the gateways know this node's ENIs, where there is a world.
    pub(in crate::fabric) fn pass_gateways(&self) -> Result<()> {
        let Vpc {
            router, members, ..
        } = &*self.vpc;
        if self.world.is_none() {
            return Ok(());
        }
        match self.index {
            0 => gateway::install(router, &members.enis())?,
            _ => gateway::renew(router, &members.enis())?,
        }
        // Nothing may leave untranslated yet, and the second pool skips masquerade.
        self.set_pool(DIRECT_POOL, true)
    }

    /// Renews the VPC's record of this node.
    pub(in crate::fabric) fn tell_vpc(&self) {
        let member = Member {
            enis: self.enis.clone(),
            allowed: self.checks.allowed.clone(),
        };
        self.vpc.members.renew(self.index, member);
    }

    /// Takes this node out of a VPC that goes on with others: a namespace that goes takes its devices
    /// along when it likes.
    pub(in crate::fabric) fn leave_vpc(&self) -> Result<()> {
        if self.record.is_kept() || Arc::strong_count(&self.vpc) == 1 {
            return Ok(());
        }
        let Vpc {
            router, members, ..
        } = &*self.vpc;
        members.leave(self.index);
        for number in &self.attached {
            self.vpc.detach(self.eni(*number)?)?;
        }
        if self.world.is_some() {
            gateway::renew(router, &members.enis())?;
            gateway::allow(router, &members.allowed())?;
            gateway::forget(router, self.index)?;
        }
        Ok(())
    }
}
