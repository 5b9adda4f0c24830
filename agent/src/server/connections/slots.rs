//! Choice of the connection to evict.

use std::collections::BTreeMap;
use std::hash::Hash;
use std::sync::Arc;
use std::time::{Duration, Instant};

use tokio::sync::Notify;

/// The minimum life of a connection: by then a client has sent its request, even where many clients
/// wait for a CPU.
pub(super) const MIN_AGE: Duration = Duration::from_millis(100);

/// The phase of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Phase {
    /// The answer leaves; the kernel takes it at once unless the peer does not read.
    Answering,
    /// The request is not whole.
    Asking,
    /// The agent works on the request. Such a connection is never evicted.
    Handling,
}

/// The state of all connections.
#[derive(Debug)]
pub(super) struct Slots<P> {
    limit: usize,
    next: u64,
    held: BTreeMap<u64, Held<P>>,
}

#[derive(Debug)]
struct Held<P> {
    peer: P,
    phase: Phase,
    since: Instant,
    evicted: Arc<Notify>,
    /// It has to end, unless its request has arrived.
    is_evicted: bool,
}

/// Outcome of a wish for a slot.
#[derive(Debug)]
pub(super) enum Room {
    /// There was a slot, and it is taken.
    Taken { id: u64, evicted: Arc<Notify> },
    /// A connection can be evicted after this time.
    After(Duration),
    /// A slot comes when a connection ends or has got further: one was evicted, or all have work in
    /// hand.
    AfterChange,
}

impl<P: Copy + Eq + Hash> Slots<P> {
    pub(super) fn new(limit: usize) -> Self {
        Self {
            limit,
            next: 0,
            held: BTreeMap::new(),
        }
    }

    pub(super) fn is_empty(&self) -> bool {
        self.held.is_empty()
    }

    pub(super) fn take(&mut self, peer: P, now: Instant) -> Room {
        if self.held.len() >= self.limit {
            return self.make_room(now);
        }
        let id = self.next;
        self.next += 1;
        let evicted = Arc::new(Notify::new());
        let held = Held {
            peer,
            phase: Phase::Asking,
            since: now,
            evicted: Arc::clone(&evicted),
            is_evicted: false,
        };
        self.held.insert(id, held);
        Room::Taken { id, evicted }
    }

    /// Evicts one connection at a time: the next is chosen once that one has ended, or has a
    /// request in work.
    fn make_room(&mut self, now: Instant) -> Room {
        if self.held.values().any(|one| one.is_evicted) {
            return Room::AfterChange;
        }
        let Some(victim) = self.victim() else {
            return Room::AfterChange;
        };
        let age = now.saturating_duration_since(victim.since);
        if let Some(left) = MIN_AGE.checked_sub(age).filter(|left| !left.is_zero()) {
            return Room::After(left);
        }
        victim.evict();
        Room::AfterChange
    }

    pub(super) fn evict(&mut self) {
        if let Some(victim) = self.victim() {
            victim.evict();
        }
    }

    pub(super) fn enter(&mut self, id: u64, phase: Phase, now: Instant) {
        if let Some(held) = self.held.get_mut(&id) {
            (held.phase, held.since) = (phase, now);
            held.is_evicted &= phase != Phase::Handling;
        }
    }

    /// True if a connection has to end.
    pub(super) fn is_evicted(&self, id: u64) -> bool {
        self.held.get(&id).is_some_and(|one| one.is_evicted)
    }

    pub(super) fn free(&mut self, id: u64) {
        self.held.remove(&id);
    }

    /// The connection to evict, of the peer with most connections without a request in work: the
    /// oldest that is still sending its request, otherwise the oldest that is being answered.
    fn victim(&mut self) -> Option<&mut Held<P>> {
        let gives_way = |one: &Held<P>| one.phase != Phase::Handling && !one.is_evicted;
        // There are few peers, so that a list is faster than a map.
        let mut of_peer = Vec::<(P, usize)>::new();
        for one in self.held.values().filter(|one| gives_way(one)) {
            match of_peer.iter_mut().find(|(peer, _)| *peer == one.peer) {
                Some((_, count)) => *count += 1,
                None => of_peer.push((one.peer, 1)),
            }
        }
        let candidates = self.held.values_mut().filter(|one| gives_way(one));
        candidates.max_by_key(|one| {
            let count = of_peer.iter().find(|(peer, _)| *peer == one.peer);
            let count = count.map(|(_, count)| *count);
            (count, one.phase, std::cmp::Reverse(one.since))
        })
    }
}

