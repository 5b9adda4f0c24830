//! Used ports of a busy destination.
//!
//! Code that adds or removes a flow updates the flow's block, where there is one. The flow is
//! authoritative, so a bit may lag. A bit also stands for a port that a socket of the host has.

use core::ptr;

use aya_ebpf::Global;
use datapath_common::abi::{FlowKey, PORTS_PER_BLOCK, PortBlock, PortBlockKey, TransportAddr};
use datapath_common::ports::{self, WORDS};

use super::fill::fill;
use crate::base::maps::PORT_BLOCKS;
use crate::nat::attempt::attempt;
use crate::nat::tables::Table as _;
use crate::nat::tables::lock::{lock, unlock};

/// Takes a port of a block of the destination that is not known to be used; returns its index.
/// Makes the block if there is none. `first` is any number, and chooses where to begin.
#[inline(always)]
pub(in crate::nat) fn pick(number: u8, first: u32) -> Option<u32> {
    let mut index = nat_pick(number.into(), first);
    if index == NO_BLOCK {
        fill(number);
        index = nat_pick(number.into(), first);
    }
    if index == NO_BLOCK {
        index = nat_pick_without_block(first);
    }
    (index < PORTS_PER_BLOCK).then_some(index)
}

/// Value that is no index of a block: all of its [`PORTS_PER_BLOCK`] ports are used.
const NO_PORT: u32 = PORTS_PER_BLOCK;
/// Value that is no index of a block: there is no such block.
const NO_BLOCK: u32 = PORTS_PER_BLOCK + 1;

/// The index of a port, or [`NO_PORT`], or [`NO_BLOCK`].
#[unsafe(no_mangle)]
#[inline(never)]
#[expect(clippy::cast_possible_truncation, reason = "`pick` gives a byte")]
extern "C" fn nat_pick(number: u32, first: u32) -> u32 {
    let Some(attempt) = attempt() else {
        return NO_PORT;
    };
    match PORT_BLOCKS.find(&attempt.block_key(number as u8)) {
        Some(block) => take(block, first).unwrap_or(NO_PORT),
        None => NO_BLOCK,
    }
}

/// The index of a port for a block that has no room in the table, or [`NO_PORT`]. In the reserve,
/// where few ports may be free, `fill` has looked up each of them. Elsewhere any port may be free.
#[unsafe(no_mangle)]
#[inline(never)]
extern "C" fn nat_pick_without_block(first: u32) -> u32 {
    let Some(attempt) = attempt() else {
        return NO_PORT;
    };
    if !attempt.in_reserve {
        return first % PORTS_PER_BLOCK;
    }
    let mut index = first;
    for _ in 0..ROUNDS.load() {
        index = index.wrapping_add(1) % WORDS;
        // The first word is the lock.
        let bit = ports::free_bit(attempt.block[1 + index as usize]);
        if bit != 0 {
            return ports::index_of(index, bit);
        }
    }
    NO_PORT
}

/// Number of words to check: all. The compiler does not know it, so that it keeps the loop. In an
/// unrolled loop the verifier would follow each exit separately.
static ROUNDS: Global<u32> = Global::new(WORDS);

/// Takes a port of a block that is not known to be used; returns its index.
#[inline(always)]
fn take(block: *mut PortBlock, first: u32) -> Option<u32> {
    let (mut index, mut bit) = (first, 0);
    // SAFETY: `block` is a map's value, which stays readable and writable while the program runs.
    unsafe {
        let rounds = ROUNDS.load();
        lock(&raw mut (*block).lock);
        for _ in 0..rounds {
            index = index.wrapping_add(1) % WORDS;
            let word = word(block, index);
            let value = ptr::read_volatile(word);
            bit = ports::free_bit(value);
            if bit != 0 {
                ptr::write_volatile(word, value | bit);
                break;
            }
        }
        unlock(&raw mut (*block).lock);
    }
    (bit != 0).then(|| ports::index_of(index, bit))
}

/// Notes that a flow has its port.
#[inline(always)]
pub(in crate::nat) fn note_used(key: &FlowKey) {
    change(key, |word, bit| word | bit);
}

/// Notes that a flow's port is free again.
#[inline(always)]
pub(in crate::nat) fn give_back(key: &FlowKey) {
    change(key, |word, bit| word & !bit);
}

/// Changes the bit of a flow's port.
#[inline(always)]
fn change(key: &FlowKey, after: impl FnOnce(u64, u64) -> u64) {
    let port = u16::from_be(key.port);
    let block = PortBlockKey::new(
        key.eni,
        key.protocol,
        TransportAddr::new(key.remote, key.remote_port),
        ports::block_of(port),
    );
    let Some(block) = PORT_BLOCKS.find(&block) else {
        return;
    };
    let (index, bit) = ports::bit_of(port);
    // SAFETY: as for `take`.
    unsafe {
        let word = word(block, index);
        lock(&raw mut (*block).lock);
        ptr::write_volatile(word, after(ptr::read_volatile(word), bit));
        unlock(&raw mut (*block).lock);
    }
}

/// A word of a block. The index is brought below [`WORDS`] where the verifier sees it.
///
/// # Safety
/// `block` is a map's value.
#[inline(always)]
unsafe fn word(block: *mut PortBlock, index: u32) -> *mut u64 {
    // SAFETY: by the caller; the index is below the number of words.
    unsafe {
        (&raw mut (*block).used)
            .cast::<u64>()
            .add((index % WORDS) as usize)
    }
}
