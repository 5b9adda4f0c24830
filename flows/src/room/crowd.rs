//! Destinations that are short of ports, and the endpoints that use the most there.

use std::collections::{HashMap, HashSet};

use datapath_common::abi::{Addr, FlowKey};

use super::greedy::greedy;

/// The part of a destination's ports from which on half-open flows and single questions go early.
const CROWDED: u32 = 2;

/// Destination: an ENI, a protocol, an address and a port.
type Destination = (u8, u8, Addr, u16);

fn destination(key: &FlowKey) -> Destination {
    (key.eni, key.protocol, key.remote, key.remote_port)
}

/// Flows of each endpoint at the destinations of a sweep.
#[derive(Debug, Default)]
pub(crate) struct Crowd(HashMap<Destination, HashMap<u32, u32>>);

impl Crowd {
    /// Counts a flow.
    pub(crate) fn see(&mut self, key: &FlowKey, endpoint: u32) {
        let endpoints = self.0.entry(destination(key)).or_default();
        *endpoints.entry(endpoint).or_default() += 1;
    }

    /// The destinations at which more than half of so many ports are used.
    pub(crate) fn crowded(self, ports: u32) -> Crowded {
        let is_crowded = |endpoints: &HashMap<u32, u32>| {
            let used: u64 = endpoints.values().copied().map(u64::from).sum();
            used > u64::from(ports / CROWDED)
        };
        let destinations = self.0.into_iter();
        let crowded = destinations.filter(|(_, endpoints)| is_crowded(endpoints));
        Crowded(
            crowded
                .map(|(of, endpoints)| (of, greedy(&endpoints)))
                .collect(),
        )
    }
}

/// Destinations that are short of ports, with the endpoints that have more than a fair share.
#[derive(Debug, Default)]
pub(crate) struct Crowded(HashMap<Destination, HashSet<u32>>);

impl Crowded {
    /// True if any destination is short of ports.
    pub(crate) fn is_any(&self) -> bool {
        !self.0.is_empty()
    }

    /// True if the destination of a flow is short of ports.
    pub(crate) fn has(&self, key: &FlowKey) -> bool {
        self.is_any() && self.0.contains_key(&destination(key))
    }

    /// True if an endpoint has more than a fair share at the destination of a flow.
    pub(super) fn is_greedy(&self, key: &FlowKey, endpoint: u32) -> bool {
        let greedy = self.0.get(&destination(key));
        greedy.is_some_and(|greedy| greedy.contains(&endpoint))
    }
}

#[cfg(test)]
mod tests {
    use datapath_common::headers::protocol;

    use datapath_common::abi::TransportAddr;

    use super::*;

    const REMOTE: Addr = Addr::from_v4_word(0x0101_0101);

    fn key(remote_port: u16) -> FlowKey {
        FlowKey::new(0, protocol::TCP, TransportAddr::new(REMOTE, remote_port), 1)
    }

    #[test]
    fn who_has_more_than_a_fair_share_of_a_crowded_destination_is_greedy() {
        let crowded = |flows: &[(u32, u32)]| {
            let mut crowd = Crowd::default();
            for (endpoint, count) in flows {
                (0..*count).for_each(|_| crowd.see(&key(443), *endpoint));
            }
            crowd.see(&key(80), 1);
            crowd.crowded(100)
        };
        let half = crowded(&[(1, 45), (2, 5)]);
        assert!(!half.has(&key(443)), "half is not more than half");
        let more = crowded(&[(1, 46), (2, 5)]);
        assert!(more.has(&key(443)) && !more.has(&key(80)));
        let greedy = [1, 2, 3].map(|endpoint| more.is_greedy(&key(443), endpoint));
        assert_eq!(greedy, [true, false, false]);
        assert!(!more.is_greedy(&key(80), 1));
        let alone = crowded(&[(1, 51)]);
        assert!(alone.is_greedy(&key(443), 1));
        let equal: Vec<_> = (1..=20).map(|endpoint| (endpoint, 4)).collect();
        let equal = crowded(&[equal, vec![(21, 3)]].concat());
        assert!((1..=20).all(|endpoint| equal.is_greedy(&key(443), endpoint)));
        assert!(!equal.is_greedy(&key(443), 21));
    }
}
