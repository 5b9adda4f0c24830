//! A pod that gets the address of a former one, and nothing of what that left behind.

use bpf_tests::packet::Body;
use bpf_tests::testrun::Programs;
use datapath_common::abi::{Flow, FlowKey, Note, PodTuple, Quota, inbound_quota, map};
use datapath_common::counter::Program;
use datapath_common::headers::protocol;
use datapath_common::outcome::{DropReason, Verdict};

use crate::case::{Case, Expect};
use crate::leaving::{Leaves, of_a};
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

fn from_eni(net: &Net, what: &str, frame: &bpf_tests::packet::Frame, expect: Expect) -> Case {
    let name = format!("{} {what}", net.family);
    Case::new(Program::FromNetwork, name, ENI_1, frame.bytes(), expect)
}

/// What the outside asks of pod A's address, and what the device that has it gets.
fn asks(net: &Net, device: Device) -> Case {
    let frame = received(ENI_1, net.outside, net.a, UDP).ports(3000, SERVED);
    let delivered = frame.clone().hop_limit(63).macs(device.mac, POD_A);
    let expect = Expect::Redirect(Verdict::Local, delivered.bytes(), 0);
    from_eni(net, "a question from the outside", &frame, expect)
}

/// Gives pod A's address to what is behind another device.
fn hand_on(programs: &mut Programs, net: &Net, device: Device) {
    let entry = endpoint(1, ENI_1.ifindex, device, POD_A, ENI_MTU);
    programs.put_address(net.a, entry).unwrap();
}

#[test]
fn the_next_pod_gets_no_answers_of_the_former_one() {
    for net in [V4, V6] {
        let mut programs = node();
        let question = from_a(&net, net.outside, UDP).ports(OWN, ASKED);
        run(
            &mut programs,
            of_a(&net, "a question", &question, Leaves::Translated(1, OWN)),
        );
        hand_on(&mut programs, &net, OTHER);
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
        let mut programs = node();
        let question = from_a(&net, net.outside, UDP).ports(OWN, ASKED);
        run(
            &mut programs,
            of_a(&net, "a question", &question, Leaves::Translated(1, OWN)),
        );
        hand_on(&mut programs, &net, OTHER);
        // By the stack, with the port that it finds: the former pod's flow still holds the own one.
        let anew = Expect::OtherPort(
            Verdict::CarriedTranslated,
            Box::new(question.clone().from(net.snat[1], OWN)),
        );
        let name = format!("{} the next pod's question", net.family);
        let case = Case::new(Program::ToNetwork, name, ENI_1, question.bytes(), anew);
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
        // A note of its own takes the place of the former pod's, in its count too.
        let tuple = PodTuple::new(
            protocol::UDP,
            net.a.into(),
            SERVED.to_be(),
            net.outside.into(),
            3000_u16.to_be(),
        );
        run(&mut programs, vec![asks(&net, OTHER)]);
        let notes = programs.table::<PodTuple, Note>(map::INBOUND).unwrap();
        let note = notes.get(&tuple).unwrap().unwrap();
        assert_eq!(note.endpoint, OTHER.ifindex);
        let quotas = programs.table::<u32, Quota>(map::QUOTA).unwrap();
        let count = |device: Device| {
            let quota = quotas.get(&inbound_quota(device.ifindex)).unwrap();
            quota.map_or(0, |quota| quota.flows)
        };
        assert_eq!((count(VETH_A), count(OTHER)), (0, 1));
        // Back at the first device, the note is a stranger's: what that sends is a flow of its own.
        hand_on(&mut programs, &net, VETH_A);
        run(
            &mut programs,
            of_a(&net, "no answer", &answer, Leaves::Translated(1, SERVED)),
        );
    }
}
