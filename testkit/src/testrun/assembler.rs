//! An assembler for handwritten programs: jumps whose offsets are known later, and the common parts
//! of programs for whole IPv4 packets without options.

use super::asm::{self, STACK, helper};
use super::assembled::OwnMap;
use super::{DROP, PASS};

/// Offsets in a frame.
pub mod frame {
    /// The ether type.
    pub const ETHER_TYPE: i16 = 12;
    /// The IP version, and the header's length in words.
    pub const VERSION: i16 = 14;
    /// The hops that are left.
    pub const TTL: i16 = 22;
    /// The protocol.
    pub const PROTOCOL: i16 = 23;
    /// The IP header's checksum.
    pub const IP_SUM: i16 = 24;
    /// The source.
    pub const SOURCE: i16 = 26;
    /// The destination.
    pub const DESTINATION: i16 = 30;
    /// The source's port, followed by the destination's.
    pub const SOURCE_PORT: i16 = 34;
    /// The destination's port.
    pub const DESTINATION_PORT: i16 = 36;
    /// UDP's checksum, which ends the header.
    pub const UDP_SUM: i32 = 40;
    /// Flags of TCP.
    pub const TCP_FLAGS: i16 = 47;
    /// TCP's checksum.
    pub const TCP_SUM: i32 = 50;
    /// Least length of a frame with a UDP header.
    pub const UDP_END: i32 = 42;
    /// Least length of a frame with a TCP header.
    pub const TCP_END: i32 = 54;
}

/// Offsets in `struct __sk_buff` of `include/uapi/linux/bpf.h`.
pub mod context {
    /// Bytes of the packet.
    pub const LENGTH: i16 = 0;
    /// Its mark.
    pub const MARK: i16 = 8;
    /// Number of the device.
    pub const DEVICE: i16 = 40;
    /// Start of the packet.
    pub const DATA: i16 = 76;
    /// End of the packet's readable part.
    pub const DATA_END: i16 = 80;
}

/// Version 4, and five words.
const PLAIN: i32 = 0x45;
/// Last word of the prefix of an IPv4 address mapped into IPv6 (RFC 4291, 2.5.5.2).
///
/// Two words of zeros come before it.
const MAPPED: i32 = i32::from_ne_bytes([0, 0, 0xff, 0xff]);
/// `BPF_NOEXIST`.
const NOEXIST: i32 = 1;
/// `BPF_F_PSEUDO_HDR`: the changed bytes are part of the pseudo header, too.
pub const PSEUDO_HEADER: i32 = 0x10;

/// The program. It keeps its context in R6 and the packet's start in R7.
#[derive(Default)]
pub struct Assembler {
    instructions: Vec<u64>,
    /// Jumps that pass the packet on, whose offsets are not known yet.
    passes: Vec<usize>,
    /// Jumps that drop the packet, whose offsets are not known yet.
    drops: Vec<usize>,
}

impl Assembler {
    /// A program that passes on every packet except whole IPv4 packets without options, with this
    /// many bytes of headers.
    #[must_use]
    pub fn new(headers: i32) -> Self {
        let mut code = Self::default();
        code.add(&[asm::mov(6, 1), asm::load_word(7, 6, context::DATA)]);
        let short = code.is_shorter(headers);
        code.pass_if(short);
        code.add(&[asm::load_half(1, 7, frame::ETHER_TYPE)]);
        let ipv4 = i32::from(0x0800_u16.to_be());
        code.pass_if(asm::jump_unless_equal(1, ipv4, 0));
        code.add(&[asm::load_byte(1, 7, frame::VERSION)]);
        code.pass_if(asm::jump_unless_equal(1, PLAIN, 0));
        code
    }

    /// A jump that is taken if fewer bytes than these can be read.
    #[must_use]
    pub fn is_shorter(&mut self, headers: i32) -> u64 {
        self.add(&[
            asm::load_word(3, 6, context::DATA_END),
            asm::mov(4, 7),
            asm::add_imm(4, headers),
        ]);
        asm::jump_if_above(4, 3, 0)
    }

