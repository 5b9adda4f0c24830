//! Loading a few instructions, and running a program on a frame (`BPF_PROG_TEST_RUN`).

use std::io;
use std::os::fd::{BorrowedFd, OwnedFd};

use aya_obj::generated::{bpf_cmd, bpf_func_id, bpf_prog_type};

use super::{Attribute, bpf, bpf_fd, raw};
use crate::bpf::signals::BlockedSignals;

/// The kernel lends its helpers to programs of a compatible licence only.
const LICENSE: &std::ffi::CStr = c"GPL";

/// `struct bpf_insn` of `include/uapi/linux/bpf.h`.
#[repr(C)]
#[derive(Clone, Copy)]
pub(in crate::bpf) struct Instruction {
    code: u8,
    registers: u8,
    offset: i16,
    immediate: i32,
}

/// `BPF_JMP | BPF_CALL`, `BPF_ALU64 | BPF_RSH | BPF_K`, `BPF_JMP | BPF_EXIT`.
const CALL: u8 = 0x85;
const SHIFT_RIGHT: u8 = 0x77;
const EXIT: u8 = 0x95;

impl Instruction {
    /// An instruction on register 0, if on any.
    const fn new(code: u8, immediate: i32) -> Self {
        Self {
            code,
            registers: 0,
            offset: 0,
            immediate,
        }
    }
}

const JIFFIES: Instruction = Instruction::new(CALL, bpf_func_id::BPF_FUNC_jiffies64 as i32);
/// Returns the lower 32 bits of the time in jiffies.
pub(in crate::bpf) const JIFFIES_LOW: &[Instruction] = &[JIFFIES, Instruction::new(EXIT, 0)];
/// Returns the upper 32 bits of the time in jiffies.
pub(in crate::bpf) const JIFFIES_HIGH: &[Instruction] = &[
    JIFFIES,
    Instruction::new(SHIFT_RIGHT, 32),
    Instruction::new(EXIT, 0),
];

/// The head of the part of `union bpf_attr` for `BPF_PROG_LOAD`.
#[repr(C)]
struct ProgramLoad {
    program_type: u32,
    count: u32,
    instructions: u64,
    license: u64,
}

/// The head of the part for `BPF_PROG_TEST_RUN`.
#[repr(C)]
struct TestRun {
    program: u32,
    result: u32,
    size_in: u32,
    size_out: u32,
    data_in: u64,
    data_out: u64,
    repeat: u32,
    duration: u32,
}

// SAFETY: the pointers are filled in by the functions below from live borrows.
unsafe impl Attribute for ProgramLoad {}
// SAFETY: as above.
unsafe impl Attribute for TestRun {}

/// Loads instructions as a classifier.
pub(in crate::bpf) fn load(instructions: &[Instruction]) -> io::Result<OwnedFd> {
    let _blocked = BlockedSignals::new().map_err(io::Error::other)?;
    let mut attribute = ProgramLoad {
        program_type: bpf_prog_type::BPF_PROG_TYPE_SCHED_CLS as u32,
        count: u32::try_from(instructions.len()).map_err(io::Error::other)?,
        instructions: instructions.as_ptr() as u64,
        license: LICENSE.as_ptr() as u64,
    };
    bpf_fd(bpf_cmd::BPF_PROG_LOAD, &mut attribute)
}

/// Runs a program once on a frame; returns what it returns. `EINTR` is tried again.
pub(in crate::bpf) fn test_run(program: BorrowedFd<'_>, frame: &[u8]) -> io::Result<u32> {
    loop {
        let mut attribute = TestRun {
            program: raw(program),
            result: 0,
            size_in: u32::try_from(frame.len()).map_err(io::Error::other)?,
            size_out: 0,
            data_in: frame.as_ptr() as u64,
            data_out: 0,
            repeat: 1,
            duration: 0,
        };
        match bpf(bpf_cmd::BPF_PROG_TEST_RUN, &mut attribute) {
            Ok(_zero) => return Ok(attribute.result),
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
}
