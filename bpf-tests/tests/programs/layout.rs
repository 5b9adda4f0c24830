//! The mark's layout is what the loader says it is.

use bpf_tests::packet::Body;
use bpf_tests::testrun::{Input, PASS, Programs};
use datapath_common::counter::Program;
use datapath_common::mark::MarkLayout;

use crate::world::*;

#[test]
fn programs_use_the_layout_they_are_loaded_with() {
    drop(node());
    for mask in [
        0x0000_003f,
        0x00ff_0000,
        0xffff_ffff,
        MarkLayout::DEFAULT.mask(),
    ] {
        let layout = MarkLayout::new(mask).unwrap();
        let mut programs = Programs::load(layout).unwrap();
        fill(&mut programs);
        let own = layout.eni(1).unwrap();
        for (hop_limit, destination, bits) in
            [(64, V4.host, own), (1, V4.peer, own | layout.exception())]
        {
            let input = Input {
                frame: from_a(&V4, destination, Body::Udp(1))
                    .hop_limit(hop_limit)
                    .bytes(),
                ifindex: VETH_A.ifindex,
                ingress_ifindex: VETH_A.ifindex,
                mark: u32::MAX,
                gso_size: 0,
            };
            let output = programs.run(Program::FromEndpoint, &input).unwrap();
            assert_eq!(output.code, PASS);
            assert_eq!(output.mark, !mask | bits, "mask {mask:#x}");
        }
    }
}
