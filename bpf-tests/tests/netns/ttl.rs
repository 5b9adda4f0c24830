//! TTL and hop limit: every hop counts, in every direction, and answers when they run out.

use ipam::Family;
use testkit::fabric::traffic::ping;
use testkit::fabric::{Fabric, Place, Spec};

/// Output of ping with an answer to an expired TTL; `None` when the ping arrives.
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

/// The peer's subnet.
const PEER_SUBNET: u8 = 200;

/// Prefix of the router's address in its answers towards a subnet.
fn router_hop(family: Family, subnet: u8) -> String {
    match family {
        Family::V4 => format!("10.0.{subnet}.1"),
        // The router's only global addresses are towards its own networks.
        Family::V6 => "2600:1f18:10:56".to_owned(),
    }
}

#[test]
fn every_hop_counts_and_answers() {
    let mut fabric = Fabric::ready(&Spec::default()).unwrap();
    let pods = [(0, 0), (0, 1), (1, 0)].map(|(eni, index)| {
        let pod = fabric.add_pod(eni, index).unwrap();
        (eni, pod)
    });
    for family in Family::ALL {
        let (peer, node) = (fabric.peer(family), fabric.node_at(family).unwrap());
        let node_hop = node.address.to_string();
        for (eni, pod) in &pods {
            let pod = pod.at(family);
            // Pod, node, router, peer.
            check(pod, peer, 1, Some(&node_hop));
            check(pod, peer, 2, Some(&router_hop(family, *eni)));
            check(pod, peer, 3, None);
            check(peer, pod, 1, Some(&router_hop(family, PEER_SUBNET)));
            check(peer, pod, 2, Some(&node_hop));
            check(peer, pod, 3, None);
            // The node is one hop from the pod, and the pod one hop from the node.
            check(pod, node, 1, None);
            check(node, pod, 1, None);
            // Pod, node, pod: on the same ENI and on the other one.
            for (_, other) in pods
                .iter()
                .filter(|(_, o)| o.address(family) != pod.address)
            {
                check(pod, other.at(family), 1, Some(&node_hop));
                check(pod, other.at(family), 2, None);
            }
        }
    }
    fabric.finish().unwrap();
}

#[test]
fn traceroute_shows_the_node_and_the_router() {
    let mut fabric = Fabric::ready(&Spec::default()).unwrap();
    let pods = [0, 1].map(|eni| (eni, fabric.add_pod(eni, 0).unwrap()));
    let cases = pods
        .iter()
        .flat_map(|pod| Family::ALL.map(|family| (pod, family)));
    for ((eni, pod), family) in cases {
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
        let router = router_hop(family, *eni);
        assert!(
            hops[1].is_some_and(|hop| hop.starts_with(&router)),
            "{text}"
        );
        assert_eq!(hops[2], Some(target.as_str()), "{text}");
    }
    fabric.finish().unwrap();
}
