//! A node as the VPC CNI (amazon-vpc-cni-k8s, `pkg/networkutils`) sets it up, in IPv4 mode with node
//! ports on and one CIDR in its VPC:
//!
//! | what | for |
//! |---|---|
//! | rule 512, to its address, main table | each pod |
//! | rule 1024, mark 0x80/0x80, main table | the node |
//! | rule 1536, from its address, the ENI's table | each pod of a secondary ENI |
//! | rule 32765, from its address, its table | each secondary ENI |
//! | route on its device, main table | each pod |
//! | routes to the gateway, its table | each secondary ENI |
//! | mangle PREROUTING: mark connections to the node, restore the mark of pods' | the node |
//! | nat PREROUTING: mark connections of pods out of the VPC, restore the mark | the node |
//! | nat POSTROUTING: translate them to the primary's address | the node |
//!
//! So packets out of the VPC leave by the primary ENI, whichever ENI owns the pod's address.
//!
//! The rules are loaded by `iptables-nft`, the backend of current node images, without the comments
//! that the VPC CNI adds and without those of kube-proxy: every difference to a real node makes this
//! one cheaper.

use anyhow::{Context as _, Result};
use ipam::Family;
use serde_json::Value;
use testkit::fabric::eventually::check;
use testkit::fabric::layout::VPC_V4;
use testkit::fabric::{Fabric, Netns, Pod};

use super::kernel::{self, Population, TABLE};
use super::site::{ENI, Expected, Site, Traffic};

/// The mark, and the bit of the connection mark, of packets that must leave by the primary ENI.
const MARK: &str = "0x80/0x80";
const MASK: &str = "0x80";
const CONNMARK_CHAIN: &str = "AWS-CONNMARK-CHAIN-0";
const SNAT_CHAIN: &str = "AWS-SNAT-CHAIN-0";

/// The number of objects of each kind.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Counts {
    /// IPv4 rules.
    pub rules: usize,
    /// Routes of the main table.
    pub main_routes: usize,
    /// Routes of secondary ENIs' tables.
    pub eni_routes: usize,
    /// Rules of iptables' mangle PREROUTING.
    pub mangle: usize,
    /// Rules of nat PREROUTING and its chain.
    pub prerouting: usize,
    /// Rules of nat POSTROUTING and its chain.
    pub postrouting: usize,
}

impl Counts {
    /// Expected numbers for a number of secondary ENIs and of CIDRs that are not translated.
    #[must_use]
    pub fn expected(population: Population, secondary_enis: usize, cidrs: usize) -> Self {
        let (pods, on_secondary) = (population.pods, population.on_secondary());
        Self {
            rules: 3 + 1 + secondary_enis + pods + on_secondary,
            main_routes: 2 + pods,
            eni_routes: 2 * secondary_enis,
            mangle: 3,
            prerouting: 2 + cidrs + 1,
            postrouting: 1 + cidrs + 1,
        }
    }

    /// Numbers on a node with one secondary ENI.
    ///
    /// # Errors
    /// When a tool fails.
    pub fn seen(node: &Netns) -> Result<Self> {
        let number = |line: &str| -> Result<usize> {
            let list = node.ip_json(line)?;
            Ok(list.as_array().map(Vec::len).unwrap_or_default())
        };
        let chains = |table: &str, names: &[&str]| -> Result<usize> {
            let mut count = 0;
            for name in names {
                let rules = iptables(node, &format!("-t {table} -S {name}"))?;
                count += rules.lines().filter(|rule| rule.starts_with("-A")).count();
            }
            Ok(count)
        };
        Ok(Self {
            rules: number("-4 rule show")?,
            main_routes: number("-4 route show table main")?,
            eni_routes: number(&format!("-4 route show table {TABLE}"))?,
            mangle: chains("mangle", &["PREROUTING"])?,
            prerouting: chains("nat", &["PREROUTING", CONNMARK_CHAIN])?,
            postrouting: chains("nat", &["POSTROUTING", SNAT_CHAIN])?,
        })
    }
}

fn iptables(node: &Netns, line: &str) -> Result<String> {
    node.run(&format!("iptables-nft {line}"))
}

