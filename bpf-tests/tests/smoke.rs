//! One round of everything: the agent, pods on two ENIs, real packets of both families, within the
//! VPC, out of it and through services. Small enough for an emulated machine: the kernel matrix
//! runs it.

#![expect(
    clippy::unwrap_used,
    reason = "a test ends where something unexpected happens"
)]

use std::collections::BTreeSet;
use std::net::{IpAddr, SocketAddr, UdpSocket};
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

use ipam::Family;
use nix::sys::socket::{setsockopt, sockopt};
use serde_json::{Value, json};
use testkit::fabric::eventually::{check, eventually};
use testkit::fabric::layout::{DIRECT, Host};
use testkit::fabric::traffic::{Asker, Echo, Protocol, Session};
use testkit::fabric::world::Site;
use testkit::fabric::{Client, Fabric, Place, Pod, Spec, source_check};

/// MTU of every link to the world, as the Internet has it.
const MTU: u32 = 1500;
/// Data of a datagram that such a link takes in pieces only.
const LARGE: usize = 4000;
/// The time that the flows of a removed pod may stay, on an emulated machine.
const SWEPT: Duration = Duration::from_secs(15);

/// One exchange, which must succeed.
#[track_caller]
fn exchange(protocol: Protocol, from: Place<'_>, to: Place<'_>) {
    if let Err(error) = protocol.exchange(from, to) {
        panic!(
            "{protocol} from {} to {}: {error:#}",
            from.address, to.address
        );
    }
}

#[test]
fn pods_on_two_enis_reach_each_other_the_node_and_the_vpc() {
    let mut fabric = Fabric::ready(&Spec::default()).unwrap();
    let pods = [0, 1].map(|eni| fabric.add_pod(eni, 0).unwrap());
    for family in Family::ALL {
        let [first, second] = [&pods[0], &pods[1]].map(|pod| pod.at(family));
        let node = fabric.node_at(family).unwrap();
        let peer = fabric.peer(family);
        for protocol in Protocol::ALL {
            exchange(protocol, first, second);
            for (eni, pod) in [(0, first), (1, second)] {
                exchange(protocol, pod, node);
                exchange(protocol, node, pod);
                exchange(protocol, pod, peer);
                exchange(protocol, peer, pod);
                let router = &fabric.vpc.router;
                let enis =
                    source_check::enis_between(router, pod.address, peer.address, &[]).unwrap();
                assert!(
                    enis.iter().eq([&eni]),
                    "{protocol} of ENI {eni} took {enis:?}"
                );
            }
        }
    }
    fabric.finish().unwrap();
}

/// Packets with these addresses, neither of them translated, left by this ENI alone.
#[track_caller]
fn left_untranslated(fabric: &Fabric, from: Place<'_>, to: Place<'_>, eni: u8) {
    let router = &fabric.vpc.router;
    let enis = source_check::enis_between(router, from.address, to.address, &[]).unwrap();
    let (from, to) = (from.address, to.address);
    assert_eq!(enis, BTreeSet::from([eni.into()]), "from {from} to {to}");
}

/// The flows of a pod that the agent lists.
fn flows_of(fabric: &Fabric, pod: &Pod) -> anyhow::Result<Vec<Value>> {
    let list = fabric.agent.ask("GET", "/v1/nat/flows", None)?;
    let addresses = Family::ALL.map(|family| json!(pod.address(family).to_string()));
    let flows = list["flows"].as_array().into_iter().flatten();
    let own = flows.filter(|flow| addresses.contains(&flow["pod"]));
    Ok(own.cloned().collect())
}

