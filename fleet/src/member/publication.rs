//! The status and the blocks that a node is to be shown.

use std::collections::BTreeMap;
use std::net::IpAddr;

use cloud::node::{Aside, Role};
use cloud::pool::{DEFAULT_POOL, Pools, Serves, serves};
use cloud::{AttachState, Eni, InstanceId, Inventory};
use ipam::node::POOL_TAG;
use ipnet::IpNet;
use kubernetes::operation::allocated::Blocks;
use kubernetes::operation::patch::StaticIp;
use kubernetes::operation::status::{EniStatus, SubnetStatus, VpcStatus};

use super::Member;
use crate::topology::Topology;

/// The ENIs and blocks that a node is to be shown.
#[derive(Clone, Debug, Default)]
pub(crate) struct Publication {
    pub(crate) enis: BTreeMap<String, EniStatus>,
    /// The blocks for pods.
    pub(crate) blocks: Blocks,
    /// Reasons for which attached ENIs are not shown.
    pub(crate) withheld: Vec<String>,
    /// Reasons for which ENIs of the status cannot be judged. While there are any, the status keeps
    /// its ENIs.
    pub(crate) unjudged: Vec<String>,
    /// The node's static IP.
    pub(crate) static_ip: StaticIp,
}

impl Publication {
    /// The publication of a node whose ENIs are read.
    pub(crate) fn of(
        member: &Member,
        instance: &InstanceId,
        inventory: &Inventory,
        topology: &Topology,
    ) -> Self {
        let mut all = Self::default();
        let facts = &topology.facts;
        for eni in inventory.of_instance(instance) {
            let role = Role::of(eni, &member.node.rules);
            if !is_shown(eni, &role) || member.node.release.empty.contains(&eni.id) {
                continue;
            }
            let blocks = blocks(member, eni, inventory);
            let serves = serves(eni, &facts.pools, &facts.subnets);
            match entry(member, eni, &blocks, topology) {
                Ok(mut entry) => {
                    if role == Role::Counted && serves == Serves::Default {
                        all.give(&entry, blocks, eni);
                    }
                    name_pool(&mut entry, &serves, &facts.pools);
                    all.enis.insert(entry.id.clone(), entry);
                }
                Err(reason) if member.published.enis.contains_key(&eni.id) => {
                    all.unjudged.push(format!("{reason}; the status stays"));
                }
                Err(reason) => all.withheld.push(reason),
            }
        }
        all
    }

    /// Gives the blocks of an ENI to pods.
    fn give(&mut self, entry: &EniStatus, blocks: Vec<IpNet>, eni: &Eni) {
        let own = eni.own.filter(|_| entry.blocks.with_own);
        let own = own.map(|own| IpNet::from(IpAddr::V4(own)));
        for block in blocks.into_iter().chain(own) {
            self.blocks.insert(block, entry.id.clone());
        }
    }
}

/// Agents are shown ENIs of card 0 whose device is there, those that give no addresses included.
fn is_shown(eni: &Eni, role: &Role) -> bool {
    let has_device = eni
        .attachment
        .as_ref()
        .is_some_and(|it| it.state == AttachState::Attached);
    let has_addresses = matches!(
        role,
        Role::Counted | Role::Aside(Aside::Index | Aside::Tags)
    );
    has_device && has_addresses
}

/// Adds the pool of an ENI to its tags, because agents do not know the tags of subnets. An ENI
/// without such a tag belongs to the default pool, unless a pool is bound by tags of subnets.
fn name_pool(entry: &mut EniStatus, serves: &Serves<'_>, pools: &Pools) {
    let is_needed = pools.values().any(|it| !it.subnet_tags.is_empty());
    let name = match serves {
        Serves::Pool(name) => name,
        Serves::Default if is_needed => DEFAULT_POOL,
        Serves::Default | Serves::Nothing(_) => return,
    };
    entry.tags.insert(POOL_TAG.to_owned(), name.to_owned());
}

/// Blocks that are settled, or that the status has already.
fn blocks(member: &Member, eni: &Eni, inventory: &Inventory) -> Vec<IpNet> {
    let settled: Vec<IpNet> = inventory.settled_blocks(&eni.id).collect();
    let shown = eni.blocks.iter().copied();
    shown
        .filter(|block| !member.releases.withholds(block))
        .filter(|block| settled.contains(block) || member.published.has(&eni.id, block))
        .collect()
}

/// The entry of an ENI.
///
/// # Errors
/// When facts are missing without which an agent could not use it, with the reason.
fn entry(
    member: &Member,
    eni: &Eni,
    blocks: &[IpNet],
    topology: &Topology,
) -> Result<EniStatus, String> {
    let place = &eni.placement;
    let subnet = topology.facts.subnets.get(&place.subnet);
    let subnet = subnet.filter(|it| it.ipv4.is_some() || it.ipv6.is_some());
    let subnet =
        subnet.ok_or_else(|| format!("{}: no CIDR of {} is known", eni.id, place.subnet))?;
    let vpc = topology.vpcs.get(&place.vpc);
    let vpc = vpc.ok_or_else(|| format!("{}: no CIDR of {} is known", eni.id, place.vpc))?;
    let index = eni.attachment.as_ref().map_or(0, |it| it.index);
    let mut status = EniStatus {
        id: eni.id.to_string(),
        ip: eni.own,
        mac: mac(eni.mac),
        zone: place.zone.clone(),
        description: eni.description.clone(),
        number: index,
        subnet: SubnetStatus {
            id: place.subnet.to_string(),
            cidr: subnet.ipv4,
        },
        vpc: VpcStatus {
            id: place.vpc.to_string(),
            primary: match vpc.primary {
                IpNet::V4(net) => Some(net),
                IpNet::V6(_) => None,
            },
            cidrs: vpc.others.clone(),
        },
        groups: eni.groups.iter().map(ToString::to_string).collect(),
        tags: eni.tags.clone(),
        public_ip: eni.public,
        ..EniStatus::default()
    };
    status.blocks.with_own = member.node.rules.use_primary && index != 0;
    for block in blocks {
        status.blocks.insert(*block);
    }
    Ok(status)
}

fn mac(bytes: [u8; 6]) -> String {
    let parts = bytes.map(|byte| format!("{byte:02x}"));
    parts.join(":")
}
