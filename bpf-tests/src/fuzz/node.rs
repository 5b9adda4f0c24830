//! The node that is fuzzed: five pods, three ENIs that are ready and one that is not.

use std::collections::BTreeMap;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use anyhow::Result;
use datapath_common::abi::{
    Addr, AddressEntry, DestinationClass, EndpointAddress, EniAddresses, EniEntry,
};
use datapath_common::masquerade::PoolPolicy;
use flows::CompatLookups;
use testkit::packet::Macs;
use testkit::random::Random;
use testkit::testrun::Programs;

use super::packet::{Load, Spec, framed};
use super::variant::Variant;
use crate::model::parse::UDP;
use crate::model::world::{self, Address, Classes, Eni, Pod, Pool, World};

/// A device of the test's namespace.
#[derive(Clone, Copy, Debug)]
pub struct Device {
    /// Its index.
    pub ifindex: u32,
    /// Its MAC.
    pub mac: [u8; 6],
}

const fn device(number: u8) -> Device {
    Device {
        ifindex: number as u32,
        mac: [0x0a, 0, 0, 0, 0, number],
    }
}

/// Host-side devices of the pods, then the devices of ENIs 0, 1 and 3, and one that is no ENI's:
/// an even number, for they are made as pairs.
pub const DEVICES: [Device; 10] = [
    device(11),
    device(12),
    device(13),
    device(14),
    device(15),
    device(16),
    device(21),
    device(22),
    device(23),
    device(24),
];

/// The pods' devices.
pub(super) const VETHS: [Device; 5] = [DEVICES[0], DEVICES[1], DEVICES[2], DEVICES[3], DEVICES[4]];
/// The ENIs that are ready, by number.
pub(super) const ENIS: [(u8, Device); 3] = [(0, DEVICES[6]), (1, DEVICES[7]), (3, DEVICES[8])];
/// A device that is no ENI's.
pub(super) const OTHER: Device = DEVICES[9];
/// The ENI that is not ready.
const ABSENT: u8 = 2;
/// MTUs of the ENIs, and of the pods.
const MTUS: [usize; ENIS.len()] = [1500, 9001, 1400];
const POD_MTUS: [usize; 5] = [1500, 1400, 1500, 1500, 9001];
/// The ENI that owns each pod's addresses.
const OWNERS: [u8; 5] = [1, 0, ABSENT, 1, 3];
/// The pod whose pool is not masqueraded.
const SKIPPED: usize = 3;
/// The pod whose pool always is.
const HIDDEN: usize = 1;

/// A pod's addresses.
pub(super) fn pod_addresses(pod: usize) -> [IpAddr; 2] {
    let last = u8::try_from(pod).unwrap_or_default() + 10;
    [v4(10, 0, 1, last), v6(1, u16::from(last))]
}

/// An ENI's translation addresses; ENI 3 has none of IPv6.
pub(super) fn translation_addresses(eni: u8) -> [Option<IpAddr>; 2] {
    [
        Some(v4(10, 0, 0, 5 + eni)),
        (eni != 3).then(|| v6(0, 5 + u16::from(eni))),
    ]
}

fn v4(a: u8, b: u8, c: u8, d: u8) -> IpAddr {
    Ipv4Addr::new(a, b, c, d).into()
}

fn v6(subnet: u16, host: u16) -> IpAddr {
    Ipv6Addr::new(0x2001, 0xdb8, 0, subnet, 0, 0, 0, host).into()
}

fn global_v6(first: u16, last: u16) -> IpAddr {
    Ipv6Addr::new(first, 0xec2, 0, 0, 0, 0, 0, last).into()
}

/// Addresses outside of the node that packets go to and come from, by what they are.
pub(super) fn remotes(is_v4: bool) -> Vec<IpAddr> {
    let [outside, metadata, gateway] = if is_v4 {
        [
            v4(198, 51, 100, 7),
            v4(169, 254, 169, 254),
            v4(169, 254, 3, 4),
        ]
    } else {
        [
            global_v6(0x2600, 7),
            global_v6(0xfd00, 0x254),
            global_v6(0xfd99, 1),
        ]
    };
    let other = if is_v4 {
        [
            v4(203, 0, 113, 9),
            v4(10, 0, 9, 9),
            v4(192, 168, 7, 7),
            v4(100, 64, 0, 1),
        ]
    } else {
        [
            global_v6(0x2a00, 9),
            v6(9, 9),
            global_v6(0xfd01, 7),
            global_v6(0xfd02, 1),
        ]
    };
    // The outside weighs most: only it is translated.
    [vec![outside; 6], vec![metadata, gateway], other.to_vec()].concat()
}

