//! The CIDRs of pools that can be used.

use std::collections::BTreeMap;

use ipnet::IpNet;

use super::pool::{PoolSpec, Refusal, Space};
use crate::Family;
use crate::value::family::overlap;

/// The most bits that number the blocks of a CIDR. Cilium has the same bound for IPv6.
const WIDTH_V6: u8 = 16;
const WIDTH_V4: u8 = 24;

/// CIDRs of pools, by pool and family.
pub(super) type Cidrs = BTreeMap<(String, Family), Vec<IpNet>>;

/// Judges all CIDRs. One that is in force stays so while its pool has it. Among the others, those
/// of the earlier pool come first.
pub(super) fn judge(
    pools: &BTreeMap<String, PoolSpec>,
    reserved: &BTreeMap<IpNet, String>,
    before: &Cidrs,
) -> (Cidrs, Vec<(String, Refusal)>) {
    let mut order: Vec<_> = pools.iter().collect();
    order.sort_by_key(|(name, pool)| (&pool.created, *name));
    let mut wanted: Vec<(bool, &str, Family, IpNet)> = Vec::new();
    let mut refusals = Vec::new();
    for (name, pool) in order {
        for (family, space) in &pool.spaces {
            let known = before.get(&(name.clone(), *family));
            for cidr in space.cidrs.iter().map(IpNet::trunc) {
                match fits(space, *family, cidr) {
                    Ok(()) => {
                        let is_new = !known.is_some_and(|known| known.contains(&cidr));
                        wanted.push((is_new, name, *family, cidr));
                    }
                    Err(refusal) => refusals.push((name.clone(), refusal)),
                }
            }
        }
    }
    // The sort is stable: the order of pools stays.
    wanted.sort_by_key(|(is_new, ..)| *is_new);
    let mut taken: Vec<(IpNet, String)> = Vec::new();
    for (net, owner) in reserved {
        taken.push((*net, owner.clone()));
    }
    let mut accepted = Cidrs::new();
    for (_, name, family, cidr) in wanted {
        match taken.iter().find(|(other, _)| overlap(*other, cidr)) {
            None => {
                taken.push((cidr, format!("CiliumPodIPPool {name}")));
                let key = (name.to_owned(), family);
                accepted.entry(key).or_default().push(cidr);
            }
            Some((other, owner)) => {
                let refusal = Refusal::Overlap {
                    cidr,
                    other: *other,
                    owner: owner.clone(),
                };
                refusals.push((name.to_owned(), refusal));
            }
        }
    }
    in_order(&mut accepted, pools);
    (accepted, refusals)
}

/// Puts CIDRs into the order of their documents.
fn in_order(accepted: &mut Cidrs, pools: &BTreeMap<String, PoolSpec>) {
    for ((name, family), cidrs) in accepted {
        let space = pools.get(name).and_then(|pool| pool.spaces.get(family));
        let all = space.map_or(&[][..], |space| &space.cidrs);
        cidrs.sort_by_key(|cidr| all.iter().position(|it| it.trunc() == *cidr));
    }
}

fn fits(space: &Space, family: Family, cidr: IpNet) -> Result<(), Refusal> {
    let mask = space.mask;
    let width = match family {
        Family::V4 => WIDTH_V4,
        Family::V6 => WIDTH_V6,
    };
    if mask < cidr.prefix_len() {
        return Err(Refusal::TooNarrow { cidr, mask });
    }
    if mask - cidr.prefix_len() > width {
        return Err(Refusal::TooWide { cidr, mask, width });
    }
    Ok(())
}
