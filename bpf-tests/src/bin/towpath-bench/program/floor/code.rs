//! The instructions of a floor.

use bpf_tests::testrun::asm::{self, STACK, helper};
use bpf_tests::testrun::assembled::OwnMap;
use bpf_tests::testrun::scene::{ENI_1, VETH_B};

use super::{Lookup, To};

/// Where in an IPv4 frame things are.
const ETHER_TYPE: i16 = 12;
const VERSION: i16 = 14;
const TTL: i16 = 22;
const IP_SUM: i16 = 24;
pub(super) const SOURCE: i16 = 26;
pub(super) const DESTINATION: i16 = 30;
pub(super) const PORTS: i16 = 34;
const TCP_SUM: i32 = 50;
/// So much is looked at.
const HEADERS: i32 = 54;

/// `struct __sk_buff`.
const DATA: i16 = 76;
const DATA_END: i16 = 80;
/// `BPF_NOEXIST`.
const NOEXIST: i32 = 1;
/// `BPF_F_PSEUDO_HDR`.
const PSEUDO_HEADER: i32 = 16;

/// On the stack: the key, and the next hop behind it.
const KEY: i16 = -48;
const NEXT_HOP: i16 = -80;
/// Below these: the value of a new entry, as long as that of a translated flow.
const NEW: i16 = -128;
pub(super) const NEW_VALUE: usize = 48;
/// Bytes of a value: what the packet is given, and in a cache addresses and ports.
pub(super) const VALUE: usize = 32;
pub(super) const CACHED: i16 = 20;
/// Entries of a cache: a power of two.
pub(super) const CACHE: usize = 1024;
/// Spreads sums evenly: 2^32 divided by the golden ratio.
const SPREAD: i32 = 0x9e37_79b9_u32.cast_signed();

/// The packet's start is in R7, the last look-up's value in R8, the context in R6.
#[derive(Default)]
pub(super) struct Code {
    code: Vec<u64>,
    /// Jumps to the end, whose offset is not known yet.
    leaves: Vec<usize>,
}

impl Code {
    fn add(&mut self, instructions: &[u64]) {
        self.code.extend(instructions);
    }

    fn leave_if(&mut self, jump: u64) {
        self.leaves.push(self.code.len());
        self.code.push(jump);
    }

    pub(super) fn parse(&mut self) {
        self.add(&[
            asm::mov(6, 1),
            asm::load_word(7, 6, DATA),
            asm::load_word(3, 6, DATA_END),
            asm::mov(4, 7),
            asm::add_imm(4, HEADERS),
        ]);
        self.leave_if(asm::jump_if_above(4, 3, 0));
        self.add(&[asm::load_half(1, 7, ETHER_TYPE)]);
        let ipv4 = i32::from(0x0800_u16.to_be());
        self.leave_if(asm::jump_unless_equal(1, ipv4, 0));
        self.add(&[asm::load_byte(1, 7, VERSION)]);
        self.leave_if(asm::jump_unless_equal(1, 0x45, 0));
        self.add(&[asm::load_byte(1, 7, TTL)]);
        self.leave_if(asm::jump_if_equal(1, 0, 0));
        self.leave_if(asm::jump_if_equal(1, 1, 0));
    }

    pub(super) fn look_up(&mut self, lookup: Lookup, map: &OwnMap) {
        if lookup == Lookup::Cache {
            self.look_up_in_cache(map);
            return;
        }
        self.key(lookup);
        self.add(&asm::map(1, map.fd()));
        self.add(&[
            asm::mov(2, STACK),
            asm::add_imm(2, i32::from(KEY)),
            asm::call(helper::MAP_LOOKUP),
        ]);
        self.leave_if(asm::jump_if_equal(0, 0, 0));
        self.add(&[asm::mov(8, 0)]);
    }

    /// Makes an entry for the packet, whose value stands for what else was looked up.
    pub(super) fn insert(&mut self, lookup: Lookup, map: &OwnMap) {
        self.key(lookup);
        for at in (NEW..NEXT_HOP).step_by(8) {
            self.add(&[asm::store_double_imm(STACK, at, 0)]);
        }
        self.add(&[asm::mov(8, STACK), asm::add_imm(8, i32::from(NEW))]);
        self.add(&asm::map(1, map.fd()));
        self.add(&[
            asm::mov(2, STACK),
            asm::add_imm(2, i32::from(KEY)),
            asm::mov(3, 8),
            asm::mov_imm(4, NOEXIST),
            asm::call(helper::MAP_UPDATE),
        ]);
        self.leave_if(asm::jump_unless_equal(0, 0, 0));
    }

