//! The free addresses of one block. Those that were never used are kept as ranges, so an IPv6 block
//! costs no more than a /28.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;

use ipnet::IpNet;

use super::rules::{Barred, EdgeRules, Space};
use crate::Time;

/// Most free places of a block whose order of release is remembered once they have rested.
const REMEMBERED: usize = 256;

/// Half-open ranges of places, apart from each other.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct Ranges {
    by_start: BTreeMap<u32, u32>,
    count: u32,
}

impl Ranges {
    /// The range that a place is in.
    fn around(&self, place: u32) -> Option<(u32, u32)> {
        let (start, end) = self.by_start.range(..=place).next_back()?;
        (place < *end).then_some((*start, *end))
    }

    /// The first place from here on; from the beginning where there is none.
    fn next(&self, from: u32) -> Option<u32> {
        if self.around(from).is_some() {
            return Some(from);
        }
        let later = self.by_start.range(from..).next();
        let (start, _) = later.or_else(|| self.by_start.first_key_value())?;
        Some(*start)
    }

    fn insert(&mut self, place: u32) {
        if self.around(place).is_some() {
            return;
        }
        let mut start = place;
        let mut end = place + 1;
        if let Some((before, behind)) = self.by_start.range(..place).next_back()
            && *behind == place
        {
            start = *before;
        }
        if let Some(behind) = self.by_start.remove(&end) {
            end = behind;
        }
        self.by_start.insert(start, end);
        self.count += 1;
    }

    fn remove(&mut self, from: u32, to: u32) {
        let mut at = from;
        while at < to {
            let Some((start, end)) = self.around(at).or_else(|| {
                let (start, end) = self.by_start.range(at..to).next()?;
                Some((*start, *end))
            }) else {
                return;
            };
            let (cut, behind) = (start.max(at), end.min(to));
            self.by_start.remove(&start);
            if start < cut {
                self.by_start.insert(start, cut);
            }
            if behind < end {
                self.by_start.insert(behind, end);
            }
            self.count -= behind - cut;
            at = behind;
        }
    }
}

/// The free addresses of a block.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Slots {
    space: Space,
    /// Free places of which no release is known.
    free: Ranges,
    /// Free places that were released, the one that has rested longest first.
    rested: BTreeSet<(Time, u32)>,
    /// Time of each place's last release, also while it is in use.
    released: BTreeMap<u32, Time>,
    /// Places that were released until then have rested.
    ripe_until: Time,
    /// The addresses that can be given at all, including those in use.
    allowed: Ranges,
    /// Start of the search for the next never used place: after the last allocated one. So a place
    /// whose pod could not be set up comes last.
    cursor: u32,
}

