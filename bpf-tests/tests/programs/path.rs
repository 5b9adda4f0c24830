//! Pod traffic through the stack, and packets that the stack sends by the wrong ENI.

use datapath_common::abi::{AddressEntry, EndpointAddress};
use datapath_common::counter::Program;
use datapath_common::masquerade::PoolPolicy;
use datapath_common::outcome::Verdict;
use datapath_common::progress::tcp;
use loader::bpf::{DatapathMode, DatapathSettings};
use testkit::packet::{Body, Macs};
use testkit::testrun::Programs;

use crate::case::{Case, Expect, Table, on, to_eni};
use crate::world::*;

const UDP: Body = Body::Udp(100);
/// A port for translation, and one that is not.
const PORTS: [u16; 2] = [50_000, 8080];

/// All packets from and to a pod take the stack, with the mark of the pod's ENI or of the ENI that
/// received them.
fn stack(net: &Net) -> Vec<Case> {
    let name = |what: &str| format!("{} {what}", net.family());
    let up = |verdict| Expect::Stack(verdict, marked(1));
    let a = |what: &str, frame: testkit::packet::Frame| {
        let expect = up(Verdict::Stack);
        Case::new(
            Program::FromEndpoint,
            name(what),
            on(VETH_A, frame.bytes()),
            expect,
        )
    };
    let outside = from_a(net, net.outside, UDP).ports(50_000, 53);
    let translated = outside.clone().from(net.snat[1], 50_000);
    let carried = Expect::Rewritten(Verdict::CarriedTranslated, translated.bytes(), OTHERS);
    let stack_sends = Case::new(
        Program::ToNetwork,
        name("out"),
        on(ENI_1, outside.bytes()),
        carried,
    );
    let answer = received(ENI_1, net.outside, net.snat[1], UDP).ports(53, 50_000);
    let returned = answer.clone().to(net.a, 50_000).bytes();
    let returned = Expect::Rewritten(Verdict::StackReturned, returned, marked(1));
    let from = |what: &str, device, frame: testkit::packet::Frame, expect| {
        Case::new(
            Program::FromNetwork,
            name(what),
            on(device, frame.bytes()),
            expect,
        )
    };
    let inward = |eni, pod| received(eni, net.peer, pod, UDP);
    vec![
        a("to a pod", from_a(net, net.b, UDP)),
        a("to the VPC", from_a(net, net.peer, UDP)),
        a("at its end", from_a(net, net.peer, UDP).hop_limit(1)),
        a("too big", from_a(net, net.b, Body::Udp(1440))),
        a("to the outside", outside),
        stack_sends.of_pod(VETH_A),
        from("an answer", ENI_1, answer, returned),
        from("to a pod", ENI_1, inward(ENI_1, net.a), up(Verdict::Stack)),
        from(
            "to a pod of the primary",
            ENI_0,
            inward(ENI_0, net.b),
            Expect::Stack(Verdict::Stack, OTHERS),
        ),
        from(
            "at its end",
            ENI_1,
            inward(ENI_1, net.a).hop_limit(1),
            up(Verdict::Stack),
        ),
    ]
}

/// Packets between a shaped pod and other pods of the node, which take the stack, and packets of
/// those pods alone, which do not.
fn beside_a_shaped_pod(net: &Net) -> Vec<Case> {
    let name = |what: &str| format!("{} {what}", net.family());
    let b = |what: &str, frame: &testkit::packet::Frame, expect| {
        let program = Program::FromEndpoint;
        Case::new(program, name(what), on(VETH_B, frame.bytes()), expect)
    };
    let from_b =
        |to, body| testkit::packet::Frame::new(Macs::new(POD_B, VETH_B.mac), net.b, to, body);
    let exempt = from_b(net.peer, UDP);
    vec![
        // This one has a slot of the cache from its first packet on.
        b(
            "another pod's connection to it",
            &from_b(net.a, Body::Tcp(0)).tcp(tcp::SYN, 1),
            Expect::Stack(Verdict::Stack, marked(0)),
        ),
        b(
            "another pod to it",
            &from_b(net.a, UDP),
            Expect::Stack(Verdict::Stack, marked(0)),
        ),
        b("another pod to the VPC", &exempt, to_eni(&exempt)),
    ]
}

/// Marks pod A as shaped in both directions.
fn shape_a(programs: &mut Programs) {
    for address in [V4.a, V6.a] {
        let entry = AddressEntry::endpoint(EndpointAddress {
            eni: 1,
            eni_ifindex: ENI_1.ifindex,
            pool: PoolPolicy::Masquerade,
            via_stack: true,
            ifindex: VETH_A.ifindex,
            mtu: u32::try_from(ENI_MTU).unwrap(),
            pod_mac: POD_A,
            host_mac: VETH_A.mac,
            namespace: None,
        });
        programs.put_address(address, entry).unwrap();
    }
}

/// The cases of a node on which all packets take the stack, except those for pod B, which is not
/// shaped.
fn shaped(net: &Net) -> Vec<Case> {
    let of_a = |case: &Case| !case.name.ends_with("to a pod of the primary");
    let alone = stack(net).into_iter().filter(of_a);
    alone.chain(beside_a_shaped_pod(net)).collect()
}

/// A pod's answer with a host address, set by netfilter, leaves by the ENI of that address.
fn moved(net: &Net) -> Vec<Case> {
    let mut cases = Vec::new();
    for (owner, others) in [(0, ENI_1), (1, ENI_0)] {
        for port in PORTS {
            let frame = received(others, net.snat[owner], net.peer, UDP).ports(port, 3000);
            let case = |what, device, expect| {
                let name = format!("{} {what} {port} of ENI {owner}", net.family());
                Case::new(Program::ToNetwork, name, on(device, frame.bytes()), expect)
            };
            let redirected = Expect::Redirect(Verdict::HostMoved, frame.bytes(), done());
            cases.push(case("forwarded", others, redirected).of_pod(VETH_A));
            let own = [ENI_0, ENI_1][owner];
            let stays = || Expect::Stack(Verdict::FromHost, OTHERS);
            cases.push(case("by its own ENI", own, stays()).of_pod(VETH_A));
            let redirected = Expect::Redirect(Verdict::HostMoved, frame.bytes(), done());
            cases.push(case("of the host", others, redirected).of_host());
        }
        let frame = received(others, net.host, net.peer, UDP);
        let name = format!("{} an address of no ENI", net.family());
        let stays = Expect::Stack(Verdict::FromHost, OTHERS);
        let case = Case::new(Program::ToNetwork, name, on(others, frame.bytes()), stays);
        cases.push(case.of_pod(VETH_A));
    }
    cases
}

pub(crate) fn tables() -> Vec<Table> {
    let table = |path, of: fn(&Net) -> Vec<Case>| Table {
        settings: DatapathSettings { path, ..settings() },
        prepare: |_| {},
        cases: [V4, V6].iter().flat_map(of).collect(),
    };
    let with_shaped = |path| Table {
        prepare: shape_a,
        ..table(path, shaped)
    };
    vec![
        table(DatapathMode::Stack, stack),
        with_shaped(DatapathMode::Direct),
        with_shaped(DatapathMode::ServiceNat),
        table(DatapathMode::Direct, moved),
        table(DatapathMode::Stack, moved),
    ]
}

#[test]
fn the_stack_gets_what_is_asked_for_and_is_corrected_where_it_is_wrong() {
    for table in tables() {
        table.check();
    }
}
