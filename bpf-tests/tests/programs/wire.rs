//! Real traffic through attached programs: targets of redirection, and frames that a test run
//! cannot make.

use std::collections::BTreeMap;
use std::fs;
use std::time::{Duration, Instant};

use anyhow::Result;
use aya::programs::tc::SchedClassifierLink;
use datapath_common::abi::GatewayEntry;
use datapath_common::counter::{Counter, Program};
use datapath_common::outcome::{DropReason, Outcome, Verdict};
use datapath_common::progress::tcp;
use testkit::packet::{Body, ETHERNET, Frame};
use testkit::raw::{Namespace, RawSocket};
use testkit::testrun::pool::Lease;
use testkit::testrun::{self, Programs, ip};

use crate::world::*;

const DEADLINE: Duration = Duration::from_secs(5);
const JUMBO: usize = 9001;

/// Pods A and B in namespaces of their own, and the far ends of the ENIs.
struct Wires {
    /// Dropped before another test gets the programs.
    _links: Vec<SchedClassifierLink>,
    programs: Lease<Programs>,
    /// Counters of the programs before this test.
    counted: BTreeMap<u32, Counter>,
    pod_a: RawSocket,
    pod_b: RawSocket,
    /// The VPC's ends of ENI 0 and ENI 1.
    vpc: [RawSocket; 2],
    /// For `send_scattered`.
    scatter_a: RawSocket,
    scatter_vpc_1: RawSocket,
    _namespaces: [Namespace; 3],
}

/// The gateway's MAC on an ENI.
const fn router(eni: u8) -> Mac {
    [0x0a, 7, 7, 7, 7, eni]
}

/// A device in this namespace, its peer with the same index plus 100 in another.
fn wire(here: Device, name: &str, there: &Namespace, mac: Mac) -> Result<()> {
    ip(&format!(
        "link add name {name} index {} mtu {JUMBO} address {} type veth \
         peer name far{} index {} mtu {JUMBO} address {} netns {}",
        here.ifindex,
        text(here.mac),
        here.ifindex,
        here.ifindex + 100,
        text(mac),
        there.path(),
    ))?;
    ip(&format!("link set {name} up"))?;
    there.run(|| ip(&format!("link set far{} up", here.ifindex)))
}

/// A namespace that sends no packets of its own.
fn silent() -> Result<Namespace> {
    let namespace = Namespace::new()?;
    namespace.run(|| {
        Ok(fs::write(
            "/proc/sys/net/ipv6/conf/default/disable_ipv6",
            "1",
        )?)
    })?;
    Ok(namespace)
}

fn wires() -> Result<Wires> {
    testrun::private_namespace()?;
    let [a, b, vpc] = [silent()?, silent()?, silent()?];
    wire(VETH_A, "veth-a", &a, POD_A)?;
    wire(VETH_B, "veth-b", &b, POD_B)?;
    for (number, device, name) in [(0, ENI_0, "eni0"), (1, ENI_1, "eni1")] {
        wire(device, name, &vpc, router(number))?;
        let (v4, v6) = gateways(number);
        let mac = text(router(number));
        ip(&format!(
            "neigh add {v4} lladdr {mac} dev {name} nud permanent"
        ))?;
        ip(&format!(
            "neigh add {v6} lladdr {mac} dev {name} nud permanent"
        ))?;
    }
    let mut programs = programs(&settings());
    for net in [V4, V6] {
        programs.put_address(net.a, endpoint(1, ENI_1.ifindex, IF_A, JUMBO))?;
        programs.put_address(net.b, endpoint(0, ENI_0.ifindex, IF_B, JUMBO))?;
    }
    programs.put_eni(0, eni(0, ENI_0, JUMBO))?;
    programs.put_eni(1, eni(1, ENI_1, JUMBO))?;
    let mut links = Vec::new();
    for (program, devices) in [
        (Program::FromEndpoint, ["veth-a", "veth-b"]),
        (Program::FromNetwork, ["eni0", "eni1"]),
    ] {
        for device in devices {
            links.push(programs.attach(program, device)?);
        }
    }
    let socket = |namespace: &Namespace, device: Device| {
        namespace.run(|| RawSocket::open(device.ifindex + 100))
    };
    Ok(Wires {
        counted: programs.counters()?,
        programs,
        _links: links,
        pod_a: socket(&a, VETH_A)?,
        pod_b: socket(&b, VETH_B)?,
        vpc: [socket(&vpc, ENI_0)?, socket(&vpc, ENI_1)?],
        scatter_a: socket(&a, VETH_A)?,
        scatter_vpc_1: socket(&vpc, ENI_1)?,
        _namespaces: [a, b, vpc],
    })
}

