//! Packets that nobody would think of.

use bpf_tests::random::Random;
use bpf_tests::testrun::{DROP, PASS, Programs, REDIRECT};
use datapath_common::counter::Program;
use datapath_common::outcome::{DropReason, Outcome, Verdict};

use crate::world::node;
use crate::{from_endpoint, from_network, hostile, neighbour_discovery};

const PACKETS: u64 = 20_000;
/// Fixed, so that a failure comes again.
const SEED: u64 = 0x746f_7770_6174_6801;

/// Changes one to four bytes, mostly of the headers, and now and then the length.
fn mutate(random: &mut Random, frame: &mut Vec<u8>) {
    for _ in 0..=random.below(4) {
        let reach = if random.below(4) == 0 {
            frame.len()
        } else {
            frame.len().min(80)
        };
        let at = random.below(reach);
        frame[at] = match random.below(4) {
            0 => 0,
            1 => 0xff,
            2 => frame[at] ^ (1 << random.below(8)),
            _ => random.number().to_le_bytes()[0],
        };
    }
    match random.below(8) {
        0 => frame.truncate(15 + random.below(frame.len() - 14)),
        1 => frame.resize(frame.len() + random.below(64), 0xa5),
        _ => {}
    }
}

/// Whether a test run takes a frame: not one that ends within its IP header.
fn is_accepted(frame: &[u8]) -> bool {
    let header = match frame[12..14] {
        [0x08, 0x00] => 20,
        [0x86, 0xdd] => 40,
        _ => 1,
    };
    frame.len() >= 14 + header
}

/// Packets counted by a program, by outcome.
fn packets(programs: &Programs, program: Program) -> Vec<(Outcome, u64)> {
    Verdict::ALL
        .iter()
        .copied()
        .map(Outcome::Passed)
        .chain(DropReason::ALL.iter().copied().map(Outcome::Dropped))
        .map(|outcome| (outcome, programs.counter(program, outcome).unwrap().packets))
        .collect()
}

#[test]
fn any_packet_gets_a_known_code_and_is_counted_once() {
    let seeds: Vec<_> = [
        from_endpoint::cases(),
        neighbour_discovery::cases(),
        from_network::cases(),
        hostile::cases(),
    ]
    .into_iter()
    .flatten()
    .collect();
    let mut programs = node();
    let mut random = Random::new(SEED);
    let mut ran = 0;
    for number in 0.. {
        if ran == PACKETS {
            break;
        }
        let seed = &seeds[random.below(seeds.len())];
        let mut input = seed.input.clone();
        mutate(&mut random, &mut input.frame);
        if !is_accepted(&input.frame) {
            continue;
        }
        ran += 1;
        let before = packets(&programs, seed.program);
        let output = programs
            .run(seed.program, &input)
            .unwrap_or_else(|error| panic!("packet {number}: {error:#}: {:02x?}", input.frame));
        let after = packets(&programs, seed.program);
        let moved: Vec<_> = before
            .iter()
            .zip(&after)
            .filter(|(before, after)| before != after)
            .collect();
        let [((outcome, before), (_, after))] = moved[..] else {
            panic!("packet {number}: {moved:?} moved: {:02x?}", input.frame)
        };
        assert_eq!(*after, before + 1, "packet {number}: {outcome:?}");
        let code = match outcome {
            Outcome::Passed(Verdict::Local | Verdict::Eni) => REDIRECT,
            Outcome::Passed(_) => PASS,
            Outcome::Dropped(_) => DROP,
        };
        assert_eq!(output.code, code, "packet {number}: {outcome:?}");
        if code != REDIRECT {
            assert_eq!(output.frame, input.frame, "packet {number}: {outcome:?}");
        }
    }
}
