//! One type for each kind of kernel object that we own or observe.

use std::net::IpAddr;

use api::ids::{EniNumber, MacAddr};
use api::types::Direction;
use datapath_common::abi::{AddressEntry, DestinationClass, EniEntry};
use datapath_common::counter::Program;
use ipam::Family;
use ipnet::IpNet;

/// A network device.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Link {
    /// Its index.
    pub ifindex: u32,
    /// Its name. For a pod's device with a name for policy engines this is the alternative name
    /// from its endpoint id, by which the device is always recognised.
    pub name: String,
    /// The kernel's name of the device, if it differs.
    pub alias: Option<String>,
    /// Its Ethernet address.
    pub mac: Option<MacAddr>,
    /// Its MTU, in bytes.
    pub mtu: u32,
    /// True if it is administratively up.
    pub up: bool,
    /// Its interface group (`IFLA_GROUP`); 0 where it has none.
    pub group: u32,
    /// Its kind.
    pub kind: LinkKind,
    /// The device that it is a port of (bond, bridge, VRF).
    pub master: Option<u32>,
    /// The number that its namespace has for that of its other end (`IFLA_LINK_NETNSID`).
    pub peer_namespace: Option<u32>,
}

impl Link {
    /// The name by which the kernel's files and its users find it.
    #[must_use]
    pub fn kernel_name(&self) -> &str {
        self.alias.as_deref().unwrap_or(&self.name)
    }
}

/// The kinds of devices that matter to us.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum LinkKind {
    /// A hardware device: the kernel names no kind.
    Physical,
    /// One end of a veth pair.
    Veth,
    /// The loopback device.
    Loopback,
    /// A device that borrows another one's MAC (VLAN, macvlan, ipvlan, bond, bridge …).
    Stacked,
    /// Anything else.
    Other,
}

/// An address on a device.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Address {
    /// The device.
    pub ifindex: u32,
    /// Address and prefix length.
    pub net: IpNet,
}

/// Where a route leads.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum NextHop {
    /// Straight out of a device.
    Device(u32),
    /// To a gateway that is taken to be reachable on a device (`onlink`).
    Gateway(IpAddr, u32),
    /// Nowhere: the sender gets an ICMP error.
    Unreachable,
    /// To whatever a later rule's table says.
    Throw,
}

/// A route, reduced to what we specify.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Route {
    /// Its table.
    pub table: u32,
    /// Its destination.
    pub destination: IpNet,
    /// Its metric as the kernel reports it: by default 0 for IPv4, 1024 for IPv6.
    pub metric: u32,
    /// Where it leads.
    pub next_hop: NextHop,
    /// The source address that the host uses on it.
    pub source: Option<IpAddr>,
    /// The routing protocol number it carries.
    pub protocol: u8,
}

/// A route of a foreign table, reduced to the parts that show its owner.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ForeignRoute {
    /// Its table.
    pub table: u32,
    /// Its destination.
    pub destination: IpNet,
    /// Its metric.
    pub metric: u32,
    /// The router that it leads to, if it leads to one.
    pub gateway: Option<IpAddr>,
    /// The device that it leads out of.
    pub ifindex: u32,
    /// The routing protocol number it carries.
    pub protocol: u8,
    /// Its MTU, in bytes; `None` where it has none of its own.
    pub mtu: Option<u32>,
}

/// The selector of a rule.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Selector {
    /// Everything.
    All,
    /// The packet mark under a mask.
    Mark {
        /// The value.
        value: u32,
        /// The mask.
        mask: u32,
    },
    /// The source address.
    Source(IpNet),
    /// Anything that we never use: a foreign rule.
    Foreign,
}

/// The action of a rule.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Action {
    /// Look up a table.
    Table(u32),
    /// Go on at the rules of a priority.
    Goto(u32),
    /// Nothing.
    Nop,
    /// Anything that we never use: a foreign rule.
    Foreign,
}

/// A policy routing rule, reduced to what we specify.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Rule {
    /// Its family.
    pub family: Family,
    /// Its priority.
    pub priority: u32,
    /// Its selector.
    pub selector: Selector,
    /// Its action.
    pub action: Action,
    /// The routing protocol number it carries.
    pub protocol: u8,
}

/// A permanent neighbour entry.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Neighbour {
    /// The device.
    pub ifindex: u32,
    /// The address.
    pub address: IpAddr,
    /// Its Ethernet address.
    pub mac: MacAddr,
}

/// A neighbour's address as the kernel resolved it, or as it was set.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Resolved {
    /// Its Ethernet address.
    pub mac: MacAddr,
    /// True if it was not confirmed for a while: the kernel resolves it again when it is used.
    pub is_stale: bool,
}

/// The scope of a sysctl.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum SysctlScope {
    /// A device, under `net.<family>.conf.<name>`.
    Device(u32),
    /// All devices, under `net.<family>.conf.all`.
    All,
    /// The family itself, under `net.<family>`.
    Family,
}

/// A sysctl of a family.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Sysctl {
    /// The family.
    pub family: Family,
    /// Its scope.
    pub scope: SysctlScope,
    /// Its last name, such as `rp_filter`.
    pub name: &'static str,
}

impl Sysctl {
    /// A sysctl of a device.
    #[must_use]
    pub const fn of_device(family: Family, ifindex: u32, name: &'static str) -> Self {
        Self {
            family,
            scope: SysctlScope::Device(ifindex),
            name,
        }
    }
}

/// One entry of a datapath map.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum MapEntry {
    /// `ADDRESSES`.
    Address(IpAddr, AddressEntry),
    /// `DESTINATIONS`.
    Destination(IpNet, DestinationClass),
    /// `ENIS`.
    Eni(EniNumber, EniEntry),
    /// `ENI_BY_IFINDEX`.
    EniDevice(u32, EniNumber),
}

/// The key of a map entry.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum MapKey {
    /// `ADDRESSES`.
    Address(IpAddr),
    /// `DESTINATIONS`.
    Destination(IpNet),
    /// `ENIS`.
    Eni(EniNumber),
    /// `ENI_BY_IFINDEX`.
    EniDevice(u32),
}

impl MapEntry {
    /// The entry's key.
    #[must_use]
    pub fn key(&self) -> MapKey {
        match *self {
            Self::Address(address, _) => MapKey::Address(address),
            Self::Destination(net, _) => MapKey::Destination(net),
            Self::Eni(number, _) => MapKey::Eni(number),
            Self::EniDevice(ifindex, _) => MapKey::EniDevice(ifindex),
        }
    }
}

/// A place where one of our programs is attached. Its direction follows from the program.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Hook {
    /// The device.
    pub ifindex: u32,
    /// The program.
    pub program: Program,
}

impl Hook {
    /// The direction of the packets that the program sees.
    #[must_use]
    pub fn direction(&self) -> Direction {
        direction(self.program)
    }
}

/// The direction of the packets that a program is for.
#[must_use]
pub fn direction(program: Program) -> Direction {
    match program {
        Program::FromEndpoint | Program::FromNetwork => Direction::Ingress,
        Program::ToNetwork | Program::ToEndpoint => Direction::Egress,
    }
}