#[test]
fn what_leaves_the_vpc_is_translated_and_what_comes_from_outside_keeps_its_addresses() {
    let spec = Spec {
        mtu: MTU,
        ..Spec::with_world(json!({}))
    };
    let mut fabric = Fabric::ready(&spec).unwrap();
    let pods = [0, 1].map(|eni| fabric.add_pod(eni, 0).unwrap());
    let direct = fabric.add_pod(1, DIRECT.start).unwrap();
    let skips = Family::ALL.map(|family| direct.address(family).into());
    fabric.allow_untranslated(&skips).unwrap();
    for family in Family::ALL {
        let peer = fabric.peer(family);
        let outside = fabric.host(Host::Outside, family);
        let server = Echo::telling(fabric.world().unwrap().at(Site::Internet, family), 0).unwrap();
        for (pod, eni) in pods.iter().zip([0, 1]) {
            let pod = pod.at(family);
            let translated = fabric.translation_address(eni, family).unwrap();
            let seen = fabric.check_seen(pod, Site::Internet, translated, eni);
            seen.unwrap();
            let asker = Asker::open(pod, 0, server.address()).unwrap();
            assert_eq!(asker.ask(LARGE).unwrap().ip(), translated, "in pieces");
            for protocol in Protocol::ALL {
                exchange(protocol, pod, peer);
                exchange(protocol, outside, pod);
            }
            left_untranslated(&fabric, pod, peer, eni);
            left_untranslated(&fabric, pod, outside, eni);
        }
        let own = direct.address(family);
        let seen = fabric.check_seen(direct.at(family), Site::Internet, own, 1);
        seen.unwrap();
    }
    let [kept, removed] = &pods;
    assert!(!flows_of(&fabric, removed).unwrap().is_empty());
    fabric.delete_endpoint(removed).unwrap();
    eventually(SWEPT, "the reaper takes a removed pod's flows", || {
        let flows = flows_of(&fabric, removed)?;
        check(flows.is_empty(), || format!("{flows:?}"))
    })
    .unwrap();
    assert!(!flows_of(&fabric, kept).unwrap().is_empty());
    fabric.finish().unwrap();
}

