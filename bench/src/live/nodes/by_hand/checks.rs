//! The checks that every datapath needs, each in the fewest steps. They cover the sender, the
//! policy, the port, the number of flows, timeouts and counters. A packet that fails a check is
//! dropped.

use std::net::Ipv4Addr;

use anyhow::Result;
use datapath_common::abi::AddressEntry;
use testkit::testrun::asm::{self, STACK, helper};
use testkit::testrun::assembled::{EntrySize, Kind, OwnMap};
use testkit::testrun::assembler::Assembler;
use testkit::testrun::assembler::context::{DEVICE, LENGTH};
use testkit::testrun::assembler::frame::{DESTINATION, SOURCE, TCP_END, TCP_FLAGS, TCP_SUM, TTL};

use super::{Ends, KEY, NEW, VALUE_SIZE};

/// Capacities of our tables.
const ADDRESSES: usize = 1 << 14;
const PREFIXES: usize = 1 << 12;
const ENDPOINTS: usize = 1 << 10;
const COUNTERS: usize = 64;
/// An IPv4 address as we write it: mapped into IPv6 (RFC 4291, 2.5.5.2).
const ADDRESS: usize = 16;
/// Length of the prefix that all of these share.
const MAPPED_BITS: u32 = 96;

/// Flows that an endpoint may have; nothing here releases them.
const QUOTA: i32 = i32::MAX;
/// The endpoint's index among the quotas, and the index of its counter.
pub(super) const ENDPOINT: i32 = 0;
pub(super) const COUNTER: i32 = 1;
/// FIN and RST.
const ENDS: i32 = 5;
/// Jiffies after which a flow's time is written again: a second, where they are 4 ms.
const SECOND: i32 = 250;

// Offsets in a flow's value.
const POD: i16 = 0;
const POD_DEVICE: i16 = 4;
pub(super) const SEEN: i16 = 8;
const GENERATION: i16 = 16;
pub(super) const STATE: i16 = 20;
const _: () = assert!(STATE as usize <= VALUE_SIZE);

// Offsets on the stack, below the existing data. In this order: a prefix's length and address, a
// socket's addresses and ports, a pointer, an index.
const ADDRESS_KEY: i16 = NEW - 16;
const PREFIX_KEY: i16 = ADDRESS_KEY - 4;
const TUPLE: i16 = PREFIX_KEY - 12;
const SAVED: i16 = TUPLE - 8;
const INDEX: i16 = SAVED - 8;
const TUPLE_SIZE: i32 = 12;
const _: () = assert!(SAVED % 8 == 0);

/// The tables.
#[derive(Debug)]
pub(in super::super) struct Checks {
    /// Devices of the node's addresses.
    pub(super) addresses: OwnMap,
    /// Destinations that are not translated.
    pub(super) exempt: OwnMap,
    /// Flows of each endpoint.
    pub(super) quota: OwnMap,
    /// A number that changes with each change of the other tables.
    pub(super) generation: OwnMap,
    /// Packets and bytes.
    pub(super) counters: OwnMap,
}

impl Checks {
    /// Tables for one endpoint, with the exempt destinations of a node with default settings.
    pub(in super::super) fn new(ends: Ends) -> Result<Self> {
        let checks = Self {
            addresses: OwnMap::new(
                Kind::Hash,
                EntrySize::new(ADDRESS, size_of::<AddressEntry>()),
                ADDRESSES,
            )?,
            exempt: OwnMap::new(Kind::Prefixes, EntrySize::new(4 + ADDRESS, 4), PREFIXES)?,
            quota: OwnMap::new(Kind::Array, EntrySize::new(4, 8), ENDPOINTS)?,
            generation: OwnMap::new(Kind::Array, EntrySize::new(4, 4), 1)?,
            counters: OwnMap::new(Kind::PerCpuArray, EntrySize::new(4, 16), COUNTERS)?,
        };
        let mut entry = [0; size_of::<AddressEntry>()];
        entry[..4].copy_from_slice(&ends.device.to_ne_bytes());
        checks.addresses.put(&mapped(ends.inside), &entry)?;
        for (network, bits) in [
            ([10, 0, 0, 0], 16),
            ([169, 254, 0, 0], 16),
            ([224, 0, 0, 0], 4),
            ([255, 255, 255, 255], 32),
        ] {
            checks.exempt(network.into(), bits)?;
        }
        Ok(checks)
    }

    /// Exempts a prefix.
    pub(super) fn exempt(&self, network: Ipv4Addr, bits: u32) -> Result<()> {
        let mut key = (MAPPED_BITS + bits).to_ne_bytes().to_vec();
        key.extend(mapped(network));
        self.exempt.put(&key, &[1; 4])
    }

    /// Drops the packet unless it may open a flow.
    pub(super) fn may_open(&self, code: &mut Assembler, ends: Ends) {
        Self::lives(code);
        // The source is the endpoint's, and the endpoint's device is the packet's.
        code.store_mapped(ADDRESS_KEY, SOURCE);
        code.find(&self.addresses, ADDRESS_KEY);
        code.drop_if(asm::jump_if_equal(0, 0, 0));
        code.add(&[asm::load_word(1, 0, 0), asm::load_word(2, 6, DEVICE)]);
        code.drop_if(asm::jump_if_different(1, 2, 0));
        // The destination is none of the node's, and not exempt.
        code.add(&[
            asm::load_word(1, 7, DESTINATION),
            asm::store_word(STACK, 1, ADDRESS_KEY + 12),
        ]);
        code.find(&self.addresses, ADDRESS_KEY);
        code.drop_if(asm::jump_unless_equal(0, 0, 0));
        let all = i32::try_from(MAPPED_BITS + 32).unwrap_or_default();
        code.add(&[asm::store_word_imm(STACK, PREFIX_KEY, all)]);
        code.find(&self.exempt, PREFIX_KEY);
        code.drop_if(asm::jump_unless_equal(0, 0, 0));
        // The endpoint's quota is not used up.
        code.add(&[asm::store_word_imm(STACK, INDEX, ENDPOINT)]);
        code.find(&self.quota, INDEX);
        code.drop_if(asm::jump_if_equal(0, 0, 0));
        code.add(&[asm::load_double(1, 0, 0), asm::mov_imm(2, QUOTA)]);
        code.drop_if(asm::jump_if_above(1, 2, 0));
        code.add(&[asm::mov_imm(1, 1), asm::atomic_add_double(0, 1, 0)]);
        Self::is_free(code, ends);
    }

