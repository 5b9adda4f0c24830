//! Code that the verifier removes from a program. The verifier follows read-only globals and finds
//! conditional jumps on them that have one reachable target. It removes the other target and the
//! jump (`opt_hard_wire_dead_code_branches`, `opt_remove_dead_code` and `opt_remove_nops` of
//! `kernel/bpf/verifier.c`). The load of the global stays.
//!
//! This module follows a register while its value is the same on all paths to an instruction. The
//! verifier explores each path by itself and follows ranges of numbers too. It finds a little more,
//! and each version of it finds something different; this count is the same on every kernel.

use std::collections::BTreeMap;

use super::arithmetic::{compute, holds};
use super::instruction::{ANSWER, Instruction, Operand, REGISTERS, SCRATCH};
use super::map::Map;
use super::memory;

/// Known values of registers before an instruction.
#[derive(Clone, PartialEq, Eq)]
struct State {
    registers: [Option<u64>; REGISTERS],
}

impl State {
    const NOTHING: Self = Self {
        registers: [None; REGISTERS],
    };

    fn operand(&self, operand: Operand) -> Option<u64> {
        match operand {
            Operand::Register(register) => self.registers[register],
            Operand::Value(value) => Some(value),
        }
    }

    /// Keeps the values that both states agree on; returns true if those are fewer than before.
    fn meet(&mut self, other: &Self) -> bool {
        let mut less = false;
        for (known, also) in self.registers.iter_mut().zip(other.registers) {
            if known.is_some() && *known != also {
                *known = None;
                less = true;
            }
        }
        less
    }
}

/// Successors of an instruction.
enum Next {
    To(Vec<usize>),
    End,
}

/// Weight of each executed slot: 1, or 0 where the verifier removes it.
pub(super) fn weights(code: &[Instruction], maps: &[Map]) -> Vec<u8> {
    let states = explore(code, maps);
    let is_dead = |slot: usize| !states.contains_key(&slot);
    let skips_nothing = |from: usize, to: usize| {
        from < to
            && (from + 1..to)
                .filter(|slot| !matches!(code[*slot], Instruction::Rest))
                .all(is_dead)
    };
    code.iter()
        .enumerate()
        .map(|(slot, instruction)| {
            let Some(state) = states.get(&slot) else {
                return 0;
            };
            let target = match *instruction {
                Instruction::Goto { slot } => Some(slot),
                Instruction::Jump { slot: to, .. } => match decided(instruction, state) {
                    Some(true) => Some(to),
                    Some(false) => return 0,
                    None => None,
                },
                Instruction::Rest => return 0,
                _ => None,
            };
            u8::from(!target.is_some_and(|to| skips_nothing(slot, to)))
        })
        .collect()
}

/// The direction of a jump, if it is always the same.
fn decided(instruction: &Instruction, state: &State) -> Option<bool> {
    let Instruction::Jump {
        wide,
        condition,
        left,
        right,
        ..
    } = *instruction
    else {
        return None;
    };
    let (left, right) = (state.registers[left]?, state.operand(right)?);
    Some(holds(condition, wide, left, right))
}

/// Known values before each reachable slot.
fn explore(code: &[Instruction], maps: &[Map]) -> BTreeMap<usize, State> {
    let mut states = BTreeMap::from([(0, State::NOTHING)]);
    let mut open = vec![0];
    while let Some(slot) = open.pop() {
        let (Some(instruction), Some(state)) = (code.get(slot), states.get(&slot)) else {
            continue;
        };
        let mut after = state.clone();
        let next = step(slot, instruction, &mut after, maps);
        let mut reach = |slot: usize, state: &State| {
            let changed = match states.get_mut(&slot) {
                Some(known) => known.meet(state),
                None => states.insert(slot, state.clone()).is_none(),
            };
            if changed {
                open.push(slot);
            }
        };
        if let Instruction::Call { slot } = instruction {
            reach(*slot, &State::NOTHING);
        }
        if let Next::To(slots) = next {
            for slot in slots {
                reach(slot, &after);
            }
        }
    }
    states
}