impl Wires {
    /// Packets by slot since the beginning, for nonzero slots.
    fn counted(&self) -> BTreeMap<u32, u64> {
        let before = |slot| self.counted.get(slot).map_or(0, |counter| counter.packets);
        let now = self.programs.counters().unwrap();
        now.iter()
            .map(|(slot, counter)| (*slot, counter.packets - before(slot)))
            .filter(|(_, packets)| *packets != 0)
            .collect()
    }

    /// Waits until the programs have counted so many packets under an outcome.
    fn wait_for(&self, program: Program, outcome: Outcome, packets: u64) {
        let end = Instant::now() + DEADLINE;
        loop {
            let all = self.counted();
            let slot = program.slot(outcome);
            let counted = all.get(&slot).copied().unwrap_or_default();
            if counted == packets {
                return;
            }
            assert!(
                Instant::now() < end,
                "{} {}: {counted} packets, not {packets}; all: {all:?}",
                program.name(),
                outcome.name(),
            );
            std::thread::yield_now();
        }
    }
}

/// The frame that must come out: one hop fewer, between these MACs.
fn forwarded(frame: &Frame, source: Mac, destination: Mac) -> Vec<u8> {
    let hop_limit = frame.hop_limit - 1;
    frame
        .clone()
        .macs(source, destination)
        .hop_limit(hop_limit)
        .bytes()
}

/// Waits for exactly these bytes.
fn expect(socket: &RawSocket, bytes: &[u8], what: &str) {
    let came = socket.receive(DEADLINE, |frame| frame == bytes).unwrap();
    assert!(came.is_some(), "{what}: did not come");
}

#[test]
fn redirection_leads_to_the_pod_and_to_the_owners_gateway() {
    let wires = wires().unwrap();
    for net in [V4, V6] {
        let body = Body::Udp(100);
        let what = |to: &str| format!("{} {to}", net.family());

        let frame = from_a(&net, net.outside, body).ports(50_000, 53);
        wires.pod_a.send(&frame.bytes()).unwrap();
        let translated = frame.from(net.snat[1], 50_000);
        let out = forwarded(&translated, ENI_1.mac, router(1));
        expect(&wires.vpc[1], &out, &what("A to the outside by ENI 1"));

        let frame = received(ENI_1, net.outside, net.snat[1], body).ports(53, 50_000);
        wires.vpc[1].send(&frame.bytes()).unwrap();
        let out = forwarded(&frame.to(net.a, 50_000), VETH_A.mac, POD_A);
        expect(&wires.pod_a, &out, &what("the answer to A"));

        let frame = sent(IF_B, net.b, net.peer, body);
        wires.pod_b.send(&frame.bytes()).unwrap();
        let out = forwarded(&frame, ENI_0.mac, router(0));
        expect(&wires.vpc[0], &out, &what("B to a peer by ENI 0"));

        let frame = from_a(&net, net.b, body);
        wires.pod_a.send(&frame.bytes()).unwrap();
        let out = forwarded(&frame, VETH_B.mac, POD_B);
        expect(&wires.pod_b, &out, &what("A to B"));

        let frame = from_a(&net, net.a, body);
        wires.pod_a.send(&frame.bytes()).unwrap();
        let out = forwarded(&frame, VETH_A.mac, POD_A);
        expect(&wires.pod_a, &out, &what("A to itself"));

        let frame = received(ENI_1, net.outside, net.a, body);
        wires.vpc[1].send(&frame.bytes()).unwrap();
        let out = forwarded(&frame, VETH_A.mac, POD_A);
        expect(&wires.pod_a, &out, &what("the outside to A"));
    }
}

