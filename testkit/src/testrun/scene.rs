//! The node of program tests and of the benchmark: three pods, two ENIs, and one that is not ready.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use anyhow::Result;
use datapath_common::abi::{
    Addr, AddressEntry, DestinationClass, EndpointAddress, EniAddresses, EniEntry, GatewayEntry,
    map,
};
use datapath_common::masquerade::PoolPolicy;

use super::Programs;
use crate::packet::{Body, Frame, Macs};

/// An Ethernet address.
pub type Mac = [u8; 6];

/// A device of the test's namespace.
#[derive(Clone, Copy, Debug)]
pub struct Device {
    /// Its index.
    pub ifindex: u32,
    /// Its MAC.
    pub mac: Mac,
}

/// A pod's interface.
#[derive(Clone, Copy, Debug)]
pub struct Interface {
    /// The host-side device.
    pub device: Device,
    /// The pod's own MAC.
    pub mac: Mac,
}

const fn device(number: u8) -> Device {
    Device {
        ifindex: number as u32,
        mac: [0x0a, 0, 0, 0, 0, number],
    }
}

/// Pod A's host-side device.
pub const VETH_A: Device = device(11);
/// Pod B's.
pub const VETH_B: Device = device(12);
/// Pod C's.
pub const VETH_C: Device = device(13);
/// The primary ENI, number 0.
pub const ENI_0: Device = device(21);
/// ENI 1.
pub const ENI_1: Device = device(22);
/// A device of the host that is no ENI.
pub const OTHER: Device = device(23);

/// Pod A's interface.
pub const IF_A: Interface = Interface {
    device: VETH_A,
    mac: POD_A,
};
/// Pod B's.
pub const IF_B: Interface = Interface {
    device: VETH_B,
    mac: POD_B,
};
/// Pod C's.
pub const IF_C: Interface = Interface {
    device: VETH_C,
    mac: POD_C,
};

/// Pod A's own MAC.
pub const POD_A: Mac = [0x0a, 1, 2, 3, 4, 0xaa];
/// Pod B's.
pub const POD_B: Mac = [0x0a, 1, 2, 3, 4, 0xbb];
/// Pod C's.
pub const POD_C: Mac = [0x0a, 1, 2, 3, 4, 0xcc];
/// A MAC that no device has.
pub const STRANGER: Mac = [0x0a, 9, 9, 9, 9, 9];

/// MTU of the ENIs.
pub const ENI_MTU: usize = 1500;
/// MTU of pod B's interface, smaller than that of the ENIs.
pub const POD_B_MTU: usize = 1400;

/// Addresses of one family.
#[derive(Clone, Copy, Debug)]
pub struct Net {
    /// Pod A, of ENI 1.
    pub a: IpAddr,
    /// Pod B, of the primary.
    pub b: IpAddr,
    /// Pod C, of an ENI that is not ready.
    pub c: IpAddr,
    /// The host's.
    pub host: IpAddr,
    /// The translation addresses of ENI 0 and ENI 1.
    pub snat: [IpAddr; 2],
    /// The instance metadata service's.
    pub metadata: IpAddr,
    /// A service's.
    pub service: IpAddr,
    /// A service address within a block.
    pub service_in_block: IpAddr,
    /// In a block of ours, but no pod's.
    pub free: IpAddr,
    /// In the VPC, not on this node.
    pub peer: IpAddr,
    /// Anywhere outside of the VPC.
    pub outside: IpAddr,
    /// A multicast group's.
    pub multicast: IpAddr,
}

impl Net {
    /// The family's name.
    #[must_use]
    pub const fn family(&self) -> &'static str {
        if self.host.is_ipv4() { "ipv4" } else { "ipv6" }
    }

    /// Length of the IP header.
    #[must_use]
    pub const fn header(&self) -> usize {
        if self.host.is_ipv4() { 20 } else { 40 }
    }
}

/// IPv4.
pub const V4: Net = Net {
    a: v4(10, 0, 1, 10),
    b: v4(10, 0, 1, 11),
    c: v4(10, 0, 1, 12),
    host: v4(10, 0, 0, 5),
    snat: [v4(10, 0, 0, 6), v4(10, 0, 0, 7)],
    metadata: v4(169, 254, 169, 254),
    service: v4(172, 20, 0, 10),
    service_in_block: v4(10, 0, 1, 14),
    free: v4(10, 0, 1, 13),
    peer: v4(10, 0, 9, 9),
    outside: v4(198, 51, 100, 7),
    multicast: v4(224, 0, 0, 251),
};