/// Addresses of the node beside pods' and translation's, and groups.
pub(super) fn others(is_v4: bool) -> Vec<IpAddr> {
    if is_v4 {
        vec![
            v4(10, 0, 0, 99),
            v4(172, 20, 0, 10),
            v4(10, 0, 1, 200),
            v4(10, 0, 1, 201),
            v4(224, 0, 0, 251),
            v4(255, 255, 255, 255),
            v4(0, 0, 0, 0),
            v4(127, 0, 0, 1),
            v4(240, 0, 0, 1),
            v4(240, 1, 0, 1),
        ]
    } else {
        vec![
            v6(0, 99),
            v6(0x5e, 0x10),
            v6(1, 200),
            v6(1, 201),
            Ipv6Addr::new(0xff02, 0, 0, 0, 0, 0, 0, 0xfb).into(),
            Ipv6Addr::new(0xfe80, 0, 0, 0, 0, 0, 0, 9).into(),
            Ipv6Addr::UNSPECIFIED.into(),
            Ipv6Addr::LOCALHOST.into(),
            global_v6(0x100, 1),
            Ipv6Addr::new(0x100, 0, 0, 0, 0, 0, 0, 1).into(),
            Ipv4Addr::new(10, 0, 1, 10).to_ipv6_mapped().into(),
        ]
    }
}

const NO_CLASS: Classes = Classes {
    block: false,
    service: false,
    metadata: false,
    exempt: false,
    unroutable: false,
};
const EXEMPT: Classes = Classes {
    exempt: true,
    ..NO_CLASS
};
const SERVICE: Classes = Classes {
    service: true,
    ..NO_CLASS
};
const BLOCK: Classes = Classes {
    block: true,
    ..EXEMPT
};
const SERVICE_IN_BLOCK: Classes = Classes {
    service: true,
    ..BLOCK
};
const METADATA: Classes = Classes {
    metadata: true,
    ..NO_CLASS
};
const UNROUTABLE: Classes = Classes {
    unroutable: true,
    ..NO_CLASS
};

/// Prefixes with their classes, as the map takes them and as the model does.
pub(super) fn destinations() -> Vec<(&'static str, DestinationClass, Classes)> {
    let nowhere = DestinationClass::UNROUTABLE;
    let vpc = DestinationClass::VPC;
    let vpc_block = vpc.union(DestinationClass::BLOCK);
    let vpc_service = vpc_block.union(DestinationClass::SERVICE);
    let link_local = DestinationClass::LINK_LOCAL;
    let link_metadata = link_local.union(DestinationClass::METADATA);
    vec![
        ("10.0.0.0/16", vpc, EXEMPT),
        ("10.0.1.0/24", vpc_block, BLOCK),
        ("10.0.1.201/32", vpc_service, SERVICE_IN_BLOCK),
        ("172.20.0.0/16", DestinationClass::SERVICE, SERVICE),
        ("192.168.0.0/16", DestinationClass::NATIVE, EXEMPT),
        ("100.64.0.0/10", DestinationClass::MASQ_AGENT, EXEMPT),
        ("0.0.0.0/8", nowhere, UNROUTABLE),
        ("127.0.0.0/8", nowhere, UNROUTABLE),
        ("240.0.0.0/4", nowhere, UNROUTABLE),
        ("240.1.0.0/16", vpc, EXEMPT),
        ("::/96", nowhere, UNROUTABLE),
        ("100::/64", nowhere, UNROUTABLE),
        ("169.254.0.0/16", link_local, EXEMPT),
        (
            "169.254.169.254/32",
            link_metadata,
            Classes {
                exempt: true,
                ..METADATA
            },
        ),
        ("2001:db8::/56", vpc, EXEMPT),
        ("2001:db8:0:1::/64", vpc_block, BLOCK),
        ("2001:db8:0:1::c9/128", vpc_service, SERVICE_IN_BLOCK),
        ("2001:db8:0:5e::/64", DestinationClass::SERVICE, SERVICE),
        ("fd01::/16", DestinationClass::NATIVE, EXEMPT),
        ("fd02::/16", DestinationClass::MASQ_AGENT, EXEMPT),
        ("fd99::/16", link_local, EXEMPT),
        ("fd00:ec2::254/128", DestinationClass::METADATA, METADATA),
    ]
}

/// The addresses of the pods.
fn endpoints() -> BTreeMap<IpAddr, Address> {
    let mut addresses = BTreeMap::new();
    for (pod, veth) in VETHS.into_iter().enumerate() {
        let owner = OWNERS[pod];
        let eni_ifindex = ENIS
            .iter()
            .find(|(number, _)| *number == owner)
            .map_or(0, |(_, device)| device.ifindex);
        let entry = Pod {
            eni: owner,
            eni_ifindex,
            pool: match pod {
                SKIPPED => Pool::Skips,
                HIDDEN => Pool::Hidden,
                _other => Pool::Masqueraded,
            },
            via_stack: false,
            ifindex: veth.ifindex,
            mtu: POD_MTUS[pod],
            mac: [0x0a, 1, 2, 3, 4, veth.mac[5]],
            host_mac: veth.mac,
        };
        for address in pod_addresses(pod) {
            addresses.insert(address, Address::Pod(entry));
        }
    }
    addresses
}

