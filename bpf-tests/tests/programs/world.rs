//! The node that the program tests play on: three pods, two ENIs, and one that is not ready.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use bpf_tests::packet::{Body, Frame};
use bpf_tests::testrun::pool::{Lease, Pool};
use bpf_tests::testrun::{self, Programs};
use datapath_common::abi::{
    Addr, AddressEntry, DestinationClass, EndpointAddress, EniAddresses, EniEntry,
};
use datapath_common::mark::MarkLayout;
use towpath::bpf::DatapathSettings;

pub(crate) type Mac = [u8; 6];

/// A device of the test's namespace.
#[derive(Clone, Copy)]
pub(crate) struct Device {
    pub(crate) ifindex: u32,
    pub(crate) mac: Mac,
}

const fn device(number: u8) -> Device {
    Device {
        ifindex: number as u32,
        mac: [0x0a, 0, 0, 0, 0, number],
    }
}

/// The pods' host-side devices.
pub(crate) const VETH_A: Device = device(11);
pub(crate) const VETH_B: Device = device(12);
pub(crate) const VETH_C: Device = device(13);
/// The ENIs; the primary is number 0. `OTHER` is a device of the host that is none.
pub(crate) const ENI_0: Device = device(21);
pub(crate) const ENI_1: Device = device(22);
pub(crate) const OTHER: Device = device(23);

/// The pods' own MACs, and one of nobody's.
pub(crate) const POD_A: Mac = [0x0a, 1, 2, 3, 4, 0xaa];
pub(crate) const POD_B: Mac = [0x0a, 1, 2, 3, 4, 0xbb];
pub(crate) const POD_C: Mac = [0x0a, 1, 2, 3, 4, 0xcc];
pub(crate) const STRANGER: Mac = [0x0a, 9, 9, 9, 9, 9];

pub(crate) const ENI_MTU: usize = 1500;
/// Pod B's interface takes less than the ENIs do.
pub(crate) const POD_B_MTU: usize = 1400;

/// A mark as it may come in: bits of others, and all of ours, which nobody else may set.
pub(crate) const MARK_IN: u32 = 0xff00_4880;
/// What must be left of it in any case.
pub(crate) const OTHERS: u32 = 0x0000_4880;

/// `OTHERS` and the mark of an ENI.
pub(crate) fn marked(eni: u32) -> u32 {
    OTHERS | MarkLayout::DEFAULT.eni(eni).expect("a small number")
}

/// `OTHERS` and the bit of what an ENI's egress has nothing more to do with.
pub(crate) fn done() -> u32 {
    OTHERS | MarkLayout::DEFAULT.done()
}

/// The exception bit.
pub(crate) fn exception() -> u32 {
    MarkLayout::DEFAULT.exception()
}

/// Addresses of one family.
pub(crate) struct Net {
    pub(crate) family: &'static str,
    /// Length of the IP header.
    pub(crate) header: usize,
    /// Pod A, of ENI 1.
    pub(crate) a: IpAddr,
    /// Pod B, of the primary.
    pub(crate) b: IpAddr,
    /// Pod C, of an ENI that is not ready.
    pub(crate) c: IpAddr,
    pub(crate) host: IpAddr,
    /// The translation addresses of ENI 0 and ENI 1.
    pub(crate) snat: [IpAddr; 2],
    pub(crate) metadata: IpAddr,
    pub(crate) service: IpAddr,
    /// A service address within a block.
    pub(crate) service_in_block: IpAddr,
    /// In a block of ours, but no pod's.
    pub(crate) free: IpAddr,
    /// In the VPC, not on this node.
    pub(crate) peer: IpAddr,
    /// Anywhere else.
    pub(crate) outside: IpAddr,
    pub(crate) multicast: IpAddr,
}

