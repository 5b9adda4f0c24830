//! Cache of recent decisions on flows, so that the next packets of a flow cost one look-up in an
//! array.
//!
//! An entry holds the outcome for the packets of one direction of a flow that the programs
//! redirect: the target, and the change to write. It belongs to this CPU and is valid for half a
//! second. It becomes invalid as soon as anything that it rests on changes:
//!
//! * the addresses, destinations and ENIs that user space has published: [`generation`] changes
//!   with each write;
//! * the state of the flow itself (a turn of its connection, its removal, a note of the host's
//!   stack): the code that changes it calls [`epoch::advance`](crate::nat::tables::epoch::advance).
//!
//! The generation is read before anything is looked up for an entry, and the epoch before its flow
//! is looked up. An entry that a change has overtaken is therefore never valid. A packet that
//! resets a connection or is a fragment does not use the cache ([`seen`]). For most other packets
//! without an entry, the entry is made first and then serves them ([`fill_egress`],
//! [`fill_reply`]). For the rest, the entry is made of the outcome of the packet ([`fill`]). If a
//! segment after the opening one shows a new state of its connection, the flow is updated
//! ([`flow_update`]).

mod entry;
mod fill;
mod fill_egress;
mod fill_reply;
mod flow_update;
mod lookup;
mod plain;
mod seen;

use aya_ebpf::Global;
use aya_ebpf::btf_maps::Array;
use aya_ebpf::helpers::generated::bpf_get_smp_processor_id;
use aya_ebpf::macros::btf_map;
use datapath_common::abi::{CacheControl, DEFAULT_CACHE, cache_slot};

pub(crate) use fill::keep;
pub(crate) use lookup::{Answer, serve};

/// Entries for each CPU: a power of two, or 0 for none.
#[unsafe(no_mangle)]
static CACHE_ENTRIES: Global<u32> = Global::new(DEFAULT_CACHE);

#[btf_map]
static CACHE_CONTROL: Array<CacheControl, 1> = Array::new();

/// Number that user space changes with each of its writes.
#[inline(always)]
fn generation() -> u32 {
    CACHE_CONTROL.get(0).map_or(0, |control| control.generation)
}

/// True if there is a cache.
#[inline(always)]
fn is_on() -> bool {
    CACHE_ENTRIES.load() != 0
}

/// Which of all slots is this CPU's of a hash.
#[inline(always)]
fn slot_of(hash: u32) -> u32 {
    let entries = CACHE_ENTRIES.load();
    // SAFETY: the helper takes nothing.
    let cpu = unsafe { bpf_get_smp_processor_id() };
    let first = cpu.wrapping_mul(entries);
    first.wrapping_add(cache_slot(hash, entries))
}
