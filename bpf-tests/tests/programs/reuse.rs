//! A pod that gets the address of a former one, but none of its flows.

use datapath_common::abi::{
    Flow, FlowKey, PodTuple, Quota, TrackedFlow, TransportAddr, inbound_quota, map,
};
use datapath_common::counter::{NatStat, Program};
use datapath_common::headers::protocol;
use datapath_common::outcome::{DropReason, Verdict};
use datapath_common::progress;
use testkit::packet::{Body, Frame};
use testkit::testrun::Programs;
use testkit::testrun::pool::Lease;

use crate::case::{Case, Expect, on, to_eni, to_pod};
use crate::leaving::{Leaves, of_a};
use crate::stack_flows::with_service_nat;
use crate::world::*;

const UDP: Body = Body::Udp(100);
const ASKED: u16 = 53;
const OWN: u16 = 50_000;
const SERVED: u16 = 50_001;

fn run(programs: &mut Programs, cases: Vec<Case>) {
    for case in cases {
        case.check(programs);
    }
}

fn from_eni(net: &Net, what: &str, frame: &Frame, expect: Expect) -> Case {
    let name = format!("{} {what}", net.family());
    Case::new(Program::FromNetwork, name, on(ENI_1, frame.bytes()), expect)
}

/// Request from the outside to pod A's address, and the packet for the device that has the address.
fn asks(net: &Net, device: Device) -> Case {
    let frame = received(ENI_1, net.outside, net.a, UDP).ports(3000, SERVED);
    let delivered = frame.clone().hop_limit(63).macs(device.mac, POD_A);
    let expect = Expect::Redirect(Verdict::Local, delivered.bytes(), 0);
    from_eni(net, "a question from the outside", &frame, expect)
}

/// Gives pod A's address to another device.
fn hand_on(programs: &mut Programs, net: &Net, device: Device) {
    let interface = Interface { device, mac: POD_A };
    let entry = endpoint(1, ENI_1.ifindex, interface, ENI_MTU);
    programs.put_address(net.a, entry).unwrap();
}

/// A node on which pod A has sent a request to the outside, and its address has gone to another
/// device; and the request.
fn asked_and_handed_on(net: &Net) -> (Lease<Programs>, Frame) {
    let mut programs = node();
    let question = from_a(net, net.outside, UDP).ports(OWN, ASKED);
    let leaves = Leaves::Translated(1, OWN);
    run(&mut programs, of_a(net, "a question", &question, leaves));
    hand_on(&mut programs, net, OTHER);
    (programs, question)
}

#[test]
fn the_next_pod_gets_no_answers_of_the_former_one() {
    for net in [V4, V6] {
        let (mut programs, question) = asked_and_handed_on(&net);
        let drop = || Expect::Drop(DropReason::NoEndpoint);
        let answer = received(ENI_1, net.outside, net.snat[1], UDP).ports(ASKED, OWN);
        let kind = if net.a.is_ipv4() { 3 } else { 1 };
        let about = question.from(net.snat[1], OWN);
        let error =
            received(ENI_1, net.outside, net.snat[1], Body::Error(kind)).quoting(&about, 200);
        run(
            &mut programs,
            vec![
                from_eni(&net, "an answer", &answer, drop()),
                from_eni(&net, "an error", &error, drop()),
            ],
        );
    }
}

#[test]
fn the_next_pod_opens_flows_of_its_own_beside_those_of_the_former_one() {
    for net in [V4, V6] {
        let (mut programs, question) = asked_and_handed_on(&net);
        // By the stack, with a new port: the former pod's flow still holds the pod's own one.
        let anew = Expect::OtherPort(
            Verdict::CarriedTranslated,
            Box::new(question.clone().from(net.snat[1], OWN)),
        );
        let name = format!("{} the next pod's question", net.family());
        let case = Case::new(Program::ToNetwork, name, on(ENI_1, question.bytes()), anew);
        run(
            &mut programs,
            vec![case.clone().of_pod(OTHER), case.of_pod(OTHER)],
        );
        let of = |device: Device| {
            let flows = programs.table::<FlowKey, Flow>(flows_of(&net)).unwrap();
            let entries = flows.entries().unwrap();
            entries
                .iter()
                .filter(|(_, flow)| flow.endpoint == device.ifindex)
                .count()
        };
        assert_eq!(
            (of(VETH_A), of(OTHER)),
            (1, 1),
            "the second question has found its flow"
        );
    }
}

