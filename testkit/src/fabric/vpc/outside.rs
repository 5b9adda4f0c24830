//! The fabric beyond its VPC: the world, sources that may go there untranslated, and their pool.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::net::IpAddr;
use std::path::PathBuf;

use anyhow::{Context as _, Result};
use ipam::Family;
use ipnet::IpNet;
use serde_json::Value;

use super::world::{Link, World};
use super::{gateway, source_check};
use crate::fabric::Fabric;
use crate::fabric::document;
use crate::fabric::layout::{Eni, of_key};
use crate::fabric::record::Record;

/// The folder of the pools' documents.
pub(super) fn pools_folder(record: &Record) -> PathBuf {
    record.folder().join("pools")
}

impl Fabric {
    /// The world.
    ///
    /// # Errors
    /// When the fabric was made without one.
    pub fn world(&self) -> Result<&World> {
        self.world.as_deref().context("this fabric has no world")
    }

    /// Sets the MTU of a link of the path to the Internet.
    ///
    /// # Errors
    /// As [`Self::world`].
    pub fn set_world_mtu(&self, link: Link, mtu: u32) -> Result<()> {
        self.world()?.set_mtu(&self.vpc.router, link, mtu)
    }

    /// Makes the VPC's gateways let sources out untranslated, as a peering or a public address of a
    /// pod does. Their counts of this node are reset.
    ///
    /// # Errors
    /// When nft refuses.
    pub fn allow_untranslated(&mut self, sources: &[IpNet]) -> Result<()> {
        for source in sources {
            let everywhere = Family::of(source.addr()).default_route();
            self.checks.allowed.push((*source, everywhere));
        }
        self.guard()
    }

    /// Makes the VPC's gateways let one source out untranslated, towards one destination of its
    /// family.
    ///
    /// # Errors
    /// When nft refuses.
    pub fn allow_untranslated_to(&mut self, source: IpAddr, to: IpAddr) -> Result<()> {
        self.checks.allowed.push((source.into(), to.into()));
        self.guard()
    }

    /// Reverts [`Self::allow_untranslated`]. All counts are reset.
    ///
    /// # Errors
    /// When nft refuses.
    pub fn forbid_untranslated(&mut self) -> Result<()> {
        self.checks.allowed.clear();
        self.guard()
    }

    /// Renews the guard's list of sources that may leave, and resets this node's counts.
    fn guard(&self) -> Result<()> {
        self.tell_vpc();
        let router = &self.vpc.router;
        gateway::allow(router, &self.vpc.members.allowed())?;
        gateway::forget(router, self.index)
    }

    /// The packets that would have left the VPC from this node with an address of a pod, by source.
    ///
    /// # Errors
    /// When nft fails.
    pub fn leaks(&self) -> Result<BTreeMap<IpAddr, u64>> {
        let mut leaks = BTreeMap::new();
        if self.world.is_some() {
            for leak in gateway::leaks(&self.vpc.router, self.index)? {
                *leaks.entry(leak.from).or_default() += leak.packets;
            }
        }
        Ok(leaks)
    }

    /// The numbers of the ENIs by which packets between two addresses left this node since the flows
    /// were forgotten, translated ones too.
    ///
    /// # Errors
    /// When nft fails.
    pub fn enis_between(&self, one: IpAddr, other: IpAddr) -> Result<BTreeSet<u8>> {
        let family = Family::of(one);
        let own = self.enis.iter().flat_map(|eni| eni.own_addresses(family));
        let own: Vec<_> = own.collect();
        let keys = source_check::enis_between(&self.vpc.router, one, other, &own)?;
        let own = keys
            .into_iter()
            .filter(|key| source_check::is_of(self.index, *key));
        own.map(|key| Ok(u8::try_from(of_key(key).1)?)).collect()
    }

    /// Writes a pool's document.
    ///
    /// # Errors
    /// When it cannot be written.
    pub fn set_pool(&self, name: &str, skips: bool) -> Result<()> {
        let folder = pools_folder(&self.record);
        fs::create_dir_all(&folder)?;
        let text = serde_json::to_string_pretty(&document::pool(name, skips))?;
        // Readers of the folder only see whole documents.
        let new = self.file("pool.new");
        fs::write(&new, text)?;
        fs::rename(new, folder.join(format!("{name}.yaml")))?;
        Ok(())
    }

    /// A path in the fabric's folder, for a setting that names a file.
    #[must_use]
    pub fn file(&self, name: &str) -> PathBuf {
        self.record.folder().join(name)
    }

    /// The cgroup that is removed with the fabric, with all of its processes.
    #[must_use]
    pub fn cgroup(&self) -> String {
        self.record.cgroup()
    }

    /// Makes that cgroup, in every hierarchy that the machine has.
    ///
    /// # Errors
    /// When the kernel refuses.
    pub fn make_cgroup(&self) -> Result<()> {
        crate::fabric::node::cgroup::make(&self.cgroup())
    }

    /// Changes an ENI's primary address in the VPC, but not in the document and on the device. The
    /// VPC accepts and delivers packets of the former one until [`Self::retire_addresses`].
    ///
    /// # Errors
    /// When the router refuses.
    pub fn renumber(&mut self, number: u8, address: IpAddr) -> Result<()> {
        self.change_eni(number, |eni| eni.renumber(address))
    }

    /// Removes an ENI's former primary addresses from the VPC.
    ///
    /// # Errors
    /// When the router refuses.
    pub fn retire_addresses(&mut self, number: u8) -> Result<()> {
        self.change_eni(number, Eni::retire)
    }

    fn change_eni(&mut self, number: u8, change: impl FnOnce(&mut Eni)) -> Result<()> {
        let eni = self.enis.iter_mut().find(|eni| eni.number == number);
        let eni = eni.with_context(|| format!("no ENI {number}"))?;
        change(eni);
        self.vpc.deliver(eni)?;
        self.tell_vpc();
        match self.world {
            Some(_) => gateway::renew(&self.vpc.router, &self.vpc.members.enis()),
            None => Ok(()),
        }
    }

    /// Publishes a changed document.
    ///
    /// # Errors
    /// When it cannot be written.
    pub fn publish_changed(&self, change: impl FnOnce(&mut Value)) -> Result<()> {
        let mut document = self.document();
        change(&mut document);
        self.agent.write_document(&document)
    }
}
