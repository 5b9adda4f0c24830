//! The gateways' MACs: the programs have the kernel's entries, for as long as the agent lives.

use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use api::ids::MacAddr;
use aya::maps::{Array, MapData};
use datapath_common::abi::{GatewayEntry, map};
use ipam::Family;
use testkit::fabric::eventually::check;
use testkit::fabric::traffic::Protocol;
use testkit::fabric::{Fabric, Pod, Spec};

use crate::support::{CHANGE, End, HEAL, HEAL_MAPS, PEER, carry_all, pinned, within};

/// The pod's ENI.
const ENI: u8 = 1;
/// MAC of the router after its change.
const OTHER: MacAddr = MacAddr([0x0a, 0x58, 0, 0, 0, 0x77]);
/// Longer than the programs rely on an entry that is not renewed.
const FORGOTTEN: Duration = Duration::from_secs(20);

/// A node with a pod that has reached its peer.
fn node() -> (Fabric, Arc<Pod>) {
    let mut fabric = Fabric::ready(&Spec::default()).unwrap();
    // A router that announces its new MAC.
    let tells = [
        ("ipv4/conf/eni1/arp_notify", "1"),
        ("ipv6/conf/eni1/ndisc_notify", "1"),
    ];
    for (name, value) in tells {
        let file = format!("/proc/sys/net/{name}");
        let write = || Ok(std::fs::write(&file, value)?);
        fabric.vpc.router.enter(write).unwrap();
    }
    let pod = fabric.add_pod(ENI, 0).unwrap();
    carry_all(&fabric, End::Pod(&pod), PEER, &[ENI]);
    (fabric, pod)
}

fn gateways(fabric: &Fabric) -> Array<MapData, GatewayEntry> {
    pinned(fabric, map::GATEWAYS)
}

fn slot(family: Family) -> u32 {
    GatewayEntry::slot(ENI, family == Family::V4)
}

fn router_mac(fabric: &Fabric) -> MacAddr {
    let eni = fabric.eni(ENI).unwrap();
    fabric.vpc.router_mac(eni).unwrap()
}

/// Changes the router's MAC. Its kernel then forgets its neighbours.
fn change_router_mac(fabric: &Fabric) {
    let change = format!("link set eni1 address {OTHER}");
    fabric.vpc.router.ip(&change).unwrap();
    fabric.vpc.deliver(fabric.eni(ENI).unwrap()).unwrap();
}

/// The gateway of the pod's ENI.
fn address(fabric: &Fabric, family: Family) -> IpAddr {
    match family {
        Family::V4 => fabric.eni(ENI).unwrap().gateway_v4().into(),
        Family::V6 => "fe80:ec2::1".parse().unwrap(),
    }
}

/// Waits until the programs have this MAC, or none.
fn wait_for(fabric: &Fabric, family: Family, mac: Option<MacAddr>, what: &str) {
    within(HEAL, &format!("{family:?}: {what}"), || {
        knows(fabric, family, mac)
    });
}

/// Checks that the programs have this MAC, or none.
fn knows(fabric: &Fabric, family: Family, mac: Option<MacAddr>) -> anyhow::Result<()> {
    let entry = gateways(fabric).get(&slot(family), 0)?;
    let known = (entry.until != 0).then_some(MacAddr(entry.macs[0]));
    check(known == mac, || format!("{known:?}, not {mac:?}"))
}

#[test]
fn the_programs_know_what_the_kernel_knows() {
    let (fabric, pod) = node();
    let first = router_mac(&fabric);
    for family in Family::ALL {
        wait_for(&fabric, family, Some(first), "found");
        let entry = gateways(&fabric).get(&slot(family), 0).unwrap();
        let eni = fabric.eni(ENI).unwrap().mac;
        assert_eq!(entry.macs[1], eni.0, "the device's own");
    }
    change_router_mac(&fabric);
    for family in Family::ALL {
        wait_for(&fabric, family, Some(OTHER), "it has another one");
    }
    carry_all(&fabric, End::Pod(&pod), PEER, &[ENI]);
    for family in Family::ALL {
        let gateway = address(&fabric, family);
        let delete = format!("neigh del {gateway} dev eth1");
        fabric.node.ip(&delete).unwrap();
        wait_for(&fabric, family, None, "forgotten");
    }
    carry_all(&fabric, End::Pod(&pod), PEER, &[ENI]);
    for family in Family::ALL {
        wait_for(&fabric, family, Some(OTHER), "found again");
    }
    fabric.finish().unwrap();
}

