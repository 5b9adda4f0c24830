//! The plan of addresses in the fabric's VPC. Pure.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::ops::Range;

use anyhow::{Context as _, Result};
use api::ids::MacAddr;
use ipam::Family;
use ipnet::{IpNet, Ipv4Net, Ipv6Net};
use loader::intent;

use crate::fabric::room::{ADDRESSES, Share};

/// The VPC's first CIDR.
pub const VPC_V4: Ipv4Net = Ipv4Net::new_assert(Ipv4Addr::new(10, 0, 0, 0), 16);
/// The VPC's IPv6 CIDR: a /56, as AWS gives out.
pub const VPC_V6: Ipv6Net =
    Ipv6Net::new_assert(Ipv6Addr::new(0x2600, 0x1f18, 0x10, 0x5600, 0, 0, 0, 0), 56);

/// The pool that skips masquerade.
pub const DIRECT_POOL: &str = "direct";
/// Indexes of the addresses that each ENI has for that pool's pods.
pub const DIRECT: Range<usize> = 4..8;

/// Forms of the addresses that ENIs have for pods.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Addressing {
    /// Secondary addresses: /32 and /128.
    Addresses,
    /// Prefix delegation: /28 and /80.
    Prefixes,
    /// A number of prefixes for IPv4, and one for IPv6.
    SeveralPrefixes(u8),
}

/// Keys of a node's ENIs: the n-th node's begin at n times this.
const KEYS: u16 = 100;

/// The key of a node's ENI: no other ENI of the VPC has it. Nodes count from 0.
#[must_use]
pub fn key(node: u8, number: u8) -> u16 {
    KEYS * u16::from(node) + u16::from(number)
}

/// The node and the number that a key stands for.
#[must_use]
pub fn of_key(key: u16) -> (u16, u16) {
    (key / KEYS, key % KEYS)
}

/// An ENI of the fabric, as the cloud sees it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Eni {
    /// Device index of the attachment; 0 is the primary.
    pub number: u8,
    /// A number that no other ENI of the VPC has: see [`key`].
    pub key: u16,
    /// MAC of the node's side.
    pub mac: MacAddr,
    /// Addresses and prefixes that the VPC delivers to it, in addition to its own.
    pub blocks: Vec<IpNet>,
    id: String,
    subnet: Ipv4Net,
    own_v4: Option<Ipv4Addr>,
    own_v6: Option<Ipv6Addr>,
    former: Vec<IpAddr>,
}

/// A subnet by its number.
fn subnet_of(number: u8) -> Ipv4Net {
    Ipv4Net::new_assert(Ipv4Addr::new(10, 0, number, 0), 24)
}

impl Eni {
    /// An ENI in the subnet of its own number.
    #[must_use]
    pub fn new(number: u8, addressing: Addressing) -> Self {
        Self::in_subnet(number, number, addressing)
    }

    /// An ENI in the subnet of an ENI of a lower number, or in its own.
    #[must_use]
    pub fn in_subnet(number: u8, subnet: u8, addressing: Addressing) -> Self {
        Self::laid_out(0, number, subnet, addressing)
    }

    /// An ENI of a node of the VPC, in a subnet that nodes share. Nodes count from 0.
    ///
    /// # Errors
    /// When the subnet has no room for it.
    pub fn on_node(node: u8, number: u8, subnet: u8, addressing: Addressing) -> Result<Self> {
        let index = number - subnet;
        Share { node, index }.check(addressing)?;
        Ok(Self::laid_out(node, number, subnet, addressing))
    }

    fn laid_out(node: u8, number: u8, subnet: u8, addressing: Addressing) -> Self {
        let share = Share {
            node,
            index: number - subnet,
        };
        let key = key(node, number);
        Self {
            number,
            key,
            mac: MacAddr([0x06, 0x7e, 0, 0, node, number]),
            blocks: blocks(share, subnet, addressing),
            id: format!("eni-0fab{key:013x}"),
            subnet: subnet_of(subnet),
            own_v4: Some(Ipv4Addr::new(10, 0, subnet, share.own())),
            own_v6: (number == 0).then(|| own_v6(subnet, share.own())),
            former: Vec::new(),
        }
    }

