//! Owner ENI of each address. No address has two, so a second claim to an address is refused.

use std::collections::BTreeMap;

use api::types::Readiness;
use ipnet::IpNet;
use loader::intent::{Eni, OtherEni, Problem};

use super::blocks::Claim;
use crate::problem::Findings;

/// An ENI with its claims to addresses for pods.
pub(super) type Claiming = (Box<Eni>, Vec<Claim>);

/// Assigns each address to the first ENI that claims it. An ENI whose own address belongs to
/// another one cannot be used.
///
/// ENIs' own addresses come first, and excluded ENIs last, so these take no address from others.
pub(super) fn settle(mut all: Vec<Claiming>, findings: &mut Findings) -> (Vec<Eni>, Vec<OtherEni>) {
    all.sort_by(|(a, _), (b, _)| rank(a).cmp(&rank(b)));
    let mut taken = Taken::default();
    let mut others = Vec::new();
    all.retain_mut(|(eni, _)| {
        let Some(own) = eni.own_address() else {
            return true;
        };
        let path = format!("status.eni.enis.{}.ip", eni.id);
        match taken.claim(IpNet::from(own), &path) {
            Ok(()) => true,
            Err(problem) => {
                others.push(unusable(eni, &problem));
                if eni.excluded.is_none() {
                    findings.put(problem);
                }
                false
            }
        }
    });
    let mut enis = Vec::new();
    for (mut eni, mut claims) in all {
        // A CIDR sorts before what it contains, and CIDRs are disjoint or nested.
        claims.sort();
        for Claim { net, path } in claims {
            match taken.claim(net, &path) {
                Ok(()) => {
                    eni.blocks.insert(net);
                }
                Err(_) if eni.excluded.is_some() => {}
                Err(problem) => findings.put(problem),
            }
        }
        let own = eni.own_address().filter(|_| eni.use_primary_address);
        eni.blocks.extend(own.map(IpNet::from));
        enis.push(*eni);
    }
    (enis, others)
}

fn rank(eni: &Eni) -> (bool, u32, &str) {
    (eni.excluded.is_some(), eni.device_index, &eni.id)
}

fn unusable(eni: &Eni, problem: &Problem) -> OtherEni {
    OtherEni {
        id: eni.id.clone(),
        device_index: Some(eni.device_index),
        mac: Some(eni.mac),
        readiness: match &eni.excluded {
            Some(reason) => Readiness::Excluded {
                reason: reason.clone(),
            },
            None => Readiness::not_ready(problem.to_string()),
        },
        whole: None,
    }
}

/// Addresses that are assigned so far, each with its field.
#[derive(Default)]
struct Taken(BTreeMap<IpNet, String>);

impl Taken {
    fn claim(&mut self, net: IpNet, path: &str) -> Result<(), Problem> {
        // Assigned blocks are disjoint, so an overlapping one is adjacent in the order.
        let before = self.0.range(..=net).next_back();
        let after = self.0.range(net..).next();
        let overlapping = before.into_iter().chain(after);
        let mut overlapping =
            overlapping.filter(|(other, _)| other.contains(&net) || net.contains(*other));
        if let Some((other, holder)) = overlapping.next() {
            let allowed = format_args!("clear of {other}, which is {holder}");
            return Err(Problem::refused(path, &net.to_string(), allowed));
        }
        self.0.insert(net, path.to_owned());
        Ok(())
    }
}
