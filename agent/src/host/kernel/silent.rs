//! Observed state for which the kernel sends no event.

use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, Instant};

use loader::kernel::{MapEntry, Observed, Sysctl, SysctlScope};

/// Interval between comparisons of the maps' contents. No other program writes our maps by
/// accident.
const MAPS: Duration = Duration::from_secs(9);

/// Observed state for which the kernel sends no event.
#[derive(Debug, Default)]
pub(crate) struct Silent {
    /// The ENIs' devices.
    pub(crate) enis: BTreeSet<u32>,
    /// The sysctls of the node and of the ENIs' devices.
    pub(crate) sysctls: BTreeMap<Sysctl, String>,
    /// The time of the last comparison of maps.
    maps: Option<Instant>,
}

impl Silent {
    /// Takes it out of an observation.
    pub(crate) fn of(observed: &Observed) -> Self {
        let enis = observed.maps.values().filter_map(|entry| match entry {
            MapEntry::EniDevice(ifindex, _) => Some(*ifindex),
            MapEntry::Address(..) | MapEntry::Destination(..) | MapEntry::Eni(..) => None,
        });
        let enis: BTreeSet<u32> = enis.collect();
        let is_here = |sysctl: &Sysctl| match sysctl.scope {
            SysctlScope::Device(ifindex) => enis.contains(&ifindex),
            SysctlScope::All | SysctlScope::Family => true,
        };
        let sysctls = observed
            .sysctls
            .iter()
            .filter(|(sysctl, _)| is_here(sysctl));
        Self {
            sysctls: sysctls
                .map(|(sysctl, value)| (*sysctl, value.clone()))
                .collect(),
            enis,
            maps: Some(Instant::now()),
        }
    }

    /// Returns true if maps are to be compared now.
    pub(crate) fn are_maps_due(&mut self) -> bool {
        let is_due = self.maps.is_none_or(|at| at.elapsed() >= MAPS);
        if is_due {
            self.maps = Some(Instant::now());
        }
        is_due
    }
}