    /// An ENI with a number of IPv4 prefixes, and one for IPv6.
    #[must_use]
    pub fn with_prefixes(number: u8, prefixes: u8) -> Self {
        Self::new(number, Addressing::SeveralPrefixes(prefixes))
    }

    /// An ENI that a cloud has attached to a node. Nodes count from 0. It has no IPv6 address of its own.
    ///
    /// # Errors
    /// When it is not attached, or lies in no subnet of the fabric.
    pub fn of_cloud(node: u8, eni: &ec2_fake::Eni) -> Result<Self> {
        let attachment = eni.attachment.as_ref();
        let attachment = attachment.with_context(|| format!("{} is not attached", eni.id))?;
        let own = eni.addresses.primary.filter(|own| VPC_V4.contains(own));
        let own = own.with_context(|| format!("{} is in none of the subnets", eni.id))?;
        let number = u8::try_from(attachment.index)?;
        let [_, _, subnet, _] = own.octets();
        Ok(Self {
            number,
            key: key(node, number),
            mac: eni.mac.parse()?,
            blocks: eni.addresses.blocks.iter().copied().collect(),
            id: eni.id.clone(),
            subnet: subnet_of(subnet),
            own_v4: Some(own),
            own_v6: None,
            former: Vec::new(),
        })
    }

    /// This ENI as another node's, with a key of that node. Nodes count from 0.
    #[must_use]
    pub(super) fn moved_to(mut self, node: u8) -> Self {
        self.key = key(node, self.number);
        self
    }

    /// Adds an IPv6 address of the ENI's own, as the cloud assigns it and `DHCPv6` configures it.
    #[must_use]
    pub fn with_own_v6(mut self) -> Self {
        if let Some([_, _, subnet, host]) = self.own_v4.map(|own| own.octets()) {
            self.own_v6.get_or_insert_with(|| own_v6(subnet, host));
        }
        self
    }

    /// Moves the ENI to a subnet without IPv4.
    #[must_use]
    pub fn without_v4(mut self) -> Self {
        self.own_v4 = None;
        self.blocks.retain(|block| matches!(block, IpNet::V6(_)));
        self
    }

    /// Changes the primary address; the ENI keeps the former one too.
    pub fn renumber(&mut self, address: IpAddr) {
        self.former.extend(self.own_address(Family::of(address)));
        match address {
            IpAddr::V4(v4) => self.own_v4 = Some(v4),
            IpAddr::V6(v6) => self.own_v6 = Some(v6),
        }
    }

    /// Removes all former primary addresses.
    pub fn retire(&mut self) {
        self.former.clear();
    }

    /// Its own addresses of a family: the present one, and those before it that it still has.
    #[must_use]
    pub fn own_addresses(&self, family: Family) -> Vec<IpAddr> {
        let former = self.former.iter().copied();
        let former = former.filter(|address| Family::of(*address) == family);
        self.own_address(family).into_iter().chain(former).collect()
    }

    /// Addresses for pods of the second pool.
    #[must_use]
    pub fn direct_blocks(&self) -> Vec<IpNet> {
        let families = Family::ALL.into_iter();
        families
            .flat_map(|family| DIRECT.filter_map(move |index| self.pod_address(family, index)))
            .map(IpNet::from)
            .collect()
    }

    /// The ENIs of the first node by its document, by number. The primary's IPv6 address is the
    /// node's. A secondary one without IPv4 has no own address, as documents do not list it.
    #[must_use]
    pub fn of_node(node: &intent::Node) -> Vec<Self> {
        let node_v6 = node
            .addresses
            .first_internal(Family::V6)
            .and_then(|address| match address {
                IpAddr::V4(_) => None,
                IpAddr::V6(v6) => Some(v6),
            });
        let enis = node.enis.values();
        enis.map(|eni| Self {
            number: eni.number.0,
            key: key(0, eni.number.0),
            mac: eni.mac,
            blocks: eni.blocks.iter().copied().collect(),
            id: eni.id.clone(),
            subnet: eni.subnet.unwrap_or_else(|| subnet_of(eni.number.0)),
            own_v4: eni.primary_address,
            own_v6: node_v6.filter(|_| eni.number.0 == 0),
            former: Vec::new(),
        })
        .collect()
    }

