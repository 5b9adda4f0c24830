//! A program run many times over, each time on a packet as it was before: programs rewrite what they
//! see, so that a plain repetition of the kernel's test run would measure them on their own output.
//!
//! A small program, written here as instructions, puts the next packet of a list in the place of the
//! last one and calls the program in question as its tail. What that costs, the same list costs with a
//! program that does nothing.

use std::io;
use std::os::fd::{AsFd as _, AsRawFd as _, FromRawFd as _, OwnedFd};
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use datapath_common::counter::Program;

use super::tables::{TestRun, bpf, pointer};
use super::{Programs, classifier, context};

/// So many bytes at the beginning of a packet are put back.
const RESTORED: usize = 112;
/// A packet in the list: those bytes, its mark, and room to a power of two.
const SLOT: usize = 128;
/// Bits of the number of a slot.
const SLOT_BITS: u32 = 17;
/// Packets in a list at most.
pub const MAX_PACKETS: usize = 1 << SLOT_BITS;

/// Commands, types and kinds of maps of `bpf(2)`: `include/uapi/linux/bpf.h`.
mod constant {
    pub(super) const MAP_CREATE: i32 = 0;
    pub(super) const MAP_UPDATE: i32 = 2;
    pub(super) const PROG_LOAD: i32 = 5;
    pub(super) const PROG_TEST_RUN: i32 = 10;
    pub(super) const MAP_TYPE_ARRAY: u32 = 2;
    pub(super) const MAP_TYPE_PROG_ARRAY: u32 = 3;
    pub(super) const PROG_TYPE_SCHED_CLS: u32 = 3;
}

/// Instructions of eBPF, as `include/uapi/linux/bpf.h` and `bpf_common.h` have them.
mod asm {
    const fn instruction(op: u8, dst: u8, src: u8, off: i16, imm: i32) -> u64 {
        op as u64
            | (dst as u64) << 8
            | (src as u64) << 12
            | (off.cast_unsigned() as u64) << 16
            | (imm.cast_unsigned() as u64) << 32
    }
    pub(super) const fn mov(dst: u8, src: u8) -> u64 {
        instruction(0xbf, dst, src, 0, 0)
    }
    pub(super) const fn mov_imm(dst: u8, imm: i32) -> u64 {
        instruction(0xb7, dst, 0, 0, imm)
    }
    pub(super) const fn add(dst: u8, src: u8) -> u64 {
        instruction(0x0f, dst, src, 0, 0)
    }
    pub(super) const fn add_imm(dst: u8, imm: i32) -> u64 {
        instruction(0x07, dst, 0, 0, imm)
    }
    pub(super) const fn and_imm(dst: u8, imm: i32) -> u64 {
        instruction(0x57, dst, 0, 0, imm)
    }
    pub(super) const fn shift_left(dst: u8, imm: i32) -> u64 {
        instruction(0x67, dst, 0, 0, imm)
    }
    pub(super) const fn load_word(dst: u8, src: u8, off: i16) -> u64 {
        instruction(0x61, dst, src, off, 0)
    }
    pub(super) const fn load_double(dst: u8, src: u8, off: i16) -> u64 {
        instruction(0x79, dst, src, off, 0)
    }
    pub(super) const fn store_word(dst: u8, src: u8, off: i16) -> u64 {
        instruction(0x63, dst, src, off, 0)
    }
    pub(super) const fn store_double(dst: u8, src: u8, off: i16) -> u64 {
        instruction(0x7b, dst, src, off, 0)
    }
    pub(super) const fn jump_if_above(dst: u8, src: u8, off: i16) -> u64 {
        instruction(0x2d, dst, src, off, 0)
    }
    pub(super) const fn call(helper: i32) -> u64 {
        instruction(0x85, 0, 0, 0, helper)
    }
    pub(super) const EXIT: u64 = instruction(0x95, 0, 0, 0, 0);
    /// A map (`BPF_PSEUDO_MAP_FD`), in two instructions.
    pub(super) const fn map(dst: u8, fd: i32) -> [u64; 2] {
        [instruction(0x18, dst, 1, 0, fd), 0]
    }
    /// The value of a map with one entry (`BPF_PSEUDO_MAP_VALUE`).
    pub(super) const fn map_value(dst: u8, fd: i32) -> [u64; 2] {
        [instruction(0x18, dst, 2, 0, fd), 0]
    }
}

