//! Connections from outside the VPC: a peering that keeps the client's address. Answers leave with
//! the pod's address by the ENI that owns it, and foreign scans leave no entries.

use std::io::ErrorKind;
use std::net::{SocketAddr, TcpStream};
use std::time::Duration;

use ipam::Family;
use serde_json::json;
use testkit::fabric::eventually::check;
use testkit::fabric::layout::Host;
use testkit::fabric::traffic::{Asker, Echo, Protocol, Session, ping};
use testkit::fabric::{Fabric, Pod};

use crate::masq::{entries, internet, internet_scene, scene, snat};
use crate::support::{End, OUTSIDE, carry_all, count, within};

/// Ports of a scan; no socket listens there.
const SCANNED: std::ops::Range<u16> = 2000..2200;
const REPLY_TIMEOUT: Duration = Duration::from_secs(3);
/// A datagram without an answer by then is sent once more.
const ANSWER: Duration = Duration::from_millis(200);

#[test]
fn answers_leave_untranslated_by_the_owner() {
    let (mut fabric, pods) = scene(json!({}));
    for (pod, eni) in pods.iter().zip([0, 1]) {
        carry_all(&fabric, OUTSIDE, End::Pod(pod), &[eni]);
        for family in Family::ALL {
            let server = Echo::telling(pod.at(family), 0).unwrap();
            let outside = fabric.host(Host::Outside, family);
            let mut session = Session::open(outside, 0, server.address()).unwrap();
            assert_eq!(session.seen().ip(), outside.address);
            session.bulk(1 << 20).unwrap();
            let asker = Asker::open(outside, 0, server.address()).unwrap();
            asker.ask(7).unwrap();
            fabric.agent.stop().unwrap();
            fabric.start_agent().unwrap();
            session.exchange().unwrap();
            asker.ask(7).unwrap();
        }
    }
    // A pod with a public address of its own, as seen from the Internet.
    let [_, pod] = &pods;
    let addresses = Family::ALL.map(|family| pod.address(family).into());
    fabric.allow_untranslated(&addresses).unwrap();
    for family in Family::ALL {
        for protocol in Protocol::ALL {
            let from = internet(&fabric, family);
            protocol.exchange(from, pod.at(family)).unwrap();
        }
        // Connections that the pod itself opens to that host are translated.
        let server = Echo::telling(internet(&fabric, family), 0).unwrap();
        let session = Session::open(pod.at(family), 0, server.address()).unwrap();
        assert_eq!(session.seen().ip(), snat(&fabric, 1, family));
    }
    fabric.finish().unwrap();
}

#[test]
fn large_datagrams_and_pings_are_answered_untranslated() {
    let (fabric, pods) = internet_scene(json!({}));
    for (pod, family) in pods.iter().flat_map(|pod| Family::ALL.map(|f| (pod, f))) {
        let outside = fabric.host(Host::Outside, family);
        let server = Echo::telling(pod.at(family), 0).unwrap();
        let asker = Asker::open(outside, 0, server.address()).unwrap();
        assert_eq!(asker.ask(9000).unwrap().ip(), outside.address);
        ping(outside, pod.address(family), &["-s", "4000"]).unwrap();
    }
    fabric.finish().unwrap();
}

/// Makes the VPC deliver a pod's addresses by another ENI.
fn deliver_wrongly(fabric: &Fabric, pod: &Pod, eni: u8) {
    let wrong = fabric.eni(eni).unwrap();
    let device = wrong.router_device();
    let v4 = format!(
        "route replace {} via {} dev {device} onlink proto static",
        pod.address(Family::V4),
        snat(fabric, eni, Family::V4)
    );
    let v6 = pod.address(Family::V6);
    let routes = format!(
        "{v4}\nroute del {v6}\nroute add {v6} via {} dev {device} proto static",
        wrong.next_hop_v6()
    );
    fabric.vpc.router.ip(&routes).unwrap();
}

#[test]
fn what_comes_by_another_eni_is_dropped_and_counted() {
    let (fabric, pods) = scene(json!({}));
    for (pod, wrong) in pods.iter().zip([1, 0]) {
        deliver_wrongly(&fabric, pod, wrong);
        for family in Family::ALL {
            let outside = fabric.host(Host::Outside, family);
            let noted = entries(&fabric, "INBOUND");
            let before = count(&fabric, "from_network", "wrong-eni");
            Protocol::Udp.exchange(outside, pod.at(family)).unwrap_err();
            let after = count(&fabric, "from_network", "wrong-eni");
            assert!(after > before, "{family:?}: {before} then {after}");
            assert_eq!(entries(&fabric, "INBOUND"), noted);
        }
    }
    fabric.finish().unwrap();
}

fn connect(fabric: &Fabric, to: SocketAddr, patience: Duration) -> std::io::Error {
    let outside = fabric.host(Host::Outside, Family::of(to.ip()));
    let tried = outside
        .netns
        .enter(|| Ok(TcpStream::connect_timeout(&to, patience)));
    tried.unwrap().unwrap_err()
}

#[test]
fn a_port_scan_leaves_no_state_and_refusals_arrive() {
    let (fabric, pods) = scene(json!({}));
    for pod in &pods {
        for family in Family::ALL {
            for port in SCANNED {
                let error = connect(&fabric, (pod.address(family), port).into(), REPLY_TIMEOUT);
                assert_eq!(
                    error.kind(),
                    ErrorKind::ConnectionRefused,
                    "{family:?} {port}"
                );
            }
        }
        // A pod that sends no answers at all.
        for line in [
            "nft add table inet silent",
            "nft add chain inet silent input { type filter hook input priority 0 ; }",
            "nft add rule inet silent input tcp dport 3000-3100 drop",
        ] {
            pod.netns.run(line).unwrap();
        }
        for port in 3000..3020 {
            let target = (pod.address(Family::V4), port).into();
            let error = connect(&fabric, target, Duration::from_millis(20));
            assert_eq!(error.kind(), ErrorKind::TimedOut, "{port}");
        }
    }
    for map in ["INBOUND", "FLOWS_V4", "FLOWS_V6"] {
        assert_eq!(entries(&fabric, map), 0, "{map}");
    }
    fabric.finish().unwrap();
}

#[test]
fn a_datagram_to_a_closed_port_is_refused_with_the_pods_address() {
    let (fabric, pods) = scene(json!({}));
    for (pod, family) in pods.iter().flat_map(|pod| Family::ALL.map(|f| (pod, f))) {
        let outside = fabric.host(Host::Outside, family);
        let asker = Asker::open(outside, 0, (pod.address(family), 9).into()).unwrap();
        asker.socket().set_read_timeout(Some(ANSWER)).unwrap();
        // A datagram may be lost, and errors are rate-limited (RFC 4443 section 2.4 (f)).
        within(REPLY_TIMEOUT, &format!("{family:?}: refused"), || {
            let error = asker.ask(7).err();
            let kind = error.as_ref().and_then(|error| error.downcast_ref());
            let refused = kind.map(std::io::Error::kind) == Some(ErrorKind::ConnectionRefused);
            check(refused, || format!("{error:?}"))
        });
    }
    fabric.finish().unwrap();
}