    /// Drops the packet if a socket of the host has the port.
    fn is_free(code: &mut Assembler, ends: Ends) {
        let outside = u32::from_ne_bytes(ends.outside.octets());
        code.add(&[
            asm::load_word(1, STACK, KEY),
            asm::store_word(STACK, 1, TUPLE),
            asm::store_word_imm(STACK, TUPLE + 4, outside.cast_signed()),
            // Both ports.
            asm::load_word(1, STACK, KEY + 4),
            asm::store_word(STACK, 1, TUPLE + 8),
            asm::mov(1, 6),
            asm::mov(2, STACK),
            asm::add_imm(2, TUPLE.into()),
            asm::mov_imm(3, TUPLE_SIZE),
            // `BPF_F_CURRENT_NETNS`.
            asm::mov_imm(4, -1),
            asm::mov_imm(5, 0),
            asm::jump_if_equal(8, TCP_SUM, 2),
            asm::call(helper::SK_LOOKUP_UDP),
            asm::jump(1),
            asm::call(helper::SKC_LOOKUP_TCP),
        ]);
        let free = code.jump_on(asm::jump_if_equal(0, 0, 0));
        code.add(&[asm::mov(1, 0), asm::call(helper::SK_RELEASE)]);
        code.drop_if(asm::jump(0));
        code.land(free);
    }

    /// Fills in the value of a new flow.
    pub(super) fn fill_new(&self, code: &mut Assembler, ends: Ends) {
        let pod = u32::from_ne_bytes(ends.inside.octets());
        code.add(&[
            asm::store_word_imm(STACK, NEW + POD, pod.cast_signed()),
            asm::load_word(1, 6, DEVICE),
            asm::store_word(STACK, 1, NEW + POD_DEVICE),
        ]);
        code.add(&asm::map_value(1, self.generation.fd()));
        code.add(&[
            asm::load_word(1, 1, 0),
            asm::store_word(STACK, 1, NEW + GENERATION),
            asm::call(helper::JIFFIES64),
            asm::store_double(STACK, 0, NEW + SEEN),
        ]);
    }

    /// Drops the packet unless its sender is the pod of the flow whose value is in R0.
    pub(super) fn is_senders(code: &mut Assembler) {
        for (of_flow, (register, of_packet)) in [(POD, (7, SOURCE)), (POD_DEVICE, (6, DEVICE))] {
            code.add(&[
                asm::load_word(1, 0, of_flow),
                asm::load_word(2, register, of_packet),
            ]);
            code.drop_if(asm::jump_if_different(1, 2, 0));
        }
    }

    /// Drops the packet if the TTL or the flow's generation forbids it; updates the state and time
    /// of the flow, whose value is in R0.
    pub(super) fn see(&self, code: &mut Assembler) {
        Self::lives(code);
        code.add(&asm::map_value(1, self.generation.fd()));
        code.add(&[asm::load_word(1, 1, 0), asm::load_word(2, 0, GENERATION)]);
        code.drop_if(asm::jump_if_different(1, 2, 0));
        let no_tcp = code.jump_on(asm::jump_unless_equal(8, TCP_SUM, 0));
        let short = code.is_shorter(TCP_END);
        code.drop_if(short);
        code.add(&[
            asm::load_byte(1, 7, TCP_FLAGS),
            asm::and_imm(1, ENDS),
            asm::jump_if_equal(1, 0, 1),
            asm::store_byte(0, 1, STATE),
        ]);
        code.land(no_tcp);
        code.add(&[
            asm::store_double(STACK, 0, SAVED),
            asm::call(helper::JIFFIES64),
            asm::load_double(1, STACK, SAVED),
            asm::load_double(2, 1, SEEN),
            asm::mov(3, 0),
            asm::subtract(3, 2),
            asm::mov_imm(4, SECOND),
            asm::jump_if_above(4, 3, 1),
            asm::store_double(1, 0, SEEN),
        ]);
    }

    /// Drops the packet unless it may take another hop.
    fn lives(code: &mut Assembler) {
        code.add(&[asm::load_byte(1, 7, TTL), asm::mov_imm(2, 2)]);
        code.drop_if(asm::jump_if_above(2, 1, 0));
    }

    /// Counts the packet.
    pub(super) fn count(&self, code: &mut Assembler) {
        code.add(&[asm::store_word_imm(STACK, INDEX, COUNTER)]);
        code.find(&self.counters, INDEX);
        code.drop_if(asm::jump_if_equal(0, 0, 0));
        code.add(&[
            asm::load_double(1, 0, 0),
            asm::add_imm(1, 1),
            asm::store_double(0, 1, 0),
            asm::load_word(2, 6, LENGTH),
            asm::load_double(1, 0, 8),
            asm::add(1, 2),
            asm::store_double(0, 1, 8),
        ]);
    }
}

/// An address as we write it.
pub(super) fn mapped(address: Ipv4Addr) -> [u8; ADDRESS] {
    address.to_ipv6_mapped().octets()
}
