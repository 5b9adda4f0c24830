//! What the kernel makes of the programs: of a setting that is off nothing is left, because it removes code that
//! cannot run, and it puts nothing before what most packets pass.

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

/// What a program begins with that writes to packets by itself: the kernel has a packet that others share, as
/// every segment that its socket may have to repeat, made writable whatever becomes of it (`bpf_unclone_prologue`
/// of `net/core/filter.c`).
const UNSHARE: &str = "skb_pull_data";
/// Instructions within which that is.
const BEGINNING: usize = 12;

#[test]
fn what_passes_to_network_is_not_made_writable() {
    let mut programs = Programs::load_with(&settings()).unwrap();
    let mut unshares = |program| {
        let code = programs.translated(program).unwrap();
        let mut beginning = code.lines().take(BEGINNING);
        beginning.any(|line| line.contains(UNSHARE))
    };
    assert!(unshares(Program::FromEndpoint), "what it is looked for by");
    assert!(!unshares(Program::ToNetwork));
}
