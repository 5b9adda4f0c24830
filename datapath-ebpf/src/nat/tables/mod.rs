//! The maps of each family.

pub(crate) mod epoch;
pub(super) mod lock;
pub(super) mod quota;
pub(super) mod room;
pub(crate) mod stats;

use aya_ebpf::bindings::{BPF_EXIST, BPF_NOEXIST};
use aya_ebpf::btf_maps::HashMap;
use datapath_common::abi::{Flow, FlowKey, Moved, PodTuple};
use datapath_common::outcome::DropReason;

use crate::base::maps::{FLOWS_V4, FLOWS_V6, MOVED_V4, MOVED_V6};

/// Why an entry could not be put into a map.
#[derive(Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub(crate) enum Refusal {
    /// There is one with this key.
    Exists,
    /// There is none with this key to take the place of.
    Gone,
    /// The map has as many entries as it can hold.
    Full,
    /// The kernel had no memory at hand, or the map's lock was held by whom this program
    /// interrupted.
    Failed,
}

impl Refusal {
    /// `EEXIST`.
    pub(super) const EXISTS: i32 = -17;
    /// Anything else, for what fails before the call into the kernel.
    pub(super) const FAILED: i32 = -1;
    /// `ENOENT`.
    const MISSING: i32 = -2;
    /// `E2BIG`.
    const TOO_BIG: i32 = -7;

    /// Result that a return code of `htab_map_update_elem` in `kernel/bpf/hashtab.c` stands for.
    #[inline(always)]
    pub(super) fn of(result: i32) -> Result<(), Self> {
        match result {
            0 => Ok(()),
            Self::EXISTS => Err(Self::Exists),
            Self::MISSING => Err(Self::Gone),
            Self::TOO_BIG => Err(Self::Full),
            _ => Err(Self::Failed),
        }
    }

    /// The reason to drop a packet, where `full` is the one for a full map. An existing entry is no
    /// reason; the caller handles it.
    #[inline(always)]
    pub(super) fn reason(self, full: DropReason) -> DropReason {
        match self {
            Self::Full => full,
            // The flow of the entry has just been removed.
            Self::Gone => DropReason::NoFlow,
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

    /// Puts in an entry in place of the one with this key.
    fn replace(&self, key: &K, value: &V) -> Result<(), Refusal>;

    /// Removes an entry; returns true if it was there.
    fn forget(&self, key: &K) -> bool;
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
        let result = self.insert(key, value, u64::from(BPF_EXIST));
        Refusal::of(result.err().unwrap_or(0))
    }

    #[inline(always)]
    fn forget(&self, key: &K) -> bool {
        // That it is not there is the one thing that can go wrong.
        self.remove(key).is_ok()
    }
}

/// Translated flows of both families: each has a map of its own.
pub(super) struct Flows;

/// The notes of those off their first candidate port, likewise.
pub(super) struct MovedFlows;

/// Translated flows.
pub(super) const FLOWS: Flows = Flows;

/// The notes of those off their first candidate port.
pub(super) const MOVED: MovedFlows = MovedFlows;

/// Takes one of two maps, by the family of a key's address.
macro_rules! by_family {
    ($table:ty: $key:ty => $value:ty, $address:ident: $v4:ident, $v6:ident) => {
        impl Table<$key, $value> for $table {
            #[inline(always)]
            fn find(&self, key: &$key) -> Option<*mut $value> {
                if key.$address.is_v4() {
                    $v4.find(key)
                } else {
                    $v6.find(key)
                }
            }

            #[inline(always)]
            fn put(&self, key: &$key, value: &$value) -> i32 {
                if key.$address.is_v4() {
                    $v4.put(key, value)
                } else {
                    $v6.put(key, value)
                }
            }

            #[inline(always)]
            fn replace(&self, key: &$key, value: &$value) -> Result<(), Refusal> {
                if key.$address.is_v4() {
                    $v4.replace(key, value)
                } else {
                    $v6.replace(key, value)
                }
            }

            #[inline(always)]
            fn forget(&self, key: &$key) -> bool {
                if key.$address.is_v4() {
                    $v4.forget(key)
                } else {
                    $v6.forget(key)
                }
            }
        }
    };
}

by_family!(Flows: FlowKey => Flow, remote: FLOWS_V4, FLOWS_V6);
by_family!(MovedFlows: PodTuple => Moved, remote: MOVED_V4, MOVED_V6);