fn flows_of(net: &Net) -> &'static str {
    if net.a.is_ipv4() {
        map::FLOWS_V4
    } else {
        map::FLOWS_V6
    }
}

#[test]
fn what_the_former_pod_was_asked_is_not_the_next_ones_to_answer() {
    for net in [V4, V6] {
        let mut programs = node();
        let answer = from_a(&net, net.outside, UDP).ports(SERVED, 3000);
        run(&mut programs, vec![asks(&net, VETH_A)]);
        run(
            &mut programs,
            of_a(&net, "an answer", &answer, Leaves::As(Verdict::Inbound)),
        );
        hand_on(&mut programs, &net, OTHER);
        // A new entry replaces the former pod's, in its count too.
        let tuple = PodTuple::new(
            protocol::UDP,
            TransportAddr::new(net.a.into(), SERVED.to_be()),
            TransportAddr::new(net.outside.into(), 3000_u16.to_be()),
        );
        run(&mut programs, vec![asks(&net, OTHER)]);
        let notes = programs
            .table::<PodTuple, TrackedFlow>(map::INBOUND)
            .unwrap();
        let note = notes.get(&tuple).unwrap().unwrap();
        assert_eq!(note.endpoint, OTHER.ifindex);
        let quotas = programs.table::<u32, Quota>(map::QUOTA).unwrap();
        let count = |device: Device| {
            let quota = quotas.get(&inbound_quota(device.ifindex)).unwrap();
            quota.map_or(0, |quota| quota.flows)
        };
        assert_eq!((count(VETH_A), count(OTHER)), (0, 1));
        // Back at the first device, the entry belongs to another endpoint: the device's packets
        // open a flow of their own.
        hand_on(&mut programs, &net, VETH_A);
        run(
            &mut programs,
            of_a(&net, "no answer", &answer, Leaves::Translated(1, SERVED)),
        );
    }
}

/// The case of a flow that takes the stack.
#[test]
fn what_the_stack_brought_the_former_pod_is_past_the_stack_for_the_next_one() {
    for net in [V4, V6] {
        let mut programs = node_with(&with_service_nat());
        let question = to_a(&net, net.peer, UDP).ports(3000, SERVED);
        let answer = from_a(&net, net.peer, UDP).ports(SERVED, 3000);
        let comes = |device: Device, eni: Device| {
            let expect = Expect::Stack(Verdict::Noted, OTHERS);
            let program = Program::ToEndpoint;
            let case = Case::new(program, net.family(), on(device, question.bytes()), expect);
            vec![case.by(eni, OTHERS)]
        };
        let answers = |device: Device, expect| {
            let program = Program::FromEndpoint;
            vec![Case::new(
                program,
                net.family(),
                on(device, answer.bytes()),
                expect,
            )]
        };
        let up = |eni| Expect::Stack(Verdict::StackFlow, marked(eni));
        run(&mut programs, comes(VETH_A, ENI_0));
        run(&mut programs, answers(VETH_A, up(0)));
        hand_on(&mut programs, &net, OTHER);
        run(&mut programs, answers(OTHER, to_eni(&answer)));
        let again = received(ENI_1, net.peer, net.a, UDP).ports(3000, SERVED);
        let expect = to_pod(&again, OTHER, POD_A);
        run(&mut programs, vec![from_eni(&net, "again", &again, expect)]);
        // A new entry replaces the former pod's, with the ENI that received the packet.
        let count = |programs: &Programs| {
            let is_v4 = net.a.is_ipv4();
            programs.nat_stat(NatStat::StackNoted, is_v4).unwrap()
        };
        let counted = count(&programs);
        run(&mut programs, comes(OTHER, ENI_1));
        assert_eq!(
            count(&programs),
            counted,
            "{}: it is not one more",
            net.family()
        );
        let notes = programs.table::<PodTuple, TrackedFlow>(map::STACK).unwrap();
        let entries = notes.entries().unwrap();
        let owners: Vec<_> = entries
            .iter()
            .map(|(_, note)| (note.endpoint, note.eni, note.progress_out, note.progress_in))
            .collect();
        assert_eq!(owners, [(OTHER.ifindex, 1, 0, progress::DATA)]);
        run(&mut programs, answers(OTHER, up(1)));
        hand_on(&mut programs, &net, VETH_A);
        run(&mut programs, answers(VETH_A, to_eni(&answer)));
    }
}
