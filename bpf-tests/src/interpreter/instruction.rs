//! Instructions, decoded once: `struct bpf_insn` of `include/uapi/linux/bpf.h`, and the opcodes of
//! RFC 9669.

use anyhow::{Context as _, Result, bail, ensure};
use aya_obj::generated::bpf_insn;

use super::memory;

/// Number of registers; the last one points to the end of the frame.
pub(super) const REGISTERS: usize = 11;
/// The register of a function's result.
pub(super) const ANSWER: usize = 0;
/// The register that points to the end of the frame.
pub(super) const FRAME: usize = 10;
/// Registers that a call changes.
pub(super) const SCRATCH: std::ops::RangeInclusive<usize> = 0..=5;

/// Source of the second operand.
#[derive(Clone, Copy, Debug)]
pub(super) enum Operand {
    Register(usize),
    Value(u64),
}

/// Arithmetic operation.
#[derive(Clone, Copy, Debug)]
pub(super) enum Alu {
    Add,
    Sub,
    Mul,
    Div,
    Or,
    And,
    ShiftLeft,
    ShiftRight,
    Negate,
    Modulo,
    Xor,
    Move,
    ShiftSigned,
    /// The lower bytes, this many, in big-endian order.
    ToBig(u8),
    /// The lower bytes, this many, in little-endian order.
    ToLittle(u8),
}

/// Condition of a jump.
#[derive(Clone, Copy, Debug)]
pub(super) enum Condition {
    Equal,
    Above,
    AtLeast,
    AnyBit,
    NotEqual,
    SignedAbove,
    SignedAtLeast,
    Below,
    AtMost,
    SignedBelow,
    SignedAtMost,
}

/// Atomic operation on memory.
#[derive(Clone, Copy, Debug)]
pub(super) enum Atomic {
    Add,
    Or,
    And,
    Xor,
    Exchange,
    CompareExchange,
}

/// An instruction. Jumps have the slot that they lead to.
#[derive(Clone, Copy, Debug)]
pub(super) enum Instruction {
    Alu {
        wide: bool,
        alu: Alu,
        to: usize,
        with: Operand,
    },
    /// A constant of 64 bits, or the address of a map or its value.
    Constant {
        to: usize,
        value: u64,
    },
    /// The second slot of a constant.
    Rest,
    Load {
        to: usize,
        base: usize,
        offset: i16,
        size: usize,
    },
    Store {
        base: usize,
        offset: i16,
        size: usize,
        value: Operand,
    },
    Atomic {
        atomic: Atomic,
        fetches: bool,
        base: usize,
        offset: i16,
        size: usize,
        value: usize,
    },
    Jump {
        wide: bool,
        condition: Condition,
        left: usize,
        right: Operand,
        slot: usize,
    },
    Goto {
        slot: usize,
    },
    Call {
        slot: usize,
    },
    Helper {
        number: i32,
    },
    Exit,
}

/// Decodes a linked program.
pub(super) fn decode(code: &[bpf_insn]) -> Result<Vec<Instruction>> {
    let mut decoded: Vec<Instruction> = Vec::with_capacity(code.len());
    for (slot, instruction) in code.iter().enumerate() {
        let is_rest = matches!(decoded.last(), Some(Instruction::Constant { .. }));
        decoded.push(if is_rest {
            Instruction::Rest
        } else {
            one(slot, *instruction, code.get(slot + 1).copied())
                .with_context(|| format!("slot {slot}: opcode {:#x}", instruction.code))?
        });
    }
    Ok(decoded)
}

/// The lowest three bits of an opcode: its class.
mod class {
    pub(super) const LD: u8 = 0;
    pub(super) const LDX: u8 = 1;
    pub(super) const ST: u8 = 2;
    pub(super) const STX: u8 = 3;
    pub(super) const ALU: u8 = 4;
    pub(super) const JMP: u8 = 5;
    pub(super) const ALU64: u8 = 7;
}

/// The highest three bits of an opcode of a load or store.
mod mode {
    pub(super) const MEMORY: u8 = 0x60;
    pub(super) const ATOMIC: u8 = 0xc0;
}

