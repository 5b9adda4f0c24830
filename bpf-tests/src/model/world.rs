//! State of a node as the model needs it: addresses, destinations, ENIs, settings. It uses types of
//! the standard library, so that it relies on no layout of a map.

use std::collections::BTreeMap;
use std::net::IpAddr;

use flows::CompatLookups;
use ipnet::IpNet;

use super::parse::SCTP;

/// An address of this node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Address {
    /// A pod's.
    Pod(Pod),
    /// The host's.
    Host {
        /// The ENI whose translation address it is.
        translation_of: Option<u8>,
    },
}

/// Masquerade policy of a pool.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Pool {
    /// The pool is masqueraded.
    Masqueraded,
    /// The pool is not masqueraded.
    Skips,
    /// The pool is masqueraded towards every destination outside of the node.
    Hidden,
}

/// A pod, under one of its addresses.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Pod {
    /// Number of the ENI that owns the address.
    pub eni: u8,
    /// Device of that ENI, 0 while it is not ready.
    pub eni_ifindex: u32,
    /// Masquerade policy of the pod's pool.
    pub pool: Pool,
    /// True if the pod's packets take the stack, because a qdisc or a foreign program is attached
    /// there.
    pub via_stack: bool,
    /// Host-side device.
    pub ifindex: u32,
    /// MTU of its interface, in bytes.
    pub mtu: usize,
    /// MAC of its interface.
    pub mac: [u8; 6],
    /// MAC of the host-side device.
    pub host_mac: [u8; 6],
}

impl Pod {
    /// Identity of the pod, independent of its device: the end of the MAC that the pod's name
    /// gives.
    #[must_use]
    pub fn identity(&self) -> u32 {
        let [.., a, b, c, d] = self.host_mac;
        (u32::from_be_bytes([a, b, c, d]) & 0x7fff_ffff).max(1)
    }
}

/// Facts about a destination.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[expect(
    clippy::struct_excessive_bools,
    reason = "a set of classes, each there or not"
)]
pub struct Classes {
    /// A block of this node.
    pub block: bool,
    /// A service address.
    pub service: bool,
    /// The instance metadata service.
    pub metadata: bool,
    /// In the VPC, native, in the ip-masq-agent file, or link-local: never masqueraded.
    pub exempt: bool,
    /// No network routes it.
    pub unroutable: bool,
}

/// Addresses of an ENI in one family.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct EniAddresses {
    /// The next hop.
    pub gateway: IpAddr,
    /// The translation address.
    pub translation: Option<IpAddr>,
    /// Number of the ENI that carries masqueraded packets of sources that this ENI owns.
    pub external: u8,
}

/// An ENI that is ready.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Eni {
    /// Its device.
    pub ifindex: u32,
    /// Its MTU, in bytes.
    pub mtu: usize,
    /// IPv4 addresses.
    pub v4: EniAddresses,
    /// IPv6 addresses.
    pub v6: EniAddresses,
}

impl Eni {
    /// Addresses in the family of an address.
    #[must_use]
    pub fn of(&self, address: IpAddr) -> &EniAddresses {
        if address.is_ipv4() {
            &self.v4
        } else {
            &self.v6
        }
    }
}

/// The outcome of packets to the instance metadata service.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Metadata {
    /// By the primary ENI, translated.
    Primary,
    /// By the owner ENI, untranslated.
    Own,
    /// Dropped.
    Block,
    /// To the stack; by the primary ENI from there.
    Stack,
}

/// Bits of the packet mark.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Marks {
    /// All of ours.
    pub mask: u32,
    /// First bit of the field that holds the ENI.
    pub shift: u32,
    /// The exception bit.
    pub exception: u32,
    /// The bit of packets that need no more work at an ENI's egress.
    pub done: u32,
}

/// Settings.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Settings {
    /// Bits of the packet mark.
    pub marks: Marks,
    /// True for each family, IPv4 and IPv6, that is masqueraded.
    pub masquerade: [bool; 2],
    /// The outcome of packets to the metadata service.
    pub metadata: Metadata,
    /// True if all pod traffic takes the stack.
    pub path_stack: bool,
    /// True if flows that the stack carries take it both ways.
    pub service_nat: bool,
    /// Ports for translation: first and last of each range.
    pub ports: Vec<(u16, u16)>,
    /// Cases in which the programs look for flows of an earlier policy.
    pub lookups: CompatLookups,
    /// Capacities of the tables.
    pub capacities: Capacities,
    /// Shares of the tables.
    pub quotas: Quotas,
}

