//! A program run many times over, each time on a fresh copy of the packet. Programs rewrite their
//! packets, so that a plain repetition of the kernel's test run would measure them on their own
//! output.
//!
//! A small program, written as instructions, replaces the packet by the next one of a list and
//! tail-calls the measured program. A program that does nothing, run on the same list, gives the
//! cost of that.

use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use nix::errno::Errno;

use super::asm::{self, helper};
use super::assembled::{EntrySize, Kind, OwnMap, OwnProgram};
use super::assembler::context::{DATA, DATA_END, MARK};
use super::context;
use super::tables::{Runner, TestRun, bpf, command, pointer};

/// Number of bytes at the beginning of a packet that are restored; no packet is shorter.
pub const RESTORED: usize = 112;
/// A packet in the list: those bytes, its mark, and room to a power of two.
const SLOT: usize = 1 << SLOT_BITS;
const SLOT_BITS: i32 = 7;
/// Packets in a list at most: a power of two.
pub const MAX_PACKETS: usize = 1 << 17;

/// A packet of a list.
#[derive(Clone, Debug)]
pub struct Packet {
    /// The frame. All frames of a list have the same length and ether type. The bytes after
    /// [`RESTORED`] are those of the first frame.
    pub frame: Vec<u8>,
    /// Its mark.
    pub mark: u32,
}

/// Devices of the packets.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct On {
    /// The device.
    pub ifindex: u32,
    /// Device that received the packets, or 0.
    pub ingress_ifindex: u32,
}

/// Result of a number of runs.
#[derive(Clone, Copy, Debug)]
pub struct Timed {
    /// Nanoseconds of CPU time of one run.
    pub each: f64,
    /// Return code of the last run.
    pub code: i32,
}

/// The list and the programs that run over it.
#[derive(Debug)]
pub struct Repeater {
    cursor: OwnMap,
    packets: OwnMap,
    tail: OwnMap,
    dispatcher: OwnProgram,
    noop: OwnProgram,
    first: Vec<u8>,
    count: u32,
}

/// Restores the next packet, and continues with the program in `tail`.
fn dispatcher(cursor: &OwnMap, packets: &OwnMap, tail: &OwnMap) -> Result<Vec<u64>> {
    let slots = i32::try_from(MAX_PACKETS - 1)?;
    let mut rest = Vec::new();
    rest.extend(asm::map_value(5, cursor.fd()));
    rest.extend([
        asm::load_word(0, 5, 0),
        asm::mov(7, 0),
        asm::add_imm(7, 1),
        asm::load_word(8, 5, 4),
        // The last one is `count - 1`.
        asm::jump_if_above(8, 7, 1),
        asm::mov_imm(7, 0),
        asm::store_word(5, 7, 0),
        asm::and_imm(0, slots),
        asm::shift_left(0, SLOT_BITS),
    ]);
    rest.extend(asm::map_value(9, packets.fd()));
    rest.push(asm::add(9, 0));
    for word in 0..i16::try_from(RESTORED / 8)? {
        rest.extend([
            asm::load_double(1, 9, word * 8),
            asm::store_double(2, 1, word * 8),
        ]);
    }
    rest.extend([
        asm::load_word(1, 9, i16::try_from(RESTORED)?),
        asm::store_word(6, 1, MARK),
        asm::mov(1, 6),
    ]);
    rest.extend(asm::map(2, tail.fd()));
    rest.extend([asm::mov_imm(3, 0), asm::call(helper::TAIL_CALL)]);
    let mut code = vec![
        asm::mov(6, 1),
        asm::load_word(2, 6, DATA),
        asm::load_word(3, 6, DATA_END),
        asm::mov(4, 2),
        asm::add_imm(4, i32::try_from(RESTORED)?),
        asm::jump_if_above(4, 3, i16::try_from(rest.len())?),
    ];
    code.extend(rest);
    // Reached if there is no room, or no program.
    code.extend([asm::mov_imm(0, Repeater::BROKEN), asm::EXIT]);
    Ok(code)
}

impl Repeater {
    /// Return code of runs that did not reach the program; none of our programs has it.
    const BROKEN: i32 = 99;

    /// Loads the programs, with an empty list.
    ///
    /// # Errors
    /// Without root.
    pub fn new() -> Result<Self> {
        let cursor = OwnMap::new(Kind::Array, EntrySize::new(4, 8), 1)?;
        let packets = OwnMap::new(Kind::Array, EntrySize::new(4, MAX_PACKETS * SLOT), 1)?;
        let tail = OwnMap::new(Kind::Programs, EntrySize::new(4, 4), 1)?;
        Ok(Self {
            dispatcher: OwnProgram::load(&dispatcher(&cursor, &packets, &tail)?)?,
            noop: OwnProgram::noop()?,
            cursor,
            packets,
            tail,
            first: Vec::new(),
            count: 0,
        })
    }

    /// Sets the list; the next run begins with its first packet.
    ///
    /// # Errors
    /// When the list is empty or too long, or frames are too short or differ in length.
    pub fn set(&mut self, packets: &[Packet]) -> Result<()> {
        let count = packets.len();
        let first = packets.first().context("an empty list")?;
        ensure!(count <= MAX_PACKETS, "a list of {count} packets");
        let mut buffer = vec![0; MAX_PACKETS * SLOT];
        for (slot, packet) in buffer.chunks_exact_mut(SLOT).zip(packets) {
            let length = packet.frame.len();
            ensure!(
                length >= RESTORED && length == first.frame.len(),
                "a packet of {length} bytes"
            );
            slot[..RESTORED].copy_from_slice(&packet.frame[..RESTORED]);
            slot[RESTORED..RESTORED + 4].copy_from_slice(&packet.mark.to_ne_bytes());
        }
        self.packets.put(&[0; 4], &buffer)?;
        self.first.clone_from(&first.frame);
        self.count = u32::try_from(count)?;
        self.rewind()
    }

