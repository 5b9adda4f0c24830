//! Effects of a cloud, carried out in the fabric.

use std::collections::BTreeMap;
use std::sync::Arc;

use anyhow::{Context as _, Result};
use ec2_fake::{Cloud, Effect};

use crate::fabric::groups::{self, Group, Interface};
use crate::fabric::layout::{Eni, Host};
use crate::fabric::source_check::Cell;
use crate::fabric::{Fabric, Netns, Vpc};

use super::world::NODES;

/// A node of the fabric that is an instance of the cloud.
#[derive(Debug)]
struct Node {
    index: u8,
    netns: Netns,
    vpc: Arc<Vpc>,
    mtu: u32,
}

/// The nodes and their ENIs.
#[derive(Debug, Default)]
pub(super) struct Driver {
    /// By the instance.
    nodes: BTreeMap<String, Node>,
    /// By their ids: the instance and the ENI.
    enis: BTreeMap<String, (String, Eni)>,
    /// Foreign packets of ENIs that are gone.
    past: BTreeMap<Cell, u64>,
    /// Number of addresses and prefixes that ENIs have lost.
    unassigned: usize,
    /// Effects that could not be carried out.
    failures: Vec<String>,
    /// The security groups that the VPC's router enforces, if any.
    groups: Vec<Group>,
    /// Hosts of the VPC that have a group.
    hosts: Vec<(Host, &'static str)>,
}

impl Driver {
    /// A cloud without nodes. With any groups the router enforces them, and that of nodes.
    pub(super) fn new(groups: &[Group], hosts: &[(Host, &'static str)]) -> Self {
        let all = [NODES].into_iter().chain(groups.iter().copied());
        Self {
            groups: all.filter(|_| !groups.is_empty()).collect(),
            hosts: hosts.to_vec(),
            ..Self::default()
        }
    }

    /// Adds a node. Its primary ENI is already attached.
    pub(super) fn join(&mut self, fabric: &Fabric, instance: &str, mtu: u32) -> Result<()> {
        let primary = fabric.eni(0)?.clone();
        let node = Node {
            index: fabric.index(),
            netns: Netns::foreign(&fabric.node.path())?,
            vpc: Arc::clone(&fabric.vpc),
            mtu,
        };
        self.nodes.insert(instance.to_owned(), node);
        let held = (instance.to_owned(), primary);
        self.enis.insert(held.1.id(), held);
        Ok(())
    }

    /// Removes all nodes.
    pub(super) fn clear(&mut self) {
        self.nodes.clear();
        self.enis.clear();
    }

    /// The ENIs of a node, by its number.
    pub(super) fn enis(&self, node: u8) -> Vec<Eni> {
        let is_its = |instance: &String| self.nodes.get(instance).map(|it| it.index) == Some(node);
        let enis = self.enis.values().filter(|(instance, _)| is_its(instance));
        enis.map(|(_, eni)| eni.clone()).collect()
    }

    /// Number of addresses and prefixes that ENIs have lost so far.
    pub(super) fn unassigned(&self) -> usize {
        self.unassigned
    }

    /// Effects that could not be carried out, and foreign packets of ENIs that are gone.
    pub(super) fn complaints(&self) -> Vec<String> {
        let foreign = self.past.iter().filter(|(_, count)| **count > 0);
        let foreign = foreign.map(|(cell, count)| format!("{count} foreign packets of {cell:?}"));
        self.failures.iter().cloned().chain(foreign).collect()
    }

    /// Carries out an effect.
    pub(super) fn carry_out(&mut self, cloud: &Cloud, effect: &Effect) {
        let done = match effect {
            Effect::Attached { eni, instance } => self.attach(cloud, eni, instance),
            Effect::Detached { eni, .. } => self.detach(eni),
            Effect::Assigned { eni, .. } => self.deliver(cloud, eni),
            Effect::Unassigned { eni, blocks } => {
                self.unassigned += blocks.len();
                self.deliver(cloud, eni)
            }
            Effect::Running { .. } | Effect::Regrouped { .. } => Ok(()),
            Effect::Terminated { instance } => {
                self.nodes.remove(instance);
                Ok(())
            }
        };
        let done = done.and_then(|()| self.enforce(cloud));
        if let Err(error) = done {
            self.failures.push(format!("{effect:?}: {error:#}"));
        }
    }

    /// Makes the router enforce the groups that ENIs have now.
    pub(super) fn enforce(&self, cloud: &Cloud) -> Result<()> {
        let Some(node) = self.nodes.values().next() else {
            return Ok(());
        };
        if self.groups.is_empty() {
            return Ok(());
        }
        let enis = self.enis.values().filter_map(|(_, eni)| {
            let of_cloud = cloud.interface(&eni.id())?;
            Some(Interface::of_eni(eni, &of_cloud.groups))
        });
        let hosts = self.hosts.iter();
        let hosts = hosts.map(|(host, group)| Interface::of_host(*host, group));
        let interfaces: Vec<Interface> = enis.chain(hosts).collect();
        groups::enforce(&node.vpc.router, &self.groups, &interfaces)
    }

    fn attach(&mut self, cloud: &Cloud, id: &str, instance: &str) -> Result<()> {
        // An instance that is not a node of the fabric has no devices.
        let Some(node) = self.nodes.get(instance) else {
            return Ok(());
        };
        let eni = Eni::of_cloud(node.index, cloud.interface(id).context("the ENI is gone")?)?;
        node.vpc.attach(&node.netns, &eni, node.mtu)?;
        self.enis.insert(id.to_owned(), (instance.to_owned(), eni));
        Ok(())
    }

    /// Removes the device. A primary ENI goes with its node.
    fn detach(&mut self, id: &str) -> Result<()> {
        let Some((instance, eni)) = self.enis.remove(id) else {
            return Ok(());
        };
        let Some(node) = self.nodes.get(&instance).filter(|_| eni.number > 0) else {
            return Ok(());
        };
        for (cell, count) in crate::fabric::source_check::foreign(&node.vpc.router)? {
            if cell.0 == eni.key {
                *self.past.entry(cell).or_default() += count;
            }
        }
        node.vpc.detach(&eni)
    }

    /// Updates the ENI's addresses in router and source check.
    fn deliver(&mut self, cloud: &Cloud, id: &str) -> Result<()> {
        let Some((instance, eni)) = self.enis.get_mut(id) else {
            return Ok(());
        };
        let (Some(node), Some(now)) = (self.nodes.get(instance), cloud.interface(id)) else {
            return Ok(());
        };
        eni.blocks = now.addresses.blocks.iter().copied().collect();
        node.vpc.deliver(eni)
    }
}