/// Entries that the tables of flows can have.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Capacities {
    /// Translated flows of a family.
    pub flows: usize,
    /// Inbound flows.
    pub inbound: usize,
    /// Flows through the stack.
    pub stack: usize,
}

/// Flows that one owner may have.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Quotas {
    /// Translated flows of an endpoint.
    pub endpoint: u64,
    /// Inbound flows of an endpoint.
    pub inbound: u64,
    /// Flows of the host.
    pub host: u64,
}

impl Quotas {
    /// Translated flows that an endpoint may have; the host is endpoint 0.
    #[must_use]
    pub fn of(&self, endpoint: u32) -> u64 {
        if endpoint == 0 {
            self.host
        } else {
            self.endpoint
        }
    }
}

impl Settings {
    /// True if a port is one for translation.
    #[must_use]
    pub fn has_port(&self, port: u16) -> bool {
        self.ports
            .iter()
            .any(|(first, last)| (*first..=*last).contains(&port))
    }

    /// True if a port is of the last eighth of the blocks.
    fn is_reserved(&self, port: u16) -> bool {
        const BLOCK: u32 = 512;
        let length = |(first, last): &(u16, u16)| u32::from(*last) - u32::from(*first) + 1;
        let blocks = self.ports.iter().map(length).sum::<u32>() / BLOCK;
        let mut left = blocks / 8 * BLOCK;
        for range in self.ports.iter().rev() {
            let taken = left.min(length(range));
            if (u32::from(range.1) + 1 - taken..=u32::from(range.1)).contains(&port.into()) {
                return true;
            }
            left -= taken;
        }
        false
    }

    /// True if a flow gets this port when it is free.
    ///
    /// The reserve is for flows of the host, and for those that cannot change their port.
    #[must_use]
    pub fn is_first(&self, protocol: u8, endpoint: u32, port: u16) -> bool {
        let is_kept = protocol == SCTP || endpoint == 0;
        self.has_port(port) && (is_kept || !self.is_reserved(port))
    }

    /// True if the family of an address is masqueraded.
    #[must_use]
    pub fn masquerades(&self, address: IpAddr) -> bool {
        self.masquerade[usize::from(address.is_ipv6())]
    }
}

/// A socket of the host that listens, or is bound.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HostSocket {
    /// IP protocol.
    pub protocol: u8,
    /// Address that it is bound to.
    pub address: IpAddr,
    /// Its port.
    pub port: u16,
}

/// A node.
#[derive(Clone, Debug)]
pub struct World {
    /// Every pod's and every host address.
    pub addresses: BTreeMap<IpAddr, Address>,
    /// Prefixes; the longest that covers an address counts.
    pub destinations: Vec<(IpNet, Classes)>,
    /// The ENIs that are ready, by number; 0 is the primary.
    pub enis: BTreeMap<u8, Eni>,
    /// MACs of this namespace's devices.
    pub macs: BTreeMap<u32, [u8; 6]>,
    /// Sockets of the host in the ports for translation.
    pub sockets: Vec<HostSocket>,
    /// Settings.
    pub settings: Settings,
}

impl World {
    /// The classes of a destination.
    #[must_use]
    pub fn classes(&self, address: IpAddr) -> Classes {
        self.destinations
            .iter()
            .filter(|(net, _)| net.contains(&address))
            .max_by_key(|(net, _)| net.prefix_len())
            .map_or_else(Classes::default, |(_, classes)| *classes)
    }

    /// The pod of an address.
    #[must_use]
    pub fn pod(&self, address: IpAddr) -> Option<Pod> {
        match self.addresses.get(&address)? {
            Address::Pod(pod) => Some(*pod),
            Address::Host { .. } => None,
        }
    }

    /// The ENI whose translation address this is.
    #[must_use]
    pub fn translation_of(&self, address: IpAddr) -> Option<u8> {
        match self.addresses.get(&address)? {
            Address::Host { translation_of } => *translation_of,
            Address::Pod(_) => None,
        }
    }

    /// The number of the ENI whose device this is.
    #[must_use]
    pub fn eni_of_device(&self, ifindex: u32) -> Option<u8> {
        self.enis
            .iter()
            .find(|(_, eni)| eni.ifindex == ifindex)
            .map(|(number, _)| *number)
    }

    /// True if a socket of the host holds a port of an address.
    #[must_use]
    pub fn has_socket(&self, protocol: u8, address: IpAddr, port: u16) -> bool {
        self.sockets.contains(&HostSocket {
            protocol,
            address,
            port,
        })
    }
}
