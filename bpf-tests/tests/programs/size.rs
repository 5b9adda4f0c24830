//! What a setting that is off costs: nothing, because the kernel removes code that cannot run.

use bpf_tests::testrun::Programs;
use datapath_common::counter::Program;

use crate::stack_flows::with_service_nat;
use crate::world::settings;

/// Instructions of a program that only counts what it passes on.
const HANDFUL: u32 = 60;

#[test]
fn without_service_nat_none_of_its_code_is_left() {
    let size = |settings| {
        let mut programs = Programs::load_with(settings).unwrap();
        Program::ALL.map(|program| programs.size(program).unwrap())
    };
    let (off, on) = (size(&settings()), size(&with_service_nat()));
    for (program, (off, on)) in Program::ALL.into_iter().zip(off.into_iter().zip(on)) {
        println!(
            "{:14} {off} instructions, with service NAT {on}",
            program.name()
        );
        assert!(off < on, "{}: {off} instructions, and {on}", program.name());
        if program == Program::ToEndpoint {
            assert!(off <= HANDFUL, "{off} instructions");
        }
    }
}