#[test]
fn a_known_gateway_is_reached_without_a_neighbour_entry() {
    let wires = wires().unwrap();
    let known = GatewayEntry {
        until: u64::MAX,
        ifindex: ENI_1.ifindex,
        macs: [router(1), ENI_1.mac],
    };
    ip("neigh flush dev eni1 nud permanent").unwrap();
    for net in [V4, V6] {
        know_gateway(&wires.programs, 1, net.a.is_ipv4(), &known).unwrap();
        for (destination, source) in [(net.outside, net.snat[1]), (net.peer, net.a)] {
            // A packet that opens a connection has a cache entry at once.
            let frame = from_a(&net, destination, Body::Tcp(0)).ports(50_000, 80);
            let frame = frame.tcp(tcp::SYN, 1);
            wires.pod_a.send(&frame.bytes()).unwrap();
            let out = forwarded(&frame.from(source, 50_000), ENI_1.mac, router(1));
            let what = format!("{} to {destination}", net.family());
            expect(&wires.vpc[1], &out, &what);
        }
    }
}

#[test]
fn headers_outside_the_linear_part_are_read_and_rewritten() {
    let wires = wires().unwrap();
    for net in [V4, V6] {
        // More than a page, so that the kernel scatters it.
        let body = Body::Udp(6000);
        let frame = from_a(&net, net.outside, body).ports(50_000, 53);
        wires.scatter_a.send_scattered(&frame.bytes()).unwrap();
        let out = forwarded(&frame.from(net.snat[1], 50_000), ENI_1.mac, router(1));
        expect(&wires.vpc[1], &out, net.family());
        let frame = received(ENI_1, net.outside, net.snat[1], body).ports(53, 50_000);
        wires.scatter_vpc_1.send_scattered(&frame.bytes()).unwrap();
        let out = forwarded(&frame.to(net.a, 50_000), VETH_A.mac, POD_A);
        expect(&wires.pod_a, &out, net.family());
    }
}

#[test]
fn vlan_tags_are_dropped_from_pods_and_passed_from_enis() {
    let wires = wires().unwrap();
    let dropped = Outcome::Dropped(DropReason::VlanTagged);
    let passed = Outcome::Passed(Verdict::ForeignFrame);
    let mut frames = 0;
    for net in [V4, V6] {
        for tag in [[0x81, 0, 0, 0], [0x81, 0, 0, 7], [0x88, 0xa8, 0, 7]] {
            frames += 1;
            wires
                .pod_a
                .send(&tagged(&from_a(&net, net.outside, Body::Udp(100)), tag))
                .unwrap();
            wires.wait_for(Program::FromEndpoint, dropped, frames);
            let frame = received(ENI_1, net.outside, net.a, Body::Udp(100));
            wires.vpc[1].send(&tagged(&frame, tag)).unwrap();
            wires.wait_for(Program::FromNetwork, passed, frames);
        }
    }
    let all: Vec<u64> = wires.counted().into_values().collect();
    assert_eq!(all, [frames, frames], "nothing else is counted");
}

/// A frame with a VLAN tag.
fn tagged(frame: &Frame, tag: [u8; 4]) -> Vec<u8> {
    let mut bytes = frame.bytes();
    bytes.splice(12..12, tag);
    bytes
}

#[test]
fn frames_that_end_within_a_header_are_dropped() {
    let wires = wires().unwrap();
    let truncated = Outcome::Dropped(DropReason::Truncated);
    let mut frames = 0;
    for net in [V4, V6] {
        let sent = from_a(&net, net.outside, Body::Udp(100)).bytes();
        let received = received(ENI_1, net.outside, net.a, Body::Udp(100)).bytes();
        for length in ETHERNET..ETHERNET + net.header() {
            frames += 1;
            wires.pod_a.send(&sent[..length]).unwrap();
            wires.wait_for(Program::FromEndpoint, truncated, frames);
            wires.vpc[1].send(&received[..length]).unwrap();
            wires.wait_for(Program::FromNetwork, truncated, frames);
        }
    }
}
