//! The interpreter makes of every packet of the tables what the kernel makes of it.

use bpf_tests::interpreter::Machine;
use testkit::testrun::Programs;

use crate::case::{Case, Expect, Table};
use crate::world::*;
use crate::{
    from_endpoint, from_network, hostile, limits, nat, neighbour_discovery, path, stack_flows,
};

/// The devices of the node's namespace.
const DEVICES: [Device; 6] = [VETH_A, VETH_B, VETH_C, ENI_0, ENI_1, OTHER];

/// The programs of the kernel beside those of the interpreter.
fn compare(programs: &mut Programs, cases: &[Case]) {
    let devices = DEVICES.map(|device| (device.ifindex, device.mac));
    let mut machine = Machine::beside(programs, &devices).unwrap();
    for case in cases {
        let name = format!("{}: {}", case.program.name(), case.name);
        let outcome = case.expect.outcome();
        let counted = |machine: &Machine| machine.counter(case.program, outcome).unwrap();
        let before = counted(&machine);
        let theirs = programs.run(case.program, &case.input).unwrap();
        let (ours, cost) = machine
            .run(case.program, &case.input)
            .unwrap_or_else(|error| panic!("{name}: {error:#}"));
        let counted = counted(&machine);
        assert_eq!(counted.packets, before.packets + 1, "{name}: counter");
        let bytes = case.input.frame.len() as u64;
        assert_eq!(counted.bytes, before.bytes + bytes, "{name}: counter");
        assert!(cost.instructions > 0, "{name}");
        case.judge(&theirs);
        case.judge(&ours);
        // A port that is drawn is another one.
        if !matches!(case.expect, Expect::OtherPort(..)) {
            let all = |output: &testkit::testrun::Output| {
                (output.code, output.mark, output.frame.clone())
            };
            assert_eq!(all(&ours), all(&theirs), "{name}");
        }
    }
}

#[test]
fn the_interpreter_makes_of_packets_what_the_kernel_makes_of_them() {
    for cases in [
        from_endpoint::cases(),
        neighbour_discovery::cases(),
        from_network::cases(),
        hostile::cases(),
        nat::cases(),
    ] {
        compare(&mut node(), &cases);
    }
}

#[test]
fn so_it_does_with_other_settings() {
    let tables = [limits::tables(), path::tables(), stack_flows::tables()];
    for table in tables.into_iter().flatten() {
        let Table {
            settings,
            prepare,
            cases,
        } = table;
        let mut programs = node_with(&settings);
        prepare(&mut programs);
        compare(&mut programs, &cases);
    }
}
