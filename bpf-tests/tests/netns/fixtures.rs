//! The agent on the documents of `node-document/tests/fixtures`, handed over as they are: the fabric's VPC
//! is laid out by them.

use datapath_common::mark::MarkLayout;
use ipam::Family;
use ipnet::IpNet;
use loader::intent::Node;
use testkit::fabric::layout::Host;
use testkit::fabric::traffic::Protocol;
use testkit::fabric::{Fabric, Place, Pod, Spec};

use crate::support::{
    CHANGE, End, OUTSIDE, PEER, carry, carry_all, nothing_differs, wait_for_eni, within,
};

/// Gives the peer an address in the document's IPv6 VPC CIDR: its own is in the fabric's.
fn peer_in_the_vpc<'a>(fabric: &'a Fabric, node: &Node) -> Place<'a> {
    let mut cidrs = node.enis.values().flat_map(|eni| eni.vpc_cidrs.iter());
    let network = cidrs.find_map(|cidr| match cidr {
        IpNet::V4(_) => None,
        IpNet::V6(net) => Some(net.network().segments()),
    });
    let [a, b, c, d, ..] = network.unwrap();
    let subnet = |host: u16| std::net::Ipv6Addr::new(a, b, c, d + 200, 0, 0, 0, host);
    let (gateway, address) = (subnet(1), subnet(0x10));
    let netns = fabric.vpc.host(Host::Peer);
    netns
        .ip(&format!("addr add {address}/64 dev eth0 nodad"))
        .unwrap();
    let device = Host::Peer.name();
    let line = format!("addr add {gateway}/64 dev {device} nodad");
    fabric.vpc.router.ip(&line).unwrap();
    Place {
        netns,
        address: address.into(),
    }
}

/// The node has its internal addresses.
fn has_its_addresses(fabric: &Fabric, node: &Node) {
    for family in Family::ALL {
        let internal = fabric.node_at(family).unwrap().address;
        assert_eq!(
            Some(internal),
            node.addresses.first_internal(family),
            "InternalIP"
        );
    }
}

/// A pod exchanges packets of each kind with ends beyond the node.
fn reaches_the_world(fabric: &Fabric, node: &Node, (pod, eni): (&Pod, u8), peer_v6: Place<'_>) {
    for far in [PEER, OUTSIDE] {
        carry_all(fabric, far, End::Pod(pod), &[eni]);
    }
    carry_all(fabric, End::Pod(pod), PEER, &[eni]);
    for family in Family::ALL {
        let exit = exit(node, eni, family);
        for protocol in Protocol::ALL {
            let (pod, far) = (pod.at(family), OUTSIDE.at(fabric, family));
            carry([pod, far], protocol, fabric, &[exit]);
        }
    }
    for protocol in Protocol::ALL {
        let pod = pod.at(Family::V6);
        carry([pod, peer_v6], protocol, fabric, &[eni]);
        carry([peer_v6, pod], protocol, fabric, &[eni]);
    }
}

/// Pods with the n-th addresses of ENIs reach each other and everybody else, and leave by the ENI
/// that owns their address.
fn the_agent_runs_on(text: &str, excluded: &[u8], pods: &[(u8, usize)]) {
    let node = node_document::parse(text, MarkLayout::DEFAULT).unwrap();
    let spec = Spec {
        document: Some(text.to_owned()),
        ..Spec::default()
    };
    let mut fabric = Fabric::ready(&spec).unwrap();
    let given = std::fs::read_to_string(fabric.agent.document_path()).unwrap();
    assert_eq!(given, text, "the agent reads the fixture itself");
    has_its_addresses(&fabric, &node);
    for number in node.enis.keys().map(|number| number.0) {
        let state = if excluded.contains(&number) {
            "excluded"
        } else {
            assert!(pods.iter().any(|(eni, _)| *eni == number), "ENI {number}");
            "ready"
        };
        wait_for_eni(&fabric, number, state);
    }
    let pods: Vec<_> = pods
        .iter()
        .map(|(eni, index)| (fabric.add_pod(*eni, *index).unwrap(), *eni))
        .collect();
    let peer_v6 = peer_in_the_vpc(&fabric, &node);
    for (pod, eni) in &pods {
        check_owner(&node, pod, *eni);
        for (other, _) in &pods {
            if pod.name != other.name {
                carry_all(&fabric, End::Pod(pod), End::Pod(other), &[]);
            }
        }
        reaches_the_world(&fabric, &node, (pod, *eni), peer_v6);
        carry_all(&fabric, End::Pod(pod), End::Node, &[]);
        carry_all(&fabric, End::Node, End::Pod(pod), &[]);
    }
    carry_all(&fabric, End::Node, PEER, &[0]);
    carry_all(&fabric, PEER, End::Node, &[0]);
    within(CHANGE, "nothing is left to do", || nothing_differs(&fabric));
    fabric.finish().unwrap();
}

/// The ENI by which a pod of another reaches the world: IPv4 is masqueraded, and goes by the
/// primary where only that one has a public address.
fn exit(node: &Node, owner: u8, family: Family) -> u8 {
    let is_public = |number: u8| {
        let eni = node.enis.values().find(|eni| eni.number.0 == number);
        eni.is_some_and(|eni| eni.public_address.is_some())
    };
    match family {
        Family::V4 if is_public(0) && !is_public(owner) => 0,
        Family::V4 | Family::V6 => owner,
    }
}

/// The document gives the pod's addresses to the ENI that its flows have to leave by.
fn check_owner(node: &Node, pod: &Pod, eni: u8) {
    for family in Family::ALL {
        let owner = node.owner_of(pod.address(family)).unwrap();
        assert_eq!(owner.number.0, eni);
    }
}

#[test]
fn a_node_with_secondary_addresses() {
    the_agent_runs_on(
        include_str!("../../../node-document/tests/fixtures/node-secondary-addresses.yaml"),
        &[],
        &[(0, 0), (1, 0), (1, 1)],
    );
}

#[test]
fn a_node_with_prefixes_and_an_excluded_primary() {
    the_agent_runs_on(
        include_str!("../../../node-document/tests/fixtures/node-prefix-delegation.yaml"),
        &[0],
        &[(1, 0), (1, 15)],
    );
}
