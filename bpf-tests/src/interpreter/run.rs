//! Running a program.

use anyhow::{Context as _, Result, ensure};

use super::arithmetic::{compute, holds};
use super::cost::Tally;
use super::helper::{self, Helper, Host};
use super::instruction::{ANSWER, Atomic, FRAME, Instruction, Operand, REGISTERS};
use super::memory::{self, Memory};
use super::program::Program;

/// No program of ours comes near it on one packet.
const MOST_INSTRUCTIONS: u64 = 1_000_000;

/// A function that has called another one: where it goes on, and the registers that it keeps.
struct Caller {
    slot: usize,
    kept: [u64; 5],
}

/// Runs a program on the packet in memory; what it returned.
pub(super) fn run(
    program: &Program,
    memory: &mut Memory<'_>,
    host: &mut Host,
    tally: &mut Tally,
) -> Result<i32> {
    let mut registers = [0; REGISTERS];
    registers[1] = memory::CONTEXT;
    registers[FRAME] = memory.enter()?;
    let mut callers = Vec::new();
    let mut slot = 0;
    let mut executed = 0;
    loop {
        let instruction = program.code.get(slot).context("behind the program's end")?;
        executed += 1;
        ensure!(executed < MOST_INSTRUCTIONS, "the program does not end");
        tally.executed(slot, program.weights[slot]);
        let at = slot;
        slot += 1;
        match *instruction {
            Instruction::Exit => {
                memory.leave();
                let Some(Caller { slot: back, kept }) = callers.pop() else {
                    let [low, _high] = halves(registers[ANSWER]);
                    return Ok(low.cast_signed());
                };
                slot = back;
                registers[6..].copy_from_slice(&kept);
            }
            Instruction::Call { slot: to } => {
                let kept = five(&registers[6..]);
                callers.push(Caller { slot, kept });
                registers[FRAME] = memory.enter()?;
                slot = to;
            }
            Instruction::Helper { number } => {
                let helper = Helper::from_number(number)?;
                note_call(helper, registers[1], memory, tally)?;
                registers[ANSWER] = helper::call(helper, memory, host, five(&registers[1..6]))
                    .with_context(|| format!("{} at {:?}", helper.name(), program.lines.of(at)))?;
            }
            Instruction::Goto { slot: to } => {
                tally.jumped(program.weights[at]);
                slot = to;
            }
            Instruction::Jump { slot: to, .. } => {
                if jumps(instruction, &registers) {
                    tally.jumped(program.weights[at]);
                    slot = to;
                }
            }
            Instruction::Constant { .. } => {
                slot += 1;
                step(instruction, &mut registers, memory)?;
            }
            _ => step(instruction, &mut registers, memory)
                .with_context(|| format!("at {:?}", program.lines.of(at)))?,
        }
    }
}

/// Counts a call of a helper, and the map that it looks into.
fn note_call(helper: Helper, first: u64, memory: &Memory<'_>, tally: &mut Tally) -> Result<()> {
    if helper == Helper::MapLookup {
        let map = memory::map_number(first)?;
        tally.looked_up(&memory.maps[map].name);
    }
    tally.called(helper);
    Ok(())
}

/// Copies five registers.
fn five(registers: &[u64]) -> [u64; 5] {
    let mut copy = [0; 5];
    copy.copy_from_slice(registers);
    copy
}

/// True if an instruction is a jump whose condition holds.
fn jumps(instruction: &Instruction, registers: &[u64; REGISTERS]) -> bool {
    let Instruction::Jump {
        wide,
        condition,
        left,
        right,
        ..
    } = *instruction
    else {
        return false;
    };
    holds(condition, wide, registers[left], operand(registers, right))
}

/// The value that an atomic operation leaves in memory. `answer` is what it has to find there, if
/// it compares.
fn exchanged(atomic: Atomic, old: u64, with: u64, answer: u64) -> u64 {
    match atomic {
        Atomic::Add => old.wrapping_add(with),
        Atomic::Or => old | with,
        Atomic::And => old & with,
        Atomic::Xor => old ^ with,
        Atomic::Exchange => with,
        Atomic::CompareExchange if old == answer => with,
        Atomic::CompareExchange => old,
    }
}

/// Does what leads nowhere else.
fn step(
    instruction: &Instruction,
    registers: &mut [u64; REGISTERS],
    memory: &mut Memory<'_>,
) -> Result<()> {
    match *instruction {
        Instruction::Alu {
            wide,
            alu,
            to,
            with,
        } => registers[to] = compute(alu, wide, registers[to], operand(registers, with)),
        Instruction::Constant { to, value } => registers[to] = value,
        Instruction::Load {
            to,
            base,
            offset,
            size,
        } => registers[to] = memory.load(place(registers, base, offset), size)?,
        Instruction::Store {
            base,
            offset,
            size,
            value,
        } => memory.store(
            place(registers, base, offset),
            size,
            operand(registers, value),
        )?,
        Instruction::Atomic {
            atomic,
            fetches,
            base,
            offset,
            size,
            value,
        } => {
            let address = place(registers, base, offset);
            let old = memory.load(address, size)?;
            let new = exchanged(atomic, old, registers[value], registers[ANSWER]);
            memory.store(address, size, new)?;
            if matches!(atomic, Atomic::CompareExchange) {
                registers[ANSWER] = old;
            } else if fetches {
                registers[value] = old;
            }
        }
        Instruction::Rest
        | Instruction::Exit
        | Instruction::Call { .. }
        | Instruction::Helper { .. }
        | Instruction::Goto { .. }
        | Instruction::Jump { .. } => {}
    }
    Ok(())
}

fn operand(registers: &[u64; REGISTERS], operand: Operand) -> u64 {
    match operand {
        Operand::Register(register) => registers[register],
        Operand::Value(value) => value,
    }
}

fn place(registers: &[u64; REGISTERS], base: usize, offset: i16) -> u64 {
    registers[base].wrapping_add_signed(offset.into())
}

/// The lower and the upper half of a register.
#[expect(
    clippy::cast_possible_truncation,
    reason = "the halves are the requested parts"
)]
fn halves(register: u64) -> [u32; 2] {
    [register as u32, (register >> 32) as u32]
}