/// The node, as the model takes it.
///
/// # Errors
/// When a constant is none.
pub(super) fn world(variant: &Variant) -> Result<World> {
    let mut addresses = endpoints();
    let mut enis = BTreeMap::new();
    for ((number, device), mtu) in ENIS.into_iter().zip(MTUS) {
        let [translation_v4, translation_v6] = translation_addresses(number);
        for address in [translation_v4, translation_v6].into_iter().flatten() {
            let translation_of = Some(number);
            addresses.insert(address, Address::Host { translation_of });
        }
        let of = |gateway, translation| world::EniAddresses {
            gateway,
            translation,
            external: number,
        };
        let link_local = Ipv6Addr::new(0xfe80, 0, 0, 0, 0, 0, 0, u16::from(number) + 1);
        let eni = Eni {
            ifindex: device.ifindex,
            mtu,
            v4: of(v4(10, 0, number, 1), translation_v4),
            v6: of(link_local.into(), translation_v6),
        };
        enis.insert(number, eni);
    }
    for is_v4 in [true, false] {
        let translation_of = None;
        addresses.insert(others(is_v4)[0], Address::Host { translation_of });
    }
    let mut nets = Vec::new();
    for (net, _, classes) in destinations() {
        nets.push((net.parse()?, classes));
    }
    Ok(World {
        addresses,
        destinations: nets,
        enis,
        macs: DEVICES.iter().map(|one| (one.ifindex, one.mac)).collect(),
        sockets: Vec::new(),
        settings: variant.model()?,
    })
}

/// Writes the node to the programs' maps.
///
/// # Errors
/// When the kernel refuses.
pub(super) fn fill(programs: &mut Programs, world: &World) -> Result<()> {
    for (address, entry) in &world.addresses {
        put_address(programs, *address, *entry)?;
    }
    for (net, class, _) in destinations() {
        programs.put_destination(net.parse()?, class)?;
    }
    put_enis(programs, world)
}

/// Writes an address.
fn put_address(programs: &mut Programs, address: IpAddr, entry: Address) -> Result<()> {
    let entry = match entry {
        Address::Host {
            translation_of: Some(eni),
        } => AddressEntry::translation(eni),
        Address::Host { .. } => AddressEntry::host(),
        Address::Pod(pod) => AddressEntry::endpoint(EndpointAddress {
            eni: pod.eni,
            eni_ifindex: pod.eni_ifindex,
            pool: match pod.pool {
                Pool::Masqueraded => PoolPolicy::Masquerade,
                Pool::Skips => PoolPolicy::Skip,
                Pool::Hidden => PoolPolicy::Always,
            },
            via_stack: pod.via_stack,
            ifindex: pod.ifindex,
            mtu: u32::try_from(pod.mtu)?,
            pod_mac: pod.mac,
            host_mac: pod.host_mac,
            namespace: None,
        }),
    };
    programs.put_address(address, entry)
}

/// Writes the ENIs.
pub(super) fn put_enis(programs: &mut Programs, world: &World) -> Result<()> {
    for (number, eni) in &world.enis {
        let of = |addresses: &world::EniAddresses| {
            let translation = addresses.translation.map_or(Addr::UNSPECIFIED, Addr::from);
            EniAddresses::new(addresses.gateway.into(), translation, addresses.external)
        };
        let mtu = u32::try_from(eni.mtu)?;
        let entry = EniEntry::new(eni.ifindex, mtu, of(&eni.v4), of(&eni.v6));
        programs.put_eni(*number, entry)?;
    }
    Ok(())
}

/// Chooses by which ENIs the outside is reached, and where flows are looked up.
///
/// # Errors
/// When the kernel refuses.
pub(super) fn choose_policy(
    programs: &mut Programs,
    world: &mut World,
    random: &mut Random,
) -> Result<()> {
    world.settings.lookups = CompatLookups {
        exempt: random.below(2) == 0,
        elsewhere: random.below(2) == 0,
    };
    let own = random.below(2) == 0;
    for (number, eni) in &mut world.enis {
        let external = if own { *number } else { 0 };
        (eni.v4.external, eni.v6.external) = (external, external);
    }
    put_enis(programs, world)
}

/// Chooses the pod that is shaped, if any.
///
/// # Errors
/// When the kernel refuses.
pub(super) fn choose_shaped(
    programs: &mut Programs,
    world: &mut World,
    random: &mut Random,
) -> Result<()> {
    let shaped = random.below(2 * VETHS.len());
    let shaped = VETHS.get(shaped).map(|veth| veth.ifindex);
    for (address, entry) in &mut world.addresses {
        if let Address::Pod(pod) = entry
            && pod.via_stack != (shaped == Some(pod.ifindex))
        {
            pod.via_stack = !pod.via_stack;
            put_address(programs, *address, *entry)?;
        }
    }
    Ok(())
}

/// A packet that opens a flow whatever the policy, if the dice of this seed leave it whole; and its
/// device.
pub(super) fn probe(seed: u64) -> (Vec<u8>, u32) {
    let spec = Spec {
        source: pod_addresses(1)[0],
        destination: remotes(true)[0],
        load: Load::Ports(UDP, 40_000, 53),
    };
    let packet = spec.packet(&mut Random::new(seed));
    let veth = VETHS[1];
    (framed(Macs::new([2; 6], veth.mac), &packet), veth.ifindex)
}
