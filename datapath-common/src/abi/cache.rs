//! Shared layout and constants of the flow cache.

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

/// Groups of flows, each with a word of `CACHE_EPOCHS`.
///
/// The lower bits count the changes of its flows. The bits above count the notes of its flows in
/// `MOVED_V4`, `MOVED_V6`, `INBOUND` and `STACK`. The highest is [`GROUP_COUNTED`].
pub const CACHE_GROUPS: u32 = 4096;

const _: () = assert!(CACHE_GROUPS.is_power_of_two());

/// One note of a flow in a group's word. The count may be too high: after an overflow of the
/// changes, for a note that user space has removed, or for one in a map that was recreated since.
/// The look-up then finds nothing.
pub const GROUP_NOTE: u64 = 1 << 40;

/// A group's word without changes and notes. The creator of the maps writes it, before anything
/// uses them: a word of 0 is uncounted.
pub const GROUP_COUNTED: u64 = 1 << 63;

/// Start of the count of notes that is not reliable.
///
/// It is so far from [`GROUP_COUNTED`] that no number of notes that come or go leads there.
const GROUP_GIVEN_UP: u64 = 1 << 62;

/// Value of a group's word before a program that cannot count adds a note; none if the word has it
/// already.
#[inline(always)]
#[must_use]
pub const fn given_up(word: u64) -> Option<u64> {
    if word & GROUP_COUNTED == 0 {
        return None;
    }
    Some(GROUP_GIVEN_UP + word % GROUP_NOTE)
}

/// True if a flow of a group may have a note, by the group's word.
#[inline(always)]
#[must_use]
pub const fn may_be_noted(word: u64) -> bool {
    word / GROUP_NOTE != GROUP_COUNTED / GROUP_NOTE
}

/// The group of a flow, equal for both directions: from the XOR of the addresses, and that of the
/// ports.
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

/// 2^64 divided by the golden ratio, as in [`group`].
const CACHE_MULTIPLIER: u64 = 0x9e37_79b9_7f4a_7c15;

/// The words of two IPv6 addresses combined in one, as input of [`cache_hash`]; it differs for the
/// other direction.
#[inline(always)]
#[must_use]
pub const fn cache_digest([a, b, c, d]: &[u64; 4]) -> u64 {
    (*a ^ *b).wrapping_mul(CACHE_MULTIPLIER) ^ *c ^ *d
}

/// The hash of a direction of a flow, from both addresses in one word and both ports in another.
///
/// A bit affects bits of its own place and above. So the upper bits depend on all of the addresses,
/// whose last bytes are uppermost.
#[inline(always)]
#[must_use]
pub const fn cache_hash(addresses: u64, ports: u32) -> u32 {
    let mixed =
        (addresses ^ (ports as u64).wrapping_mul(CACHE_MULTIPLIER)).wrapping_mul(CACHE_MULTIPLIER);
    (mixed >> 32) as u32
}