    /// The cloud's id.
    #[must_use]
    pub fn id(&self) -> String {
        self.id.clone()
    }

    /// First name of its device on the node.
    #[must_use]
    pub fn device(&self) -> String {
        format!("eth{}", self.number)
    }

    /// Name of its device on the VPC's side.
    #[must_use]
    pub fn router_device(&self) -> String {
        format!("eni{}", self.key)
    }

    /// Its subnet.
    #[must_use]
    pub fn subnet(&self) -> Ipv4Net {
        self.subnet
    }

    /// The VPC's router in its subnet.
    #[must_use]
    pub fn gateway_v4(&self) -> Ipv4Addr {
        Ipv4Addr::from(u32::from(self.subnet.network()) + 1)
    }

    /// Its own address, if it has one of the family. Without [`Self::with_own_v6`] only the primary ENI
    /// has one of its own for IPv6: the host uses it.
    #[must_use]
    pub fn own_address(&self, family: Family) -> Option<IpAddr> {
        match family {
            Family::V4 => self.own_v4.map(IpAddr::from),
            Family::V6 => self.own_v6.map(IpAddr::from),
        }
    }

    /// A link-local next hop for packets that the VPC delivers to the ENI. No device has the
    /// address: a permanent neighbour entry maps it to the ENI's MAC.
    #[must_use]
    pub fn next_hop_v6(&self) -> Ipv6Addr {
        Ipv6Addr::new(0xfe80, 0, 0, 0, 0, 0, 0xfab, self.key)
    }

    /// An address for a pod, out of the ENI's blocks of a family.
    #[must_use]
    pub fn pod_address(&self, family: Family, index: usize) -> Option<IpAddr> {
        let mut index = u128::try_from(index).ok()?;
        for block in &self.blocks {
            let size = 1_u128 << (block.max_prefix_len() - block.prefix_len()).min(64);
            match (family, block) {
                (Family::V4, IpNet::V4(net)) if index < size => {
                    let offset = u32::try_from(index).ok()?;
                    return Some(Ipv4Addr::from(u32::from(net.network()) + offset).into());
                }
                (Family::V6, IpNet::V6(net)) if index < size => {
                    return Some(Ipv6Addr::from(u128::from(net.network()) + index).into());
                }
                (Family::V4, IpNet::V4(_)) | (Family::V6, IpNet::V6(_)) => index -= size,
                (Family::V4, IpNet::V6(_)) | (Family::V6, IpNet::V4(_)) => {}
            }
        }
        None
    }

    /// All sources that it may send from.
    #[must_use]
    pub fn sources(&self, family: Family) -> Vec<IpNet> {
        let own = self.own_addresses(family).into_iter().map(IpNet::from);
        let blocks = self.blocks.iter().copied();
        own.chain(blocks.filter(|block| Family::of(block.addr()) == family))
            .collect()
    }
}

/// A host of the fabric that is not a node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Host {
    /// Inside the VPC, in a subnet of its own.
    Peer,
    /// Beyond the VPC.
    Outside,
    /// Inside the VPC, in a subnet of its own: the host of a control plane. It exists on demand.
    Control,
}

impl Host {
    /// Both hosts that always exist.
    pub const ALL: [Self; 2] = [Self::Peer, Self::Outside];

    /// Its name, which is also the name of the router's device towards it.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Peer => "peer",
            Self::Outside => "outside",
            Self::Control => "control",
        }
    }

    /// Its address.
    #[must_use]
    pub fn address(self, family: Family) -> IpAddr {
        match (self, family) {
            (Self::Peer, Family::V4) => Ipv4Addr::new(10, 0, 200, 10).into(),
            (Self::Peer, Family::V6) => host_v6(200, 0x10).into(),
            (Self::Control, Family::V4) => Ipv4Addr::new(10, 0, 201, 10).into(),
            (Self::Control, Family::V6) => host_v6(201, 0x10).into(),
            (Self::Outside, Family::V4) => Ipv4Addr::new(198, 51, 100, 10).into(),
            (Self::Outside, Family::V6) => {
                Ipv6Addr::new(0x2001, 0xdb8, 0x51, 0, 0, 0, 0, 0x10).into()
            }
        }
    }
}