    /// Makes the next run begin with the first packet.
    ///
    /// # Errors
    /// When the kernel refuses.
    pub fn rewind(&self) -> Result<()> {
        let [a, b, c, d] = self.count.to_ne_bytes();
        self.cursor.put(&[0; 4], &[0, 0, 0, 0, a, b, c, d])
    }

    /// The program that does nothing.
    #[must_use]
    pub fn noop(&self) -> Runner {
        self.noop.runner()
    }

    /// Runs a program a number of times over the list, from the end of the last run.
    ///
    /// # Errors
    /// When the kernel refuses.
    pub fn run(&self, program: Runner, on: On, repeat: u32) -> Result<Timed> {
        self.tail.put(&[0; 4], &program.program.to_ne_bytes())?;
        let timed = self.timed(self.dispatcher.runner(), on, repeat)?;
        ensure!(timed.code != Self::BROKEN, "a run that led nowhere");
        Ok(timed)
    }

    /// Runs a program by the kernel's plain repetition, on the program's own output for the list's
    /// first packet.
    ///
    /// # Errors
    /// When the kernel refuses.
    pub fn plain(&self, program: Runner, on: On, repeat: u32) -> Result<Timed> {
        self.timed(program, on, repeat)
    }

    fn timed(&self, program: Runner, on: On, repeat: u32) -> Result<Timed> {
        let mut before = [0_u8; context::SIZE];
        for (offset, value) in [
            (context::INGRESS_IFINDEX, on.ingress_ifindex),
            (context::IFINDEX, on.ifindex),
        ] {
            before[offset..offset + 4].copy_from_slice(&value.to_ne_bytes());
        }
        let mut attributes = TestRun {
            program: program.program.cast_unsigned(),
            length_in: u32::try_from(self.first.len())?,
            data_in: pointer(self.first.as_ptr()),
            repeat,
            context_length_in: u32::try_from(context::SIZE)?,
            context_in: pointer(before.as_ptr()),
            ..TestRun::default()
        };
        // The kernel's own figure has whole nanoseconds only, and a program may take nine.
        let start = cpu_time()?;
        bpf(command::TEST_RUN, &mut attributes).context("a test run")?;
        let took = cpu_time()? - start;
        Ok(Timed {
            each: took / f64::from(repeat),
            code: attributes.code.cast_signed(),
        })
    }
}

/// Nanoseconds of CPU time of this thread.
fn cpu_time() -> Result<f64> {
    let mut time = libc::timespec {
        tv_sec: 0,
        tv_nsec: 0,
    };
    // SAFETY: the call writes only the struct that it is given.
    let result = unsafe { libc::clock_gettime(libc::CLOCK_THREAD_CPUTIME_ID, &raw mut time) };
    Errno::result(result).context("this thread's CPU time")?;
    let (seconds, rest) = (u64::try_from(time.tv_sec)?, u32::try_from(time.tv_nsec)?);
    Ok(Duration::new(seconds, rest).as_secs_f64() * 1e9)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testrun::private_namespace;

    /// A program that fails on a changed packet, and changes the packet.
    fn spoiler() -> Vec<u64> {
        vec![
            asm::mov(6, 1),
            asm::load_word(7, 6, MARK),
            asm::load_word(2, 6, DATA),
            asm::load_word(3, 6, DATA_END),
            asm::mov(4, 2),
            asm::add_imm(4, 64),
            asm::mov_imm(0, 1),
            asm::jump_if_above(4, 3, 5),
            // The packet's number is its mark: the result is the sum of both.
            asm::load_word(0, 2, 32),
            asm::add(0, 7),
            asm::mov_imm(5, 1000),
            asm::store_word(2, 5, 32),
            asm::store_word(6, 5, MARK),
            asm::EXIT,
        ]
    }

    #[test]
    fn every_run_sees_the_next_packet_as_it_was() {
        private_namespace().unwrap();
        super::super::ip("link set lo up").unwrap();
        let packets: Vec<_> = (0..3_u32)
            .map(|number| {
                let mut frame = vec![0; 120];
                frame[32..36].copy_from_slice(&number.to_ne_bytes());
                let mark = 10 * number;
                Packet { frame, mark }
            })
            .collect();
        let mut repeater = Repeater::new().unwrap();
        repeater.set(&packets).unwrap();
        let program = OwnProgram::load(&spoiler()).unwrap();
        let on = On {
            ifindex: 1,
            ingress_ifindex: 0,
        };
        let run = |repeat| repeater.run(program.runner(), on, repeat).unwrap().code;
        assert_eq!([run(1), run(1), run(1)], [0, 11, 22]);
        assert_eq!(run(4), 0, "from the beginning again");
        assert_eq!(run(1), 11);
        repeater.rewind().unwrap();
        assert_eq!(run(3), 22);
        assert_eq!(repeater.plain(program.runner(), on, 2).unwrap().code, 2000);
        assert_eq!(repeater.run(repeater.noop(), on, 1).unwrap().code, -1);
    }
}
