//! Variants of the programs on one node, loaded with different settings.

use anyhow::Result;
use datapath_common::abi::FlowQuotas;
use loader::bpf::{DatapathMode, DatapathSettings};
use testkit::testrun::{Programs, scene};

/// Capacity of every table of flows, enough for every measurement.
pub(super) const ROOM: u32 = 262_144;

/// One configuration of the loaded programs.
pub(super) struct Variant {
    /// Suffix for names of the variant's rows; empty for the default.
    pub(super) suffix: &'static str,
    /// True if flows through the stack are looked up.
    pub(super) notes_stack: bool,
    /// True if the flow cache is on, as it is by default.
    pub(super) is_cached: bool,
    pub(super) programs: Programs,
}

/// All variants.
pub(super) struct Variants(pub(super) Vec<Variant>);

/// Differences of the variants: suffix, path, and true with a cache.
const KINDS: [(&str, DatapathMode, bool); 3] = [
    ("", DatapathMode::Direct, true),
    (", service NAT", DatapathMode::ServiceNat, true),
    (", no cache", DatapathMode::Direct, false),
];

/// The settings of the node: both families are masqueraded, and 100,000 flows of one pod fit.
pub(super) fn settings(path: DatapathMode) -> DatapathSettings {
    DatapathSettings {
        masquerade_v6: true,
        path,
        flows_v4: ROOM,
        flows_v6: ROOM,
        inbound: ROOM,
        stack: ROOM,
        quotas: FlowQuotas {
            endpoint: ROOM,
            inbound: ROOM,
            ..FlowQuotas::DEFAULT
        },
        ..DatapathSettings::default()
    }
}

impl Variants {
    /// Loads all variants.
    pub(super) fn load() -> Result<Self> {
        let variants = KINDS.into_iter().map(|(suffix, path, is_cached)| {
            let mut settings = settings(path);
            if !is_cached {
                settings.cache = 0;
            }
            let mut programs = Programs::load_with(&settings)?;
            scene::fill(&mut programs)?;
            scene::know_gateways(&programs)?;
            programs.count_notes()?;
            Ok(Variant {
                suffix,
                notes_stack: path == DatapathMode::ServiceNat,
                is_cached,
                programs,
            })
        });
        Ok(Self(variants.collect::<Result<_>>()?))
    }

    /// Variants with a cache, for packets that the cache does not handle.
    pub(super) fn usual(&mut self) -> impl Iterator<Item = &mut Variant> {
        self.0.iter_mut().filter(|variant| variant.is_cached)
    }

    /// Empties the tables of flows.
    pub(super) fn forget_flows(&self) -> Result<()> {
        self.0
            .iter()
            .try_for_each(|variant| variant.programs.forget_flows())
    }
}
