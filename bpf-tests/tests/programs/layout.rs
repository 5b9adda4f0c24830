//! The programs use the loader's layout of the mark.

use datapath_common::abi::{PodTuple, TrackedFlow, map};
use datapath_common::counter::Program;
use datapath_common::mark::MarkLayout;
use loader::bpf::DatapathSettings;
use testkit::packet::Body;
use testkit::testrun::{Input, PASS, Programs};

use crate::case::on;
use crate::stack_flows::with_service_nat;
use crate::world::*;

/// Masks within which our bits may lie.
const MASKS: [u32; 4] = [
    0x0000_003f,
    0x00ff_0000,
    0xffff_ffff,
    MarkLayout::DEFAULT.mask(),
];

#[test]
fn programs_use_the_layout_they_are_loaded_with() {
    drop(node());
    for mask in MASKS {
        let layout = MarkLayout::new(mask).unwrap();
        let mut programs = Programs::load(layout).unwrap();
        fill(&mut programs).unwrap();
        let own = layout.eni(1).unwrap();
        for (hop_limit, destination, bits) in
            [(64, V4.host, own), (1, V4.peer, own | layout.exception())]
        {
            let frame = from_a(&V4, destination, Body::Udp(1)).hop_limit(hop_limit);
            let input = Input {
                mark: u32::MAX,
                ..on(VETH_A, frame.bytes())
            };
            let output = programs.run(Program::FromEndpoint, &input).unwrap();
            assert_eq!(output.code, PASS);
            assert_eq!(output.mark, !mask | bits, "mask {mask:#x}");
        }
    }
}

/// Packets that the stack sends to a pod: an entry is made if the mark has bits of ours, except the
/// exception bit.
#[test]
fn the_stacks_packets_are_told_apart_by_the_layout() {
    drop(node());
    for mask in MASKS {
        let layout = MarkLayout::new(mask).unwrap();
        let mut programs = Programs::load_with(&DatapathSettings {
            mark: layout,
            ..with_service_nat()
        })
        .unwrap();
        fill(&mut programs).unwrap();
        let own = layout.eni(1).unwrap();
        for (mark, is_noted) in [
            (!mask, false),
            (own | layout.exception(), false),
            (own, true),
        ] {
            let input = Input {
                frame: to_a(&V4, V4.host, Body::Udp(1)).bytes(),
                ifindex: VETH_A.ifindex,
                ingress_ifindex: 0,
                mark,
                gso_size: 0,
            };
            let output = programs.run(Program::ToEndpoint, &input).unwrap();
            assert_eq!((output.code, output.mark), (PASS, mark));
            let notes = programs.table::<PodTuple, TrackedFlow>(map::STACK).unwrap();
            let is_there = !notes.entries().unwrap().is_empty();
            assert_eq!(is_there, is_noted, "mask {mask:#x}, mark {mark:#x}");
        }
    }
}