/// IPv6.
pub const V6: Net = Net {
    a: v6(0x1, 0xa),
    b: v6(0x1, 0xb),
    c: v6(0x1, 0xc),
    host: v6(0, 5),
    snat: [v6(0, 6), v6(0, 7)],
    metadata: IpAddr::V6(Ipv6Addr::new(0xfd00, 0xec2, 0, 0, 0, 0, 0, 0x254)),
    service: v6(0x5e, 0x10),
    service_in_block: v6(0x1, 0xe),
    free: v6(0x1, 0xd),
    peer: v6(0x9, 9),
    outside: IpAddr::V6(Ipv6Addr::new(0x2600, 0, 0, 0, 0, 0, 0, 7)),
    multicast: IpAddr::V6(Ipv6Addr::new(0xff02, 0, 0, 0, 0, 0, 0, 0xfb)),
};

const fn v4(a: u8, b: u8, c: u8, d: u8) -> IpAddr {
    IpAddr::V4(Ipv4Addr::new(a, b, c, d))
}

const fn v6(subnet: u16, host: u16) -> IpAddr {
    IpAddr::V6(Ipv6Addr::new(0x2001, 0xdb8, 0, subnet, 0, 0, 0, host))
}

/// Addresses that no network routes.
#[must_use]
pub fn unroutable(net: &Net) -> [IpAddr; 3] {
    if net.a.is_ipv4() {
        [v4(0, 0, 0, 0), v4(127, 0, 0, 1), v4(255, 255, 255, 254)]
    } else {
        [
            Ipv6Addr::UNSPECIFIED.into(),
            Ipv6Addr::LOCALHOST.into(),
            Ipv6Addr::new(0x100, 0, 0, 0, 0, 0, 0, 7).into(),
        ]
    }
}

/// An address of the VPC, in a prefix that no network routes otherwise.
#[must_use]
pub fn routable(net: &Net) -> IpAddr {
    if net.a.is_ipv4() {
        v4(240, 1, 0, 1)
    } else {
        Ipv6Addr::new(0, 0, 0, 0, 0, 0, 1, 7).into()
    }
}

/// A packet that a pod sends by this interface.
#[must_use]
pub fn sent(from: Interface, source: IpAddr, destination: IpAddr, body: Body) -> Frame {
    let macs = Macs::new(from.mac, from.device.mac);
    Frame::new(macs, source, destination, body)
}

/// A packet of pod A's.
#[must_use]
pub fn from_a(net: &Net, destination: IpAddr, body: Body) -> Frame {
    sent(IF_A, net.a, destination, body)
}

/// A packet that an ENI receives from the VPC's router.
#[must_use]
pub fn received(eni: Device, source: IpAddr, destination: IpAddr, body: Body) -> Frame {
    Frame::new(Macs::new(STRANGER, eni.mac), source, destination, body)
}

/// A packet that the stack sends to pod A.
#[must_use]
pub fn to_a(net: &Net, source: IpAddr, body: Body) -> Frame {
    Frame::new(Macs::new(VETH_A.mac, POD_A), source, net.a, body)
}

/// The gateways of an ENI, different for each ENI.
#[must_use]
pub fn gateways(number: u8) -> (Ipv4Addr, Ipv6Addr) {
    (
        Ipv4Addr::new(10, 0, number, 1),
        Ipv6Addr::new(0xfe80, 0xec2, 0, 0, 0, 0, 0, u16::from(number) + 1),
    )
}

/// An ENI's entry.
///
/// # Panics
/// When the MTU is invalid.
#[must_use]
pub fn eni(number: u8, device: Device, mtu: usize) -> EniEntry {
    let (v4, v6) = gateways(number);
    let mtu = u32::try_from(mtu).expect("an MTU");
    let snat = |net: &Net| Addr::from(net.snat[usize::from(number)]);
    EniEntry::new(
        device.ifindex,
        mtu,
        EniAddresses::new(Addr::from(v4), snat(&V4), number),
        EniAddresses::new(Addr::from(v6), snat(&V6), number),
    )
}

