//! Traffic that only the stack can carry: IPv4 options, multicast and broadcast.

use std::collections::BTreeSet;
use std::net::{IpAddr, Ipv4Addr};

use ipam::Family;
use testkit::fabric::traffic::ping;
use testkit::fabric::{Fabric, Place, Spec, source_check};

use crate::support::count;

/// Options of ping(8) that put IPv4 options into its packets (RFC 791, section 3.1), and the line
/// that ping shows them in.
const OPTIONS: [(&[&str], &str); 2] = [(&["-R"], "RR:"), (&["-T", "tsonly"], "TS:")];

/// The ENIs that ping's packets left the node by.
fn enis_taken(fabric: &Fabric, from: Place, to: IpAddr) -> BTreeSet<u8> {
    fabric.enis_between(from.address, to).unwrap()
}

#[test]
fn packets_with_ipv4_options_take_their_eni() {
    let mut fabric = Fabric::ready(&Spec::default()).unwrap();
    let pods = [0, 1].map(|eni| (eni, fabric.add_pod(eni, 0).unwrap()));
    let peer = fabric.peer(Family::V4);
    let counted =
        || ["from_endpoint", "from_network"].map(|program| count(&fabric, program, "ip-options"));
    for (eni, pod) in &pods {
        let pod = pod.at(Family::V4);
        for (options, shown) in OPTIONS {
            for (from, to) in [(pod, peer), (peer, pod)] {
                source_check::forget_flows(&fabric.vpc.router).unwrap();
                let before = counted();
                let text = ping(from, to.address, options).unwrap();
                assert!(text.contains(shown), "no options came back: {text}");
                assert_eq!(enis_taken(&fabric, from, to.address), [*eni].into());
                let after = counted();
                assert!(
                    after[0] > before[0] && after[1] > before[1],
                    "{options:?} from {}: ip-options went from {before:?} to {after:?}",
                    from.address
                );
            }
        }
    }
    fabric.finish().unwrap();
}

#[test]
fn multicast_and_broadcast_reach_the_stack_and_no_eni() {
    let mut fabric = Fabric::ready(&Spec::default()).unwrap();
    let pods = [0, 1].map(|eni| fabric.add_pod(eni, 0).unwrap());
    // Makes the stack answer: a reply shows that the packet was received.
    fabric
        .node
        .sysctls(&[("ipv4/icmp_echo_ignore_broadcasts", "0")])
        .unwrap();
    let all_hosts = Ipv4Addr::new(224, 0, 0, 1);
    for pod in &pods {
        let pod = pod.at(Family::V4);
        for to in [all_hosts, Ipv4Addr::BROADCAST] {
            source_check::forget_flows(&fabric.vpc.router).unwrap();
            let before = count(&fabric, "from_endpoint", "multicast");
            ping(pod, to.into(), &["-b"]).unwrap();
            assert!(
                count(&fabric, "from_endpoint", "multicast") > before,
                "{to} was not counted"
            );
            assert_eq!(enis_taken(&fabric, pod, to.into()), BTreeSet::new(), "{to}");
        }
    }
    fabric.finish().unwrap();
}
