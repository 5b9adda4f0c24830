//! A node that routes its pods by the kernel alone, with rules for each: what the VPC CNI sets up
//! without its iptables.

use std::fmt::Write as _;
use std::net::Ipv4Addr;
use std::sync::Arc;

use anyhow::{Context as _, Result};
use ipam::Family;
use loader::constants::POD_GATEWAY_V4;
use testkit::fabric::{Fabric, MTU_JUMBO, POD_INTERFACE, Pod, Spec};

use super::site::{ENI, Expected, Site, Traffic};

/// Host-side device of the measured pod, named as the VPC CNI names them.
const DEVICE: &str = "eni7f3a90c21be";
const HOST_MAC: &str = "02:7e:00:00:01:00";
/// The VPC CNI's table of the first secondary ENI.
pub(super) const TABLE: u32 = 2;

/// Priorities of the VPC CNI's rules (amazon-vpc-cni-k8s, `pkg/networkutils`).
mod priority {
    pub(super) const TO_POD: u32 = 512;
    pub(super) const FROM_POD: u32 = 1536;
    pub(super) const FROM_ENI: u32 = 32765;
}

/// So many pods, half of them of the secondary ENI, and the measured one in the middle of the list:
/// the kernel goes through the rules of half of the others before it comes to its own.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Population {
    /// Pods.
    pub pods: usize,
}

impl Population {
    /// Pods of the secondary ENI.
    #[must_use]
    pub fn on_secondary(self) -> usize {
        self.pods.div_ceil(2)
    }

    /// True if a pod is of the secondary ENI: every other one, from the first on.
    fn is_on_secondary(index: usize) -> bool {
        index.is_multiple_of(2)
    }

    fn measured(self) -> usize {
        (self.pods / 2) & !1
    }

    /// Every pod's address in the order of the rules, and true if it is the secondary ENI's. Only
    /// the measured pod exists.
    fn addresses(self, measured: Ipv4Addr) -> impl Iterator<Item = (Ipv4Addr, bool)> {
        let first = u32::from(Ipv4Addr::new(10, 0, 64, 0));
        (first..).zip(0..self.pods).map(move |(address, index)| {
            let address = if index == self.measured() {
                measured
            } else {
                address.into()
            };
            (address, Self::is_on_secondary(index))
        })
    }
}

/// A fabric without agent, and a pod without network.
pub(super) fn bare() -> Result<(Fabric, Arc<Pod>)> {
    let mut fabric = Fabric::create(&Spec::default())?;
    let pod = fabric.make_pod(ENI, 0)?;
    Ok((fabric, pod))
}

/// Turns forwarding on, gives the secondary ENI its address and the pod its devices. `mac` is the
/// pod's own MAC, where it is to have a certain one.
pub(in crate::live) fn connect(fabric: &Fabric, pod: &Pod, mac: Option<String>) -> Result<String> {
    // The VPC CNI sets the primary's. Elsewhere 0, which is the cheapest.
    fabric.node.sysctls(&[
        ("ipv4/ip_forward", "1"),
        ("ipv4/conf/all/rp_filter", "0"),
        ("ipv4/conf/default/rp_filter", "0"),
        ("ipv4/conf/eth0/rp_filter", "2"),
        ("ipv4/conf/eth1/rp_filter", "0"),
    ])?;
    // A pod's own IPv6 would be foreign to the ENI.
    pod.netns.sysctls(&[
        ("ipv6/conf/all/disable_ipv6", "1"),
        ("ipv6/conf/default/disable_ipv6", "1"),
    ])?;
    let eni = fabric.eni(ENI)?;
    let own = eni.own_address(Family::V4).context("the ENI's address")?;
    let (subnet, device) = (eni.subnet(), eni.device());
    let length = subnet.prefix_len();
    let mac = mac.map(|mac| format!("address {mac}")).unwrap_or_default();
    fabric.node.ip(&format!(
        "link set {device} up\n\
         addr add {own}/{length} dev {device}\n\
         route del {subnet} dev {device}\n\
         link add {DEVICE} address {HOST_MAC} mtu {MTU_JUMBO} type veth \
         peer name {POD_INTERFACE} netns {} {mac} mtu {MTU_JUMBO}\n\
         link set {DEVICE} up\n",
        pod.netns.name()
    ))?;
    let address = pod.address(Family::V4);
    pod.netns.ip(&format!(
        "link set {POD_INTERFACE} up\n\
         addr add {address}/32 dev {POD_INTERFACE}\n\
         route add {POD_GATEWAY_V4} dev {POD_INTERFACE} scope link\n\
         route add default via {POD_GATEWAY_V4}\n\
         neigh replace {POD_GATEWAY_V4} lladdr {HOST_MAC} dev {POD_INTERFACE} nud permanent\n"
    ))?;
    Ok(DEVICE.to_owned())
}

/// Adds the rules and routes of all pods, those of the ENI too.
pub(super) fn route(fabric: &Fabric, pod: &Pod, population: Population) -> Result<()> {
    let eni = fabric.eni(ENI)?;
    let own = eni.own_address(Family::V4).context("the ENI's address")?;
    let (gateway, device) = (eni.gateway_v4(), eni.device());
    let mut batch = format!(
        "route add {gateway} dev {device} scope link table {TABLE}\n\
         route add default via {gateway} dev {device} table {TABLE}\n\
         rule add from {own} table {TABLE} pref {}\n",
        priority::FROM_ENI
    );
    let std::net::IpAddr::V4(measured) = pod.address(Family::V4) else {
        anyhow::bail!("a pod's IPv4 address is one");
    };
    for (address, secondary) in population.addresses(measured) {
        // Writing to a string cannot fail.
        let _infallible = writeln!(
            batch,
            "rule add to {address} table main pref {}\n\
             route add {address} dev {DEVICE} scope link",
            priority::TO_POD
        );
        if secondary {
            let _infallible = writeln!(
                batch,
                "rule add from {address} table {TABLE} pref {}",
                priority::FROM_POD
            );
        }
    }
    fabric.node.ip(&batch)
}

/// A node with the rules of so many pods.
///
/// # Errors
/// When something cannot be set up, or packets do not leave as they should.
pub fn site(population: Population) -> Result<Site> {
    let (fabric, pod) = bare()?;
    connect(&fabric, &pod, None)?;
    route(&fabric, &pod, population)?;
    let mut site = Site::new(fabric, pod)?;
    let expected = Expected {
        traffic: Traffic::Exempt,
        source: site.pod.address(Family::V4),
        eni: ENI,
    };
    site.prove(&[expected])?;
    Ok(site)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_measured_pod_is_in_the_middle_and_on_the_secondary_eni() {
        let pod = Ipv4Addr::new(10, 0, 1, 20);
        for pods in [1, 2, 250, 1000] {
            let population = Population { pods };
            let all: Vec<_> = population.addresses(pod).collect();
            assert_eq!(all.len(), pods);
            let secondary = all.iter().filter(|(_, secondary)| *secondary).count();
            assert_eq!(secondary, population.on_secondary());
            let at = all.iter().position(|one| *one == (pod, true)).unwrap();
            assert!(at.abs_diff(pods / 2) <= 1, "{at} of {pods}");
        }
    }
}
