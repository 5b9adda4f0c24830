//! With an endpoint go its flows.

use ipam::Family;
use serde_json::json;
use testkit::fabric::eventually::check;
use testkit::fabric::layout::Host;
use testkit::fabric::traffic::{Asker, Echo, Protocol, Session};

use crate::masq::{entries, internet, scene, translated};
use crate::support::{CHANGE, within};

const MAPS: [&str; 5] = ["FLOWS_V4", "FLOWS_V6", "MOVED_V4", "MOVED_V6", "INBOUND"];

#[test]
fn a_removed_endpoint_leaves_no_flow() {
    let (mut fabric, [first, second]) = scene(json!({}));
    let mut kept = Vec::new();
    let mut gone = Vec::new();
    let mut servers = Vec::new();
    let mut askers = Vec::new();
    for family in Family::ALL {
        let server = Echo::telling(internet(&fabric, family), 0).unwrap();
        for _ in 0..20 {
            kept.push(Session::open(first.at(family), 0, server.address()).unwrap());
            gone.push(Session::open(second.at(family), 0, server.address()).unwrap());
            // Ports outside of the range are displaced: each pod's 1000 wants the same one.
            let asker = Asker::open(second.at(family), 0, server.address()).unwrap();
            asker.ask(7).unwrap();
            // While it lives, no other one gets its port.
            askers.push(asker);
        }
        servers.push(server);
        for protocol in Protocol::ALL {
            let outside = fabric.host(Host::Outside, family);
            protocol.exchange(outside, second.at(family)).unwrap();
        }
    }
    let [v4, v6, ..] = MAPS.map(|map| entries(&fabric, map));
    assert!(v4 >= 60 && v6 >= 60, "{v4} and {v6} flows");
    assert!(entries(&fabric, "INBOUND") > 0);
    fabric.delete_endpoint(&second).unwrap();
    within(CHANGE, "the removed endpoint's flows are gone", || {
        let now = MAPS.map(|map| entries(&fabric, map));
        check(now[0] == 20 && now[1] == 20 && now[4] == 0, || {
            format!("{now:?}")
        })
    });
    for session in &mut kept {
        session.exchange().unwrap();
    }
    drop((gone, askers));
    // The next pod with the addresses has no old state.
    let next = fabric.add_pod(1, 0).unwrap();
    translated(&fabric, &next, 1);
    fabric.finish().unwrap();
}
