//! The tables must produce every outcome that a program has.

use std::collections::BTreeSet;

use datapath_common::counter::Program;
use datapath_common::outcome::{DropReason, Outcome, Verdict};

use crate::{from_endpoint, from_network, hostile, neighbour_discovery};

/// Outcomes that a program never has, or that no test can bring about.
fn absent(program: Program) -> BTreeSet<Outcome> {
    // Needs the kernel to be out of memory.
    let mut absent = BTreeSet::from([Outcome::Dropped(DropReason::HelperFailed)]);
    match program {
        Program::FromEndpoint => {
            absent.insert(Outcome::Passed(Verdict::NotForPod));
            absent.insert(Outcome::Passed(Verdict::ForeignFrame));
            absent.insert(Outcome::Dropped(DropReason::WrongEni));
        }
        Program::FromNetwork => {
            absent.extend([
                Outcome::Passed(Verdict::Eni),
                Outcome::Passed(Verdict::Host),
                Outcome::Passed(Verdict::Service),
                Outcome::Passed(Verdict::NeighbourDiscovery),
                Outcome::Passed(Verdict::LinkLocal),
                Outcome::Passed(Verdict::Arp),
                Outcome::Dropped(DropReason::SpoofedSource),
                Outcome::Dropped(DropReason::VlanTagged),
                Outcome::Dropped(DropReason::NotIp),
            ]);
        }
    }
    absent
}

#[test]
fn the_tables_produce_every_outcome() {
    let tables = [
        from_endpoint::cases(),
        neighbour_discovery::cases(),
        from_network::cases(),
        hostile::cases(),
    ];
    for program in Program::ALL {
        let produced: BTreeSet<Outcome> = tables
            .iter()
            .flatten()
            .filter(|case| case.program == program)
            .map(|case| case.expect.outcome())
            .collect();
        let all: BTreeSet<Outcome> = Verdict::ALL
            .iter()
            .copied()
            .map(Outcome::Passed)
            .chain(DropReason::ALL.iter().copied().map(Outcome::Dropped))
            .collect();
        let expected: BTreeSet<Outcome> = all.difference(&absent(program)).copied().collect();
        assert_eq!(produced, expected, "{}", program.name());
    }
}
