//! The nodes of a VPC: what each of them has there, and what its gateways allow each.

use std::collections::BTreeMap;
use std::sync::{Mutex, MutexGuard, PoisonError};

use anyhow::{Result, ensure};
use ipam::Family;
use ipnet::IpNet;

use super::gateway::Allowed;
use crate::fabric::layout::Eni;

/// A node, as its VPC knows it.
#[derive(Clone, Debug, Default)]
pub(super) struct Member {
    /// Its ENIs.
    pub(in crate::fabric) enis: Vec<Eni>,
    /// Its sources that may leave the VPC untranslated, and for where.
    pub(in crate::fabric) allowed: Vec<Allowed>,
}

/// The nodes of a VPC, which count from 0.
#[derive(Debug, Default)]
pub(in crate::fabric) struct Members(Mutex<BTreeMap<u8, Member>>);

impl Members {
    /// Takes a node in.
    ///
    /// # Errors
    /// When it is there already, or one of its ENIs has what another node's ENI has.
    pub(in crate::fabric) fn enter(&self, node: u8, enis: &[Eni]) -> Result<()> {
        let mut members = self.lock();
        ensure!(
            !members.contains_key(&node),
            "node {node} is in the VPC already"
        );
        let others = members.values().flat_map(|member| &member.enis);
        for other in others {
            for eni in enis {
                let common = common(eni, other);
                ensure!(
                    common.is_empty(),
                    "{} of node {node} and {} of another node both have {}",
                    eni.id(),
                    other.id(),
                    common.join(", ")
                );
            }
        }
        let enis = enis.to_vec();
        members.insert(
            node,
            Member {
                enis,
                ..Member::default()
            },
        );
        Ok(())
    }

    /// Renews the record of a node.
    pub(super) fn renew(&self, node: u8, member: Member) {
        self.lock().insert(node, member);
    }

    /// Lets a node go.
    pub(in crate::fabric) fn leave(&self, node: u8) {
        self.lock().remove(&node);
    }

    /// The ENIs of all nodes.
    pub(in crate::fabric) fn enis(&self) -> Vec<Eni> {
        let members = self.lock();
        let enis = members.values().flat_map(|member| &member.enis);
        enis.cloned().collect()
    }

    /// The sources of all nodes that may leave untranslated, and for where.
    pub(in crate::fabric) fn allowed(&self) -> Vec<Allowed> {
        let members = self.lock();
        let allowed = members.values().flat_map(|member| &member.allowed);
        allowed.copied().collect()
    }

    fn lock(&self) -> MutexGuard<'_, BTreeMap<u8, Member>> {
        // Each change is one step: a thread that panicked left none half done.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Everything that two ENIs both have, though only one can.
fn common(one: &Eni, other: &Eni) -> Vec<String> {
    let sources = |eni: &Eni| -> Vec<IpNet> {
        let families = Family::ALL.iter();
        families.flat_map(|family| eni.sources(*family)).collect()
    };
    let theirs = sources(other);
    let meets = |net: &IpNet| {
        let mut theirs = theirs.iter();
        theirs.any(|other| net.contains(other) || other.contains(net))
    };
    let nets = sources(one).into_iter().filter(meets);
    let mut common: Vec<_> = nets.map(|net| net.to_string()).collect();
    if one.mac == other.mac {
        common.push(format!("the MAC {}", one.mac));
    }
    if one.id() == other.id() {
        common.push("that id".to_owned());
    }
    if one.key == other.key {
        common.push(format!("the key {}", one.key));
    }
    common
}

#[cfg(test)]
mod tests {
    use super::super::room::JOINED;
    use super::*;
    use crate::fabric::layout::Addressing;

    #[test]
    fn nodes_share_subnets_and_nothing_else() {
        let ways = [
            Addressing::Addresses,
            Addressing::Prefixes,
            Addressing::SeveralPrefixes(3),
        ];
        for first in ways {
            for others in ways {
                let members = Members::default();
                for node in 0..=JOINED {
                    let addressing = if node == 0 { first } else { others };
                    let enis: Vec<_> = (0..4)
                        .map(|number| Eni::on_node(node, number, number, addressing).unwrap())
                        .map(Eni::with_own_v6)
                        .collect();
                    for eni in &enis {
                        assert!(eni.sources(Family::V4).iter().all(|net| match net {
                            IpNet::V4(net) => eni.subnet().contains(net),
                            IpNet::V6(_) => false,
                        }));
                    }
                    members.enter(node, &enis).unwrap();
                }
                assert_eq!(members.enis().len(), 4 * (usize::from(JOINED) + 1));
            }
        }
    }

    #[test]
    fn two_nodes_of_a_shared_subnet_fit() {
        let members = Members::default();
        for node in [0, 1] {
            let enis = (0..3).map(|number| {
                Eni::on_node(node, number, number.min(1), Addressing::Addresses).unwrap()
            });
            members.enter(node, &enis.collect::<Vec<_>>()).unwrap();
        }
    }

    #[test]
    fn a_node_that_has_what_another_has_is_refused() {
        let eni = |node| Eni::on_node(node, 1, 1, Addressing::Prefixes).unwrap();
        let members = Members::default();
        members.enter(0, &[eni(0)]).unwrap();
        let error = members.enter(0, &[eni(1)]).unwrap_err().to_string();
        assert_eq!(error, "node 0 is in the VPC already");
        let mut thief = eni(1);
        thief.blocks.clone_from(&eni(0).blocks);
        let error = members.enter(1, &[thief]).unwrap_err().to_string();
        assert!(error.ends_with("both have 10.0.1.64/28, 2600:1f18:10:5601:a::/80"));
        members.enter(1, &[eni(1)]).unwrap();
        members.leave(0);
        members.enter(0, &[eni(0)]).unwrap();
    }
}
