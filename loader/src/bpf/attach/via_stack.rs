//! Endpoints' devices with foreign programs that need packets from the host's stack.
//!
//! Packets that we deliver bypass the qdiscs and the egress of a pod's device. Packets that a pod
//! sends bypass all programs after ours at its ingress.

use std::collections::{BTreeMap, BTreeSet};

use anyhow::Result;
use api::types::Direction;
use api::types::{ForeignProgram, Position};

use crate::bpf::attach::Filters;
use crate::bpf::attach::foreign::{self, Foreign};
use crate::bpf::attach::tc::{Place, Qdisc};
use crate::kernel::Link;

/// The qdisc of a device that sends at once, as those of pods do.
const NO_QUEUE: &str = "noqueue";

/// The qdiscs and programs on each of these devices, and what is at their hooks. A device without a
/// finding is left out: a dump may skip one while another one goes, and one that is down has no
/// qdisc.
pub(in crate::bpf) fn list<'a>(
    filters: &Filters,
    tcx: Option<&BTreeSet<u32>>,
    devices: impl Iterator<Item = &'a Link> + Clone,
) -> Result<(BTreeMap<u32, Option<String>>, Foreign)> {
    let roots = filters.qdiscs.iter();
    let roots = roots.filter(|qdisc| qdisc.place == Place::Root);
    let roots: BTreeMap<u32, &Qdisc> = roots.map(|qdisc| (qdisc.ifindex, qdisc)).collect();
    let seen = devices.filter_map(|link| Some((link, *roots.get(&link.ifindex)?)));
    let foreign = foreign::list(filters, tcx, seen.clone().map(|(link, _)| link))?;
    let mut found: BTreeMap<u32, Option<String>> = seen
        .map(|(link, root)| (link.ifindex, shaper(&root.kind)))
        .collect();
    let programs = foreign.programs.iter();
    for program in programs.filter(|program| misses_packets(program)) {
        let what = found.entry(program.ifindex).or_default();
        what.get_or_insert_with(|| describe(program));
    }
    Ok((found, foreign))
}

/// The kind of a qdisc at the root of a pod's device, if a user put it there.
fn shaper(kind: &str) -> Option<String> {
    (kind != NO_QUEUE).then(|| format!("a {kind} qdisc"))
}

/// True if packets that we redirect bypass a program. One ahead of ours has seen all that the pod
/// sends.
fn misses_packets(program: &ForeignProgram) -> bool {
    match (program.direction, program.position) {
        (Direction::Ingress, Position::Before) => false,
        (Direction::Ingress, Position::After | Position::Alone) | (Direction::Egress, _) => true,
    }
}

fn describe(program: &ForeignProgram) -> String {
    let direction = match program.direction {
        Direction::Ingress => "ingress",
        Direction::Egress => "egress",
    };
    let name = program.name.as_deref().unwrap_or("without a name");
    format!("{} {name} at its {direction}", program.kind)
}

#[cfg(test)]
mod tests {
    use super::*;
    use api::types::Mechanism;

    fn program(direction: Direction, position: Position) -> ForeignProgram {
        ForeignProgram {
            device: "tp0".to_owned(),
            ifindex: 7,
            direction,
            mechanism: Mechanism::Tcx,
            kind: "bpf".to_owned(),
            name: Some("policy".to_owned()),
            id: Some(1),
            priority: None,
            position,
        }
    }

    #[test]
    fn what_is_ahead_of_ours_at_the_ingress_sees_all_and_all_else_misses_packets() {
        for position in [Position::Before, Position::After, Position::Alone] {
            let is_ahead = position == Position::Before;
            let ingress = program(Direction::Ingress, position);
            assert_eq!(misses_packets(&ingress), !is_ahead, "{position:?}");
            let egress = program(Direction::Egress, position);
            assert!(misses_packets(&egress), "{position:?}");
            assert_eq!(describe(&egress), "bpf policy at its egress");
        }
    }

    #[test]
    fn a_qdisc_that_holds_packets_shapes() {
        assert_eq!(shaper("tbf").as_deref(), Some("a tbf qdisc"));
        assert_eq!(shaper("fq_codel").as_deref(), Some("a fq_codel qdisc"));
        assert_eq!(shaper(NO_QUEUE), None);
    }
}
