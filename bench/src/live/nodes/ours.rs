//! A node of any size that the agent has set up.

use std::net::Ipv4Addr;

use anyhow::{Context as _, Result};
use ipam::Family;
use serde_json::{Value, json};
use testkit::fabric::eventually::check;
use testkit::fabric::layout::{Addressing, Eni};
use testkit::fabric::{Fabric, Spec, counters, document};

use super::preload;
use super::site::{ENI, Expected, Site, Traffic};

/// Size of a node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Size {
    /// Endpoints, including the real one.
    pub endpoints: usize,
    /// ENIs.
    pub enis: u8,
    /// CIDRs that are exempt from masquerade, in addition to the VPC's.
    pub cidrs: usize,
    /// Translated flows.
    pub flows: usize,
}

impl Size {
    /// A small node.
    pub const SMALL: Self = Self {
        endpoints: 10,
        enis: 2,
        cidrs: 10,
        flows: 1000,
    };

    /// Prefix length of an ENI's subnet: as large as fits into the VPC.
    fn subnet_bits(self) -> u8 {
        if self.enis <= 2 { 18 } else { 20 }
    }

    /// An ENI's subnet.
    fn subnet(self, number: u8) -> u32 {
        u32::from(Ipv4Addr::new(10, 0, 0, 0)) + (u32::from(number) << (32 - self.subnet_bits()))
    }

    /// The prefixes of an ENI: enough for its share of the endpoints, and one more.
    fn prefixes(self, number: u8) -> impl Iterator<Item = String> {
        // The subnet's first addresses belong to the router and the ENI itself.
        let first = self.subnet(number) + 64;
        let count = self.endpoints.div_ceil(16 * usize::from(self.enis)) + 1;
        (first..)
            .step_by(16)
            .take(count)
            .map(|net| format!("{}/28", Ipv4Addr::from(net)))
    }

    /// The node document.
    fn document(self) -> Value {
        let enis: Vec<_> = (0..self.enis)
            .map(|number| Eni::new(number, Addressing::Prefixes))
            .collect();
        let mut document = document::document(&enis);
        for eni in &enis {
            let entry = &mut document["status"]["eni"]["enis"][eni.id()];
            let subnet = self.subnet(eni.number);
            let net = format!("{}/{}", Ipv4Addr::from(subnet), self.subnet_bits());
            entry["subnet"]["cidr"] = net.into();
            entry["ip"] = Ipv4Addr::from(subnet + 10).to_string().into();
            entry["prefixes"] = self.prefixes(eni.number).collect();
            entry["addresses"] = json!([]);
        }
        document
    }

    /// CIDRs outside of the measured traffic.
    fn exempt(self) -> impl Iterator<Item = String> {
        // Shared address space (RFC 6598), a /24 each.
        let first = u32::from(Ipv4Addr::new(100, 64, 0, 0));
        (first..)
            .step_by(256)
            .take(self.cidrs)
            .map(|net| format!("{}/24", Ipv4Addr::from(net)))
    }
}

/// A node of a size, with a real pod in the middle of the others.
///
/// The agent sets up the real pod, and everything that does not depend on endpoints. It is then
/// killed: pinned objects keep working, and it would remove the preloaded endpoints.
///
/// # Errors
/// When something cannot be set up, or packets leave with a wrong source or by a wrong ENI.
pub fn site(size: Size, service_nat: bool) -> Result<Site> {
    let nat = if service_nat { "on" } else { "off" };
    let mut fabric = Fabric::ready(&Spec {
        settings: json!({
            "services": {"nat": nat},
            "masquerade": {"native-routing-cidrs": size.exempt().collect::<Vec<_>>()},
            // One pod must be able to have all flows.
            "nat": {"flows": {"per-endpoint": datapath_common::abi::DEFAULT_FLOWS_V4}},
            "log-level": "info",
        }),
        document: Some(size.document().to_string()),
        ..Spec::default()
    })?;
    let pod = fabric.add_pod(ENI, size.endpoints / (2 * usize::from(size.enis)))?;
    let mut site = Site::new(fabric, pod)?;
    goes_past_the_stack(&site)?;
    site.fabric.agent.kill()?;
    preload::gateways(&site.fabric)?;
    preload::endpoints(&site.fabric, &site.pod, size.endpoints)?;
    preload::flows(&site, size.flows)?;
    let eni = site.fabric.eni(ENI)?.own_address(Family::V4);
    site.prove(&[
        Expected {
            traffic: Traffic::Exempt,
            source: site.pod.address(Family::V4),
            eni: ENI,
        },
        Expected {
            traffic: Traffic::Masqueraded,
            source: eni.context("the ENI's address")?,
            eni: ENI,
        },
    ])?;
    Ok(site)
}

/// Proves that our programs will be measured, in both directions: the stack would carry the packets
/// as well.
fn goes_past_the_stack(site: &Site) -> Result<()> {
    let before = counters::read(&site.fabric)?;
    for traffic in Traffic::ALL {
        site.ask(traffic)?;
    }
    let moved = counters::moved(&before, &counters::read(&site.fabric)?);
    for (program, outcome) in [
        ("from_endpoint", "eni"),
        ("from_endpoint", "translated"),
        ("from_network", "local"),
        ("from_network", "returned"),
    ] {
        let name = (program.to_owned(), outcome.to_owned());
        check(moved.contains_key(&name), || {
            format!("{program} counted no packet as {outcome}: {moved:?}")
        })?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use datapath_common::mark::MarkLayout;

    use super::*;

    #[test]
    fn every_document_is_one_that_the_agent_takes_and_has_room() {
        for (endpoints, enis) in [(1, 2), (10, 2), (10_000, 2), (10, 15)] {
            let size = Size {
                endpoints,
                enis,
                ..Size::SMALL
            };
            let node =
                node_document::parse(&size.document().to_string(), MarkLayout::DEFAULT).unwrap();
            let enis = Eni::of_node(&node);
            assert_eq!(enis.len(), usize::from(size.enis));
            let room: usize = enis
                .iter()
                .map(|eni| 16 * size.prefixes(eni.number).count())
                .sum();
            assert!(room >= endpoints, "{room} of {endpoints}");
        }
    }

    #[test]
    fn exempt_cidrs_are_all_different() {
        let size = Size {
            cidrs: 1000,
            ..Size::SMALL
        };
        let cidrs: BTreeSet<_> = size.exempt().collect();
        assert_eq!(cidrs.len(), 1000);
        assert!(cidrs.contains("100.67.231.0/24"), "{cidrs:?}");
    }
}