/// Which of so many entries a hash has: its upper bits say so.
#[inline(always)]
#[must_use]
pub const fn cache_slot(hash: u32, entries: u32) -> u32 {
    ((hash as u64 * entries as u64) >> 32) as u32
}

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

    /// Adds notes, or takes them away.
    fn noted(word: u64, notes: i64) -> u64 {
        word.wrapping_add(notes.cast_unsigned().wrapping_mul(GROUP_NOTE))
    }

    #[test]
    fn a_count_that_was_given_up_is_never_believed_again() {
        for start in [0, 7, GROUP_COUNTED, noted(GROUP_COUNTED, 5) + 7] {
            // Uncounted notes go, and others come.
            for first in -70_000..70_000 {
                let word = noted(given_up(start).unwrap_or(start), first);
                assert!(may_be_noted(word), "{start:x} {first}");
                let again = given_up(word).unwrap_or(word);
                for second in [-70_000, -2, -1, 0, 1, 2, 70_000, -first, 1 - first] {
                    assert!(
                        may_be_noted(noted(again, second)),
                        "{start:x} {first} {second}"
                    );
                    // Nor is it a word that an entry of the flow cache was made with while it was
                    // believed.
                    let once =
                        start & GROUP_COUNTED == 0 || given_up(noted(again, second)).is_none();
                    assert!(once, "{start:x} {first} {second}");
                }
            }
        }
    }

    /// Number of the default entries that flows get.
    fn slots(flows: impl Iterator<Item = (u64, u32)>) -> usize {
        let slots = flows.map(|(addresses, ports)| {
            let slot = cache_slot(cache_hash(addresses, ports), DEFAULT_CACHE);
            assert!(slot < DEFAULT_CACHE);
            slot
        });
        slots.collect::<std::collections::BTreeSet<_>>().len()
    }

    /// Source and destination as they lie in a packet, in one word.
    fn v4(source: [u8; 4], destination: [u8; 4]) -> u64 {
        let mut both = [0; 8];
        both[..4].copy_from_slice(&source);
        both[4..].copy_from_slice(&destination);
        u64::from_ne_bytes(both)
    }

    fn v6(source: u128, destination: u128) -> u64 {
        let words = |address: u128| {
            let bytes = address.to_be_bytes();
            let (high, low) = bytes.split_at(8);
            [high, low].map(|half| u64::from_ne_bytes(half.try_into().unwrap()))
        };
        let ([a, b], [c, d]) = (words(source), words(destination));
        cache_digest(&[a, b, c, d])
    }

    fn ports(source: u16, destination: u16) -> u32 {
        let ([a, b], [c, d]) = (source.to_be_bytes(), destination.to_be_bytes());
        u32::from_ne_bytes([a, b, c, d])
    }

    /// Flows that differ in one part alone do not collide in a few slots: a thousand random ones
    /// would use some 637 of the 1,024.
    #[test]
    fn flows_that_are_alike_are_spread() {
        const FEWEST: usize = 450;
        let numbers = || 0..1000_u16;
        let (pod, server) = ([10, 0, 1, 5], [8, 8, 8, 10]);
        let last = |[a, b, _, _]: [u8; 4], number: u16| {
            let [high, low] = number.to_be_bytes();
            [a, b, high, low]
        };
        let (pod_v6, server_v6) = (0x2600_1f18_u128 << 96 | 5, 0x2001_0db8_u128 << 96 | 1);
        let here = ports(40_000, 443);
        let spread = [
            (
                "ports",
                slots(numbers().map(|n| (v4(pod, server), ports(40_000 + n, 443)))),
            ),
            (
                "even ports",
                slots(numbers().map(|n| (v4(pod, server), ports(32_768 + 2 * n, 443)))),
            ),
            (
                "answered ports",
                slots(numbers().map(|n| (v4(server, pod), ports(443, 40_000 + n)))),
            ),
            (
                "servers",
                slots(numbers().map(|n| (v4(pod, last(server, n)), here))),
            ),
            (
                "clients",
                slots(numbers().map(|n| (v4(last(server, n), pod), here))),
            ),
            (
                "pods",
                slots(numbers().map(|n| (v4(last(pod, n), server), here))),
            ),
            (
                "IPv6 ports",
                slots(numbers().map(|n| (v6(pod_v6, server_v6), ports(40_000 + n, 443)))),
            ),
            (
                "IPv6 servers",
                slots(numbers().map(|n| (v6(pod_v6, server_v6 + u128::from(n)), here))),
            ),
            (
                "IPv6 networks",
                slots(numbers().map(|n| (v6(pod_v6, server_v6 + (u128::from(n) << 64)), here))),
            ),
            (
                "IPv6 pods",
                slots(numbers().map(|n| (v6(pod_v6 + u128::from(n), server_v6), here))),
            ),
        ];
        for (what, slots) in spread {
            assert!(slots >= FEWEST, "{what}: {slots} slots");
        }
    }

    #[test]
    fn giving_up_keeps_how_often_a_group_has_changed() {
        assert_eq!(
            given_up(GROUP_COUNTED + 3 * GROUP_NOTE + 7),
            Some(GROUP_GIVEN_UP + 7)
        );
        assert_eq!(given_up(GROUP_GIVEN_UP + GROUP_NOTE + 8), None);
        assert_eq!(given_up(8), None, "nobody has counted");
    }
}