    /// Puts the packet's key on the stack.
    fn key(&mut self, lookup: Lookup) {
        let mapped = i32::from_ne_bytes([0, 0, 0xff, 0xff]);
        let (Lookup::Address(address) | Lookup::Flow(address) | Lookup::Prefix(address)) = lookup
        else {
            return;
        };
        let at = match lookup {
            Lookup::Prefix(_) => {
                self.add(&[asm::store_word_imm(STACK, KEY, 128)]);
                KEY + 4
            }
            Lookup::Address(_) | Lookup::Flow(_) | Lookup::Cache => KEY,
        };
        self.add(&[
            asm::store_word_imm(STACK, at, 0),
            asm::store_word_imm(STACK, at + 4, 0),
            asm::store_word_imm(STACK, at + 8, mapped),
            asm::load_word(1, 7, address),
            asm::store_word(STACK, 1, at + 12),
        ]);
        if let Lookup::Flow(_) = lookup {
            self.add(&[
                asm::load_word(1, 7, PORTS),
                asm::store_word(STACK, 1, at + 16),
                asm::store_word_imm(STACK, at + 20, 6),
            ]);
        }
    }

    /// Finds the packet in an array, and looks whether it is this one.
    fn look_up_in_cache(&mut self, map: &OwnMap) {
        let seen = [SOURCE, DESTINATION, PORTS];
        self.add(&[asm::mov_imm(2, 0)]);
        for at in seen {
            self.add(&[asm::load_word(1, 7, at), asm::xor(2, 1)]);
        }
        self.add(&[
            asm::multiply_half(2, SPREAD),
            asm::shift_right(2, 32 - i32::try_from(CACHE.ilog2()).unwrap_or_default()),
            asm::store_word(STACK, 2, KEY),
        ]);
        self.add(&asm::map(1, map.fd()));
        self.add(&[
            asm::mov(2, STACK),
            asm::add_imm(2, i32::from(KEY)),
            asm::call(helper::MAP_LOOKUP),
        ]);
        self.leave_if(asm::jump_if_equal(0, 0, 0));
        self.add(&[asm::mov(8, 0)]);
        for (at, cached) in seen.into_iter().zip((CACHED..).step_by(4)) {
            self.add(&[asm::load_word(1, 7, at), asm::load_word(2, 8, cached)]);
            self.leave_if(asm::jump_if_different(1, 2, 0));
        }
    }

    /// Writes TTL, address and the IP header's checksum.
    pub(super) fn lower_ttl(&mut self, rewrites: Option<i16>) {
        self.add(&[
            asm::load_byte(1, 7, TTL),
            asm::add_imm(1, -1),
            asm::store_byte(7, 1, TTL),
            asm::load_half(1, 7, IP_SUM),
            asm::add_imm(1, i32::from(0x0100_u16.to_be())),
        ]);
        if let Some(address) = rewrites {
            self.add(&[
                asm::load_word(2, 8, 0),
                asm::store_word(7, 2, address),
                asm::load_half(2, 8, 4),
                asm::add(1, 2),
            ]);
        }
        self.add(&[
            asm::mov(2, 1),
            asm::shift_right(2, 16),
            asm::add(1, 2),
            asm::store_half(7, 1, IP_SUM),
        ]);
    }

    pub(super) fn write_macs(&mut self) {
        for word in 0..3 {
            self.add(&[
                asm::load_word(1, 8, 8 + 4 * word),
                asm::store_word(7, 1, 4 * word),
            ]);
        }
    }

    /// Corrects the TCP checksum: only the helper knows of packets that the device is to sum up.
    pub(super) fn sum_up(&mut self) {
        self.add(&[
            asm::mov(1, 6),
            asm::mov_imm(2, TCP_SUM),
            asm::mov_imm(3, 0),
            asm::load_word(4, 8, 4),
            asm::mov_imm(5, PSEUDO_HEADER),
            asm::call(helper::L4_CSUM_REPLACE),
        ]);
    }

    pub(super) fn redirect(&mut self, to: To) {
        match to {
            To::Pod => self.add(&[
                asm::mov_imm(1, VETH_B.ifindex.cast_signed()),
                asm::mov_imm(2, 0),
                asm::call(helper::REDIRECT_PEER),
            ]),
            To::NextHop => {
                // `struct bpf_redir_neigh`: AF_INET, and the address from the value.
                self.add(&[
                    asm::store_word_imm(STACK, NEXT_HOP, 2),
                    asm::load_word(1, 8, 0),
                    asm::store_word(STACK, 1, NEXT_HOP + 4),
                    asm::store_word_imm(STACK, NEXT_HOP + 8, 0),
                    asm::store_word_imm(STACK, NEXT_HOP + 12, 0),
                    asm::store_word_imm(STACK, NEXT_HOP + 16, 0),
                    asm::mov_imm(1, ENI_1.ifindex.cast_signed()),
                    asm::mov(2, STACK),
                    asm::add_imm(2, i32::from(NEXT_HOP)),
                    asm::mov_imm(3, 20),
                    asm::mov_imm(4, 0),
                    asm::call(helper::REDIRECT_NEIGH),
                ]);
            }
        }
        self.add(&[asm::EXIT]);
    }

    pub(super) fn finish(mut self) -> Vec<u64> {
        let end = self.code.len();
        for at in self.leaves {
            let offset = u64::try_from(end - at - 1).unwrap_or_default();
            self.code[at] |= offset << 16;
        }
        self.code.extend([asm::mov_imm(0, -1), asm::EXIT]);
        self.code
    }
}
