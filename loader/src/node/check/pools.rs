//! The pools that the node has blocks of.

use std::collections::BTreeMap;

use ipnet::IpNet;

use super::values;
use crate::node::document::AllocatedPool;
use crate::node::problem::Findings;

/// Checks the allocated pools: each block with the name of its pool.
pub(super) fn check(
    allocated: &[AllocatedPool],
    findings: &mut Findings,
) -> BTreeMap<IpNet, String> {
    let mut pools: BTreeMap<IpNet, String> = BTreeMap::new();
    for (i, entry) in allocated.iter().enumerate() {
        let path = format!("spec.ipam.pools.allocated[{i}]");
        if entry.pool.is_empty() {
            findings.refuse(format_args!("{path}.pool"), "", "the name of a pool");
        }
        for (j, text) in entry.cidrs.iter().enumerate() {
            let path = format!("{path}.cidrs[{j}]");
            let Some(net) = values::block(findings, &path, text) else {
                continue;
            };
            match pools.get(&net) {
                Some(other) if *other != entry.pool => {
                    let allowed = format!("a CIDR of one pool only; {other} has it");
                    findings.refuse(path, text, allowed);
                }
                Some(_) | None => {
                    pools.insert(net, entry.pool.clone());
                }
            }
        }
    }
    pools
}
