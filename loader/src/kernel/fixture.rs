//! A node with three ENIs and three pods, and the kernel it starts from: what the tests of the
//! pure core share.

use std::collections::{BTreeMap, BTreeSet};
use std::net::{IpAddr, Ipv4Addr};

use api::ids::{EndpointId, EniNumber, MacAddr, Owner};
use datapath_common::abi::{AddressEntry, EndpointAddress};
use datapath_common::mark::MarkLayout;
use datapath_common::masquerade::PoolPolicy;
use ipam::Family;
use ipnet::IpNet;

use crate::constants;
use crate::intent::masquerade::{MasqueradeSettings, NO_SLICES, Policy};
use crate::intent::{
    ClusterServices, Endpoint, EndpointMeta, Eni, HostSettings, Intent, Node, NodeAddresses,
    Services, Settings, StaticAddress, Unfollowed,
};
use crate::kernel::{Address, Link, LinkKind, Observed, Sysctl, SysctlScope};

/// Index of ENI 0's device; ENI n's is this plus n.
pub const ETH0: u32 = 2;
/// Index of a bridge of the host.
pub const BRIDGE: u32 = 9;

pub fn mac(number: u8) -> MacAddr {
    MacAddr([2, 0, 0, 0, 0, number])
}

pub fn eni(number: u8) -> Eni {
    let blocks = [
        format!("10.0.{number}.20/32"),
        format!("10.0.{number}.64/28"),
        format!("2001:db8:0:{number}:a::/80"),
    ];
    Eni {
        id: format!("eni-{number}"),
        number: EniNumber(number),
        device_index: u32::from(number),
        mac: mac(number),
        primary_address: Some(Ipv4Addr::new(10, 0, number, 10)),
        public_address: None,
        subnet: format!("10.0.{number}.0/24").parse().ok(),
        subnet_id: format!("subnet-{number}"),
        tags: BTreeMap::new(),
        vpc_cidrs: vec!["10.0.0.0/16".parse().unwrap()],
        blocks: blocks.iter().map(|b| b.parse().unwrap()).collect(),
        kept: BTreeSet::new(),
        excluded: None,
        excluded_by_tags: None,
        bound_to: Vec::new(),
        use_primary_address: false,
        stale: None,
    }
}

pub fn endpoint(name: &str, addresses: &[&str]) -> Endpoint {
    Endpoint {
        owner: Owner {
            container_id: name.into(),
            interface: "eth0".into(),
        },
        netns: format!("/run/netns/{name}").into(),
        addresses: addresses.iter().map(|a| a.parse().unwrap()).collect(),
        mtu: 9001,
        about: EndpointMeta::default(),
    }
}

pub fn id(name: &str) -> EndpointId {
    endpoint(name, &[]).id()
}

/// ENIs 0, 1 and 2; pod a on ENI 0, pod b with both families on ENI 1, pod c on ENI 2.
pub fn intent() -> Intent {
    let endpoints = [
        endpoint("a", &["10.0.0.20"]),
        endpoint("b", &["10.0.1.65", "2001:db8:0:1:a::65"]),
        endpoint("c", &["10.0.2.66"]),
    ];
    Intent {
        node: Node {
            name: "node".into(),
            addresses: NodeAddresses {
                internal: vec![IpAddr::from([10, 0, 0, 10])],
                external: Vec::new(),
            },
            pools: BTreeMap::new(),
            allocated: Vec::new(),
            pre_allocate: None,
            flat: None,
            is_versioned: false,
            instance: None,
            static_address: StaticAddress::NotAsked,
            enis: (0..3).map(|n| (EniNumber(n), eni(n))).collect(),
            others: Vec::new(),
            unfollowed: Unfollowed::default(),
        },
        endpoints: endpoints.map(|e| (e.id(), e)).into(),
        settings: Settings {
            mark: MarkLayout::DEFAULT,
            protocol: 2,
            device_prefix: None,
            primary_device: None,
            internet_mtu: None,
            services: Services {
                configured: BTreeSet::from(["172.20.0.0/16".parse().unwrap()]),
                cluster: ClusterServices::none(),
            },
            host: HostSettings {
                addresses: BTreeSet::from([IpAddr::from([169, 254, 20, 10])]),
                ..HostSettings::default()
            },
            masquerade: MasqueradeSettings::default(),
            default_pool: crate::intent::masquerade::DEFAULT_POOL.to_owned(),
            plain_is_native: false,
            service_nat: false,
            ports: NO_SLICES,
        },
        policy: Policy::default(),
    }
}

