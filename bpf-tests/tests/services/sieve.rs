//! Reverse-path filters: the kernel's for IPv4, in each setting, and firewalld's for IPv6.

use std::time::Duration;

use anyhow::Result;
use ipam::Family;
use testkit::fabric::eventually::{check, eventually};

use crate::cases::{Backend, Behind, Case};
use crate::model::Transport;
use crate::nftables;
use crate::rules::Kind;
use crate::scene::Scene;

/// The time that an object of ours may be missing before it is repaired.
const HEAL: Duration = Duration::from_secs(1);
/// Value that Towpath keeps for an ENI's filter: loose.
const LOOSE: &str = "2";

/// Cases whose packets come by one ENI, and whose answers leave by another one, or are rewritten.
const CASES: [Case; 8] = [
    Case::ClusterIp(Backend::OtherNode),
    Case::ClusterIp(Backend::External),
    Case::NodePort(0, Behind::Eni(1)),
    Case::NodePort(1, Behind::Eni(0)),
    Case::NodePort(1, Behind::OtherNode),
    Case::NodePortLocal(0, Behind::Eni(1)),
    Case::NodePortLocal(1, Behind::Eni(0)),
    Case::LoadBalancer(1),
];

/// Checks all cases that such a filter might drop.
pub(crate) fn pass(scene: &Scene, family: Family, transport: Transport) -> Result<()> {
    for case in CASES {
        for request in case.requests(scene, family)? {
            request.carry(scene, transport)?;
        }
    }
    for request in Case::Direct.requests(scene, family)? {
        request.carry(scene, transport)?;
    }
    Ok(())
}

/// Sets the kernel's filter for all devices, and the ENIs' own to another value, which does not
/// last. The rules determine that value, so that every pair of the three occurs.
pub(crate) fn set_rp_filter(scene: &Scene, kind: Kind, all: u8) -> Result<()> {
    let node = &scene.fabric.node;
    let own = (all + kind.number()) % 3;
    node.sysctls(&[("ipv4/conf/all/rp_filter", &all.to_string())])?;
    for eni in [0, 1] {
        let key = format!("ipv4/conf/eth{eni}/rp_filter");
        node.sysctls(&[(&key, &own.to_string())])?;
        eventually(HEAL, "the ENI's filter is loose again", || {
            let value = node.sysctl(&key)?;
            check(value == LOOSE, || format!("{key} = {value}"))
        })?;
    }
    Ok(())
}

/// firewalld's rule (its `IPv6_rpfilter=strict`, on by default), which looks up the return path
/// with the packet's mark.
const FIREWALLD: &str = "table inet firewalld {
  chain mangle_PREROUTING {
    type filter hook prerouting priority mangle + 10; policy accept;
    icmpv6 type { nd-router-advert, nd-neighbor-solicit } accept
    meta nfproto ipv6 fib saddr . mark . iif oif missing drop
  }
}
";

/// Adds firewalld's rule, or removes it.
pub(crate) fn firewalld(scene: &Scene, is_on: bool) -> Result<()> {
    let rules = if is_on {
        FIREWALLD
    } else {
        "delete table inet firewalld\n"
    };
    nftables::apply(&scene.fabric.node, rules)
}
