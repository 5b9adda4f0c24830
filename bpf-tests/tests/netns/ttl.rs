//! TTL and hop limit: every hop counts, in every direction, and answers when they run out.

use bpf_tests::fabric::traffic::ping;
use bpf_tests::fabric::{Fabric, Place, Spec};
use towpath::intent::Family;

/// Who answers when a ping is sent with a TTL; `None` when it arrives.
fn answers(from: Place, to: Place, ttl: u32) -> Option<String> {
    let ttl = ttl.to_string();
    match ping(from, to.address, &["-t", &ttl]) {
        Ok(_) => None,
        Err(error) => Some(error.to_string()),
    }
}

#[track_caller]
fn check(from: Place, to: Place, ttl: u32, hop: Option<&str>) {
    let answer = answers(from, to, ttl);
    match (&answer, hop) {
        (None, None) => {}
        (Some(text), Some(hop)) => {
            let exceeded = ["Time to live exceeded", "Time exceeded: Hop limit"];
            assert!(
                text.contains(&format!("From {hop}")) && exceeded.iter().any(|e| text.contains(e)),
                "TTL {ttl} from {} to {}: {hop} should answer: {text}",
                from.address,
                to.address
            );
        }
        (_, hop) => panic!(
            "TTL {ttl} from {} to {}: {answer:?}, not {hop:?}",
            from.address, to.address
        ),
    }
}

#[test]
fn every_hop_counts_and_answers() {
    let mut fabric = Fabric::ready(&Spec::default()).unwrap();
    let (pod, other) = (fabric.add_pod(1, 0).unwrap(), fabric.add_pod(0, 0).unwrap());
    for family in Family::ALL {
        let (pod, other, peer) = (pod.at(family), other.at(family), fabric.peer(family));
        let node = fabric.node_at(family).unwrap();
        let node_hop = node.address.to_string();
        let router_hop = |place: Place, side: u8| match (family, place.address == peer.address) {
            (Family::V4, true) => "10.0.200.1".to_owned(),
            (Family::V4, false) => format!("10.0.{side}.1"),
            // The router's only global addresses are towards its own networks.
            (Family::V6, _) => "2600:1f18:10:56".to_owned(),
        };
        // Pod, node, router, peer.
        check(pod, peer, 1, Some(&node_hop));
        check(pod, peer, 2, Some(&router_hop(pod, 1)));
        check(pod, peer, 3, None);
        check(peer, pod, 1, Some(&router_hop(peer, 200)));
        check(peer, pod, 2, Some(&node_hop));
        check(peer, pod, 3, None);
        // Pod, node, pod.
        check(pod, other, 1, Some(&node_hop));
        check(pod, other, 2, None);
        // The node is one hop away, and the other way round.
        check(pod, node, 1, None);
        check(node, pod, 1, None);
    }
    fabric.finish().unwrap();
}

#[test]
fn traceroute_shows_the_node_and_the_router() {
    let mut fabric = Fabric::ready(&Spec::default()).unwrap();
    let pod = fabric.add_pod(1, 0).unwrap();
    for family in Family::ALL {
        let (from, to) = (pod.at(family), fabric.peer(family));
        let (source, target) = (from.address.to_string(), to.address.to_string());
        let version = if family == Family::V4 { "-4" } else { "-6" };
        let line = format!("traceroute {version} -n -I -q 1 -w 2 -s {source} {target}");
        let text = from.netns.run(&line).unwrap();
        let hops: Vec<_> = text
            .lines()
            .skip(1)
            .map(|l| l.split_whitespace().nth(1))
            .collect();
        let node = fabric.node_at(family).unwrap().address.to_string();
        assert_eq!(hops.len(), 3, "{text}");
        assert_eq!(hops[0], Some(node.as_str()), "{text}");
        assert_eq!(hops[2], Some(target.as_str()), "{text}");
    }
    fabric.finish().unwrap();
}