/// `BPF_FUNC_tail_call`.
const TAIL_CALL: i32 = 12;

#[repr(C)]
#[derive(Default)]
struct MapCreate {
    kind: u32,
    key_size: u32,
    value_size: u32,
    max_entries: u32,
    flags: u32,
}

#[repr(C)]
#[derive(Default)]
struct ProgLoad {
    kind: u32,
    count: u32,
    instructions: u64,
    license: u64,
    log_level: u32,
    log_size: u32,
    log: u64,
}

#[repr(C)]
struct Element {
    map: u32,
    padding: u32,
    key: u64,
    value: u64,
    flags: u64,
}

/// A packet of a list.
#[derive(Clone, Debug)]
pub struct Packet {
    /// The frame; all packets of a list are equally long.
    pub frame: Vec<u8>,
    /// Its mark.
    pub mark: u32,
}

/// On what device the packets are.
#[derive(Clone, Copy, Debug)]
pub struct On {
    /// The device.
    pub ifindex: u32,
    /// Device that received the packets, or 0.
    pub ingress_ifindex: u32,
}

/// The list and what runs through it.
#[derive(Debug)]
pub struct Repeater {
    cursor: OwnedFd,
    packets: OwnedFd,
    tail: OwnedFd,
    dispatcher: OwnedFd,
    noop: OwnedFd,
    buffer: Vec<u8>,
}

fn new_fd<T>(command: i32, attributes: &mut T) -> io::Result<OwnedFd> {
    let fd = bpf(command, attributes)?;
    // SAFETY: the kernel returned this descriptor just now, and nobody else has it.
    Ok(unsafe { OwnedFd::from_raw_fd(fd) })
}

fn map(kind: u32, value_size: usize) -> Result<OwnedFd> {
    let mut attributes = MapCreate {
        kind,
        key_size: 4,
        value_size: u32::try_from(value_size)?,
        max_entries: 1,
        flags: 0,
    };
    new_fd(constant::MAP_CREATE, &mut attributes).context("a map of the repeater")
}

fn put(map: &OwnedFd, value: *const u8) -> Result<()> {
    let key = 0_u32;
    let mut element = Element {
        map: map.as_raw_fd().cast_unsigned(),
        padding: 0,
        key: pointer(&raw const key),
        value: pointer(value),
        flags: 0,
    };
    bpf(constant::MAP_UPDATE, &mut element).context("a map of the repeater")?;
    Ok(())
}

fn load(instructions: &[u64]) -> Result<OwnedFd> {
    let mut log = vec![0_u8; 1 << 16];
    let mut attributes = ProgLoad {
        kind: constant::PROG_TYPE_SCHED_CLS,
        count: u32::try_from(instructions.len())?,
        instructions: pointer(instructions.as_ptr()),
        license: pointer(c"GPL".as_ptr()),
        log_level: 1,
        log_size: u32::try_from(log.len())?,
        log: pointer(log.as_mut_ptr()),
    };
    new_fd(constant::PROG_LOAD, &mut attributes).with_context(|| {
        let end = log.iter().position(|byte| *byte == 0).unwrap_or(0);
        format!("the repeater: {}", String::from_utf8_lossy(&log[..end]))
    })
}

/// Puts the next packet in place and goes on with the program in `tail`.
fn dispatcher(cursor: i32, packets: i32, tail: i32) -> Vec<u64> {
    use asm::{
        EXIT, add, add_imm, and_imm, call, jump_if_above, load_double, load_word, map, map_value,
        mov, mov_imm, shift_left, store_double, store_word,
    };
    const DATA: i16 = 76;
    const DATA_END: i16 = 80;
    const MARK: i16 = 8;
    let words = RESTORED / 8;
    let mut code = vec![
        mov(6, 1),
        load_word(2, 6, DATA),
        load_word(3, 6, DATA_END),
        mov(4, 2),
        add_imm(4, RESTORED as i32),
    ];
    let mut rest = Vec::new();
    rest.extend(map_value(5, cursor));
    rest.extend([
        load_word(0, 5, 0),
        mov(7, 0),
        add_imm(7, 1),
        load_word(8, 5, 4),
        // The last one is `count - 1`.
        jump_if_above(8, 7, 1),
        mov_imm(7, 0),
        store_word(5, 7, 0),
        and_imm(0, (1 << SLOT_BITS) - 1),
        shift_left(0, 7),
    ]);
    rest.extend(map_value(9, packets));
    rest.push(add(9, 0));
    for word in 0..words {
        let off = (word * 8) as i16;
        rest.extend([load_double(1, 9, off), store_double(2, 1, off)]);
    }
    rest.extend([
        load_word(1, 9, RESTORED as i16),
        store_word(6, 1, MARK),
        mov(1, 6),
    ]);
    rest.extend(map(2, tail));
    rest.extend([mov_imm(3, 0), call(TAIL_CALL)]);
    code.push(jump_if_above(4, 3, rest.len() as i16));
    code.extend(rest);
    // No room, or nobody there.
    code.extend([mov_imm(0, 2), EXIT]);
    code
}

