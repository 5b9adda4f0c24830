//! Masquerade in as few steps as there can be, by instructions: a look-up, for a new flow an insertion, an
//! address, the TTL and the checksums; and, if wanted, what has to be looked at in between. For whole IPv4
//! packets without options, of TCP and UDP, of one pod.

mod checks;
#[cfg(test)]
mod tests;

use std::mem;
use std::net::Ipv4Addr;

use datapath_common::checksum;

use crate::fabric::program::Deed;
use crate::testrun::asm::{self, STACK, helper};
use crate::testrun::assembled::OwnMap;

pub(super) use checks::Checks;

/// Who is who.
#[derive(Clone, Copy, Debug)]
pub(super) struct Ends {
    /// The pod's address.
    pub(super) inside: Ipv4Addr,
    /// The one that takes its place.
    pub(super) outside: Ipv4Addr,
    /// The pod's device on the host.
    pub(super) device: u32,
}

/// The remote's address, its port, the pod's, the protocol.
pub(super) const KEY_SIZE: usize = 12;
/// As long as what we keep of a flow.
pub(super) const VALUE_SIZE: usize = size_of::<datapath_common::abi::Flow>();

// Where in a frame things are.
const ETHER_TYPE: i16 = 12;
const VERSION: i16 = 14;
const TTL: i16 = 22;
const PROTOCOL: i16 = 23;
const IP_SUM: i16 = 24;
const SOURCE: i16 = 26;
const DESTINATION: i16 = 30;
const SOURCE_PORT: i16 = 34;
const DESTINATION_PORT: i16 = 36;
const UDP_SUM: i32 = 40;
const TCP_SUM: i32 = 50;
/// So much is looked at: headers up to that of UDP.
const HEADERS: i32 = 42;
/// Version 4, and five words.
const PLAIN: i32 = 0x45;

/// Of `struct __sk_buff`.
const DATA: i16 = 76;
const DATA_END: i16 = 80;
/// `BPF_NOEXIST`.
const NOEXIST: i32 = 1;
/// `BPF_F_PSEUDO_HDR`, and for UDP `BPF_F_MARK_MANGLED_0` with it.
const TCP_FLAGS: i32 = 0x10;
const UDP_FLAGS: i32 = 0x30;

/// On the stack: the key, and a new value below it.
const KEY: i16 = -16;
const NEW: i16 = KEY - 48;
const _: () = assert!(VALUE_SIZE == 48);

/// What the pod sends: to be sent on by a deed.
pub(super) fn out(flows: &OwnMap, ends: Ends, checks: Option<&Checks>, deed: Deed) -> Vec<u64> {
    let mut code = Code::new();
    code.look_up(flows, DESTINATION, [DESTINATION_PORT, SOURCE_PORT]);
    let known = code.jump_on(asm::jump_unless_equal(0, 0, 0));
    match checks {
        None => {
            code.clear_new();
            code.insert(flows);
            code.land(known);
        }
        Some(checks) => {
            checks.may_open(&mut code, ends);
            code.clear_new();
            checks.fill_new(&mut code, ends);
            code.insert(flows);
            let past = code.jump_on(asm::jump(0));
            code.land(known);
            Checks::is_senders(&mut code);
            checks.see(&mut code);
            code.land(past);
            checks.count(&mut code);
        }
    }
    code.replace(SOURCE, ends.inside, ends.outside);
    code.finish(deed)
}

/// What answers it.
pub(super) fn back(flows: &OwnMap, ends: Ends, checks: Option<&Checks>, deed: Deed) -> Vec<u64> {
    let mut code = Code::new();
    code.look_up(flows, SOURCE, [SOURCE_PORT, DESTINATION_PORT]);
    code.leave_if(asm::jump_if_equal(0, 0, 0));
    if let Some(checks) = checks {
        checks.see(&mut code);
        checks.count(&mut code);
    }
    code.replace(DESTINATION, ends.outside, ends.inside);
    code.finish(deed)
}

/// The context is in R6, the packet's start in R7, the place of its checksum in R8 and the flags for that
/// in R9.
struct Code {
    instructions: Vec<u64>,
    /// Jumps to the end, whose offset is not known yet.
    leaves: Vec<usize>,
    /// The same to where the packet is dropped.
    drops: Vec<usize>,
}