fn one(slot: usize, raw: bpf_insn, next: Option<bpf_insn>) -> Result<Instruction> {
    let (to, base) = (usize::from(raw.dst_reg()), usize::from(raw.src_reg()));
    ensure!(to < REGISTERS && base < REGISTERS, "no such register");
    let offset = raw.off;
    let immediate = Operand::Value(i64::from(raw.imm).cast_unsigned());
    let source = if raw.code & 0x08 == 0 {
        immediate
    } else {
        Operand::Register(base)
    };
    let size = [4, 2, 1, 8][usize::from(raw.code >> 3 & 3)];
    Ok(match (raw.code & 7, raw.code & 0xe0) {
        (class::LD, 0) => {
            let next = next.context("a constant cut short")?;
            Instruction::Constant {
                to,
                value: constant(base, raw.imm, next.imm)?,
            }
        }
        (class::LDX, mode::MEMORY) => Instruction::Load {
            to,
            base,
            offset,
            size,
        },
        (class::ST, mode::MEMORY) => Instruction::Store {
            base: to,
            offset,
            size,
            value: immediate,
        },
        (class::STX, mode::MEMORY) => Instruction::Store {
            base: to,
            offset,
            size,
            value: Operand::Register(base),
        },
        (class::STX, mode::ATOMIC) => Instruction::Atomic {
            atomic: atomic(raw.imm)?,
            fetches: raw.imm & 1 != 0,
            base: to,
            offset,
            size,
            value: base,
        },
        (class @ (class::ALU | class::ALU64), _) => {
            ensure!(offset == 0, "an instruction of a newer version");
            Instruction::Alu {
                wide: class == class::ALU64,
                alu: alu(raw)?,
                to,
                with: source,
            }
        }
        (class @ (class::LD | class::LDX | class::ST | class::STX), _) => {
            bail!("a load or store of class {class} that is not known")
        }
        (class, _) => jump(slot, raw, source, class == class::JMP)?,
    })
}

/// Value of a constant's two immediates, by its source register: a number, a map, or an address in
/// a map's value (`BPF_PSEUDO_MAP_FD`, `BPF_PSEUDO_MAP_VALUE`).
fn constant(source: usize, first: i32, second: i32) -> Result<u64> {
    let (first, second) = (first.cast_unsigned(), second.cast_unsigned());
    Ok(match source {
        0 => u64::from(second) << 32 | u64::from(first),
        1 => memory::map_address(first),
        2 => memory::value_address(first, second),
        _ => bail!("a constant of a kind that is not known"),
    })
}

fn alu(raw: bpf_insn) -> Result<Alu> {
    Ok(match raw.code & 0xf0 {
        0x00 => Alu::Add,
        0x10 => Alu::Sub,
        0x20 => Alu::Mul,
        0x30 => Alu::Div,
        0x40 => Alu::Or,
        0x50 => Alu::And,
        0x60 => Alu::ShiftLeft,
        0x70 => Alu::ShiftRight,
        0x80 => Alu::Negate,
        0x90 => Alu::Modulo,
        0xa0 => Alu::Xor,
        0xb0 => Alu::Move,
        0xc0 => Alu::ShiftSigned,
        0xd0 => {
            let bytes = u8::try_from(raw.imm / 8)?;
            ensure!(
                matches!(bytes, 2 | 4 | 8),
                "bytes in another order: {bytes}"
            );
            if raw.code & 0x08 == 0 {
                Alu::ToLittle(bytes)
            } else {
                Alu::ToBig(bytes)
            }
        }
        _ => bail!("arithmetic that is not known"),
    })
}

fn atomic(immediate: i32) -> Result<Atomic> {
    Ok(match immediate & !1 {
        0x00 => Atomic::Add,
        0x40 => Atomic::Or,
        0x50 => Atomic::And,
        0xa0 => Atomic::Xor,
        0xe0 => Atomic::Exchange,
        0xf0 => Atomic::CompareExchange,
        _ => bail!("an atomic operation that is not known"),
    })
}

fn jump(slot: usize, raw: bpf_insn, right: Operand, wide: bool) -> Result<Instruction> {
    let lead = |by: i32| {
        (slot + 1)
            .checked_add_signed(isize::try_from(by)?)
            .context("a jump out of the program")
    };
    let condition = match raw.code & 0xf0 {
        0x00 if wide => {
            return Ok(Instruction::Goto {
                slot: lead(raw.off.into())?,
            });
        }
        0x80 => {
            return Ok(match raw.src_reg() {
                0 => Instruction::Helper { number: raw.imm },
                1 => Instruction::Call {
                    slot: lead(raw.imm)?,
                },
                _ => bail!("a call of a kind that is not known"),
            });
        }
        0x90 => return Ok(Instruction::Exit),
        0x10 => Condition::Equal,
        0x20 => Condition::Above,
        0x30 => Condition::AtLeast,
        0x40 => Condition::AnyBit,
        0x50 => Condition::NotEqual,
        0x60 => Condition::SignedAbove,
        0x70 => Condition::SignedAtLeast,
        0xa0 => Condition::Below,
        0xb0 => Condition::AtMost,
        0xc0 => Condition::SignedBelow,
        0xd0 => Condition::SignedAtMost,
        _ => bail!("a jump that is not known"),
    };
    Ok(Instruction::Jump {
        wide,
        condition,
        left: raw.dst_reg().into(),
        right,
        slot: lead(raw.off.into())?,
    })
}
