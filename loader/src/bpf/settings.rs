//! The programs' settings at load, and the sizes of their maps.

use aya::EbpfLoader;
use datapath_common::abi::{self, FlowQuotas, map};
use datapath_common::config::PortSlice;
use datapath_common::mark::MarkLayout;
use datapath_common::masquerade::MetadataPolicy;
use datapath_common::ports::Ports;
use flows::Limits;
use ipam::Family;

use crate::intent::masquerade::{NO_SLICES, PortList, cover};

/// Room for flow marks of the host's stack while none are kept. The kernel allocates memory for the
/// whole capacity of a map.
pub const LEAST_NOTES: u32 = 1024;

/// The path of pod traffic.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum DatapathMode {
    /// Past the host's stack wherever that is not needed.
    #[default]
    Direct,
    /// As `Direct`, but flows that the stack carries are recorded, and take it in both directions:
    /// service NAT may have translated them.
    ServiceNat,
    /// Through the stack, in both directions: there is nothing to note.
    Stack,
}

/// The programs' settings at load, and the capacities of their maps.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DatapathSettings {
    /// Layout of our part of the packet mark.
    pub mark: MarkLayout,
    /// True if IPv4 is masqueraded.
    pub masquerade_v4: bool,
    /// True if IPv6 is masqueraded.
    pub masquerade_v6: bool,
    /// Treatment of packets to the instance metadata service.
    pub metadata: MetadataPolicy,
    /// The path of pod traffic.
    pub path: DatapathMode,
    /// The ports of translation.
    pub ports: FlowPorts,
    /// Most translated IPv4 flows.
    pub flows_v4: u32,
    /// Most translated IPv6 flows.
    pub flows_v6: u32,
    /// Most flows from the outside.
    pub inbound: u32,
    /// Most flows of the host's stack.
    pub stack: u32,
    /// Most flows of each owner.
    pub quotas: FlowQuotas,
    /// Entries of the flow cache for each CPU: a power of two, or 0 for none.
    pub cache: u32,
}

/// The ports at which the programs open flows and look for them. [`PortSlice::NONE`] comes after
/// the last slice.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FlowPorts {
    /// Ports of new flows.
    pub slices: [PortSlice; PortSlice::MAX],
    /// Ports that flows of earlier programs may have.
    pub earlier: [PortSlice; PortSlice::MAX],
}

impl FlowPorts {
    /// These ports, where no earlier programs had others.
    #[must_use]
    pub fn only(slices: [PortSlice; PortSlice::MAX]) -> Self {
        Self {
            slices,
            earlier: NO_SLICES,
        }
    }

    /// The ports of new flows.
    #[must_use]
    pub fn current(&self) -> Ports {
        Ports::from_words(self.slices.map(PortSlice::to_word))
    }

    /// All ports at which flows are looked for.
    #[must_use]
    pub fn known(&self) -> Ports {
        let all = PortList::of_slices(&self.slices).union(&PortList::of_slices(&self.earlier));
        Ports::from_words(cover(&all).map(PortSlice::to_word))
    }
}

impl From<&DatapathSettings> for Limits {
    fn from(settings: &DatapathSettings) -> Self {
        Self {
            ports: settings.ports.current().count(),
            quotas: settings.quotas,
        }
    }
}

impl DatapathSettings {
    /// The settings with this mark, and defaults else.
    #[must_use]
    pub fn with_mark(mark: MarkLayout) -> Self {
        Self {
            mark,
            ..Self::default()
        }
    }

    /// True if a family is masqueraded.
    #[must_use]
    pub fn masquerades(&self, family: Family) -> bool {
        match family {
            Family::V4 => self.masquerade_v4,
            Family::V6 => self.masquerade_v6,
        }
    }

    /// Entries of each CPU's flow cache, which is unused if all pod traffic takes the stack.
    fn cache(&self) -> u32 {
        match self.path {
            DatapathMode::Stack => 0,
            DatapathMode::Direct | DatapathMode::ServiceNat => self.cache,
        }
    }

    /// The capacity of a map, where it is a setting.
    pub(super) fn capacity(&self, name: &str) -> Option<u32> {
        self.capacities()
            .into_iter()
            .find_map(|(map, capacity)| (map == name).then_some(capacity))
    }

    /// The capacities that are settings, by map.
    fn capacities(&self) -> Vec<(&'static str, u32)> {
        vec![
            (map::FLOWS_V4, self.flows_v4),
            (map::MOVED_V4, self.flows_v4),
            (map::FLOWS_V6, self.flows_v6),
            (map::MOVED_V6, self.flows_v6),
            (map::INBOUND, self.inbound),
            (map::STACK, self.stack),
            // A map has an entry at least.
            (map::CACHE, self.cache().saturating_mul(cpus()).max(1)),
        ]
    }

