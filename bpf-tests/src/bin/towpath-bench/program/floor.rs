//! The least that any program could do for a packet, by instructions: look whether it is what it
//! should be, find out in one or two look-ups what becomes of it, change what has to change, and say
//! where it goes. Nothing is counted, no flow's state is kept, no exception is found.
//!
//! Tables have the flow or the address; a cache is an array that is asked by a sum over the packet's
//! addresses and ports, and keeps these beside what becomes of the packet. What a target asks for below
//! both no program can do on this machine.

use std::collections::BTreeSet;

use anyhow::{Context as _, Result};
use bpf_tests::testrun::REDIRECT;
use bpf_tests::testrun::asm::{self, STACK, helper};
use bpf_tests::testrun::assembled::{Kind, OwnMap, OwnProgram};
use bpf_tests::testrun::repeat::Packet;
use bpf_tests::testrun::scene::{ENI_1, VETH_B};

use super::meter::Beside;

/// Where in an IPv4 frame things are.
const ETHER_TYPE: i16 = 12;
const VERSION: i16 = 14;
const TTL: i16 = 22;
const IP_SUM: i16 = 24;
const SOURCE: i16 = 26;
const DESTINATION: i16 = 30;
const PORTS: i16 = 34;
const TCP_SUM: i32 = 50;
/// So much is looked at.
const HEADERS: i32 = 54;

/// `struct __sk_buff`.
const DATA: i16 = 76;
const DATA_END: i16 = 80;
/// `BPF_F_PSEUDO_HDR`.
const PSEUDO_HEADER: i32 = 16;

/// On the stack: the key, and the next hop behind it.
const KEY: i16 = -48;
const NEXT_HOP: i16 = -80;
/// Bytes of a value: what the packet is given, and in a cache addresses and ports.
const VALUE: usize = 32;
const CACHED: i16 = 20;
/// Entries of a cache: a power of two.
const CACHE: usize = 1024;
/// Spreads sums evenly: 2^32 divided by the golden ratio.
const SPREAD: i32 = 0x9e37_79b9_u32.cast_signed();
/// A table as large as a node's.
const ENTRIES: usize = 262_144;

/// What is looked up.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Lookup {
    /// An address, in the 16 bytes of either family.
    Address(i16),
    /// A flow by address and ports, in 24 bytes.
    Flow(i16),
    /// An address in a table of prefixes.
    Prefix(i16),
    /// Addresses and ports in an array of what was seen last.
    Cache,
}

/// Where it goes.
#[derive(Clone, Copy, PartialEq, Eq)]
enum To {
    /// A next hop, whose MACs the kernel writes.
    NextHop,
    /// A pod, with other MACs.
    Pod,
}

/// What a program does.
pub(super) struct Floor {
    name: &'static str,
    lookups: &'static [Lookup],
    /// The address that another one takes the place of.
    rewrites: Option<i16>,
    to: To,
}

