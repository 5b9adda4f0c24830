//! The node of the paths: pod A of a secondary ENI, pod B of the primary, and a host.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use anyhow::{Context as _, Result};
use datapath_common::abi::{
    Addr, AddressEntry, DestinationClass, EndpointAddress, EniAddresses, EniEntry, GatewayEntry,
};
use datapath_common::masquerade::PoolPolicy;
use testkit::testrun::{self, Programs, scene};

/// A device, by its index and MAC.
pub(super) type Device = (u32, [u8; 6]);

const fn device(number: u8) -> Device {
    (number as u32, [0x0a, 0, 0, 0, 0, number])
}

/// The pods' host-side devices.
pub(super) const VETH_A: Device = device(11);
const VETH_B: Device = device(12);
/// The primary ENI and the secondary one.
pub(super) const ENI_0: Device = device(21);
pub(super) const ENI_1: Device = device(22);
pub(super) const DEVICES: [Device; 4] = [VETH_A, VETH_B, ENI_0, ENI_1];

/// MACs of pod A, and of a host of the VPC.
pub(super) const POD_A: [u8; 6] = [0x0a, 1, 2, 3, 4, 0xaa];
const POD_B: [u8; 6] = [0x0a, 1, 2, 3, 4, 0xbb];
pub(super) const ROUTER: [u8; 6] = [0x0a, 9, 9, 9, 9, 9];

/// Addresses of one family.
pub(super) struct Net {
    pub(super) family: &'static str,
    pub(super) a: IpAddr,
    pub(super) b: IpAddr,
    pub(super) host: IpAddr,
    /// Translation address of pod A's packets.
    pub(super) snat: IpAddr,
    pub(super) service: IpAddr,
    /// In a block of the node, but no pod's.
    pub(super) free: IpAddr,
    /// In the VPC, not on this node.
    pub(super) peer: IpAddr,
    pub(super) outside: IpAddr,
}

pub(super) const NETS: [Net; 2] = [
    Net {
        family: "IPv4",
        a: v4(10, 0, 1, 10),
        b: v4(10, 0, 1, 11),
        host: v4(10, 0, 0, 5),
        snat: v4(10, 0, 0, 7),
        service: v4(172, 20, 0, 10),
        free: v4(10, 0, 1, 13),
        peer: v4(10, 0, 9, 9),
        outside: v4(198, 51, 100, 7),
    },
    Net {
        family: "IPv6",
        a: v6(1, 0xa),
        b: v6(1, 0xb),
        host: v6(0, 5),
        snat: v6(0, 7),
        service: v6(0x5e, 0x10),
        free: v6(1, 0xd),
        peer: v6(9, 9),
        outside: IpAddr::V6(Ipv6Addr::new(0x2600, 0, 0, 0, 0, 0, 0, 7)),
    },
];

const fn v4(a: u8, b: u8, c: u8, d: u8) -> IpAddr {
    IpAddr::V4(Ipv4Addr::new(a, b, c, d))
}

const fn v6(subnet: u16, host: u16) -> IpAddr {
    IpAddr::V6(Ipv6Addr::new(0x2001, 0xdb8, 0, subnet, 0, 0, 0, host))
}

/// Makes the devices, in a namespace of this thread's own.
pub(super) fn make_devices() -> Result<()> {
    testrun::private_namespace()?;
    for [one, two] in [[VETH_A, VETH_B], [ENI_0, ENI_1]] {
        testrun::ip(&format!(
            "link add index {} address {} type veth peer index {} address {}",
            one.0,
            text(one.1),
            two.0,
            text(two.1),
        ))?;
    }
    Ok(())
}

fn text(mac: [u8; 6]) -> String {
    mac.map(|byte| format!("{byte:02x}")).join(":")
}

/// Writes the node's map entries.
pub(super) fn fill(programs: &mut Programs) -> Result<()> {
    const MTU: u32 = 1500;
    let endpoint = |number, (ifindex, host_mac): Device, pod_mac, eni_ifindex| {
        AddressEntry::endpoint(EndpointAddress {
            eni: number,
            eni_ifindex,
            pool: PoolPolicy::Masquerade,
            via_stack: false,
            ifindex,
            mtu: MTU,
            pod_mac,
            host_mac,
            namespace: None,
        })
    };
    for net in &NETS {
        programs.put_address(net.a, endpoint(1, VETH_A, POD_A, ENI_1.0))?;
        programs.put_address(net.b, endpoint(0, VETH_B, POD_B, ENI_0.0))?;
        programs.put_address(net.host, AddressEntry::host())?;
        programs.put_address(net.snat, AddressEntry::translation(1))?;
    }
    put_destinations(programs)?;
    let [v4, v6] = &NETS;
    for (number, (ifindex, _), snat) in [
        (0, ENI_0, [v4.host, v6.host]),
        (1, ENI_1, [v4.snat, v6.snat]),
    ] {
        let gateways = [
            Addr::from(Ipv4Addr::new(10, 0, number, 1)),
            Addr::from(Ipv6Addr::new(0xfe80, 0xec2, 0, 0, 0, 0, 0, number.into())),
        ];
        let [v4, v6] = [0, 1].map(|family: usize| {
            EniAddresses::new(gateways[family], Addr::from(snat[family]), number)
        });
        programs.put_eni(number, EniEntry::new(ifindex, MTU, v4, v6))?;
        // An entry like the agent's, except for the MACs. Pod A's packets already have these, so
        // that the kernel's cache and the interpreter's give equal packets.
        let known = GatewayEntry {
            until: u64::MAX,
            ifindex,
            macs: [VETH_A.1, POD_A],
        };
        for is_v4 in [true, false] {
            scene::know_gateway(programs, number, is_v4, &known)?;
        }
    }
    Ok(())
}

fn put_destinations(programs: &mut Programs) -> Result<()> {
    let vpc = DestinationClass::VPC;
    let block = vpc.union(DestinationClass::BLOCK);
    for (prefix, class) in [
        ("10.0.0.0/16", vpc),
        ("10.0.1.8/29", block),
        ("172.20.0.0/16", DestinationClass::SERVICE),
        ("169.254.169.254/32", DestinationClass::METADATA),
        ("fd00:ec2::254/128", DestinationClass::METADATA),
        ("2001:db8::/56", vpc),
        ("2001:db8:0:1::/80", block),
        ("2001:db8:0:5e::/108", DestinationClass::SERVICE),
    ] {
        let prefix = prefix.parse().with_context(|| prefix.to_owned())?;
        programs.put_destination(prefix, class)?;
    }
    Ok(())
}
