//! What user space and the programs agree on of the flow cache.

use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

use super::PodTuple;

/// Value of the one slot of `CACHE_CONTROL`.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout,
)]
#[repr(C)]
pub struct CacheControl {
    /// Another number after each change of what is known of addresses, destinations, ENIs and notes
    /// of flows: what the programs have cached before is of no use then. No number may come back
    /// within a second.
    pub generation: u32,
}

/// Groups of flows, each with a word of `CACHE_EPOCHS`: how often its flows have changed in the lower
/// bits, above them how many notes of its flows there are in `MOVED_V4`, `MOVED_V6`, `INBOUND` and
/// `STACK`, and [`GROUP_COUNTED`].
pub const CACHE_GROUPS: u32 = 4096;

const _: () = assert!(CACHE_GROUPS.is_power_of_two());

/// One note of a flow in a group's word. Changes that run over say that there is one too many: then it is
/// looked for in vain.
pub const GROUP_NOTE: u64 = 1 << 40;

/// In a group's word, that every note has been counted. Whoever has made the maps says so, before
/// anything uses them; a map from before notes were counted does not have it.
pub const GROUP_COUNTED: u64 = 1 << 63;

/// Whether a flow of a group may have a note, by the group's word.
#[inline(always)]
#[must_use]
pub const fn may_be_noted(word: u64) -> bool {
    word / GROUP_NOTE != GROUP_COUNTED / GROUP_NOTE
}

/// The group of a flow, from what both of its directions have: the words that source and destination
/// have not in common, and the same of the ports.
#[inline(always)]
#[must_use]
pub const fn group(addresses: u32, ports: u16) -> u32 {
    /// 2^32 divided by the golden ratio (Knuth, The Art of Computer Programming, volume 3,
    /// section 6.4).
    const MULTIPLIER: u32 = 0x9e37_79b9;
    let mixed = (addresses ^ ports as u32).wrapping_mul(MULTIPLIER);
    mixed >> (u32::BITS - CACHE_GROUPS.trailing_zeros())
}

/// The group of a flow.
#[inline(always)]
#[must_use]
pub const fn group_of(tuple: &PodTuple) -> u32 {
    let addresses = tuple.pod.fold() ^ tuple.remote.fold();
    group(addresses, tuple.pod_port ^ tuple.remote_port)
}

/// Default entries of the cache for each CPU, of 128 bytes each; a setting.
pub const DEFAULT_CACHE: u32 = 1024;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_group_without_notes_has_none_however_often_it_has_changed() {
        assert!(may_be_noted(0), "nobody has counted");
        assert!(may_be_noted(7));
        assert!(!may_be_noted(GROUP_COUNTED));
        assert!(!may_be_noted(GROUP_COUNTED + GROUP_NOTE - 1));
        let one = GROUP_COUNTED + GROUP_NOTE + 7;
        assert!(may_be_noted(one));
        assert!(may_be_noted(one + 4000 * GROUP_NOTE));
        assert!(!may_be_noted(one.wrapping_add(GROUP_NOTE.wrapping_neg())));
    }
}
