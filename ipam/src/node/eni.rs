//! An ENI's blocks for pods, and its part of an answer.

use std::collections::BTreeSet;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use ipnet::{IpNet, Ipv4Net};

use super::Eni;
use crate::Family;

/// The data of an ENI for an endpoint with an address of it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct EniAddress {
    /// The ENI's id.
    pub eni: String,
    /// Its number.
    pub number: u8,
    /// Its MAC.
    pub mac: [u8; 6],
    /// The VPC's router as that ENI sees it, of the address's family, where it has one.
    pub gateway: Option<IpAddr>,
    /// Its subnet's IPv4 CIDR; none where it has IPv6 alone.
    pub subnet: Option<Ipv4Net>,
    /// The VPC's CIDRs, the primary one first.
    pub vpc_cidrs: Vec<IpNet>,
    /// The address's origin on the ENI.
    pub origin: Origin,
}

/// The origin of an address on an ENI.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Origin {
    /// As one of a delegated prefix.
    Prefix(IpNet),
    /// As an address of its own.
    Address,
}

/// The VPC's router for IPv6 (AWS, "Configure route tables": `fe80:ec2::1`).
const GATEWAY_V6: Ipv6Addr = Ipv6Addr::new(0xfe80, 0xec2, 0, 0, 0, 0, 0, 1);

impl Eni {
    /// The blocks that it gives to pods: its prefixes, and each address that none of them covers.
    /// Its own address is one only with `use-primary-address`.
    #[must_use]
    pub fn blocks(&self) -> BTreeSet<IpNet> {
        if self.excluded {
            return BTreeSet::new();
        }
        let mut blocks: BTreeSet<IpNet> = self.prefixes.iter().map(IpNet::trunc).collect();
        let own = self.own_address();
        let gives_own = self.use_primary_address && self.number != 0;
        let addresses = self.addresses.iter().copied().filter(|a| Some(*a) != own);
        for address in addresses.chain(own.filter(|_| gives_own)) {
            if !self.prefixes.iter().any(|prefix| prefix.contains(&address)) {
                blocks.insert(address.into());
            }
        }
        blocks
    }

    /// True if the VPC delivers an address to it, be it a pod's or its own.
    #[must_use]
    pub fn has(&self, address: IpAddr) -> bool {
        Some(address) == self.own_address()
            || self.addresses.contains(&address)
            || self.prefixes.iter().any(|prefix| prefix.contains(&address))
    }

    /// The ENI's own IPv4 address.
    #[must_use]
    pub fn own_address(&self) -> Option<IpAddr> {
        self.primary_address.map(IpAddr::V4)
    }

    /// The VPC's router as this ENI sees it: the subnet's first address after the network's, or
    /// `fe80:ec2::1`. An ENI without IPv4 has none for it.
    #[must_use]
    pub fn gateway(&self, of: Family) -> Option<IpAddr> {
        match of {
            Family::V4 => self.subnet.cidr.map(|cidr| {
                let network = u32::from(cidr.network());
                Ipv4Addr::from(network.saturating_add(1)).into()
            }),
            Family::V6 => Some(GATEWAY_V6.into()),
        }
    }

    /// The ENI's data for an endpoint with an address of one of its blocks.
    #[must_use]
    pub fn describe(&self, block: IpNet, address: IpAddr) -> EniAddress {
        let is_prefix = self.prefixes.iter().any(|prefix| prefix.trunc() == block);
        EniAddress {
            eni: self.id.clone(),
            number: self.number,
            mac: self.mac,
            gateway: self.gateway(Family::of(address)),
            subnet: self.subnet.cidr,
            vpc_cidrs: self.vpc_cidrs.clone(),
            origin: if is_prefix {
                Origin::Prefix(block)
            } else {
                Origin::Address
            },
        }
    }
}
