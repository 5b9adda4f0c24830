//! The instructions of a floor.

use testkit::testrun::asm::{self, STACK, helper};
use testkit::testrun::assembled::OwnMap;
use testkit::testrun::assembler::frame::{
    DESTINATION, IP_SUM, SOURCE, SOURCE_PORT as PORTS, TCP_END, TCP_SUM, TTL,
};
use testkit::testrun::assembler::{Assembler, PSEUDO_HEADER};
use testkit::testrun::scene::{ENI_1, VETH_B};

use super::{Lookup, To};

/// Offsets on the stack: the key, and the next hop after it.
const KEY: i16 = -48;
const NEXT_HOP: i16 = -80;
/// Below these: the value of a new entry, as long as that of a translated flow.
const NEW: i16 = NEXT_HOP - NEW_SIZE;
const NEW_SIZE: i16 = 48;
pub(super) const NEW_VALUE: usize = NEW_SIZE as usize;
/// Bytes of a value: what the packet is given, and in a cache addresses and ports.
pub(super) const VALUE: usize = 32;
pub(super) const CACHED: i16 = 20;
/// Entries of a cache: a power of two.
pub(super) const CACHE: usize = 1024;
/// Spreads sums evenly: 2^32 divided by the golden ratio.
const SPREAD: i32 = 0x9e37_79b9_u32.cast_signed();

/// The last look-up's value is in R8.
pub(super) struct Code(Assembler);

impl Code {
    /// Looks whether the packet is one for the program.
    pub(super) fn new() -> Self {
        let mut code = Assembler::new(TCP_END);
        code.add(&[asm::load_byte(1, 7, TTL)]);
        code.pass_if(asm::jump_if_equal(1, 0, 0));
        code.pass_if(asm::jump_if_equal(1, 1, 0));
        Self(code)
    }

    pub(super) fn look_up(&mut self, lookup: Lookup, map: &OwnMap) {
        match lookup {
            Lookup::Cache => self.look_up_in_cache(map),
            Lookup::Address(_) | Lookup::Flow(_) | Lookup::Prefix(_) => {
                self.key(lookup);
                self.find(map);
            }
        }
    }

    /// Looks the key up, which has to be there.
    fn find(&mut self, map: &OwnMap) {
        self.0.find(map, KEY);
        self.0.pass_if(asm::jump_if_equal(0, 0, 0));
        self.0.add(&[asm::mov(8, 0)]);
    }

    /// Makes an entry for the packet, whose value stands for what else was looked up.
    pub(super) fn insert(&mut self, lookup: Lookup, map: &OwnMap) {
        self.key(lookup);
        self.0.clear(NEW, NEW_SIZE);
        self.0.insert(map, KEY, NEW);
        self.0.pass_if(asm::jump_unless_equal(0, 0, 0));
        self.0
            .add(&[asm::mov(8, STACK), asm::add_imm(8, i32::from(NEW))]);
    }

    /// Puts the packet's key on the stack.
    fn key(&mut self, lookup: Lookup) {
        let (Lookup::Address(address) | Lookup::Flow(address) | Lookup::Prefix(address)) = lookup
        else {
            return;
        };
        let at = match lookup {
            Lookup::Prefix(_) => {
                self.0.add(&[asm::store_word_imm(STACK, KEY, 128)]);
                KEY + 4
            }
            Lookup::Address(_) | Lookup::Flow(_) | Lookup::Cache => KEY,
        };
        self.0.store_mapped(at, address);
        if let Lookup::Flow(_) = lookup {
            self.0.add(&[
                asm::load_word(1, 7, PORTS),
                asm::store_word(STACK, 1, at + 16),
                asm::store_word_imm(STACK, at + 20, 6),
            ]);
        }
    }

    /// Finds the packet in an array, and looks whether it is this one.
    fn look_up_in_cache(&mut self, map: &OwnMap) {
        let seen = [SOURCE, DESTINATION, PORTS];
        self.0.add(&[asm::mov_imm(2, 0)]);
        for at in seen {
            self.0.add(&[asm::load_word(1, 7, at), asm::xor(2, 1)]);
        }
        self.0.add(&[
            asm::multiply_half(2, SPREAD),
            asm::shift_right(2, 32 - i32::try_from(CACHE.ilog2()).unwrap_or_default()),
            asm::store_word(STACK, 2, KEY),
        ]);
        self.find(map);
        for (at, cached) in seen.into_iter().zip((CACHED..).step_by(4)) {
            self.0
                .add(&[asm::load_word(1, 7, at), asm::load_word(2, 8, cached)]);
            self.0.pass_if(asm::jump_if_different(1, 2, 0));
        }
    }

    /// Writes TTL, address and the IP header's checksum.
    pub(super) fn lower_ttl(&mut self, rewrites: Option<i16>) {
        self.0.lower_ttl();
        self.0.add(&[
            asm::load_half(1, 7, IP_SUM),
            asm::add_imm(1, i32::from(0x0100_u16.to_be())),
        ]);
        if let Some(address) = rewrites {
            self.0.add(&[
                asm::load_word(2, 8, 0),
                asm::store_word(7, 2, address),
                asm::load_half(2, 8, 4),
                asm::add(1, 2),
            ]);
        }
        self.0.store_ip_sum();
    }

    pub(super) fn write_macs(&mut self) {
        for word in 0..3 {
            self.0.add(&[
                asm::load_word(1, 8, 8 + 4 * word),
                asm::store_word(7, 1, 4 * word),
            ]);
        }
    }

    /// Corrects the TCP checksum: only the helper knows of packets that the device is to sum up.
    pub(super) fn sum_up(&mut self) {
        self.0.add(&[
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
            To::Pod => self.0.add(&[
                asm::mov_imm(1, VETH_B.ifindex.cast_signed()),
                asm::mov_imm(2, 0),
                asm::call(helper::REDIRECT_PEER),
            ]),
            To::NextHop => {
                // `struct bpf_redir_neigh`: AF_INET, and the address from the value.
                self.0.add(&[
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
    }

    pub(super) fn finish(self) -> Vec<u64> {
        self.0.finish(&[asm::EXIT])
    }
}
