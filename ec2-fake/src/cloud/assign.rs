//! Addresses and prefixes of interfaces that exist, of both families.

use std::net::IpAddr;
use std::sync::Arc;

use ipnet::IpNet;

use super::attach::{check_count, no_prefixes};
use super::{Cloud, Effect, Eni};
use crate::answer::Answer;
use crate::call::Assign;
use crate::error::{Failure, Result};
use crate::family::Family;
use crate::space::Ask;

impl Cloud {
    pub(super) fn assign(&mut self, assign: &Assign) -> Result<Answer> {
        let eni = Arc::clone(self.known(&assign.eni)?);
        assign.ask.check()?;
        check_family(assign)?;
        let wanted = assign.ask.singles() + assign.ask.blocks();
        if wanted == 0 {
            return Err(missing(assign.family));
        }
        self.check_room(&eni, assign, wanted)?;
        let moved = if assign.reassign {
            self.release_elsewhere(&eni, &assign.ask)?
        } else {
            Vec::new()
        };
        let subnet = self.network.subnets.get_mut(&eni.placement.subnet);
        let space = subnet.and_then(|subnet| subnet.space_mut(assign.family));
        let space = space.ok_or_else(|| {
            let family = assign.family;
            let subnet = &eni.placement.subnet;
            Failure::value(format!("subnet {subnet} has no {family:?} CIDR"))
        })?;
        for (_, net) in &moved {
            space.give_back(net);
        }
        let blocks = match space.take(&assign.ask) {
            Ok(blocks) => blocks,
            Err(failure) => {
                let addresses = moved.iter().map(|(_, net)| net.addr()).collect();
                let back = Ask {
                    addresses,
                    ..Ask::default()
                };
                space.take(&back)?;
                return Err(failure);
            }
        };
        for (owner, net) in moved {
            self.drop_blocks(&owner, &[net]);
        }
        self.edit(&assign.eni, |eni| {
            eni.addresses.blocks.extend(blocks.iter().copied());
        });
        self.time.effects.push(Effect::Assigned {
            eni: assign.eni.clone(),
            blocks: blocks.clone(),
        });
        Ok(Answer::Assigned {
            family: assign.family,
            eni: assign.eni.clone(),
            blocks,
        })
    }

    fn check_room(&self, eni: &Eni, assign: &Assign, wanted: usize) -> Result<()> {
        let attachment = eni.attachment.as_ref();
        let instance = attachment.and_then(|attachment| self.instance(&attachment.instance));
        let Some(limits) = instance.and_then(|instance| instance.limits()) else {
            return Ok(());
        };
        let most = match assign.family {
            Family::V4 => limits.ipv4,
            Family::V6 => limits.ipv6,
        };
        if assign.ask.blocks() > 0 && !limits.has_prefixes() {
            return Err(no_prefixes(limits));
        }
        check_count(eni.addresses.slots(assign.family) + wanted, most, limits)
    }

    /// The addresses of a request that other interfaces of the subnet have, with their owners.
    fn release_elsewhere(&self, eni: &Eni, ask: &Ask) -> Result<Vec<(String, IpNet)>> {
        let mut found = Vec::new();
        for address in &ask.addresses {
            let net = IpNet::from(*address);
            let owner = self.interfaces().find(|other| {
                other.placement.subnet == eni.placement.subnet
                    && other.id != eni.id
                    && other.addresses.nets().any(|it| it == net)
            });
            let Some(owner) = owner else { continue };
            if !owner.addresses.blocks.contains(&net) {
                return Err(Failure::value(format!(
                    "{address} is the primary address of {}",
                    owner.id
                )));
            }
            found.push((owner.id.clone(), net));
        }
        Ok(found)
    }

    pub(super) fn unassign(&mut self, assign: &Assign) -> Result<Answer> {
        let eni = self.known(&assign.eni)?;
        check_family(assign)?;
        let addresses = assign
            .ask
            .addresses
            .iter()
            .map(|address| IpNet::from(*address));
        let blocks: Vec<IpNet> = addresses
            .chain(assign.ask.prefixes.iter().copied())
            .collect();
        if blocks.is_empty() {
            return Err(missing(assign.family));
        }
        let primary = eni
            .addresses
            .primary
            .map(|address| IpNet::from(IpAddr::V4(address)));
        if let Some(net) = blocks.iter().find(|net| Some(**net) == primary) {
            return Err(Failure::value(format!(
                "{} is the primary address of '{}' and cannot be unassigned",
                net.addr(),
                eni.id
            )));
        }
        if let Some(net) = blocks
            .iter()
            .find(|net| !eni.addresses.blocks.contains(net))
        {
            return Err(Failure::value(format!(
                "Some of [{net}] are not assigned to interface {}",
                eni.id
            )));
        }
        let subnet = eni.placement.subnet.clone();
        if let Some(subnet) = self.network.subnets.get_mut(&subnet) {
            for net in &blocks {
                subnet.give_back(net);
            }
        }
        self.drop_blocks(&assign.eni, &blocks);
        Ok(Answer::Unassigned {
            family: assign.family,
            eni: assign.eni.clone(),
            blocks,
        })
    }

    /// Takes blocks from an interface; the subnet's view of them stays.
    fn drop_blocks(&mut self, id: &str, blocks: &[IpNet]) {
        self.edit(id, |eni| {
            eni.addresses.blocks.retain(|net| !blocks.contains(net));
            eni.addresses
                .public
                .retain(|address, _| !blocks.contains(&IpNet::from(IpAddr::V4(*address))));
        });
        for elastic in self.addresses.values_mut() {
            let gone = elastic
                .association
                .as_ref()
                .is_some_and(|(_, of, address)| {
                    of == id && blocks.contains(&IpNet::from(IpAddr::V4(*address)))
                });
            if gone {
                elastic.association = None;
            }
        }
        self.time.effects.push(Effect::Unassigned {
            eni: id.to_owned(),
            blocks: blocks.to_vec(),
        });
    }
}

/// Refuses addresses of the other family.
fn check_family(assign: &Assign) -> Result<()> {
    let addresses = assign.ask.addresses.iter().copied();
    let prefixes = assign.ask.prefixes.iter().map(IpNet::addr);
    let mut all = addresses.chain(prefixes);
    match all.find(|address| Family::of(address) != assign.family) {
        Some(address) => Err(Failure::value(format!(
            "{address}: expected an address of {:?}",
            assign.family
        ))),
        None => Ok(()),
    }
}

fn missing(family: Family) -> Failure {
    let names = match family {
        Family::V4 => {
            "privateIpAddress, secondaryPrivateIpAddressCount, ipv4Prefix or ipv4PrefixCount"
        }
        Family::V6 => "ipv6Addresses, ipv6AddressCount, ipv6Prefix or ipv6PrefixCount",
    };
    Failure::new(
        "MissingParameter",
        format!("Either {names} should be provided"),
    )
}