impl Repeater {
    /// Loads it.
    ///
    /// # Errors
    /// Without root.
    pub fn new() -> Result<Self> {
        let cursor = map(constant::MAP_TYPE_ARRAY, 8)?;
        let packets = map(constant::MAP_TYPE_ARRAY, MAX_PACKETS * SLOT)?;
        let tail = map(constant::MAP_TYPE_PROG_ARRAY, 4)?;
        let code = dispatcher(cursor.as_raw_fd(), packets.as_raw_fd(), tail.as_raw_fd());
        Ok(Self {
            dispatcher: load(&code)?,
            noop: load(&[asm::mov_imm(0, -1), asm::EXIT])?,
            cursor,
            packets,
            tail,
            buffer: vec![0; MAX_PACKETS * SLOT],
        })
    }

    /// Sets the list.
    ///
    /// # Errors
    /// When a packet is too short.
    pub fn set(&mut self, packets: &[Packet]) -> Result<()> {
        ensure!(
            packets.len() <= MAX_PACKETS,
            "a list of {} packets",
            packets.len()
        );
        for (slot, packet) in self.buffer.chunks_exact_mut(SLOT).zip(packets) {
            ensure!(
                packet.frame.len() >= RESTORED,
                "a packet of {} bytes",
                packet.frame.len()
            );
            slot[..RESTORED].copy_from_slice(&packet.frame[..RESTORED]);
            slot[RESTORED..RESTORED + 4].copy_from_slice(&packet.mark.to_ne_bytes());
        }
        put(&self.packets, self.buffer.as_ptr())?;
        let cursor = [0_u32, u32::try_from(packets.len())?];
        put(&self.cursor, cursor.as_ptr().cast())
    }

    pub fn plain(&self, frame: &[u8], on: On, repeat: u32) -> Result<(Duration, i32)> {
        self.timed(self.noop.as_raw_fd(), frame, on, repeat)
    }

    /// Runs a program, or the one that does nothing, so many times over the list, from where the last
    /// run has ended; the time of one, and what the last one returned.
    ///
    /// # Errors
    /// When the kernel refuses.
    pub fn run(
        &self,
        programs: &mut Programs,
        program: Option<Program>,
        frame: &[u8],
        on: On,
        repeat: u32,
    ) -> Result<(Duration, i32)> {
        let fd = match program {
            Some(program) => classifier(&mut programs.ebpf, program)?
                .fd()?
                .as_fd()
                .as_raw_fd(),
            None => self.noop.as_raw_fd(),
        };
        put(&self.tail, (&raw const fd).cast())?;
        self.timed(self.dispatcher.as_raw_fd(), frame, on, repeat)
    }

    fn timed(&self, fd: i32, frame: &[u8], on: On, repeat: u32) -> Result<(Duration, i32)> {
        let mut before = [0_u8; context::SIZE];
        for (offset, value) in [
            (context::INGRESS_IFINDEX, on.ingress_ifindex),
            (context::IFINDEX, on.ifindex),
        ] {
            before[offset..offset + 4].copy_from_slice(&value.to_ne_bytes());
        }
        let mut attributes = TestRun {
            program: fd.cast_unsigned(),
            length_in: u32::try_from(frame.len())?,
            data_in: pointer(frame.as_ptr()),
            repeat,
            context_length_in: u32::try_from(context::SIZE)?,
            context_in: pointer(before.as_ptr()),
            ..TestRun::default()
        };
        bpf(constant::PROG_TEST_RUN, &mut attributes).context("a test run")?;
        Ok((
            Duration::from_nanos(attributes.duration.into()),
            attributes.code.cast_signed(),
        ))
    }
}
