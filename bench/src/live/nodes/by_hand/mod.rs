//! Masquerade in the fewest possible steps, written as instructions: a look-up, an insertion for a
//! new flow, an address, the TTL and the checksums. The checks of a real datapath are optional. The
//! programs handle whole IPv4 packets without options, of TCP and UDP, of one pod.
//!
//! Real traffic goes through it (`floor`), and the kernel's test run times it ([`Opening`]).

mod checks;
#[cfg(test)]
mod tests;

use std::net::Ipv4Addr;

use anyhow::Result;
use datapath_common::abi::DEFAULT_FLOWS_V4;
use datapath_common::checksum;
use testkit::fabric::program::Action;
use testkit::testrun::asm::{self, STACK, helper};
use testkit::testrun::assembled::{EntrySize, Kind, OwnMap, OwnProgram};
use testkit::testrun::assembler::frame::{
    DESTINATION, DESTINATION_PORT, IP_SUM, PROTOCOL, SOURCE, SOURCE_PORT, TCP_SUM, UDP_END, UDP_SUM,
};
use testkit::testrun::assembler::{Assembler, PSEUDO_HEADER};

pub(super) use checks::Checks;

/// Addresses and device of the pod.
#[derive(Clone, Copy, Debug)]
pub struct Ends {
    /// The pod's address.
    pub inside: Ipv4Addr,
    /// The address that replaces it.
    pub outside: Ipv4Addr,
    /// The pod's device on the host.
    pub device: u32,
}

/// The remote's address, its port, the pod's, the protocol.
pub(super) const KEY_SIZE: usize = 12;
/// Length of our datapath's value of a flow.
pub(super) const VALUE_SIZE: usize = size_of::<datapath_common::abi::Flow>();

/// Flag for the checksum helper, valid for UDP and TCP: `BPF_F_MARK_MANGLED_0`.
const ZERO_IS_NONE: i32 = 0x20;

/// Offsets on the stack: the key, and a new value below it.
const KEY: i16 = -16;
const NEW: i16 = KEY - NEW_SIZE;
const NEW_SIZE: i16 = 48;
const _: () = assert!(VALUE_SIZE == NEW_SIZE as usize);

/// Default capacity of our table.
const FLOWS: usize = DEFAULT_FLOWS_V4 as usize;

/// An empty table of flows.
pub(super) fn table() -> Result<OwnMap> {
    OwnMap::new(Kind::Hash, EntrySize::new(KEY_SIZE, VALUE_SIZE), FLOWS)
}

/// The program that opens a pod's flows with all checks, and its empty tables.
#[derive(Debug)]
pub struct Opening {
    program: OwnProgram,
    /// Kept for the program, which refers to them.
    _tables: (OwnMap, Checks),
}

impl Opening {
    /// A program for the pod with an address, on a device.
    ///
    /// It replaces the address and forwards packets by a deed.
    ///
    /// # Errors
    /// When the kernel refuses.
    pub fn new(ends: Ends, deed: Action) -> Result<Self> {
        let (flows, checks) = (table()?, Checks::new(ends)?);
        Ok(Self {
            program: OwnProgram::load(&out(&flows, ends, Some(&checks), deed))?,
            _tables: (flows, checks),
        })
    }

    /// The program.
    #[must_use]
    pub fn program(&self) -> &OwnProgram {
        &self.program
    }
}

/// Program for packets from the pod, which it forwards by a deed.
pub(super) fn out(flows: &OwnMap, ends: Ends, checks: Option<&Checks>, deed: Action) -> Vec<u64> {
    let mut code = parse();
    look_up(
        &mut code,
        flows,
        DESTINATION,
        [DESTINATION_PORT, SOURCE_PORT],
    );
    let known = code.jump_on(asm::jump_unless_equal(0, 0, 0));
    match checks {
        None => {
            code.clear(NEW, NEW_SIZE);
            code.insert(flows, KEY, NEW);
            code.land(known);
        }
        Some(checks) => {
            checks.may_open(&mut code, ends);
            code.clear(NEW, NEW_SIZE);
            checks.fill_new(&mut code, ends);
            code.insert(flows, KEY, NEW);
            let past = code.jump_on(asm::jump(0));
            code.land(known);
            Checks::is_senders(&mut code);
            checks.see(&mut code);
            code.land(past);
            checks.count(&mut code);
        }
    }
    replace(&mut code, SOURCE, ends.inside, ends.outside);
    code.finish(&deed.instructions())
}

/// Program for the answers.
pub(super) fn back(flows: &OwnMap, ends: Ends, checks: Option<&Checks>, deed: Action) -> Vec<u64> {
    let mut code = parse();
    look_up(&mut code, flows, SOURCE, [SOURCE_PORT, DESTINATION_PORT]);
    code.pass_if(asm::jump_if_equal(0, 0, 0));
    if let Some(checks) = checks {
        checks.see(&mut code);
        checks.count(&mut code);
    }
    replace(&mut code, DESTINATION, ends.outside, ends.inside);
    code.finish(&deed.instructions())
}

/// Checks that the packet is one for the program. It leaves the offset of the packet's checksum in
/// R8, and the flags for that checksum in R9.
fn parse() -> Assembler {
    let mut code = Assembler::new(UDP_END);
    code.add(&[
        asm::load_byte(1, 7, PROTOCOL),
        asm::mov_imm(8, TCP_SUM),
        asm::mov_imm(9, PSEUDO_HEADER),
        asm::jump_if_equal(1, libc::IPPROTO_TCP, 3),
    ]);
    code.pass_if(asm::jump_unless_equal(1, libc::IPPROTO_UDP, 0));
    code.add(&[
        asm::mov_imm(8, UDP_SUM),
        asm::mov_imm(9, PSEUDO_HEADER | ZERO_IS_NONE),
    ]);
    code
}

/// Looks up the flow by a remote's address, its port, the pod's port, and the protocol.
fn look_up(code: &mut Assembler, flows: &OwnMap, remote: i16, [remote_port, port]: [i16; 2]) {
    code.add(&[
        asm::store_word(STACK, 1, KEY + 8),
        asm::load_word(1, 7, remote),
        asm::store_word(STACK, 1, KEY),
        asm::load_half(1, 7, remote_port),
        asm::store_half(STACK, 1, KEY + 4),
        asm::load_half(1, 7, port),
        asm::store_half(STACK, 1, KEY + 6),
    ]);
    code.find(flows, KEY);
}

/// Replaces an address, and lowers the TTL.
fn replace(code: &mut Assembler, at: i16, old: Ipv4Addr, new: Ipv4Addr) {
    let [old, new] = [old, new].map(|address| u32::from_ne_bytes(address.octets()));
    let growth = checksum::growth([old, 0, 0, 0], [new, 0, 0, 0]);
    // The TTL is the higher byte of its word.
    let lowered = checksum::growth_of_lane(0x0100_u16.to_be(), 0);
    // A checksum falls by the growth of its sum: in one's complement, it grows by the rest.
    let change = !checksum::fold(checksum::add(growth, lowered));
    code.lower_ttl();
    code.add(&[
        asm::store_word_imm(7, at, new.cast_signed()),
        asm::load_half(1, 7, IP_SUM),
        asm::add_imm(1, change.into()),
    ]);
    code.store_ip_sum();
    code.add(&[
        asm::mov(1, 6),
        asm::mov(2, 8),
        asm::mov_imm(3, 0),
        asm::mov_imm(4, growth.cast_signed()),
        asm::mov(5, 9),
        asm::call(helper::L4_CSUM_REPLACE),
    ]);
}