/// A source that no ENI owns, for the fabric's self-test.
#[must_use]
pub fn foreign_source(family: Family) -> IpAddr {
    match family {
        Family::V4 => Ipv4Addr::new(203, 0, 113, 99).into(),
        Family::V6 => Ipv6Addr::new(0x2001, 0xdb8, 0xbad, 0, 0, 0, 0, 0x99).into(),
    }
}

/// Addresses and prefixes of an ENI.
fn blocks(share: Share, subnet: u8, addressing: Addressing) -> Vec<IpNet> {
    if addressing == Addressing::Addresses {
        let hosts = |family: &Family| {
            let family = *family;
            (0..ADDRESSES)
                .map(move |index| secondary_address(subnet, family, share.addresses() + index))
        };
        return Family::ALL
            .iter()
            .flat_map(hosts)
            .map(IpNet::from)
            .collect();
    }
    let v4 = share.prefixes(addressing).into_iter();
    let v4 = v4.map(|host| Ipv4Net::new_assert(Ipv4Addr::new(10, 0, subnet, host), 28).into());
    let v6 = Ipv6Net::new_assert(prefix_v6(subnet, share.prefix_v6()), 80);
    v4.chain([v6.into()]).collect()
}

/// An ENI's own address: 10 is the first in its subnet for IPv4, and 0x10 for IPv6.
fn own_v6(subnet: u8, host_v4: u8) -> Ipv6Addr {
    host_v6(subnet, u16::from(host_v4) + 6)
}

fn secondary_address(subnet: u8, family: Family, host: u8) -> IpAddr {
    match family {
        Family::V4 => Ipv4Addr::new(10, 0, subnet, host).into(),
        Family::V6 => host_v6(subnet, 0x100 + u16::from(host)).into(),
    }
}

fn subnet_v6(subnet: u8) -> [u16; 4] {
    let [a, b, c, d, ..] = VPC_V6.addr().segments();
    [a, b, c, d + u16::from(subnet)]
}

fn host_v6(subnet: u8, host: u16) -> Ipv6Addr {
    let [a, b, c, d] = subnet_v6(subnet);
    Ipv6Addr::new(a, b, c, d, 0, 0, 0, host)
}

fn prefix_v6(subnet: u8, prefix: u16) -> Ipv6Addr {
    let [a, b, c, d] = subnet_v6(subnet);
    Ipv6Addr::new(a, b, c, d, prefix, 0, 0, 0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_block_lies_in_its_subnet_and_in_the_vpc() {
        for addressing in [Addressing::Addresses, Addressing::Prefixes] {
            let own = (0..4).map(|number| Eni::new(number, addressing));
            for eni in own.chain([Eni::in_subnet(2, 1, addressing)]) {
                for block in &eni.blocks {
                    match block {
                        IpNet::V4(net) => assert!(eni.subnet().contains(net)),
                        IpNet::V6(net) => assert!(VPC_V6.contains(net)),
                    }
                    assert!(!block.contains(&IpAddr::from(eni.gateway_v4())));
                }
                assert!(VPC_V4.contains(&eni.subnet()));
            }
        }
    }

    #[test]
    fn pods_get_addresses_of_the_blocks() {
        let eni = Eni::new(1, Addressing::Prefixes);
        let second = eni.pod_address(Family::V4, 1);
        assert_eq!(second, Some(Ipv4Addr::new(10, 0, 1, 65).into()));
        assert_eq!(eni.pod_address(Family::V4, 16), None);
        let eni = Eni::new(1, Addressing::Addresses);
        let third = eni.pod_address(Family::V6, 2).unwrap();
        assert_eq!(third.to_string(), "2600:1f18:10:5601::116");
    }
}