impl<P> Held<P> {
    fn evict(&mut self) {
        self.is_evicted = true;
        self.evicted.notify_one();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    struct Bench {
        slots: Slots<u8>,
        start: Instant,
    }

    impl Bench {
        fn new(limit: usize) -> Self {
            Self {
                slots: Slots::new(limit),
                start: Instant::now(),
            }
        }

        fn at(&self, ms: u64) -> Instant {
            self.start + Duration::from_millis(ms)
        }

        #[track_caller]
        fn taken(&mut self, peer: u8, ms: u64) -> u64 {
            match self.slots.take(peer, self.at(ms)) {
                Room::Taken { id, .. } => id,
                other => panic!("{other:?}"),
            }
        }

        /// Takes a slot that another connection leaves. Returns the one that left.
        #[track_caller]
        fn replaced(&mut self, peer: u8, ms: u64) -> u64 {
            let room = self.slots.take(peer, self.at(ms));
            assert!(matches!(room, Room::AfterChange), "{room:?}");
            let mut evicted = self.slots.held.iter().filter(|(_, one)| one.is_evicted);
            let id = *evicted.next().expect("one is evicted").0;
            assert_eq!(evicted.count(), 0);
            self.slots.free(id);
            self.taken(peer, ms);
            id
        }
    }

    #[test]
    fn the_oldest_that_sends_nothing_goes_first() {
        let mut bench = Bench::new(3);
        let [_, answered, _] = [0, 1, 2].map(|ms| bench.taken(1, ms));
        let now = bench.at(3);
        bench.slots.enter(answered, Phase::Answering, now);
        assert_eq!([200, 400, 600].map(|ms| bench.replaced(1, ms)), [0, 2, 3]);
    }

    #[test]
    fn a_peer_with_many_gives_way_before_one_with_few() {
        let mut bench = Bench::new(4);
        let patient = bench.taken(1, 0);
        for ms in 1..4 {
            bench.taken(2, ms);
        }
        for round in 1..20 {
            assert_ne!(bench.replaced(2, round * 200), patient);
        }
    }

    #[test]
    fn a_new_connection_has_time_to_ask() {
        let mut bench = Bench::new(1);
        bench.taken(1, 0);
        match bench.slots.take(1, bench.at(5)) {
            Room::After(left) => assert_eq!(left + Duration::from_millis(5), MIN_AGE),
            other => panic!("{other:?}"),
        }
        assert_eq!(bench.replaced(1, 100), 0);
    }

    #[test]
    fn one_gives_way_at_a_time_and_stays_where_its_request_has_come() {
        let mut bench = Bench::new(2);
        let [first, second] = [0, 1].map(|ms| bench.taken(1, ms));
        for ms in [200, 300] {
            let room = bench.slots.take(2, bench.at(ms));
            assert!(matches!(room, Room::AfterChange), "{room:?}");
            assert_eq!(
                [first, second].map(|id| bench.slots.is_evicted(id)),
                [true, false]
            );
        }
        let now = bench.at(300);
        bench.slots.enter(first, Phase::Handling, now);
        assert!(!bench.slots.is_evicted(first));
        assert_eq!(bench.replaced(2, 400), second);
    }

    #[test]
    fn what_has_work_in_hand_stays() {
        let mut bench = Bench::new(1);
        let busy = bench.taken(1, 0);
        let now = bench.at(1);
        bench.slots.enter(busy, Phase::Handling, now);
        let room = bench.slots.take(2, bench.at(500));
        assert!(matches!(room, Room::AfterChange), "{room:?}");
        bench.slots.evict();
        assert!(!bench.slots.is_evicted(busy));
        bench.slots.free(busy);
        bench.taken(2, 500);
    }
}