impl Slots {
    /// A block without an address in use.
    pub(crate) fn new<'a>(
        net: IpNet,
        edges: EdgeRules,
        excluded: impl IntoIterator<Item = &'a IpNet>,
    ) -> Self {
        let space = Space::new(net, edges);
        let (from, to) = space.inner();
        let mut allowed = Ranges::default();
        if from < to {
            allowed.by_start.insert(from, to);
            allowed.count = to - from;
        }
        for net in excluded {
            if let Some((from, to)) = space.places(*net) {
                allowed.remove(from, to);
            }
        }
        Self {
            space,
            free: allowed.clone(),
            allowed,
            rested: BTreeSet::new(),
            released: BTreeMap::new(),
            ripe_until: Time::default(),
            cursor: 0,
        }
    }

    pub(crate) fn space(&self) -> &Space {
        &self.space
    }

    pub(crate) fn free(&self) -> u32 {
        // A place is a `u32`, so there are never more of them.
        let rested = u32::try_from(self.rested.len()).unwrap_or(u32::MAX);
        self.free.count.saturating_add(rested)
    }

    /// When the next address was released, where all free ones were released a short time ago.
    pub(crate) fn fresh_since(&self) -> Option<Time> {
        let (released, _) = self.rested.first()?;
        let is_fresh = self.free.count == 0 && *released > self.ripe_until;
        is_fresh.then_some(*released)
    }

    /// Places that were released until then count as rested from now on. In a large block the
    /// longest rested places count as never used. So the memory for releases does not grow with
    /// each pod that the node ever had.
    pub(crate) fn ripen(&mut self, until: Time) {
        self.ripe_until = self.ripe_until.max(until);
        while self.rested.len() > REMEMBERED
            && let Some((released, place)) = self.rested.first().copied()
            && released <= self.ripe_until
        {
            self.rested.remove(&(released, place));
            self.released.remove(&place);
            self.free.insert(place);
        }
    }

    /// The number of addresses of an unused block that can be allocated.
    pub(crate) fn capacity(&self) -> u32 {
        self.allowed.count
    }

    /// Goes on where an earlier form of the block was.
    pub(crate) fn resume(&mut self, earlier: &Self) {
        self.cursor = earlier.cursor;
        self.ripe_until = earlier.ripe_until;
        for (place, released) in &earlier.released {
            self.note(*place, *released);
        }
    }

    /// Records the time of the release of an address that may be free.
    pub(crate) fn resume_rest(&mut self, address: IpAddr, released: Time) {
        if let Some(place) = self.space.place(address) {
            self.note(place, released);
        }
    }

    fn note(&mut self, place: u32, released: Time) {
        let is_free = self.remove(place);
        self.released.insert(place, released);
        if is_free {
            self.rested.insert((released, place));
        }
    }

    /// Takes a place out of the free ones; true if it was free.
    fn remove(&mut self, place: u32) -> bool {
        let released = self.released.get(&place);
        if released.is_some_and(|released| self.rested.remove(&(*released, place))) {
            return true;
        }
        let before = self.free.count;
        self.free.remove(place, place + 1);
        self.free.count < before
    }

    /// Why an address can never be given.
    pub(crate) fn barred(&self, address: IpAddr) -> Option<Barred> {
        let Some(place) = self.space.place(address) else {
            return Some(Barred::OutsideWindow);
        };
        if self.allowed.around(place).is_some() {
            return None;
        }
        let (from, to) = self.space.inner();
        Some(if place < from {
            Barred::First
        } else if place >= to {
            Barred::Last
        } else {
            Barred::Excluded
        })
    }

    /// The free address that is next: the one that has rested longest.
    pub(crate) fn next(&self) -> Option<IpAddr> {
        let new = self.free.next(self.cursor);
        let rested = || self.rested.first().map(|(_, place)| *place);
        let place = new.or_else(rested)?;
        Some(self.space.address(place))
    }

    /// Takes a free address into use.
    pub(crate) fn take(&mut self, address: IpAddr) {
        self.hold(address);
        if let Some(place) = self.space.place(address) {
            self.cursor = place + 1;
        }
    }

    /// Marks an address as in use, which need not have been free.
    pub(crate) fn hold(&mut self, address: IpAddr) {
        if let Some(place) = self.space.place(address) {
            self.remove(place);
        }
    }

    /// Frees an address. Without a new release, its rest counts from the last one.
    pub(crate) fn give(&mut self, address: IpAddr, released: Option<Time>) {
        if let Some(place) = self.space.place(address)
            && self.allowed.around(place).is_some()
        {
            self.remove(place);
            if let Some(released) = released {
                self.released.insert(place, released);
            }
            match self.released.get(&place) {
                Some(released) => {
                    self.rested.insert((*released, place));
                }
                None => self.free.insert(place),
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use proptest::prelude::*;

    use super::*;

    fn slots(net: &str) -> Slots {
        Slots::new(net.parse().unwrap(), EdgeRules::ALL, [])
    }

    #[test]
    fn an_address_that_was_released_is_given_last() {
        let mut slots = slots("10.0.0.16/28");
        let first = slots.next().unwrap();
        slots.take(first);
        slots.give(first, Some(Time::from_millis(1)));
        let mut order = Vec::new();
        while let Some(address) = slots.next() {
            slots.take(address);
            order.push(address);
        }
        assert_eq!(order.len(), 16);
        assert_eq!(order.last(), Some(&first));
    }

    #[test]
    fn a_wide_block_is_one_range() {
        let mut slots = slots("2001:db8::/64");
        assert_eq!(slots.free(), 65536);
        assert_eq!(slots.free.by_start.len(), 1);
        let inside: IpAddr = "2001:db8::ffff".parse().unwrap();
        slots.take(inside);
        assert_eq!(slots.free(), 65535);
        let beyond = "2001:db8::1:0".parse().unwrap();
        assert_eq!(slots.barred(beyond), Some(Barred::OutsideWindow));
    }

    #[test]
    fn exclusions_count_and_say_why() {
        let excluded = [
            "10.0.0.4/31".parse().unwrap(),
            "10.0.0.9/32".parse().unwrap(),
        ];
        let net = "10.0.0.0/28".parse().unwrap();
        let slots = Slots::new(net, EdgeRules::default(), &excluded);
        assert_eq!(slots.capacity(), 16 - 2 - 3);
        let why = |text: &str| slots.barred(text.parse().unwrap());
        assert_eq!(why("10.0.0.0"), Some(Barred::First));
        assert_eq!(why("10.0.0.15"), Some(Barred::Last));
        assert_eq!(why("10.0.0.5"), Some(Barred::Excluded));
        assert_eq!(why("10.0.0.6"), None);
    }

    #[test]
    fn what_has_rested_longest_is_next_whatever_its_place() {
        let mut slots = slots("10.0.0.0/30");
        let all: Vec<_> = std::iter::from_fn(|| {
            let address = slots.next()?;
            slots.take(address);
            Some(address)
        })
        .collect();
        for (place, released) in [(2, 10), (0, 20), (3, 30)] {
            slots.give(all[place], Some(Time::from_millis(released)));
        }
        assert_eq!(slots.fresh_since(), Some(Time::from_millis(10)));
        slots.ripen(Time::from_millis(10));
        assert_eq!(slots.fresh_since(), None);
        slots.take(all[2]);
        assert_eq!(slots.next(), Some(all[0]));
        // Its new owner never came, so it rests since its release.
        slots.give(all[2], None);
        assert_eq!(slots.next(), Some(all[2]));
        let mut again = Slots::new("10.0.0.0/30".parse().unwrap(), EdgeRules::ALL, []);
        again.resume(&slots);
        again.hold(all[1]);
        assert_eq!((again.free(), again.next()), (3, Some(all[2])));
    }

    #[test]
    fn a_large_block_does_not_remember_each_release() {
        let mut slots = slots("2001:db8::/80");
        let (all, held) = (slots.free(), 3);
        for _ in 0..held {
            let address = slots.next().unwrap();
            slots.take(address);
        }
        for second in 0..5_000 {
            let address = slots.next().unwrap();
            slots.take(address);
            slots.give(address, Some(Time::from_millis(second)));
            slots.ripen(Time::from_millis(second.saturating_sub(130)));
        }
        assert_eq!(slots.free(), all - held);
        let remembered = REMEMBERED.max(130) + 1;
        assert!(slots.rested.len() <= remembered, "{}", slots.rested.len());
        assert!(
            slots.released.len() <= remembered,
            "{}",
            slots.released.len()
        );
        assert!(slots.free.by_start.len() <= remembered);
    }

    proptest! {
        /// Ranges against a plain set.
        #[test]
        fn ranges_are_a_set(
            steps in prop::collection::vec((0_u32..40, 1_u32..12, any::<bool>()), 0..60),
        ) {
            let mut ranges = Ranges::default();
            let mut set = BTreeSet::new();
            for (from, length, is_insert) in steps {
                if is_insert {
                    ranges.insert(from);
                    set.insert(from);
                } else {
                    ranges.remove(from, from + length);
                    set.retain(|n| !(from..from + length).contains(n));
                }
                prop_assert_eq!(ranges.count as usize, set.len());
                for place in 0..60 {
                    prop_assert_eq!(ranges.around(place).is_some(), set.contains(&place));
                    let next = set.range(place..).next().or_else(|| set.first());
                    prop_assert_eq!(ranges.next(place), next.copied());
                }
                let ends: Vec<_> = ranges.by_start.iter().map(|(s, e)| (*s, *e)).collect();
                prop_assert!(ends.windows(2).all(|w| w[0].1 < w[1].0), "{:?}", ends);
            }
        }
    }
}