impl Code {
    /// Looks whether the packet is one for the program.
    fn new() -> Self {
        let mut code = Self {
            instructions: Vec::new(),
            leaves: Vec::new(),
            drops: Vec::new(),
        };
        code.add(&[
            asm::mov(6, 1),
            asm::load_word(7, 6, DATA),
            asm::load_word(3, 6, DATA_END),
            asm::mov(4, 7),
            asm::add_imm(4, HEADERS),
        ]);
        code.leave_if(asm::jump_if_above(4, 3, 0));
        code.add(&[asm::load_half(1, 7, ETHER_TYPE)]);
        let ipv4 = i32::from(0x0800_u16.to_be());
        code.leave_if(asm::jump_unless_equal(1, ipv4, 0));
        code.add(&[asm::load_byte(1, 7, VERSION)]);
        code.leave_if(asm::jump_unless_equal(1, PLAIN, 0));
        let udp = [asm::mov_imm(8, UDP_SUM), asm::mov_imm(9, UDP_FLAGS)];
        code.add(&[
            asm::load_byte(1, 7, PROTOCOL),
            asm::mov_imm(8, TCP_SUM),
            asm::mov_imm(9, TCP_FLAGS),
            asm::jump_if_equal(1, libc::IPPROTO_TCP, 3),
        ]);
        code.leave_if(asm::jump_unless_equal(1, libc::IPPROTO_UDP, 0));
        code.add(&udp);
        code
    }

    fn add(&mut self, instructions: &[u64]) {
        self.instructions.extend(instructions);
    }

    /// A jump whose offset is not known yet: its place, for [`Self::land`].
    fn jump_on(&mut self, jump: u64) -> usize {
        self.instructions.push(jump);
        self.instructions.len() - 1
    }

    /// Has a jump lead to what comes next.
    fn land(&mut self, at: usize) {
        let offset = u64::try_from(self.instructions.len() - at - 1).unwrap_or_default();
        self.instructions[at] |= offset << 16;
    }

    fn leave_if(&mut self, jump: u64) {
        let at = self.jump_on(jump);
        self.leaves.push(at);
    }

    fn drop_if(&mut self, jump: u64) {
        let at = self.jump_on(jump);
        self.drops.push(at);
    }

    /// Looks the flow up: of a remote's address, its port and the pod's.
    fn look_up(&mut self, flows: &OwnMap, remote: i16, [remote_port, port]: [i16; 2]) {
        self.add(&[
            asm::store_word(STACK, 1, KEY + 8),
            asm::load_word(1, 7, remote),
            asm::store_word(STACK, 1, KEY),
            asm::load_half(1, 7, remote_port),
            asm::store_half(STACK, 1, KEY + 4),
            asm::load_half(1, 7, port),
            asm::store_half(STACK, 1, KEY + 6),
        ]);
        self.add(&asm::map(1, flows.fd()));
        self.add(&[
            asm::mov(2, STACK),
            asm::add_imm(2, KEY.into()),
            asm::call(helper::MAP_LOOKUP),
        ]);
    }

    /// Makes a value of zeros.
    fn clear_new(&mut self) {
        let zeros = (NEW..KEY).step_by(8);
        self.instructions
            .extend(zeros.map(|at| asm::store_double_imm(STACK, at, 0)));
    }

    /// Puts the flow in, with that value.
    fn insert(&mut self, flows: &OwnMap) {
        self.add(&asm::map(1, flows.fd()));
        self.add(&[
            asm::mov(2, STACK),
            asm::add_imm(2, KEY.into()),
            asm::mov(3, STACK),
            asm::add_imm(3, NEW.into()),
            asm::mov_imm(4, NOEXIST),
            asm::call(helper::MAP_UPDATE),
        ]);
    }

    /// Puts an address in another's place, and lowers the TTL.
    fn replace(&mut self, at: i16, old: Ipv4Addr, new: Ipv4Addr) {
        let [old, new] = [old, new].map(|address| u32::from_ne_bytes(address.octets()));
        let growth = checksum::growth([old, 0, 0, 0], [new, 0, 0, 0]);
        // The TTL is the higher byte of its word.
        let lowered = checksum::growth_of_lane(0x0100_u16.to_be(), 0);
        // A checksum goes down by what its sum grows by: in one's complement, up by the rest.
        let change = !checksum::fold(checksum::add(growth, lowered));
        self.add(&[
            asm::load_byte(1, 7, TTL),
            asm::add_imm(1, -1),
            asm::store_byte(7, 1, TTL),
            asm::store_word_imm(7, at, new.cast_signed()),
            asm::load_half(1, 7, IP_SUM),
            asm::add_imm(1, change.into()),
            asm::mov(2, 1),
            asm::shift_right(2, 16),
            asm::add(1, 2),
            asm::store_half(7, 1, IP_SUM),
            asm::mov(1, 6),
            asm::mov(2, 8),
            asm::mov_imm(3, 0),
            asm::mov_imm(4, growth.cast_signed()),
            asm::mov(5, 9),
            asm::call(helper::L4_CSUM_REPLACE),
        ]);
    }

    /// Ends with a deed. What the program is not for, it passes on.
    fn finish(mut self, deed: Deed) -> Vec<u64> {
        self.instructions.extend(deed.instructions());
        for (jumps, deed) in [
            (mem::take(&mut self.leaves), Deed::Pass),
            (mem::take(&mut self.drops), Deed::Drop),
        ] {
            // The verifier takes no instructions that nothing leads to.
            if !jumps.is_empty() {
                for at in jumps {
                    self.land(at);
                }
                self.instructions.extend(deed.instructions());
            }
        }
        self.instructions
    }
}
