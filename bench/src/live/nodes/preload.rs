//! Endpoints without pods, and flows without conversations, which make a node large.
//!
//! An endpoint is preloaded as the agent would write it: an entry of `ADDRESSES` and a route of the
//! pod table, with the real pod's device. A flow is preloaded by the program itself: the real pod
//! sends a datagram to an unused address. Gateways' entries never expire, because a dead agent does
//! not renew them.

use std::fmt::Write as _;
use std::net::{Ipv4Addr, UdpSocket};
use std::path::PathBuf;

use anyhow::{Context as _, Result, anyhow, bail};
use aya::maps::{Array, HashMap, Map, MapData, MapError};
use datapath_common::abi::{self, Addr, AddressEntry, EndpointAddress, GatewayEntry, Quota, map};
use datapath_common::masquerade::PoolPolicy;
use ipam::Family;
use ipnet::IpNet;
use loader::constants::TABLE_PODS;
use testkit::fabric::eventually::check;
use testkit::fabric::{Fabric, Pod};
use zerocopy::FromBytes as _;

use super::site::Site;

/// Destinations of the flows: benchmarking addresses (RFC 2544), which the router discards.
const NOWHERE: Ipv4Addr = Ipv4Addr::new(198, 18, 0, 0);
/// Flows to each address there.
const PORTS: u16 = 50_000;
/// The first port of those.
const FIRST_PORT: u16 = 10_000;

fn pin(fabric: &Fabric, name: &str) -> PathBuf {
    let version = format!("v{}", abi::VERSION);
    fabric.pin_root().join(version).join("maps").join(name)
}

fn addresses(fabric: &Fabric) -> Result<HashMap<MapData, Addr, AddressEntry>> {
    let map = MapData::from_pin(pin(fabric, map::ADDRESSES))?;
    Ok(Map::HashMap(map).try_into()?)
}

/// Adds endpoints to the real one until there are `count`.
///
/// # Errors
/// When the ENIs have too few addresses, or the kernel refuses.
pub fn endpoints(fabric: &Fabric, pod: &Pod, count: usize) -> Result<()> {
    let mut addresses = addresses(fabric)?;
    let real = pod.address(Family::V4);
    let like = addresses.get(&Addr::from(real), 0);
    let like = like.context("the real pod's entry")?;
    let source = fabric.eni(0)?.own_address(Family::V4);
    let source = source.context("the primary's address")?;
    let device = pod.host_device();
    let index = |device: &str| {
        let index = || Ok(nix::net::if_::if_nametoindex(device)?);
        fabric.node.enter(index)
    };
    let enis = fabric.enis.iter();
    let enis: Vec<_> = enis
        .map(|eni| Ok((eni, index(&eni.device())?)))
        .collect::<Result<_>>()?;
    let mut batch = String::new();
    let mut left = count.saturating_sub(1);
    for round in 0_usize.. {
        if left == 0 {
            break;
        }
        let before = left;
        for (eni, eni_ifindex) in &enis {
            let Some(address) = eni.pod_address(Family::V4, round) else {
                continue;
            };
            if left == 0 || address == real {
                continue;
            }
            left -= 1;
            let number = u32::try_from(left)?.to_be_bytes();
            let [_, _, rest @ ..] = *like.host_mac();
            let entry = AddressEntry::endpoint(EndpointAddress {
                eni: eni.number,
                eni_ifindex: *eni_ifindex,
                pool: PoolPolicy::Masquerade,
                via_stack: false,
                ifindex: like.ifindex(),
                mtu: like.mtu(),
                pod_mac: *like.pod_mac(),
                host_mac: other_mac(rest, number),
                namespace: None,
            });
            addresses.insert(Addr::from(address), entry, 0)?;
            // Writing to a string cannot fail.
            let _infallible = writeln!(
                batch,
                "route add {address}/32 dev {device} table {TABLE_PODS} proto kernel src {source}"
            );
        }
        if left == before {
            bail!(
                "the ENIs have addresses for {} endpoints only",
                count - left
            );
        }
    }
    fabric.node.ip(&batch)
}

/// Writes entries without expiry for the gateways of all ENIs.
///
/// # Errors
/// When the router or the kernel refuses.
pub fn gateways(fabric: &Fabric) -> Result<()> {
    let map = MapData::from_pin(pin(fabric, map::GATEWAYS))?;
    let mut gateways: Array<_, GatewayEntry> = Map::Array(map).try_into()?;
    for eni in &fabric.enis {
        let router = fabric.vpc.router_mac(eni)?;
        let device = eni.device();
        let index = || Ok(nix::net::if_::if_nametoindex(device.as_str())?);
        let entry = GatewayEntry {
            until: u64::MAX,
            ifindex: fabric.node.enter(index)?,
            macs: [router.0, eni.mac.0],
        };
        for is_v4 in [true, false] {
            gateways.set(GatewayEntry::slot(eni.number, is_v4), entry, 0)?;
        }
    }
    Ok(())
}

/// A unique host-side MAC: the identity of an endpoint consists of bits of it.
fn other_mac(real: [u8; 4], number: [u8; 4]) -> [u8; 6] {
    let [a, b, c, d] = std::array::from_fn(|i| real[i] ^ number[i] ^ u8::from(i == 0));
    [0x02, 0x7e, a, b, c, d]
}

/// Makes the real pod open flows to the outside until there are `count`.
///
/// # Errors
/// When a datagram cannot be sent, or the flows are not created.
pub fn flows(site: &Site, count: usize) -> Result<()> {
    let net = IpNet::new(NOWHERE.into(), 24)?;
    let router = &site.fabric.vpc.router;
    router.ip(&format!("route replace blackhole {net}"))?;
    let ends = (u32::from(NOWHERE) + 1..)
        .flat_map(|to| (FIRST_PORT..FIRST_PORT + PORTS).map(move |port| (Ipv4Addr::from(to), port)))
        .take(count);
    let pod = site.pod.at(Family::V4);
    pod.netns.enter(|| {
        let socket = UdpSocket::bind((pod.address, 0))?;
        for end in ends {
            socket
                .send_to(b"!", end)
                .with_context(|| format!("{end:?}"))?;
        }
        Ok(())
    })?;
    let there = flows_of(site)?;
    check(there >= count, || {
        format!("{there} of {count} flows came to be")
    })
}

/// The number of flows of the real pod, by its quota.
fn flows_of(site: &Site) -> Result<usize> {
    const SIZE: usize = size_of::<Quota>();
    let Site { fabric, pod } = site;
    let entry = addresses(fabric)?.get(&Addr::from(pod.address(Family::V4)), 0)?;
    let quota = MapData::from_pin(pin(fabric, map::QUOTA))?;
    let quota: HashMap<_, u32, [u8; SIZE]> = Map::HashMap(quota).try_into()?;
    let of_pod = match quota.get(&entry.identity(), 0) {
        Ok(bytes) => Quota::read_from_bytes(&bytes).map_err(|_size| anyhow!("a quota's size"))?,
        Err(MapError::KeyNotFound) => Quota::NONE,
        Err(error) => return Err(error.into()),
    };
    Ok(usize::try_from(of_pod.flows)?)
}
