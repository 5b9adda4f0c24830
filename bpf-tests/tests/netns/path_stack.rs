//! All pod traffic through the host's stack: netfilter sees it, by the right ENI and masqueraded as
//! ever, and service NAT works in both directions.

use std::net::{IpAddr, SocketAddr};

use ipam::Family;
use serde_json::{Value, json};
use testkit::fabric::layout::Host;
use testkit::fabric::traffic::{Asker, Echo, Session};
use testkit::fabric::{Fabric, Place};

use crate::masq::{internet, scene, snat, translated};
use crate::support::{End, OUTSIDE, PEER, carry_all, count};

const SERVICE_PORT: u16 = 80;
const NODE_PORT: u16 = 30_080;

fn through(path: &str) -> Value {
    json!({
        "datapath": {"path": path},
        "services": {"cidrs": ["172.20.0.0/16", "fd5e::/108"]},
    })
}

fn service(family: Family) -> IpAddr {
    match family {
        Family::V4 => [172, 20, 0, 10].into(),
        Family::V6 => "fd5e::10".parse().unwrap(),
    }
}

fn nft(fabric: &Fabric, line: &str) {
    fabric.node.run(&format!("nft {line}")).unwrap();
}

/// A client gets its replies from the address that it sent to, by TCP and by UDP.
#[track_caller]
fn is_answered(client: Place, address: IpAddr, port: u16) {
    let to = SocketAddr::new(address, port);
    let mut session = Session::open(client, 0, to).unwrap();
    session.bulk(1 << 20).unwrap();
    session.exchange().unwrap();
    let asker = Asker::open(client, 0, to).unwrap();
    for bytes in [7, 4000] {
        asker.ask(bytes).unwrap();
    }
}

#[test]
fn everything_goes_through_it_and_where_it_should() {
    let (fabric, pods) = scene(through("stack"));
    for (pod, eni) in pods.iter().zip([0, 1]) {
        translated(&fabric, pod, eni);
        for there in [PEER, OUTSIDE] {
            carry_all(&fabric, there, End::Pod(pod), &[eni]);
        }
        carry_all(&fabric, End::Pod(pod), PEER, &[eni]);
    }
    carry_all(&fabric, End::Pod(&pods[0]), End::Pod(&pods[1]), &[]);
    for (program, past) in [
        ("from_endpoint", &["local", "eni", "translated"][..]),
        ("from_network", &["local", "returned"][..]),
    ] {
        for outcome in past {
            assert_eq!(count(&fabric, program, outcome), 0, "{program} {outcome}");
        }
        assert!(count(&fabric, program, "stack") > 0, "{program}");
    }
    fabric.finish().unwrap();
}

/// By what a policy engine writes its rules.
#[derive(Clone, Copy, Debug)]
enum Engine {
    Nft,
    IptablesNft,
    IptablesLegacy,
}

impl Engine {
    const ALL: [Self; 3] = [Self::Nft, Self::IptablesNft, Self::IptablesLegacy];

    /// Refuses what is forwarded to a TCP port, or no longer does.
    fn refuse(self, fabric: &Fabric, family: Family, port: u16, on: bool) {
        let backend = match self {
            Self::Nft if on => {
                nft(fabric, "add table inet guard");
                nft(
                    fabric,
                    "add chain inet guard forward { type filter hook forward priority filter ; }",
                );
                let rule = format!("tcp dport {port} reject with tcp reset");
                return nft(fabric, &format!("add rule inet guard forward {rule}"));
            }
            Self::Nft => return nft(fabric, "delete table inet guard"),
            Self::IptablesNft => "nft",
            Self::IptablesLegacy => "legacy",
        };
        let program = match family {
            Family::V4 => "iptables",
            Family::V6 => "ip6tables",
        };
        let change = if on { "-I" } else { "-D" };
        let line = format!(
            "{program}-{backend} -w {change} FORWARD -p tcp --dport {port} \
             -j REJECT --reject-with tcp-reset"
        );
        fabric.node.run(&line).unwrap();
    }
}

/// A rule of netfilter, as a policy engine has it. It has no effect on the direct path. The packets
/// that it accepts leave by the right ENI, masqueraded.
#[test]
fn a_rule_of_netfilter_takes_effect() {
    for (path, takes_effect) in [("stack", true), ("direct", false)] {
        let (fabric, [pod, other]) = scene(through(path));
        let each = |engine| Family::ALL.map(|family| (engine, family));
        for (engine, family) in Engine::ALL.into_iter().flat_map(each) {
            for server in [
                other.at(family),
                fabric.host(Host::Peer, family),
                internet(&fabric, family),
            ] {
                let server = Echo::telling(server, 0).unwrap();
                let to = server.address();
                let opens = || Session::open(pod.at(family), 0, to).is_ok();
                assert!(opens(), "{path} to {to} before {engine:?}");
                engine.refuse(&fabric, family, to.port(), true);
                assert_eq!(opens(), !takes_effect, "{path} to {to} with {engine:?}");
                let spared = Echo::telling(internet(&fabric, family), 0).unwrap();
                let session = Session::open(pod.at(family), 0, spared.address()).unwrap();
                assert_eq!(session.seen().ip(), snat(&fabric, 0, family), "{engine:?}");
                engine.refuse(&fabric, family, to.port(), false);
                assert!(opens(), "{path} to {to} after {engine:?}");
            }
        }
        for (pod, eni) in [pod, other].iter().zip([0, 1]) {
            translated(&fabric, pod, eni);
        }
        fabric.finish().unwrap();
    }
}

#[test]
fn services_answer_wherever_their_backend_is() {
    let (mut fabric, [pod, other]) = scene(through("stack"));
    let neighbour = fabric.add_pod(0, 1).unwrap();
    for family in Family::ALL {
        let client = pod.at(family);
        for backend in [
            neighbour.at(family),
            other.at(family),
            fabric.host(Host::Peer, family),
            internet(&fabric, family),
        ] {
            let server = Echo::telling(backend, 0).unwrap();
            let frontend = SocketAddr::new(service(family), SERVICE_PORT);
            fabric.serve(frontend, server.address()).unwrap();
            is_answered(client, service(family), SERVICE_PORT);
        }
    }
    fabric.finish().unwrap();
}

/// The reply has the address of the ENI that got the request, and leaves by it, whichever ENI owns
/// the pod's address.
#[test]
fn a_node_port_answers_by_the_eni_that_was_asked() {
    let (fabric, pods) = scene(through("stack"));
    for family in Family::ALL {
        for pod in &pods {
            let server = Echo::telling(pod.at(family), 0).unwrap();
            for asked_by in [0, 1] {
                let address = snat(&fabric, asked_by, family);
                let frontend = SocketAddr::new(address, NODE_PORT);
                fabric.serve(frontend, server.address()).unwrap();
                for client in [Host::Peer, Host::Outside] {
                    is_answered(fabric.host(client, family), address, NODE_PORT);
                }
            }
        }
    }
    assert!(count(&fabric, "to_network", "host-moved") > 0);
    fabric.finish().unwrap();
}
