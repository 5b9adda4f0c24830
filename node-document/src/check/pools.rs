//! The pools that the node has blocks of.

use std::collections::BTreeMap;

use ipam::EdgeRules;
use ipnet::IpNet;

use super::values;
use crate::fields::AllocatedPool;
use crate::problem::Findings;

/// The blocks of every pool, by block and as they are listed.
#[derive(Debug, Default)]
pub(super) struct Pools {
    pub(super) by_block: BTreeMap<IpNet, String>,
    pub(super) allocated: Vec<ipam::node::AllocatedPool>,
}

/// Checks the allocated pools.
pub(super) fn check(allocated: &[AllocatedPool], findings: &mut Findings) -> Pools {
    let mut pools = Pools::default();
    for (i, entry) in allocated.iter().enumerate() {
        let path = format!("spec.ipam.pools.allocated[{i}]");
        if entry.pool.is_empty() {
            findings.refuse(format_args!("{path}.pool"), "", "the name of a pool");
            continue;
        }
        let mut cidrs = Vec::new();
        for (j, text) in entry.cidrs.iter().enumerate() {
            let path = format!("{path}.cidrs[{j}]");
            let Some(net) = values::block(findings, &path, text) else {
                continue;
            };
            match pools.by_block.get(&net) {
                Some(other) if *other != entry.pool => {
                    let allowed = format!("a CIDR of one pool only; {other} has it");
                    findings.refuse(path, text, allowed);
                }
                Some(_) | None => {
                    pools.by_block.insert(net, entry.pool.clone());
                    cidrs.push(net);
                }
            }
        }
        pools.allocated.push(ipam::node::AllocatedPool {
            pool: entry.pool.clone(),
            edges: EdgeRules {
                allow_first: entry.allow_first,
                allow_last: entry.allow_last,
            },
            cidrs,
        });
    }
    pools
}
