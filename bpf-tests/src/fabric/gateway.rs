//! The way out of the VPC, as the cloud's gateways guard it: what a node sends there must carry an
//! address of an ENI itself. What carries a pod's is a leak: dropped, and told by source.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::net::IpAddr;

use anyhow::Result;
use ipnet::IpNet;
use towpath::intent::Family;

use super::command;
use super::layout::Eni;
use super::netns::Netns;
use super::nft_set;
use super::source_check::{self, Flow};

/// The router's devices that lead out of the VPC.
pub(super) const DEVICES: [&str; 2] = ["world", "metadata"];

/// nft's words for a family: of a header, of an address type, of our sets.
fn words(family: Family) -> (&'static str, &'static str, &'static str) {
    match family {
        Family::V4 => ("ip", "ipv4_addr", "v4"),
        Family::V6 => ("ip6", "ipv6_addr", "v6"),
    }
}

/// Who may leave untranslated, and for where.
pub(super) type Allowed = (IpNet, IpNet);

/// The ruleset: who may send out of the VPC, and a place for who did without.
fn ruleset(enis: &[Eni], allowed: &[Allowed]) -> String {
    let mut sets = String::new();
    let mut rules = String::new();
    let devices = DEVICES.join(", ");
    for family in Family::ALL {
        let (header, kind, name) = words(family);
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
               set leaks_{name} {{ type {kind} . {kind} . inet_proto; flags dynamic; size 1024; \
               counter; }}"
        );
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
             update @leaks_{name} {{ {header} saddr . {header} daddr . meta l4proto }} drop"
        );
    }
    format!(
        "table inet gateway {{\n{sets}  chain forward {{\n    \
         type filter hook forward priority 0; policy accept;\n{rules}  }}\n}}\n"
    )
}

/// Sets the guard up, or anew: what it told so far is gone then.
///
/// # Errors
/// When nft refuses.
pub(super) fn install(router: &Netns, enis: &[Eni], allowed: &[Allowed]) -> Result<()> {
    let ruleset = format!(
        "table inet gateway\ndelete table inet gateway\n{}",
        ruleset(enis, allowed)
    );
    command::run_with_input(router.command("nft").args(["-f", "-"]), &ruleset)?;
    Ok(())
}

/// Has the guard know the ENIs' addresses as they are now.
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

/// The packets that the guard dropped, by source.
///
/// # Errors
/// When nft fails or answers something unknown.
pub(super) fn leaks(router: &Netns) -> Result<BTreeMap<IpAddr, u64>> {
    let mut leaks = BTreeMap::new();
    for Flow { from, packets, .. } in source_check::elements(router, "leaks_", |_| Some(0))? {
        *leaks.entry(from).or_default() += packets;
    }
    Ok(leaks)
}

#[cfg(test)]
mod tests {
    use super::super::layout::Addressing;
    use super::*;

    #[test]
    fn only_the_enis_own_addresses_may_leave() {
        let enis = [0, 1].map(|number| Eni::new(number, Addressing::Addresses).with_own_v6());
        let allowed = ["10.0.1.24/30", "8.8.4.10/32"].map(|net| net.parse().unwrap());
        let text = ruleset(&enis, &[allowed.into()]);
        assert!(
            text.contains("elements = { 10.0.0.10, 10.0.1.10 }"),
            "{text}"
        );
        assert!(text.contains("ip saddr 10.0.1.24/30 ip daddr 8.8.4.10/32 accept"));
        assert!(
            text.contains("elements = { 2600:1f18:10:5600::10, 2600:1f18:10:5601::10 }"),
            "{text}"
        );
    }
}