    /// Appends instructions.
    pub fn add(&mut self, instructions: &[u64]) {
        self.instructions.extend(instructions);
    }

    /// A jump whose offset is not known yet: its place, for [`Self::land`].
    #[must_use]
    pub fn jump_on(&mut self, jump: u64) -> usize {
        self.instructions.push(jump);
        self.instructions.len() - 1
    }

    /// Makes a jump lead to the next instruction.
    ///
    /// # Panics
    /// When that is further than a jump leads.
    pub fn land(&mut self, at: usize) {
        let skipped =
            i16::try_from(self.instructions.len() - at - 1).expect("a program that short");
        self.instructions[at] |= u64::from(skipped.cast_unsigned()) << 16;
    }

    /// Passes the packet on if a jump is taken.
    pub fn pass_if(&mut self, jump: u64) {
        let at = self.jump_on(jump);
        self.passes.push(at);
    }

    /// Drops the packet if a jump is taken.
    pub fn drop_if(&mut self, jump: u64) {
        let at = self.jump_on(jump);
        self.drops.push(at);
    }

    /// Looks up a key on the stack: the value, or 0, is in R0.
    pub fn find(&mut self, map: &OwnMap, key: i16) {
        self.add(&asm::map(1, map.fd()));
        self.add(&[
            asm::mov(2, STACK),
            asm::add_imm(2, key.into()),
            asm::call(helper::MAP_LOOKUP),
        ]);
    }

    /// Inserts a key and a value from the stack: R0 is 0 if the key was new.
    pub fn insert(&mut self, map: &OwnMap, key: i16, value: i16) {
        self.add(&asm::map(1, map.fd()));
        self.add(&[
            asm::mov(2, STACK),
            asm::add_imm(2, key.into()),
            asm::mov(3, STACK),
            asm::add_imm(3, value.into()),
            asm::mov_imm(4, NOEXIST),
            asm::call(helper::MAP_UPDATE),
        ]);
    }

    /// Zeroes this many bytes of the stack, a multiple of 8.
    pub fn clear(&mut self, at: i16, bytes: i16) {
        let zeros = (at..at + bytes).step_by(8);
        self.instructions
            .extend(zeros.map(|at| asm::store_double_imm(STACK, at, 0)));
    }

    /// Puts an address of the packet's on the stack, in the 16 bytes of either family.
    pub fn store_mapped(&mut self, at: i16, address: i16) {
        self.add(&[
            asm::store_word_imm(STACK, at, 0),
            asm::store_word_imm(STACK, at + 4, 0),
            asm::store_word_imm(STACK, at + 8, MAPPED),
            asm::load_word(1, 7, address),
            asm::store_word(STACK, 1, at + 12),
        ]);
    }

    /// Lowers the TTL. The IP header's checksum must follow.
    pub fn lower_ttl(&mut self) {
        self.add(&[
            asm::load_byte(1, 7, frame::TTL),
            asm::add_imm(1, -1),
            asm::store_byte(7, 1, frame::TTL),
        ]);
    }

    /// Writes the IP header's checksum from R1, whose upper bits hold the carry.
    pub fn store_ip_sum(&mut self) {
        self.add(&[
            asm::mov(2, 1),
            asm::shift_right(2, 16),
            asm::add(1, 2),
            asm::store_half(7, 1, frame::IP_SUM),
        ]);
    }

    /// Appends the end, and the targets of jumps that are still open.
    #[must_use]
    pub fn finish(mut self, end: &[u64]) -> Vec<u64> {
        self.add(end);
        let ends = [
            (std::mem::take(&mut self.passes), PASS),
            (std::mem::take(&mut self.drops), DROP),
        ];
        for (jumps, verdict) in ends {
            // The verifier refuses unreachable instructions.
            if !jumps.is_empty() {
                for at in jumps {
                    self.land(at);
                }
                self.add(&[asm::mov_imm(0, verdict), asm::EXIT]);
            }
        }
        self.instructions
    }
}