impl Floor {
    /// An exempt packet: with one look-up, and with those for source and destination.
    pub(super) const EXEMPT: [Self; 3] = [
        Self {
            name: "floor: exempt out, from a cache",
            lookups: &[Lookup::Cache],
            rewrites: None,
            to: To::NextHop,
        },
        Self {
            name: "floor: exempt out, one look-up",
            lookups: &[Lookup::Address(SOURCE)],
            rewrites: None,
            to: To::NextHop,
        },
        Self {
            name: "floor: exempt out, source and prefix",
            lookups: &[Lookup::Address(SOURCE), Lookup::Prefix(DESTINATION)],
            rewrites: None,
            to: To::NextHop,
        },
    ];
    /// A packet from an ENI to a pod.
    pub(super) const FROM_ENI: [Self; 2] = [
        Self {
            name: "floor: from ENI to pod, from a cache",
            lookups: &[Lookup::Cache],
            rewrites: None,
            to: To::Pod,
        },
        Self {
            name: "floor: from ENI to pod",
            lookups: &[Lookup::Address(DESTINATION)],
            rewrites: None,
            to: To::Pod,
        },
    ];
    /// From a pod to a pod of the node.
    pub(super) const LOCAL: [Self; 3] = [
        Self {
            name: "floor: pod to pod, from a cache",
            lookups: &[Lookup::Cache],
            rewrites: None,
            to: To::Pod,
        },
        Self {
            name: "floor: pod to pod, one look-up",
            lookups: &[Lookup::Address(DESTINATION)],
            rewrites: None,
            to: To::Pod,
        },
        Self {
            name: "floor: pod to pod, source and destination",
            lookups: &[Lookup::Address(SOURCE), Lookup::Address(DESTINATION)],
            rewrites: None,
            to: To::Pod,
        },
    ];
    /// A packet that leaves translated.
    pub(super) const OUT: [Self; 2] = [
        Self {
            name: "floor: masqueraded out, from a cache",
            lookups: &[Lookup::Cache],
            rewrites: Some(SOURCE),
            to: To::NextHop,
        },
        Self {
            name: "floor: masqueraded out",
            lookups: &[Lookup::Flow(DESTINATION)],
            rewrites: Some(SOURCE),
            to: To::NextHop,
        },
    ];
    /// One that comes back.
    pub(super) const BACK: [Self; 2] = [
        Self {
            name: "floor: masqueraded back, from a cache",
            lookups: &[Lookup::Cache],
            rewrites: Some(DESTINATION),
            to: To::Pod,
        },
        Self {
            name: "floor: masqueraded back",
            lookups: &[Lookup::Flow(SOURCE)],
            rewrites: Some(DESTINATION),
            to: To::Pod,
        },
    ];

    /// Loads several, for these packets.
    pub(super) fn build_all(floors: &[Self], packets: &[Packet]) -> Result<Vec<Built>> {
        floors.iter().map(|floor| floor.build(packets)).collect()
    }

    fn build(&self, packets: &[Packet]) -> Result<Built> {
        let maps: Vec<_> = self
            .lookups
            .iter()
            .map(|lookup| lookup.table(packets))
            .collect::<Result<_>>()?;
        let program = OwnProgram::load(&self.code(&maps))?;
        Ok(Built {
            name: self.name,
            program,
            _maps: maps,
        })
    }

    fn code(&self, maps: &[OwnMap]) -> Vec<u64> {
        let mut code = Code::default();
        code.parse();
        for (lookup, map) in self.lookups.iter().zip(maps) {
            code.look_up(*lookup, map);
        }
        code.lower_ttl(self.rewrites);
        match self.to {
            To::NextHop => {}
            To::Pod => code.write_macs(),
        }
        if self.rewrites.is_some() {
            code.sum_up();
        }
        code.redirect(self.to);
        code.finish()
    }
}

impl Lookup {
    /// Bytes of the key.
    fn size(self) -> usize {
        match self {
            Self::Address(_) => 16,
            Self::Flow(_) => 24,
            Self::Prefix(_) => 20,
            Self::Cache => 4,
        }
    }

    fn kind(self) -> Kind {
        match self {
            Self::Cache => Kind::Array,
            Self::Address(_) | Self::Flow(_) => Kind::Hash,
            Self::Prefix(_) => Kind::Prefixes,
        }
    }

    /// The key of a packet.
    fn key(self, frame: &[u8]) -> Vec<u8> {
        let at = |offset: i16| {
            let offset = usize::from(offset.unsigned_abs());
            &frame[offset..offset + 4]
        };
        let mapped = |address: i16| [&[0; 8][..], &[0, 0, 0xff, 0xff], at(address)].concat();
        match self {
            Self::Address(address) => mapped(address),
            Self::Flow(address) => [&mapped(address), at(PORTS), &6_u32.to_ne_bytes()[..]].concat(),
            Self::Prefix(address) => [&128_u32.to_ne_bytes()[..], &mapped(address)].concat(),
            Self::Cache => [at(SOURCE), at(DESTINATION), at(PORTS)].concat(),
        }
    }

