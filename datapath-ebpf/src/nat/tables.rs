//! The maps of each family.

use aya_ebpf::bindings::{BPF_ANY, BPF_NOEXIST};
use aya_ebpf::btf_maps::HashMap;
use datapath_common::abi::{Flow, FlowKey, Moved, PodTuple};
use datapath_common::outcome::DropReason;

use crate::family::{Family, V4, V6};
use crate::maps::{FLOWS_V4, FLOWS_V6, MOVED_V4, MOVED_V6};

/// Why an entry could not be put into a map.
#[derive(Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub(crate) enum Refusal {
    /// There is one with this key.
    Exists,
    /// The map has as many entries as it can hold.
    Full,
    /// The kernel had no memory at hand, or the map's lock was held by whom this program
    /// interrupted.
    Failed,
}

impl Refusal {
    /// `EEXIST`.
    pub(super) const EXISTS: i32 = -17;
    /// Anything else, for what fails before the kernel is asked.
    pub(super) const FAILED: i32 = -1;
    /// `E2BIG`.
    const TOO_BIG: i32 = -7;

    /// What a result of `htab_map_update_elem` in `kernel/bpf/hashtab.c` means.
    #[inline(always)]
    pub(super) fn of(result: i32) -> Result<(), Self> {
        match result {
            0 => Ok(()),
            Self::EXISTS => Err(Self::Exists),
            Self::TOO_BIG => Err(Self::Full),
            _ => Err(Self::Failed),
        }
    }

    /// The reason to drop a packet for, where `full` is the reason for a full map. An entry that
    /// exists is none; it is for the caller to look at.
    #[inline(always)]
    pub(super) fn reason(self, full: DropReason) -> DropReason {
        match self {
            Self::Full => full,
            Self::Exists | Self::Failed => DropReason::HelperFailed,
        }
    }
}

/// A hash map, whatever its capacity.
pub(crate) trait Table<K, V> {
    /// The value of a key. The kernel may give it to another key at any time.
    fn find(&self, key: &K) -> Option<*mut V>;

    /// Puts in a new entry; gives what [`Refusal::of`] takes.
    fn put(&self, key: &K, value: &V) -> i32;

    /// Puts in a new entry.
    #[inline(always)]
    fn claim(&self, key: &K, value: &V) -> Result<(), Refusal> {
        Refusal::of(self.put(key, value))
    }

    /// Puts in an entry, in place of one with this key if there is one.
    fn replace(&self, key: &K, value: &V) -> Result<(), Refusal>;

    /// Removes an entry, if it is there.
    fn forget(&self, key: &K);
}

impl<K, V, const CAPACITY: usize, const FLAGS: usize> Table<K, V>
    for HashMap<K, V, CAPACITY, FLAGS>
{
    #[inline(always)]
    fn find(&self, key: &K) -> Option<*mut V> {
        self.get_ptr_mut(key)
    }

    #[inline(always)]
    fn put(&self, key: &K, value: &V) -> i32 {
        self.insert(key, value, u64::from(BPF_NOEXIST))
            .err()
            .unwrap_or(0)
    }

    #[inline(always)]
    fn replace(&self, key: &K, value: &V) -> Result<(), Refusal> {
        let result = self.insert(key, value, u64::from(BPF_ANY));
        Refusal::of(result.err().unwrap_or(0))
    }

    #[inline(always)]
    fn forget(&self, key: &K) {
        // That it is not there is the one thing that can go wrong.
        let _gone = self.remove(key);
    }
}

/// A family with its maps.
pub(crate) trait Tables: Family {
    /// Translated flows.
    fn flows() -> &'static (impl Table<FlowKey, Flow> + 'static);

    /// Those off their first candidate port.
    fn moved() -> &'static (impl Table<PodTuple, Moved> + 'static);
}

impl Tables for V4 {
    #[inline(always)]
    fn flows() -> &'static (impl Table<FlowKey, Flow> + 'static) {
        &FLOWS_V4
    }

    #[inline(always)]
    fn moved() -> &'static (impl Table<PodTuple, Moved> + 'static) {
        &MOVED_V4
    }
}

impl Tables for V6 {
    #[inline(always)]
    fn flows() -> &'static (impl Table<FlowKey, Flow> + 'static) {
        &FLOWS_V6
    }

    #[inline(always)]
    fn moved() -> &'static (impl Table<PodTuple, Moved> + 'static) {
        &MOVED_V6
    }
}
