//! Conntrack's entries that outlive a pod: no client that still has one reaches the next pod at its
//! address.

use std::net::{IpAddr, SocketAddr};
use std::thread;
use std::time::Duration;

use ipam::Family;
use serde_json::{Value, json};
use testkit::fabric::eventually::check;
use testkit::fabric::layout::Host;
use testkit::fabric::traffic::{Asker, Echo, Session, connect_from_port};
use testkit::fabric::{Fabric, Netns, Place};

use crate::allocation::Guest;
use crate::masq::scene;
use crate::support::{get, within};

const SERVICE_PORT: u16 = 80;
const SERVER_PORT: u16 = 8080;
/// The port that the client asks from, each time.
const CLIENT_PORT: u16 = 45_556;
/// Until an address is given again: its cooldown, a sweep and some looks. Conntrack's entries live for
/// 30 seconds at least.
const GIVEN_AGAIN: Duration = Duration::from_secs(20);

fn settings() -> Value {
    json!({
        "services": {"cidrs": ["172.20.0.0/16", "fd5e::/108"], "nat": "on"},
        "ipam": {"cooldown": 1},
    })
}

fn service(family: Family) -> SocketAddr {
    let address: IpAddr = match family {
        Family::V4 => [172, 20, 0, 10].into(),
        Family::V6 => "fd5e::10".parse().unwrap(),
    };
    SocketAddr::new(address, SERVICE_PORT)
}

/// A pod that answers nothing at the server's port, as one that hangs.
fn deaf(fabric: &Fabric) -> Guest {
    let mut guest = Guest::new(fabric, "deaf");
    guest.add(fabric, &json!({}));
    for line in [
        "add table inet deaf",
        "add chain inet deaf in { type filter hook input priority 0 ; }",
        "add rule inet deaf in meta l4proto { tcp, udp } th dport 8080 drop",
    ] {
        guest.netns.run(&format!("nft {line}")).unwrap();
    }
    guest
}

/// Clients send to the service by TCP and UDP, each from its port, and get no answer.
#[track_caller]
fn asks_in_vain(clients: [Place; 2]) {
    thread::scope(|scope| {
        for (family, from) in Family::ALL.into_iter().zip(clients) {
            let frontend = service(family);
            scope.spawn(move || connect_from_port(from, CLIENT_PORT, frontend).unwrap_err());
            scope.spawn(move || {
                let asker = Asker::open(from, CLIENT_PORT, frontend).unwrap();
                asker.ask(7).unwrap_err();
            });
        }
    });
}

/// Gives a new pod these addresses as soon as they are given.
fn next(fabric: &Fabric, addresses: &[IpAddr]) -> Guest {
    let mut guest = Guest::new(fabric, "next");
    let mut request = guest.request(&json!({"addresses": addresses}));
    request.as_object_mut().unwrap().remove("families");
    within(GIVEN_AGAIN, "the addresses are given again", || {
        let put = fabric.agent.request("PUT", "/v1/endpoints", Some(&request));
        let (status, answer) = put?;
        check(status == 200, || answer.to_string())
    });
    guest.addresses = addresses.to_vec();
    guest
}

#[test]
fn a_client_that_hung_reaches_the_services_next_server_and_not_the_addresss_next_pod() {
    let (fabric, [client, server]) = scene(settings());
    let old = deaf(&fabric);
    for family in Family::ALL {
        let there = SocketAddr::new(old.at(family).address, SERVER_PORT);
        fabric.serve(service(family), there).unwrap();
    }
    asks_in_vain(Family::ALL.map(|family| client.at(family)));
    let addresses = old.addresses.clone();
    old.delete(&fabric);
    let servers = Family::ALL.map(|family| {
        let server = Echo::telling(server.at(family), SERVER_PORT).unwrap();
        fabric.serve(service(family), server.address()).unwrap();
        server
    });
    let next = next(&fabric, &addresses);
    for family in Family::ALL {
        let (from, frontend) = (client.at(family), service(family));
        let mut session = Session::open(from, CLIENT_PORT, frontend).unwrap();
        session.exchange().unwrap();
        let asker = Asker::open(from, CLIENT_PORT, frontend).unwrap();
        asker.ask(7).unwrap();
    }
    drop(servers);
    next.delete(&fabric);
    fabric.finish().unwrap();
}

/// Another node's conntrack cannot be seen; that an address rests is what helps.
#[test]
fn a_client_behind_another_nodes_conntrack_meets_nobody_at_the_address() {
    let (fabric, _pods) = scene(settings());
    let old = deaf(&fabric);
    let hosts = Family::ALL.map(|family| fabric.host(Host::Peer, family));
    for (family, host) in Family::ALL.into_iter().zip(hosts) {
        redirect(host.netns, service(family), old.at(family).address);
    }
    asks_in_vain(hosts);
    old.delete(&fabric);
    within(GIVEN_AGAIN, "the cooldown is over", || {
        let cooling = get(&fabric, "/v1/addresses")["cooling"].clone();
        check(cooling == json!([]), || cooling.to_string())
    });
    let mut next = Guest::new(&fabric, "next");
    next.add(&fabric, &json!({}));
    let servers = Family::ALL.map(|family| Echo::telling(next.at(family), SERVER_PORT).unwrap());
    asks_in_vain(hosts);
    drop(servers);
    next.delete(&fabric);
    fabric.finish().unwrap();
}

/// Another node's own NAT sends packets for a service to a pod.
fn redirect(node: &Netns, frontend: SocketAddr, pod: IpAddr) {
    let family = if frontend.is_ipv4() { "ip" } else { "ip6" };
    let server = SocketAddr::new(pod, SERVER_PORT);
    for line in [
        "add table inet services".to_owned(),
        "add chain inet services out { type nat hook output priority -100 ; }".to_owned(),
        format!(
            "add rule inet services out {family} daddr {} meta l4proto {{ tcp, udp }} th dport {} \
             dnat {family} to {server}",
            frontend.ip(),
            frontend.port()
        ),
    ] {
        node.run(&format!("nft {line}")).unwrap();
    }
}

#[test]
fn an_address_whose_entries_come_again_is_named_and_waits_until_they_stay_away() {
    let (fabric, _pods) = scene(settings());
    let old = deaf(&fabric);
    let addresses = old.addresses.clone();
    old.delete(&fabric);
    let named = |fabric: &Fabric| {
        let status = get(fabric, "/v1/status");
        let problems = status["allocation"]["problems"].as_array().unwrap();
        let mut texts = problems.iter().map(|problem| problem.as_str().unwrap());
        let of = format!("{} is not reused yet", addresses[0]);
        texts.any(|text| text.starts_with(&of))
    };
    within(GIVEN_AGAIN, "the address is named", || {
        for address in &addresses {
            let client = if address.is_ipv4() {
                "10.0.0.99"
            } else {
                "fd01::99"
            };
            // It may be there still.
            fabric
                .node
                .run(&format!(
                    "conntrack -I -t 60 -p udp -s {client} -d {address} --sport 1 --dport 2"
                ))
                .ok();
        }
        check(named(&fabric), || get(&fabric, "/v1/status").to_string())
    });
    let next = next(&fabric, &addresses);
    assert!(!named(&fabric));
    next.delete(&fabric);
    fabric.finish().unwrap();
}
