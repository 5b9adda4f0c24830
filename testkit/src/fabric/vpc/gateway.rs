//! The egress path of the VPC, as the cloud's gateways guard it. Packets that a node sends there
//! must carry an address of an ENI itself. A packet with a pod's address is a leak: it is dropped,
//! and recorded by ENI and source.

use std::fmt::Write as _;

use anyhow::Result;
use ipam::Family;
use ipnet::IpNet;

use super::nft_set;
use super::source_check::{self, Flow};
use crate::fabric::command;
use crate::fabric::layout::Eni;
use crate::fabric::netns::Netns;

/// The router's devices for the egress path of the VPC.
pub(super) const DEVICES: [&str; 2] = ["world", "metadata"];

/// nft's words for a family: of a header, of an address type, of our sets.
fn words(family: Family) -> (&'static str, &'static str, &'static str) {
    match family {
        Family::V4 => ("ip", "ipv4_addr", "v4"),
        Family::V6 => ("ip6", "ipv6_addr", "v6"),
    }
}

/// A source and a destination between which packets may leave untranslated.
pub(in crate::fabric) type Allowed = (IpNet, IpNet);

/// The ruleset: the addresses that may send out of the VPC, and sets for other sources.
fn ruleset(enis: &[Eni]) -> String {
    let mut sets = String::new();
    for family in Family::ALL {
        let (_, kind, name) = words(family);
        let own = enis.iter().flat_map(|eni| eni.own_addresses(family));
        let own: Vec<_> = own.map(|address| address.to_string()).collect();
        let elements = match own.as_slice() {
            [] => String::new(),
            some => format!("elements = {{ {} }}", some.join(", ")),
        };
        // Writing to a string cannot fail.
        let _infallible = writeln!(
            sets,
            "  set own_{name} {{ type {kind}; flags interval; {elements} }}\n  \
               set leaks_{name} {{ type ifname . {kind} . {kind} . inet_proto; flags dynamic; \
               size 1024; counter; }}"
        );
    }
    format!("table inet gateway {{\n{sets}{}}}\n", chain(&[]))
}

/// The chain that drops untranslated packets.
fn chain(allowed: &[Allowed]) -> String {
    let mut rules = String::new();
    let devices = DEVICES.join(", ");
    for family in Family::ALL {
        let (header, _, name) = words(family);
        for (from, to) in allowed {
            if Family::of(from.addr()) == family {
                let _infallible = writeln!(
                    rules,
                    "    {header} saddr {from} {header} daddr {to} accept"
                );
            }
        }
        let _infallible = writeln!(
            rules,
            "    iifname \"eni*\" oifname {{ {devices} }} {header} saddr != @own_{name} \
             update @leaks_{name} {{ iifname . {header} saddr . {header} daddr . meta l4proto }} drop"
        );
    }
    format!(
        "  chain forward {{\n    type filter hook forward priority 0; policy accept;\n{rules}  }}\n"
    )
}

/// Sets the guard up.
///
/// # Errors
/// When nft refuses.
pub(in crate::fabric) fn install(router: &Netns, enis: &[Eni]) -> Result<()> {
    apply(router, &ruleset(enis))
}

/// Sets the sources that may leave the VPC untranslated; the guard counts all others.
///
/// The sets stay: a new one has no element for a packet or two, and another node may send at that
/// moment.
///
/// # Errors
/// When nft refuses.
pub(in crate::fabric) fn allow(router: &Netns, allowed: &[Allowed]) -> Result<()> {
    let chain = chain(allowed);
    let flush = "flush chain inet gateway forward";
    apply(
        router,
        &format!("{flush}\ntable inet gateway {{\n{chain}}}\n"),
    )
}

fn apply(router: &Netns, script: &str) -> Result<()> {
    command::run_with_input(router.command("nft").args(["-f", "-"]), script).map(drop)
}

/// Updates the guard's sets of the ENIs' addresses.
///
/// # Errors
/// When nft refuses.
pub(super) fn renew(router: &Netns, enis: &[Eni]) -> Result<()> {
    for family in Family::ALL {
        let own = enis.iter().flat_map(|eni| eni.own_addresses(family));
        let own: Vec<_> = own.map(IpNet::from).collect();
        let set = format!("own_{}", words(family).2);
        nft_set::renew(router, "inet gateway", &set, &own)?;
    }
    Ok(())
}

/// The packets of a node that the guard dropped. Nodes count from 0.
///
/// # Errors
/// When nft fails or answers something unknown.
pub(in crate::fabric) fn leaks(router: &Netns, node: u8) -> Result<Vec<Flow>> {
    // Each element begins with a device, so that its table need not identify an ENI.
    let mut leaks = source_check::elements(router, "leaks_", |_| Some(0))?;
    leaks.retain(|leak| source_check::is_of(node, leak.eni));
    Ok(leaks)
}

/// Forgets packets of a node that the guard dropped.
///
/// # Errors
/// As [`leaks`].
pub(in crate::fabric) fn forget(router: &Netns, node: u8) -> Result<()> {
    let mut script = String::new();
    for leak in leaks(router, node)? {
        let set = words(Family::of(leak.from)).2;
        let _infallible = writeln!(
            script,
            "delete element inet gateway leaks_{set} {{ \"eni{}\" . {} . {} . {} }}",
            leak.eni, leak.from, leak.to, leak.protocol
        );
    }
    apply(router, &script)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fabric::layout::Addressing;

    #[test]
    fn only_the_enis_own_addresses_may_leave() {
        let enis = [0, 1].map(|number| Eni::new(number, Addressing::Addresses).with_own_v6());
        let allowed = ["10.0.1.24/30", "8.8.4.10/32"].map(|net| net.parse().unwrap());
        let text = ruleset(&enis);
        assert!(
            text.contains("elements = { 10.0.0.10, 10.0.1.10 }"),
            "{text}"
        );
        assert!(
            text.contains("elements = { 2600:1f18:10:5600::10, 2600:1f18:10:5601::10 }"),
            "{text}"
        );
        assert!(!text.contains("accept\n"), "{text}");
        let text = chain(&[allowed.into()]);
        assert!(text.contains("ip saddr 10.0.1.24/30 ip daddr 8.8.4.10/32 accept"));
    }
}