/// An endpoint's entry.
///
/// # Panics
/// When the MTU is invalid.
#[must_use]
pub fn endpoint(eni: u8, eni_ifindex: u32, interface: Interface, mtu: usize) -> AddressEntry {
    AddressEntry::endpoint(EndpointAddress {
        eni,
        eni_ifindex,
        pool: PoolPolicy::Masquerade,
        via_stack: false,
        ifindex: interface.device.ifindex,
        mtu: u32::try_from(mtu).expect("an MTU"),
        pod_mac: interface.mac,
        host_mac: interface.device.mac,
        namespace: None,
    })
}

/// Writes this node's map entries.
///
/// # Errors
/// When the kernel refuses one.
pub fn fill(programs: &mut Programs) -> Result<()> {
    let a = endpoint(1, ENI_1.ifindex, IF_A, ENI_MTU);
    let b = endpoint(0, ENI_0.ifindex, IF_B, POD_B_MTU);
    let c = endpoint(2, 0, IF_C, ENI_MTU);
    for net in [V4, V6] {
        programs.put_address(net.a, a)?;
        programs.put_address(net.b, b)?;
        programs.put_address(net.c, c)?;
        programs.put_address(net.host, AddressEntry::host())?;
        for (eni, address) in [0, 1].into_iter().zip(net.snat) {
            let entry = AddressEntry::translation(eni);
            programs.put_address(address, entry)?;
        }
    }
    let vpc = DestinationClass::VPC;
    let block = vpc.union(DestinationClass::BLOCK);
    let service = DestinationClass::SERVICE;
    for (prefix, class) in [
        ("10.0.0.0/16", vpc),
        ("10.0.1.8/29", block),
        ("10.0.1.14/32", block.union(service)),
        ("172.20.0.0/16", service),
        ("169.254.169.254/32", DestinationClass::METADATA),
        ("0.0.0.0/8", DestinationClass::UNROUTABLE),
        ("127.0.0.0/8", DestinationClass::UNROUTABLE),
        ("240.0.0.0/4", DestinationClass::UNROUTABLE),
        ("240.1.0.0/16", vpc),
        ("::/96", DestinationClass::UNROUTABLE),
        ("::1:0/112", vpc),
        ("100::/64", DestinationClass::UNROUTABLE),
        ("fd00:ec2::254/128", DestinationClass::METADATA),
        ("2001:db8::/56", vpc),
        ("2001:db8:0:1::/80", block),
        ("2001:db8:0:1::e/128", block.union(service)),
        ("2001:db8:0:5e::/108", service),
    ] {
        programs.put_destination(prefix.parse()?, class)?;
    }
    programs.put_eni(0, eni(0, ENI_0, ENI_MTU))?;
    programs.put_eni(1, eni(1, ENI_1, ENI_MTU))?;
    for number in [0, 1] {
        for is_v4 in [true, false] {
            know_gateway(programs, number, is_v4, &GatewayEntry::UNKNOWN)?;
        }
    }
    Ok(())
}

/// Writes the entries of all gateways, as the agent keeps them.
///
/// # Errors
/// When the kernel refuses.
pub fn know_gateways(programs: &Programs) -> Result<()> {
    for (number, device) in [(0, ENI_0), (1, ENI_1)] {
        let known = GatewayEntry {
            until: u64::MAX,
            ifindex: device.ifindex,
            macs: [STRANGER, device.mac],
        };
        for is_v4 in [true, false] {
            know_gateway(programs, number, is_v4, &known)?;
        }
    }
    Ok(())
}

/// Writes the entry of the gateway of an ENI with a number, of IPv4 or IPv6.
///
/// # Errors
/// When the kernel refuses.
pub fn know_gateway(programs: &Programs, eni: u8, is_v4: bool, entry: &GatewayEntry) -> Result<()> {
    let table = programs.table(map::GATEWAYS)?;
    table.put(&GatewayEntry::slot(eni, is_v4), entry)
}

/// Makes this node's devices in the current namespace.
///
/// # Errors
/// When the kernel refuses one.
pub fn make_devices() -> Result<()> {
    for (one, two) in [(VETH_A, VETH_B), (VETH_C, OTHER), (ENI_0, ENI_1)] {
        super::ip(&format!(
            "link add index {} address {} type veth peer index {} address {}",
            one.ifindex,
            text(one.mac),
            two.ifindex,
            text(two.mac),
        ))?;
    }
    Ok(())
}

/// A MAC in the form of `ip`.
#[must_use]
pub fn text(mac: Mac) -> String {
    mac.map(|byte| format!("{byte:02x}")).join(":")
}