    /// A table that has what the packets ask for.
    fn table(self, packets: &[Packet]) -> Result<OwnMap> {
        if self == Self::Cache {
            return cache(packets);
        }
        let map = OwnMap::new(self.kind(), (self.size(), VALUE), ENTRIES)?;
        let keys: BTreeSet<_> = packets
            .iter()
            .map(|packet| self.key(&packet.frame))
            .collect();
        for key in keys {
            map.put(&key, &[0x0a; VALUE])?;
        }
        Ok(map)
    }
}

/// A cache that knows these packets, wherever in it the program looks: nothing has to be computed here
/// as there, and with one packet it makes no difference.
fn cache(packets: &[Packet]) -> Result<OwnMap> {
    let map = OwnMap::new(Kind::Array, (4, VALUE), CACHE)?;
    let packet = packets.first().context("a floor without a packet")?;
    let mut value = vec![0x0a; VALUE];
    value[usize::from(CACHED.unsigned_abs())..].copy_from_slice(&Lookup::Cache.key(&packet.frame));
    for place in 0..u32::try_from(CACHE)? {
        map.put(&place.to_ne_bytes(), &value)?;
    }
    Ok(map)
}

/// A program, with its tables.
pub(super) struct Built {
    name: &'static str,
    program: OwnProgram,
    /// Referred to by the program, which holds them as well.
    _maps: Vec<OwnMap>,
}

impl Built {
    /// It, to be measured beside a path.
    pub(super) fn beside(&self, suffix: &str) -> Beside<'_> {
        Beside {
            name: format!("{}{suffix}", self.name),
            program: &self.program,
            code: REDIRECT,
        }
    }
}

/// The packet's start is in R7, the last look-up's value in R8, the context in R6.
#[derive(Default)]
struct Code {
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

    fn parse(&mut self) {
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

    fn look_up(&mut self, lookup: Lookup, map: &OwnMap) {
        let mapped = i32::from_ne_bytes([0, 0, 0xff, 0xff]);
        let (Lookup::Address(address) | Lookup::Flow(address) | Lookup::Prefix(address)) = lookup
        else {
            self.look_up_in_cache(map);
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
        self.add(&asm::map(1, map.fd()));
        self.add(&[
            asm::mov(2, STACK),
            asm::add_imm(2, i32::from(KEY)),
            asm::call(helper::MAP_LOOKUP),
        ]);
        self.leave_if(asm::jump_if_equal(0, 0, 0));
        self.add(&[asm::mov(8, 0)]);
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
    fn lower_ttl(&mut self, rewrites: Option<i16>) {
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

    fn write_macs(&mut self) {
        for word in 0..3 {
            self.add(&[
                asm::load_word(1, 8, 8 + 4 * word),
                asm::store_word(7, 1, 4 * word),
            ]);
        }
    }

    /// Corrects the TCP checksum: only the helper knows of packets that the device is to sum up.
    fn sum_up(&mut self) {
        self.add(&[
            asm::mov(1, 6),
            asm::mov_imm(2, TCP_SUM),
            asm::mov_imm(3, 0),
            asm::load_word(4, 8, 4),
            asm::mov_imm(5, PSEUDO_HEADER),
            asm::call(helper::L4_CSUM_REPLACE),
        ]);
    }

    fn redirect(&mut self, to: To) {
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

    fn finish(mut self) -> Vec<u64> {
        let end = self.code.len();
        for at in self.leaves {
            let offset = u64::try_from(end - at - 1).unwrap_or_default();
            self.code[at] |= offset << 16;
        }
        self.code.extend([asm::mov_imm(0, -1), asm::EXIT]);
        self.code
    }
}