/// Adds marks that follow connections, and translation by the primary, to routing by rules.
fn translate(fabric: &Fabric) -> Result<()> {
    let primary = fabric.eni(0)?.own_address(Family::V4);
    let primary = primary.context("the primary's address")?;
    let rules = [
        "-t mangle -A PREROUTING -i eth0 -m addrtype --dst-type LOCAL --limit-iface-in \
         -j CONNMARK --set-mark {mark}",
        "-t mangle -A PREROUTING -i eni+ -j CONNMARK --restore-mark --mask {mask}",
        "-t mangle -A PREROUTING -i vlan+ -j CONNMARK --restore-mark --mask {mask}",
        "-t nat -N {connmark}",
        "-t nat -A {connmark} -d {vpc} -j RETURN",
        "-t nat -A {connmark} -j CONNMARK --set-mark {mark}",
        "-t nat -A PREROUTING -i eni+ -j {connmark}",
        "-t nat -A PREROUTING -j CONNMARK --restore-mark --mask {mask}",
        "-t nat -N {snat}",
        "-t nat -A {snat} -d {vpc} -j RETURN",
        "-t nat -A {snat} ! -o vlan+ -m addrtype ! --dst-type LOCAL \
         -j SNAT --to-source {primary} --random-fully",
        "-t nat -A POSTROUTING -j {snat}",
    ];
    for rule in rules {
        let rule = rule
            .replace("{mark}", MARK)
            .replace("{mask}", MASK)
            .replace("{connmark}", CONNMARK_CHAIN)
            .replace("{snat}", SNAT_CHAIN)
            .replace("{vpc}", &VPC_V4.to_string())
            .replace("{primary}", &primary.to_string());
        iptables(&fabric.node, &rule)?;
    }
    fabric
        .node
        .ip(&format!("rule add fwmark {MARK} table main pref 1024"))
}

/// A fabric set up like by the VPC CNI, and the real pod.
fn install(population: Population) -> Result<(Fabric, std::sync::Arc<Pod>)> {
    let (fabric, pod) = kernel::bare()?;
    kernel::connect(&fabric, &pod, None)?;
    kernel::route(&fabric, &pod, population)?;
    translate(&fabric)?;
    Ok((fabric, pod))
}

/// A node with a number of pods, whose state and behaviour match the real VPC CNI's.
///
/// # Errors
/// When something cannot be set up, numbers differ, or packets leave with a wrong source or by a
/// wrong ENI.
pub fn site(population: Population) -> Result<Site> {
    let (fabric, pod) = install(population)?;
    check_counts(&fabric, population)?;
    let primary = fabric.eni(0)?.own_address(Family::V4);
    let mut site = Site::new(fabric, pod)?;
    site.prove(&[
        Expected {
            traffic: Traffic::Exempt,
            source: site.pod.address(Family::V4),
            eni: ENI,
        },
        Expected {
            traffic: Traffic::Masqueraded,
            source: primary.context("the primary's address")?,
            eni: 0,
        },
    ])?;
    check(tracked(&site)? > 0, || {
        "conntrack follows no flow of the VPC CNI's node".to_owned()
    })?;
    Ok(site)
}

fn check_counts(fabric: &Fabric, population: Population) -> Result<()> {
    let expected = Counts::expected(population, 1, 1);
    let seen = Counts::seen(&fabric.node)?;
    check(seen == expected, || {
        format!("the VPC CNI has {expected:?} for {population:?}, this node {seen:?}")
    })
}

/// The flows that conntrack follows on a site's node.
fn tracked(site: &Site) -> Result<u64> {
    let count = site.fabric.node.sysctl("netfilter/nf_conntrack_count")?;
    let count: Value = serde_json::from_str(&count)?;
    count.as_u64().context("a count of conntrack's")
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The example has three pods, two of which belong to the secondary ENI.
    #[test]
    fn the_formulas_give_the_example() {
        let counts = Counts::expected(Population { pods: 3 }, 1, 1);
        let expected = Counts {
            rules: 10,
            main_routes: 5,
            eni_routes: 2,
            mangle: 3,
            prerouting: 4,
            postrouting: 3,
        };
        assert_eq!(counts, expected);
        let at_250 = Counts::expected(Population { pods: 250 }, 1, 1);
        assert_eq!((at_250.rules, at_250.main_routes), (380, 252));
    }
    /// A node that lacks one of the rules is not timed.
    #[test]
    fn a_rule_that_is_missing_is_found() {
        let population = Population { pods: 3 };
        let (fabric, _pod) = install(population).unwrap();
        check_counts(&fabric, population).unwrap();
        fabric.node.ip("rule del pref 1024").unwrap();
        let error = check_counts(&fabric, population).unwrap_err().to_string();
        assert!(error.contains("rules: 9"), "{error}");
        fabric.finish().unwrap();
    }
}
