//! Pods whose packets began to take the host's stack when they could have open connections, because
//! of a late qdisc or program.

use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, Instant};

use crate::actor::Actor;
use crate::host::kernel::Host;
use api::ids::PodRef;
use loader::netfilter::untracked;

/// Age of a pod's path past the stack from which on it may have open connections.
///
/// The CNI plugin `bandwidth` makes its qdisc right after our ADD.
const OPEN: Duration = Duration::from_secs(10);
/// Time for which a change is reported.
const REPORTED: Duration = Duration::from_hours(1);

/// The paths of the endpoints' devices, by the devices' indexes.
#[derive(Debug, Default)]
pub(crate) struct Detours(BTreeMap<u32, Path>);

/// The path of one device.
#[derive(Clone, Copy, Debug)]
struct Path {
    takes_stack: bool,
    since: Instant,
    /// True if it differs from the path with which connections that may be open began.
    is_late: bool,
}

impl Detours {
    /// Records the result of an observation of devices, for those that are present.
    fn look(&mut self, now: Instant, there: &BTreeSet<u32>, found: &BTreeMap<u32, Option<String>>) {
        self.0.retain(|ifindex, _| there.contains(ifindex));
        for (ifindex, what) in found {
            let takes_stack = what.is_some();
            let before = self.0.get(ifindex).copied();
            if before.is_some_and(|before| before.takes_stack == takes_stack) {
                continue;
            }
            let is_open = before.is_some_and(|before| now.duration_since(before.since) >= OPEN);
            let path = Path {
                takes_stack,
                since: now,
                is_late: takes_stack && is_open,
            };
            self.0.insert(*ifindex, path);
        }
    }

    /// True if a device's packets began to take the stack late, within the last hour.
    fn is_late(&self, now: Instant, ifindex: u32) -> bool {
        let path = self.0.get(&ifindex);
        path.is_some_and(|path| path.is_late && now.duration_since(path.since) < REPORTED)
    }
}

impl<K: Host> Actor<K> {
    /// Takes the paths that the last pass saw.
    pub(crate) fn note_detours(&mut self) {
        if let Some(facts) = self.reconciler.kernel().facts() {
            let there = facts.links.keys().copied().collect();
            self.observers
                .detours
                .look(Instant::now(), &there, &facts.via_stack);
        }
    }

    /// The pods whose open connections are INVALID for connection tracking since their packets
    /// began to take the stack, each with the remedy.
    pub(crate) fn cut_off_pods(&self) -> Vec<(PodRef, String)> {
        let remedy = untracked::on_change_of_path();
        let facts = self.reconciler.kernel().facts();
        let Some(facts) = facts.filter(|_| !remedy.is_empty()) else {
            return Vec::new();
        };
        let now = Instant::now();
        let endpoints = self.passes.last.view.endpoints.iter();
        let late = endpoints.filter_map(|(id, endpoint)| {
            let ifindex = endpoint
                .ifindex
                .filter(|one| self.observers.detours.is_late(now, *one))?;
            let pod = self.intent.endpoints.get(id)?.about.pod.clone()?;
            let what = facts.via_stack.get(&ifindex)?.as_ref()?;
            let device = &endpoint.device;
            let message =
                format!("packets began to take the host's stack, for {device} has {what}{remedy}");
            Some((pod, message))
        });
        late.collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The paths that devices 7 and 8 have at a time.
    fn look(detours: &mut Detours, now: Instant, with_qdisc: &[u32]) {
        let there = BTreeSet::from([7, 8]);
        let what = |ifindex| {
            with_qdisc
                .contains(&ifindex)
                .then(|| "a tbf qdisc".to_owned())
        };
        let found = there.iter().map(|ifindex| (*ifindex, what(*ifindex)));
        detours.look(now, &there, &found.collect());
    }

    #[test]
    fn a_qdisc_is_late_where_packets_went_past_the_stack_for_a_while() {
        let start = Instant::now();
        let at = |seconds| start + Duration::from_secs(seconds);
        let mut detours = Detours::default();
        look(&mut detours, at(0), &[]);
        look(&mut detours, at(9), &[7]);
        look(&mut detours, at(10), &[7, 8]);
        assert!(!detours.is_late(at(10), 7), "the bandwidth plugin's");
        assert!(detours.is_late(at(10), 8));
        look(&mut detours, at(20), &[7, 8]);
        assert!(detours.is_late(at(3609), 8) && !detours.is_late(at(3610), 8));
        // It goes, and comes again at once.
        look(&mut detours, at(30), &[7]);
        assert!(!detours.is_late(at(30), 8));
        look(&mut detours, at(31), &[7, 8]);
        assert!(!detours.is_late(at(31), 8));
    }

    #[test]
    fn what_was_there_at_the_first_look_is_not_late_and_a_gap_in_a_dump_is_no_change() {
        let start = Instant::now();
        let at = |seconds| start + Duration::from_secs(seconds);
        let mut detours = Detours::default();
        look(&mut detours, at(0), &[7]);
        assert!(!detours.is_late(at(60), 7));
        let there = BTreeSet::from([7, 8]);
        detours.look(at(60), &there, &BTreeMap::new());
        look(&mut detours, at(61), &[7, 8]);
        assert!(detours.is_late(at(61), 8));
        // Another device with the same index starts without a history.
        detours.look(at(62), &BTreeSet::from([7]), &BTreeMap::new());
        look(&mut detours, at(63), &[7, 8]);
        assert!(!detours.is_late(at(63), 8));
    }
}