/// Applies an instruction to the known values.
fn step(slot: usize, instruction: &Instruction, state: &mut State, maps: &[Map]) -> Next {
    let goes_on = Next::To(vec![slot + 1]);
    match *instruction {
        Instruction::Alu {
            wide,
            alu,
            to,
            with,
        } => {
            let right = state.operand(with);
            let left = match alu {
                super::instruction::Alu::Move => Some(0),
                _ => state.registers[to],
            };
            state.registers[to] = left
                .zip(right)
                .map(|(left, right)| compute(alu, wide, left, right));
        }
        Instruction::Constant { to, value } => {
            state.registers[to] = Some(value);
            return Next::To(vec![slot + 2]);
        }
        Instruction::Load {
            to,
            base,
            offset,
            size,
        } => {
            let address = state.registers[base];
            let address = address.map(|base| base.wrapping_add_signed(offset.into()));
            state.registers[to] = address.and_then(|address| memory::constant(maps, address, size));
        }
        Instruction::Atomic { fetches, value, .. } => {
            if fetches {
                state.registers[value] = None;
                state.registers[ANSWER] = None;
            }
        }
        Instruction::Rest | Instruction::Store { .. } => {}
        Instruction::Call { .. } | Instruction::Helper { .. } => {
            for register in SCRATCH {
                state.registers[register] = None;
            }
        }
        Instruction::Jump { slot: to, .. } => {
            return Next::To(match decided(instruction, state) {
                Some(true) => vec![to],
                Some(false) => vec![slot + 1],
                None => vec![slot + 1, to],
            });
        }
        Instruction::Goto { slot } => return Next::To(vec![slot]),
        Instruction::Exit => return Next::End,
    }
    goes_on
}

#[cfg(test)]
mod tests {
    use super::super::instruction::{Alu, Condition, Instruction, Operand};
    use super::weights;

    fn set(to: usize, value: u64) -> Instruction {
        Instruction::Alu {
            wide: true,
            alu: Alu::Move,
            to,
            with: Operand::Value(value),
        }
    }

    fn unless_zero(left: usize, slot: usize) -> Instruction {
        Instruction::Jump {
            wide: true,
            condition: Condition::NotEqual,
            left,
            right: Operand::Value(0),
            slot,
        }
    }

    const EXIT: Instruction = Instruction::Exit;

    #[test]
    fn a_branch_that_always_goes_one_way_counts_nothing() {
        let code = |value| vec![set(1, value), unless_zero(1, 3), set(0, 1), EXIT];
        // A jump that is never taken is removed.
        assert_eq!(weights(&code(0), &[]), [1, 0, 1, 1]);
        // A jump that is always taken skips removed code.
        assert_eq!(weights(&code(5), &[]), [1, 0, 0, 1]);
        // The value of register 2 is unknown.
        let open = [set(1, 0), unless_zero(2, 3), set(0, 1), EXIT];
        assert_eq!(weights(&open, &[]), [1, 1, 1, 1]);
    }

    #[test]
    fn a_jump_over_what_lives_stays() {
        let code = [
            set(1, 1),
            unless_zero(2, 4),
            unless_zero(1, 5),
            set(0, 7),
            set(0, 1),
            EXIT,
        ];
        assert_eq!(weights(&code, &[]), [1, 1, 1, 0, 1, 1]);
    }

    #[test]
    fn ways_that_meet_know_what_both_know() {
        let code = |other| {
            vec![
                set(1, 1),
                unless_zero(2, 3),
                set(1, other),
                unless_zero(1, 5),
                set(0, 1),
                EXIT,
            ]
        };
        assert_eq!(weights(&code(1), &[]), [1, 1, 1, 0, 0, 1]);
        assert_eq!(weights(&code(0), &[]), [1, 1, 1, 1, 1, 1]);
    }

    #[test]
    fn a_call_makes_scratch_registers_unknown_and_no_others() {
        let code = |register| {
            vec![
                set(register, 1),
                Instruction::Helper { number: 7 },
                unless_zero(register, 4),
                set(0, 1),
                EXIT,
            ]
        };
        assert_eq!(weights(&code(1), &[]), [1, 1, 1, 1, 1]);
        assert_eq!(weights(&code(6), &[]), [1, 1, 0, 0, 1]);
    }
}