pub(crate) const V4: Net = Net {
    family: "ipv4",
    header: 20,
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

pub(crate) const V6: Net = Net {
    family: "ipv6",
    header: 40,
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

/// A packet as a pod sends it.
pub(crate) fn sent(from: (Device, Mac), source: IpAddr, destination: IpAddr, body: Body) -> Frame {
    Frame::new((from.1, from.0.mac), source, destination, body)
}

/// A packet of pod A's.
pub(crate) fn from_a(net: &Net, destination: IpAddr, body: Body) -> Frame {
    sent((VETH_A, POD_A), net.a, destination, body)
}

/// A packet as an ENI receives it from the VPC's router.
pub(crate) fn received(eni: Device, source: IpAddr, destination: IpAddr, body: Body) -> Frame {
    Frame::new((STRANGER, eni.mac), source, destination, body)
}

/// A packet as the stack sends it to pod A.
pub(crate) fn to_a(net: &Net, source: IpAddr, body: Body) -> Frame {
    Frame::new((VETH_A.mac, POD_A), source, net.a, body)
}

/// The settings of this node: both families are masqueraded.
pub(crate) fn settings() -> DatapathSettings {
    DatapathSettings {
        masquerade_v6: true,
        ..DatapathSettings::default()
    }
}

/// The programs with this node's maps and no flow, in a namespace with this node's devices.
pub(crate) fn node() -> Lease<Programs> {
    node_with(&settings())
}

/// The programs with this node's maps and no flow. Their counters go on.
pub(crate) fn programs(settings: &DatapathSettings) -> Lease<Programs> {
    static POOL: Pool<Programs> = Pool::new();
    let make_fresh = |programs: Programs| {
        programs.forget_flows()?;
        Ok(programs)
    };
    let programs = POOL.lease(settings, Programs::load_with, make_fresh);
    let mut programs = programs.unwrap();
    fill(&mut programs);
    programs
}

/// The same with other settings.
pub(crate) fn node_with(settings: &DatapathSettings) -> Lease<Programs> {
    testrun::private_namespace().unwrap();
    for (one, two) in [(VETH_A, VETH_B), (VETH_C, OTHER), (ENI_0, ENI_1)] {
        testrun::ip(&format!(
            "link add index {} address {} type veth peer index {} address {}",
            one.ifindex,
            text(one.mac),
            two.ifindex,
            text(two.mac),
        ))
        .unwrap();
    }
    programs(settings)
}

/// A MAC as `ip` takes it.
pub(crate) fn text(mac: Mac) -> String {
    mac.map(|byte| format!("{byte:02x}")).join(":")
}

/// The gateways of an ENI, each another one.
pub(crate) fn gateways(number: u8) -> (Ipv4Addr, Ipv6Addr) {
    (
        Ipv4Addr::new(10, 0, number, 1),
        Ipv6Addr::new(0xfe80, 0xec2, 0, 0, 0, 0, 0, u16::from(number) + 1),
    )
}

/// An ENI's entry.
pub(crate) fn eni(number: u8, device: Device, mtu: usize) -> EniEntry {
    let (v4, v6) = gateways(number);
    let mtu = u32::try_from(mtu).unwrap();
    let snat = |net: &Net| Addr::from(net.snat[usize::from(number)]);
    EniEntry::new(
        device.ifindex,
        mtu,
        EniAddresses::new(Addr::from(v4), snat(&V4), number),
        EniAddresses::new(Addr::from(v6), snat(&V6), number),
    )
}

/// An endpoint's entry.
pub(crate) fn endpoint(
    eni: u8,
    eni_ifindex: u32,
    device: Device,
    pod_mac: Mac,
    mtu: usize,
) -> AddressEntry {
    AddressEntry::endpoint(EndpointAddress {
        eni,
        eni_ifindex,
        skip_masquerade: false,
        ifindex: device.ifindex,
        mtu: u32::try_from(mtu).unwrap(),
        pod_mac,
        host_mac: device.mac,
    })
}

/// Writes this node's map entries.
pub(crate) fn fill(programs: &mut Programs) {
    let a = endpoint(1, ENI_1.ifindex, VETH_A, POD_A, ENI_MTU);
    let b = endpoint(0, ENI_0.ifindex, VETH_B, POD_B, POD_B_MTU);
    let c = endpoint(2, 0, VETH_C, POD_C, ENI_MTU);
    for net in [V4, V6] {
        programs.put_address(net.a, a).unwrap();
        programs.put_address(net.b, b).unwrap();
        programs.put_address(net.c, c).unwrap();
        programs
            .put_address(net.host, AddressEntry::host())
            .unwrap();
        for (eni, address) in [0, 1].into_iter().zip(net.snat) {
            let entry = AddressEntry::translation(eni);
            programs.put_address(address, entry).unwrap();
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
        ("fd00:ec2::254/128", DestinationClass::METADATA),
        ("2001:db8::/56", vpc),
        ("2001:db8:0:1::/80", block),
        ("2001:db8:0:1::e/128", block.union(service)),
        ("2001:db8:0:5e::/108", service),
    ] {
        programs
            .put_destination(prefix.parse().unwrap(), class)
            .unwrap();
    }
    programs.put_eni(0, eni(0, ENI_0, ENI_MTU)).unwrap();
    programs.put_eni(1, eni(1, ENI_1, ENI_MTU)).unwrap();
}