    /// The settings as globals of the object: the symbol and its words.
    fn globals(&self) -> Vec<(&'static str, Vec<u32>)> {
        let (mark, quotas) = (self.mark, self.quotas);
        let ports = self.ports.current();
        vec![
            ("MARK_SHIFT", vec![mark.shift()]),
            ("MARK_MASK", vec![mark.mask()]),
            ("MARK_EXCEPTION", vec![mark.exception()]),
            ("MARK_DONE", vec![mark.done()]),
            ("MASQUERADE_V4", vec![self.masquerade_v4.into()]),
            ("MASQUERADE_V6", vec![self.masquerade_v6.into()]),
            ("METADATA_POLICY", vec![self.metadata as u32]),
            (
                "PATH_STACK",
                vec![(self.path == DatapathMode::Stack).into()],
            ),
            (
                "SERVICE_NAT",
                vec![(self.path == DatapathMode::ServiceNat).into()],
            ),
            ("FLOWS_PER_ENDPOINT", vec![quotas.endpoint]),
            ("INBOUND_PER_ENDPOINT", vec![quotas.inbound]),
            ("FLOWS_OF_HOST", vec![quotas.host]),
            ("CACHE_ENTRIES", vec![self.cache()]),
            ("OPEN_SLICES", ports.open().to_words().to_vec()),
            ("RESERVE_SLICES", ports.reserve().to_words().to_vec()),
            ("KNOWN_SLICES", self.ports.known().to_words().to_vec()),
        ]
    }
}

/// Number of CPUs that the node may have. If it is unknown, only the first one has a flow cache.
fn cpus() -> u32 {
    let cpus = aya::util::nr_cpus().ok();
    cpus.and_then(|cpus| u32::try_from(cpus).ok()).unwrap_or(1)
}

impl Default for DatapathSettings {
    fn default() -> Self {
        let none = PortSlice::NONE;
        Self {
            mark: MarkLayout::DEFAULT,
            masquerade_v4: true,
            masquerade_v6: false,
            metadata: MetadataPolicy::default(),
            path: DatapathMode::default(),
            ports: FlowPorts::only([PortSlice::DEFAULT, none, none, none]),
            flows_v4: abi::DEFAULT_FLOWS_V4,
            flows_v6: abi::DEFAULT_FLOWS_V6,
            inbound: abi::DEFAULT_INBOUND,
            stack: abi::DEFAULT_STACK,
            quotas: FlowQuotas::DEFAULT,
            cache: abi::DEFAULT_CACHE,
        }
    }
}

/// Settings as the programs take them. A value of its own, because a loader borrows it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Globals {
    words: Vec<(&'static str, Vec<u32>)>,
    capacities: Vec<(&'static str, u32)>,
}

impl Globals {
    /// The globals for these settings on a kernel with so many jiffies in a second (see
    /// [`super::jiffies_per_second`]).
    #[must_use]
    pub fn new(settings: &DatapathSettings, jiffies_per_second: u32) -> Self {
        let mut words = settings.globals();
        words.push(("JIFFIES_PER_SECOND", vec![jiffies_per_second]));
        Self {
            words,
            capacities: settings.capacities(),
        }
    }

    /// Puts the globals for the programs and the capacities of the maps into a loader.
    pub fn put<'a>(&'a self, loader: &mut EbpfLoader<'a>) {
        for (symbol, words) in &self.words {
            loader.override_global(symbol, words.as_slice(), true);
        }
        for (name, capacity) in &self.capacities {
            loader.map_max_entries(name, *capacity);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nothing_is_cached_where_all_goes_through_the_stack() {
        let by = |path| {
            let settings = DatapathSettings {
                path,
                ..DatapathSettings::default()
            };
            let globals = Globals::new(&settings, 1000);
            let mut globals = globals.words.into_iter();
            let entries = globals.find(|(symbol, _)| *symbol == "CACHE_ENTRIES");
            let entries = entries.map(|(_, words)| words);
            (entries, settings.capacity(map::CACHE) > Some(1))
        };
        assert_eq!(by(DatapathMode::Stack), (Some(vec![0]), false));
        assert_eq!(
            by(DatapathMode::Direct),
            (Some(vec![abi::DEFAULT_CACHE]), true)
        );
    }

    #[test]
    fn a_flow_and_its_moved_entry_have_the_same_room() {
        let settings = DatapathSettings {
            flows_v4: 1,
            flows_v6: 2,
            inbound: 3,
            ..DatapathSettings::default()
        };
        let of = |name| settings.capacity(name);
        assert_eq!(of(map::FLOWS_V4), Some(1));
        assert_eq!(of(map::MOVED_V4), Some(1));
        assert_eq!(of(map::FLOWS_V6), Some(2));
        assert_eq!(of(map::MOVED_V6), Some(2));
        assert_eq!(of(map::INBOUND), Some(3));
        assert_eq!(of(map::ADDRESSES), None);
    }
}
