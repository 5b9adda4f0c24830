//! Netfilter's own masquerade, of another container network on the node, takes ports out of our
//! range towards the same server: no flow breaks another.

use std::sync::Arc;

use ipam::Family;
use serde_json::json;
use testkit::fabric::traffic::{Asker, Echo, Session, tcp_bulk};
use testkit::fabric::{Fabric, Place, Pod};

use crate::masq::{FIRST_PORT, host_behind, internet, internet_scene, snat};

/// Flows of either side, by TCP and by UDP.
const FLOWS: u16 = 150;
/// Ports that netfilter picks among: few, so that flows meet.
const PICKS: u16 = 512;

/// A container of another network, masqueraded by netfilter to the primary's address.
pub(crate) fn container(fabric: &mut Fabric) -> Arc<Pod> {
    let container = host_behind(fabric, "docker0", ["172.18.0.", "fd18::"]);
    let last = FIRST_PORT + PICKS - 1;
    for line in [
        "add table inet docker".to_owned(),
        "add chain inet docker post { type nat hook postrouting priority srcnat ; }".to_owned(),
        format!(
            "add rule inet docker post meta l4proto {{ tcp, udp }} iifname docker0 oifname eth0 \
             masquerade to :{FIRST_PORT}-{last} fully-random"
        ),
    ] {
        fabric.node.run(&format!("nft {line}")).unwrap();
    }
    container
}

struct Client {
    session: Session,
    asker: Asker,
    seen: std::net::SocketAddr,
}

fn client(from: Place, port: u16, server: &Echo) -> Client {
    let session = Session::open(from, port, server.address()).unwrap();
    let asker = Asker::open(from, port, server.address()).unwrap();
    let seen = asker.ask(7).unwrap();
    Client {
        session,
        asker,
        seen,
    }
}

#[test]
fn netfilters_masquerade_in_our_range_breaks_nothing() {
    let (mut fabric, [pod, _]) = internet_scene(json!({}));
    let container = container(&mut fabric);
    for family in Family::ALL {
        let server = Echo::telling(internet(&fabric, family), 0).unwrap();
        let mut clients = Vec::new();
        for index in 0..FLOWS {
            // The pod's ports are in what netfilter picks among, every third one.
            clients.push(client(pod.at(family), FIRST_PORT + 3 * index, &server));
            clients.push(client(container.at(family), 0, &server));
        }
        let mut tcp: Vec<_> = clients.iter().map(|client| client.session.seen()).collect();
        let mut udp: Vec<_> = clients.iter().map(|client| client.seen).collect();
        for seen in [&mut tcp, &mut udp] {
            let own = snat(&fabric, 0, family);
            assert!(seen.iter().all(|seen| seen.ip() == own), "{seen:?}");
            seen.sort();
            seen.dedup();
            assert_eq!(seen.len(), clients.len(), "each flow has a port of its own");
        }
        for client in &mut clients {
            client.session.exchange().unwrap();
            assert_eq!(client.asker.ask(2000).unwrap(), client.seen);
        }
        let plain = Echo::start(internet(&fabric, family)).unwrap();
        for from in [pod.at(family), container.at(family)] {
            tcp_bulk(from, plain.address(), 1 << 22).unwrap();
        }
    }
    fabric.finish().unwrap();
}