/// A server answers requests by TCP and UDP, in fragments too. Returns the addresses that it sees.
#[track_caller]
fn serve(
    fabric: &Fabric,
    [from, server]: [Place<'_>; 2],
    frontend: SocketAddr,
    client: Client,
) -> Vec<IpAddr> {
    let server = Echo::telling(server, 0).unwrap();
    fabric.serve_as(frontend, server.address(), client).unwrap();
    let mut session = Session::open(from, 0, frontend).unwrap();
    session.exchange().unwrap();
    let asker = Asker::open(from, 0, frontend).unwrap();
    let datagrams = [7, LARGE].map(|bytes| asker.ask(bytes).unwrap());
    let seen = [session.seen()].into_iter().chain(datagrams);
    seen.map(|seen| seen.ip()).collect()
}

/// The number of flows of a family that are noted to take the stack.
fn noted(fabric: &Fabric, family: Family) -> usize {
    let list = fabric.agent.ask("GET", "/v1/nat/flows", None).unwrap();
    let flows = list["flows"].as_array().unwrap().iter();
    let noted = flows.filter(|flow| flow["kind"] == "stack");
    noted
        .map(|flow| flow["pod"].as_str().unwrap().parse().unwrap())
        .filter(|pod| Family::of(*pod) == family)
        .count()
}

/// A node with a world and with NAT rules, which the agent sees as it starts.
fn serving() -> Fabric {
    let cidrs = ["172.20.0.0/16", "fd5e::/108"];
    let spec = Spec::with_world(json!({"services": {"cidrs": cidrs, "nat": "auto"}}));
    let mut fabric = Fabric::create(&spec).unwrap();
    let nowhere = SocketAddr::new([192, 0, 2, 1].into(), 1);
    fabric.serve(nowhere, nowhere).unwrap();
    fabric.start_agent().unwrap();
    let status = fabric.agent.ask("GET", "/v1/status", None).unwrap();
    assert_eq!(status["service-nat"]["notes"], true, "{status}");
    fabric
}

#[test]
fn answers_of_services_take_the_stack_and_nothing_else_does() {
    let mut fabric = serving();
    let pods = [0, 1].map(|eni| fabric.add_pod(eni, 0).unwrap());
    for family in Family::ALL {
        let [first, second] = [&pods[0], &pods[1]].map(|pod| pod.at(family));
        let (peer, outside) = (fabric.peer(family), fabric.host(Host::Outside, family));
        let service = match family {
            Family::V4 => "172.20.0.10".parse().unwrap(),
            Family::V6 => "fd5e::10".parse().unwrap(),
        };
        let node = [0, 1].map(|eni| fabric.translation_address(eni, family).unwrap());
        let world = fabric.world().unwrap().at(Site::Internet, family);
        for (port, (ends, frontend, client, expected)) in (30_080..).zip([
            ([first, second], service, Client::Kept, &[first.address][..]),
            ([first, peer], service, Client::Kept, &[first.address]),
            ([second, world], service, Client::Kept, &node[1..]),
            ([outside, first], node[1], Client::Kept, &[outside.address]),
            ([outside, first], node[1], Client::Masqueraded, &node),
            ([outside, peer], node[1], Client::Masqueraded, &node),
        ]) {
            let frontend = SocketAddr::new(frontend, port);
            for seen in serve(&fabric, ends, frontend, client) {
                let is_expected = expected.contains(&seen);
                assert!(is_expected, "{frontend}: {seen}, not of {expected:?}");
            }
        }
        for protocol in Protocol::ALL {
            exchange(protocol, first, second);
            exchange(protocol, second, peer);
        }
        // TCP and UDP of four questions. The note of the one that leaves the VPC is in its
        // translation, and the one between outside and the peer has no pod.
        assert_eq!(noted(&fabric, family), 8);
    }
    fabric.finish().unwrap();
}

/// Times that a pod has to learn the path's MTU during a flood.
const LESSONS: usize = 5;
/// The time for one of them, on an emulated machine.
const LEARNED: Duration = Duration::from_secs(5);
/// Packets that expire, several times as many as the kernel answers in a second.
const EXPIRED: u64 = 3000;

/// A socket of a pod whose packets expire at the first hop.
fn expiring(from: Place<'_>, to: SocketAddr) -> anyhow::Result<UdpSocket> {
    from.netns.enter(|| {
        let socket = UdpSocket::bind((from.address, 0))?;
        if from.address.is_ipv4() {
            socket.set_ttl(1)?;
        } else {
            setsockopt(&socket, sockopt::Ipv6Ttl, &1)?;
        }
        socket.connect(to)?;
        Ok(socket)
    })
}

/// Sends packets that expire until the end; their number.
fn flood(socket: &UdpSocket, is_over: &AtomicBool) -> u64 {
    let mut sent = 0;
    while !is_over.load(Ordering::Relaxed) {
        // The errors that answer the packets come back here, too.
        sent += u64::from(socket.send(b"towpath").is_ok());
    }
    sent
}

/// Sends a datagram that the ENI does not take until an error names the ENI's MTU.
fn learns(from: Place<'_>, to: SocketAddr) -> anyhow::Result<()> {
    for ip in ["-4", "-6"] {
        let flush = format!("ip {ip} route flush cache");
        from.netns.run(&flush)?;
    }
    let socket = from
        .netns
        .enter(|| Ok(UdpSocket::bind((from.address, 0))?))?;
    let route = format!("ip route get {} from {}", to.ip(), from.address);
    eventually(LEARNED, "the pod is told of the MTU", || {
        let _refused_or_not = socket.send_to(&[7; LARGE], to);
        let route = from.netns.run(&route)?;
        check(route.contains(&format!("mtu {MTU}")), || route.clone())
    })
    .map(drop)
}

/// Linux limits all ICMP errors of a namespace together, by default to 1,000 a second.
#[test]
fn a_pod_whose_packets_expire_leaves_another_its_answers_of_mtu() {
    let mut fabric = Fabric::ready(&Spec::default()).unwrap();
    let [greedy, innocent] = [0, 1].map(|index| fabric.add_pod(1, index).unwrap());
    let (router, node) = (&fabric.vpc.router, &fabric.node);
    router.ip(&format!("link set eni1 mtu {MTU}")).unwrap();
    router.ip(&format!("link set eni0 mtu {MTU}")).unwrap();
    node.ip(&format!("link set eth0 mtu {MTU}")).unwrap();
    eventually(SWEPT, "ENI 1 has the primary's MTU", || {
        let links = fabric.node.ip_json("link show dev eth1")?;
        check(links[0]["mtu"] == MTU, || links.to_string())
    })
    .unwrap();
    for family in Family::ALL {
        let sink = Echo::start(fabric.peer(family)).unwrap();
        let to = sink.address();
        let socket = expiring(greedy.at(family), to).unwrap();
        let is_over = AtomicBool::new(false);
        let sent = thread::scope(|scope| {
            let flooding = scope.spawn(|| flood(&socket, &is_over));
            let told = (0..LESSONS).try_for_each(|_| learns(innocent.at(family), to));
            is_over.store(true, Ordering::Relaxed);
            told.unwrap();
            flooding.join().unwrap()
        });
        assert!(sent > EXPIRED, "{sent} packets are no flood");
    }
    fabric.finish().unwrap();
}
