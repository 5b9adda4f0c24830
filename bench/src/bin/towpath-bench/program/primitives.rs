//! Cost of the basic steps that all programs consist of.

use anyhow::Result;
use testkit::testrun::asm::{self, STACK, helper};
use testkit::testrun::assembled::{EntrySize, Kind, OwnMap, OwnProgram};
use testkit::testrun::scene::{ENI_1, V4, VETH_A, from_a};

use super::meter::{Meter, packet};
use super::paths::{ACK, TCP, on};

/// Calls in a program, one after the other.
const CALLS: usize = 16;
/// Offset on the stack of keys and arguments.
const PLACE: i16 = -48;

/// A step by name, and its instructions.
struct Step {
    name: &'static str,
    code: Vec<u64>,
    /// Map that the code refers to.
    _map: Option<OwnMap>,
}

/// A look-up of a key that the program has prepared.
fn look_up(name: &'static str, kind: Kind, size: EntrySize, entries: usize) -> Result<Step> {
    let map = OwnMap::new(kind, size, entries)?;
    let mut key = vec![0; size.key];
    let mut code = Vec::new();
    if kind == Kind::Prefixes {
        let length = 8 * i32::try_from(size.key - 4)?;
        key[..4].copy_from_slice(&length.to_ne_bytes());
        code.push(asm::store_word_imm(STACK, PLACE, length));
    }
    if kind != Kind::PerCpuArray {
        map.put(&key, &vec![0; size.value])?;
    }
    code.extend(asm::map(1, map.fd()));
    code.extend([
        asm::mov(2, STACK),
        asm::add_imm(2, i32::from(PLACE)),
        asm::call(helper::MAP_LOOKUP),
    ]);
    Ok(Step {
        name,
        code,
        _map: Some(map),
    })
}

fn call(name: &'static str, code: Vec<u64>) -> Step {
    Step {
        name,
        code,
        _map: None,
    }
}

fn steps() -> Result<Vec<Step>> {
    let ifindex = ENI_1.ifindex.cast_signed();
    Ok(vec![
        call("primitive: nothing", Vec::new()),
        look_up(
            "primitive: hash look-up, 4-byte key",
            Kind::Hash,
            EntrySize::new(4, 32),
            65_536,
        )?,
        look_up(
            "primitive: hash look-up, 16-byte key",
            Kind::Hash,
            EntrySize::new(16, 28),
            16_384,
        )?,
        look_up(
            "primitive: hash look-up, 24-byte key",
            Kind::Hash,
            EntrySize::new(24, 48),
            262_144,
        )?,
        look_up(
            "primitive: hash look-up, 40-byte key",
            Kind::Hash,
            EntrySize::new(40, 4),
            262_144,
        )?,
        look_up(
            "primitive: LPM look-up, one prefix",
            Kind::Prefixes,
            EntrySize::new(20, 4),
            16_384,
        )?,
        look_up(
            "primitive: array look-up",
            Kind::Array,
            EntrySize::new(4, 64),
            256,
        )?,
        look_up(
            "primitive: per-CPU array look-up",
            Kind::PerCpuArray,
            EntrySize::new(4, 16),
            1024,
        )?,
        call(
            "primitive: bpf_l4_csum_replace",
            vec![
                asm::mov(1, 6),
                asm::mov_imm(2, 50),
                asm::mov_imm(3, 0),
                asm::mov_imm(4, 7),
                asm::mov_imm(5, 16),
                asm::call(helper::L4_CSUM_REPLACE),
            ],
        ),
        call(
            "primitive: bpf_redirect_neigh",
            vec![
                asm::mov_imm(1, ifindex),
                asm::mov(2, STACK),
                asm::add_imm(2, i32::from(PLACE)),
                asm::mov_imm(3, 20),
                asm::mov_imm(4, 0),
                asm::call(helper::REDIRECT_NEIGH),
            ],
        ),
        call(
            "primitive: bpf_redirect_peer",
            vec![
                asm::mov_imm(1, ifindex),
                asm::mov_imm(2, 0),
                asm::call(helper::REDIRECT_PEER),
            ],
        ),
    ])
}

/// A program that repeats a step.
fn unrolled(step: &Step) -> Result<OwnProgram> {
    let mut code = vec![asm::mov(6, 1)];
    for word in 0..6 {
        code.push(asm::store_double_imm(STACK, PLACE + 8 * word, 0));
    }
    for _ in 0..CALLS {
        code.extend(&step.code);
    }
    code.extend([asm::mov_imm(0, -1), asm::EXIT]);
    OwnProgram::load(&code)
}

/// Measures all steps; each is net of the same program without steps.
pub(super) fn measure(meter: &mut Meter) -> Result<()> {
    let steps = steps()?;
    let programs: Vec<_> = steps.iter().map(unrolled).collect::<Result<_>>()?;
    let frame = from_a(&V4, V4.outside, TCP.1).tcp(ACK, 1).bytes();
    meter.repeater.set(&[packet(frame, 0)])?;
    let (on, repeat) = (on(VETH_A), meter.plan.repeat);
    for round in 0..=meter.plan.rounds {
        let noop = meter.noop(on)?;
        let mut nothing = None;
        for (step, program) in steps.iter().zip(&programs) {
            let each = meter.repeater.plain(program.runner(), on, repeat)?.each;
            let Some(nothing) = nothing else {
                nothing = Some(each);
                continue;
            };
            if round > 0 {
                let calls = f64::from(u8::try_from(CALLS)?);
                meter.keep(step.name, (each - nothing) / calls, noop);
            }
        }
    }
    Ok(())
}