/// The datapath's entry of an endpoint's address of an ENI.
pub fn address_entry(eni: u8, pool: PoolPolicy) -> AddressEntry {
    AddressEntry::endpoint(EndpointAddress {
        eni,
        eni_ifindex: 2,
        pool,
        via_stack: false,
        ifindex: 7,
        mtu: 1500,
        pod_mac: [2; 6],
        host_mac: [2; 6],
        namespace: None,
    })
}

pub fn link(ifindex: u32, name: &str, mac: MacAddr) -> Link {
    Link {
        ifindex,
        name: name.into(),
        alias: None,
        mac: Some(mac),
        mtu: 9001,
        up: true,
        group: 0,
        kind: LinkKind::Physical,
        master: None,
        peer_namespace: None,
    }
}

/// The host-side device of a pod, in use.
pub fn pod_link(ifindex: u32, name: &str) -> Link {
    Link {
        kind: LinkKind::Veth,
        group: constants::DEVICE_GROUP,
        peer_namespace: Some(3),
        ..link(ifindex, &id(name).device(), id(name).host_mac())
    }
}

/// Puts a device into the kernel, with the sysctls that the kernel gives a new one.
pub fn plug(observed: &mut Observed, link: Link) {
    for (family, name, value) in [
        (Family::V4, "rp_filter", "1"),
        (Family::V4, "arp_ignore", "0"),
        (Family::V4, "arp_announce", "0"),
        (Family::V4, "send_redirects", "1"),
        (Family::V4, "forwarding", "0"),
        (Family::V6, "accept_ra", "1"),
        (Family::V6, "addr_gen_mode", "1"),
    ] {
        let sysctl = Sysctl {
            family,
            scope: SysctlScope::Device(link.ifindex),
            name,
        };
        observed.sysctls.insert(sysctl, value.into());
    }
    observed.links.insert(link.ifindex, link);
}

pub fn address(ifindex: u32, net: &str) -> Address {
    let net = net.parse::<IpNet>().unwrap();
    Address { ifindex, net }
}

/// A host that has just booted: three ENIs, of which the primary is set up, and a bridge.
pub fn host() -> Observed {
    let mut observed = Observed::default();
    for (family, scope, name, value) in [
        (Family::V4, SysctlScope::Family, "ip_forward", "0"),
        (Family::V4, SysctlScope::All, "send_redirects", "1"),
        (Family::V6, SysctlScope::All, "forwarding", "0"),
    ] {
        let sysctl = Sysctl {
            family,
            scope,
            name,
        };
        observed.sysctls.insert(sysctl, value.into());
    }
    let loopback = Link {
        kind: LinkKind::Loopback,
        ..link(1, "lo", MacAddr([0; 6]))
    };
    plug(&mut observed, loopback);
    plug(&mut observed, link(ETH0, "eth0", mac(0)));
    for number in 1..3 {
        let secondary = Link {
            mtu: 1500,
            up: false,
            ..link(
                ETH0 + u32::from(number),
                &format!("eth{number}"),
                mac(number),
            )
        };
        plug(&mut observed, secondary);
    }
    let bridge = Link {
        kind: LinkKind::Stacked,
        ..link(BRIDGE, "docker0", MacAddr([2, 0x42, 0, 0, 0, 1]))
    };
    plug(&mut observed, bridge);
    observed.addresses = [
        address(1, "127.0.0.1/8"),
        address(1, "::1/128"),
        address(ETH0, "10.0.0.10/24"),
        address(ETH0, "fe80::10/64"),
        address(BRIDGE, "172.17.0.1/16"),
    ]
    .into();
    observed
}
