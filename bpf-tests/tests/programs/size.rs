//! Programs after the kernel's translation. They contain no code of a setting that is off, because
//! the kernel removes code that cannot run. They have no prologue on the path of most packets.

use datapath_common::counter::Program;
use testkit::testrun::Programs;

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

/// Helper in the prologue of a program that writes to packets directly. There the kernel makes a
/// shared packet writable in any case (`bpf_unclone_prologue` of `net/core/filter.c`). Every
/// segment that its socket may retransmit is shared.
const UNSHARE: &str = "skb_pull_data";
/// Instructions that may contain the prologue.
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
