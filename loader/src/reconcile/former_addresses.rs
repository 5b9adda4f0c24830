//! Addresses that an ENI had until now. Answers to packets that were translated to one can still
//! arrive. The datapath finds a flow by the number of its ENI. So as long as it has the old
//! address, it translates them back.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::time::{Duration, Instant};

use crate::kernel::{MapEntry, MapKey, Object, Observed};
use crate::plan::{Plan, Planned};

/// Lifetime of a former address: beyond the round trip of anything that is not lost (RFC 6298
/// section 2 has a sender wait a second for its first answer).
const KNOWN_FOR: Duration = Duration::from_secs(1);

/// The old addresses, and since when they are not to be.
#[derive(Debug, Default)]
pub(super) struct FormerAddresses(BTreeMap<IpAddr, Instant>);

impl FormerAddresses {
    /// Removes steps from a plan that would give an old address to the host, or remove it, too
    /// early.
    pub(super) fn hold_back(&mut self, plan: &mut Plan, observed: &Observed, now: Instant) {
        let Plan { steps, objects, .. } = plan;
        let old = steps.iter().filter_map(|planned| {
            let address = old_address(planned, objects, observed)?;
            Some((address, self.0.get(&address).copied().unwrap_or(now)))
        });
        self.0 = old.collect();
        let is_due = |since: &Instant| now.saturating_duration_since(*since) >= KNOWN_FOR;
        steps.retain(|planned| match planned.object {
            Object::MapEntry(MapEntry::Address(address, _)) => {
                self.0.get(&address).is_none_or(is_due)
            }
            _ => true,
        });
    }

    /// When the next one is due.
    pub(super) fn next_due(&self, now: Instant) -> Option<Duration> {
        let due = self.0.values().map(|since| *since + KNOWN_FOR);
        let later = due.filter(|due| *due > now);
        later.min().map(|due| due.saturating_duration_since(now))
    }
}

/// The address that a step takes from an ENI which is to have another one of the family. One that
/// becomes a pod's is the pod's at once.
fn old_address(
    planned: &Planned,
    wanted: &BTreeSet<Object>,
    observed: &Observed,
) -> Option<IpAddr> {
    let Object::MapEntry(MapEntry::Address(address, next)) = planned.object else {
        return None;
    };
    let there = observed.maps.get(&MapKey::Address(address));
    let eni = translated_for(there?)?;
    let is_needed = planned.adds && (next.is_endpoint() || next.is_translation());
    let has_another = wanted.iter().any(|object| match object {
        Object::MapEntry(entry @ MapEntry::Address(other, _)) => {
            translated_for(entry) == Some(eni)
                && *other != address
                && other.is_ipv4() == address.is_ipv4()
        }
        _ => false,
    });
    (has_another && !is_needed).then_some(address)
}

/// The number of the ENI that an entry's address is the translation address of.
fn translated_for(entry: &MapEntry) -> Option<u8> {
    match entry {
        MapEntry::Address(_, entry) if entry.is_translation() => Some(entry.eni()),
        _ => None,
    }
}
