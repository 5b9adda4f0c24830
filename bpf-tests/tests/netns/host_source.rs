//! Connections of the host to pods whose source netfilter changes.

use ipam::Family;
use serde_json::json;
use testkit::fabric::traffic::{Asker, Echo, Session};

use crate::masq::scene;
use crate::support::count;

/// Sources that netfilter gives to probes, in either family: link-local, foreign, and in a network
/// that is not routed.
const SOURCES: [(Family, &str); 5] = [
    (Family::V4, "169.254.7.127"),
    (Family::V4, "192.0.2.5"),
    (Family::V4, "240.0.0.7"),
    (Family::V6, "fd16:9254:7127:1337:ffff:ffff:ffff:ffff"),
    (Family::V6, "100::7"),
];

#[test]
fn a_connection_of_the_host_with_a_source_of_netfilters_is_answered() {
    let (fabric, pods) = scene(json!({"services": {"nat": "on"}}));
    for (family, source) in SOURCES {
        let protocol = match family {
            Family::V4 => "ip",
            Family::V6 => "ip6",
        };
        for line in [
            "add table inet probes".to_owned(),
            "add chain inet probes post { type nat hook postrouting priority srcnat ; }".to_owned(),
            format!(
                "add rule inet probes post meta l4proto {{ tcp, udp }} oifname \"tow*\" \
                 snat {protocol} to {source}"
            ),
        ] {
            fabric.node.run(&format!("nft {line}")).unwrap();
        }
        for pod in &pods {
            let noted = count(&fabric, "to_endpoint", "noted");
            let server = Echo::telling(pod.at(family), 0).unwrap();
            let node = fabric.node_at(family).unwrap();
            let mut session = Session::open(node, 0, server.address()).unwrap();
            session.exchange().unwrap();
            assert_eq!(session.seen().ip().to_string(), source);
            let asker = Asker::open(node, 0, server.address()).unwrap();
            assert_eq!(asker.ask(7).unwrap().ip().to_string(), source);
            assert!(count(&fabric, "to_endpoint", "noted") > noted, "{source}");
        }
        fabric.node.run("nft delete table inet probes").unwrap();
    }
    // No packet left for the cloud with a pod's address.
    fabric.finish().unwrap();
}
