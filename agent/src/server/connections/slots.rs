//! Choice of the connection that gives way.

use std::collections::BTreeMap;
use std::hash::Hash;
use std::sync::Arc;
use std::time::{Duration, Instant};

use tokio::sync::Notify;

/// How long a connection stays at least: a client's request is on its way by then, also where very many
/// clients wait for a CPU.
const GRACE: Duration = Duration::from_millis(100);

/// How far a connection has got.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Phase {
    /// The answer leaves; the kernel takes it at once unless the peer does not read.
    Answering,
    /// The request is not whole.
    Asking,
    /// The agent works on the request. Such a connection never gives way.
    Handling,
}

/// What is known of each connection.
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
    /// It was told to end, and has no slot any more.
    is_evicted: bool,
}

/// True if there is room.
#[derive(Debug)]
pub(super) enum Room {
    /// There was; it is taken.
    Taken { id: u64, evicted: Arc<Notify> },
    /// There will be, after this time.
    After(Duration),
    /// There is none as long as all have work in hand.
    None,
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
        let taken = self.held.values().filter(|one| !one.is_evicted).count();
        if taken >= self.limit {
            let Some(victim) = self.victim() else {
                return Room::None;
            };
            let age = now.saturating_duration_since(victim.since);
            if let Some(left) = GRACE.checked_sub(age).filter(|left| !left.is_zero()) {
                return Room::After(left);
            }
            victim.evict();
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

    pub(super) fn evict(&mut self) {
        if let Some(victim) = self.victim() {
            victim.evict();
        }
    }

    pub(super) fn enter(&mut self, id: u64, phase: Phase, now: Instant) {
        if let Some(held) = self.held.get_mut(&id) {
            (held.phase, held.since) = (phase, now);
        }
    }

    pub(super) fn free(&mut self, id: u64) {
        self.held.remove(&id);
    }

    /// The connection to give way: of the peer that has most without work in hand, the oldest that still
    /// asks, or else the oldest that is answered.
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

        fn evicted(&self) -> Vec<u64> {
            let held = self.slots.held.iter().filter(|(_, one)| one.is_evicted);
            held.map(|(id, _)| *id).collect()
        }
    }

    #[test]
    fn the_oldest_that_sends_nothing_goes_first() {
        let mut bench = Bench::new(3);
        let [_, answered, _] = [0, 1, 2].map(|ms| bench.taken(1, ms));
        let now = bench.at(3);
        bench.slots.enter(answered, Phase::Answering, now);
        for (ms, expected) in [(200, vec![0]), (400, vec![0, 2]), (600, vec![0, 2, 3])] {
            bench.taken(1, ms);
            assert_eq!(bench.evicted(), expected);
        }
    }

    #[test]
    fn a_peer_with_many_gives_way_before_one_with_few() {
        let mut bench = Bench::new(4);
        let patient = bench.taken(1, 0);
        for ms in 1..4 {
            bench.taken(2, ms);
        }
        for round in 1..20 {
            bench.taken(2, round * 200);
        }
        assert!(!bench.evicted().contains(&patient));
    }

    #[test]
    fn a_new_connection_has_time_to_ask() {
        let mut bench = Bench::new(1);
        bench.taken(1, 0);
        match bench.slots.take(1, bench.at(5)) {
            Room::After(left) => assert_eq!(left + Duration::from_millis(5), GRACE),
            other => panic!("{other:?}"),
        }
        bench.taken(1, 100);
    }

    #[test]
    fn what_has_work_in_hand_stays() {
        let mut bench = Bench::new(1);
        let busy = bench.taken(1, 0);
        let now = bench.at(1);
        bench.slots.enter(busy, Phase::Handling, now);
        assert!(matches!(bench.slots.take(2, bench.at(500)), Room::None));
        bench.slots.evict();
        assert_eq!(bench.evicted(), Vec::<u64>::new());
        bench.slots.free(busy);
        bench.taken(2, 500);
    }
}