#[test]
fn what_somebody_else_writes_is_mended() {
    let (fabric, pod) = node();
    let mac = router_mac(&fabric);
    for family in Family::ALL {
        wait_for(&fabric, family, Some(mac), "found");
        let mut gateways = gateways(&fabric);
        let entry = gateways.get(&slot(family), 0).unwrap();
        let wrong = GatewayEntry {
            macs: [OTHER.0, entry.macs[1]],
            ..entry
        };
        for spoiled in [wrong, GatewayEntry::UNKNOWN] {
            gateways.set(slot(family), spoiled, 0).unwrap();
            within(HEAL_MAPS, &format!("{family:?}: mended"), || {
                knows(&fabric, family, Some(mac))
            });
        }
    }
    carry_all(&fabric, End::Pod(&pod), PEER, &[ENI]);
    // The entry of a gateway that was not found is repaired, too.
    for family in Family::ALL {
        let gateway = address(&fabric, family);
        fabric
            .node
            .ip(&format!("neigh del {gateway} dev eth1"))
            .unwrap();
        wait_for(&fabric, family, None, "forgotten");
        let mut gateways = gateways(&fabric);
        let wrong = GatewayEntry {
            until: u64::MAX,
            ifindex: 1,
            macs: [OTHER.0; 2],
        };
        gateways.set(slot(family), wrong, 0).unwrap();
        within(HEAL_MAPS, &format!("{family:?}: mended"), || {
            let entry = gateways.get(&slot(family), 0)?;
            check(entry != wrong, || format!("{entry:?}"))
        });
    }
    fabric.finish().unwrap();
}

#[test]
fn without_an_agent_the_kernel_is_asked_again() {
    let (mut fabric, pod) = node();
    let mac = router_mac(&fabric);
    for family in Family::ALL {
        wait_for(&fabric, family, Some(mac), "found");
    }
    fabric.agent.kill().unwrap();
    change_router_mac(&fabric);
    for family in Family::ALL {
        within(FORGOTTEN, &format!("{family:?}: an egress path"), || {
            let peer = PEER.at(&fabric, family);
            // The first packet of another kind still makes the kernel look up the gateway.
            Protocol::Tcp.exchange(pod.at(family), peer)
        });
    }
    carry_all(&fabric, End::Pod(&pod), PEER, &[ENI]);
    fabric.start_agent().unwrap();
    for family in Family::ALL {
        wait_for(&fabric, family, Some(OTHER), "found by the next agent");
    }
    fabric.finish().unwrap();
}

/// The kernel sees none of the programs' packets, and it probes a neighbour again only if the
/// neighbour is used.
#[test]
fn a_gateway_that_nobody_has_confirmed_for_a_while_is_asked_again() {
    let (fabric, _pod) = node();
    let mac = router_mac(&fabric);
    for family in ["ipv4", "ipv6"] {
        let file = format!("/proc/sys/net/{family}/neigh/eth1/delay_first_probe_time");
        let write = || Ok(std::fs::write(&file, "1")?);
        fabric.node.enter(write).unwrap();
    }
    for family in Family::ALL {
        let gateway = address(&fabric, family);
        let stale = format!("neigh change {gateway} lladdr {mac} dev eth1 nud stale");
        fabric.node.ip(&stale).unwrap();
        within(CHANGE, &format!("{gateway} is confirmed"), || {
            let line = format!("ip neigh show {gateway} dev eth1");
            let shown = fabric.node.run(&line)?;
            check(shown.contains("REACHABLE"), || shown.clone())
        });
    }
    fabric.finish().unwrap();
}
