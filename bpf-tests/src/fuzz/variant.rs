//! The settings that a run goes through.

use anyhow::{Context as _, Result};
use datapath_common::abi::FlowQuotas;
use datapath_common::config::PortSlice;
use datapath_common::mark::MarkLayout;
use datapath_common::masquerade::MetadataPolicy;
use flows::CompatLookups;
use loader::bpf::{DatapathMode, DatapathSettings, FlowPorts};
use loader::intent::masquerade::NO_SLICES;

use crate::model::world::{Capacities, Marks, Metadata, Quotas, Settings};

/// Settings that are fixed when the programs are loaded.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Variant {
    masquerade_v6: bool,
    metadata: MetadataPolicy,
    path: DatapathMode,
    stack: u32,
    ports: &'static [(u16, u16)],
    capacity: u32,
    inbound: u32,
    quotas: FlowQuotas,
    mask: u32,
    /// True if flow entries have been counted since the maps were made.
    pub(super) is_counted: bool,
}

/// Quotas that no run reaches.
const AMPLE: FlowQuotas = FlowQuotas {
    endpoint: 1024,
    inbound: 1024,
    host: 1024,
};

impl Variant {
    /// Variants of a run.
    pub const ALL: [Self; 5] = [
        Self {
            masquerade_v6: true,
            metadata: MetadataPolicy::Primary,
            path: DatapathMode::Direct,
            stack: 8,
            ports: &[(40960, 65535)],
            capacity: 1024,
            inbound: 1024,
            quotas: AMPLE,
            mask: MarkLayout::DEFAULT.mask(),
            is_counted: true,
        },
        Self {
            masquerade_v6: false,
            metadata: MetadataPolicy::Own,
            path: DatapathMode::Direct,
            stack: 8,
            ports: &[(49152, 49663), (60416, 61439)],
            capacity: 16,
            inbound: 8,
            quotas: FlowQuotas {
                endpoint: 10,
                inbound: 3,
                ..AMPLE
            },
            mask: 0x00ff_0000,
            is_counted: false,
        },
        Self {
            masquerade_v6: true,
            metadata: MetadataPolicy::Block,
            path: DatapathMode::Direct,
            stack: 8,
            ports: &[(1024, 1535), (40960, 41471), (65024, 65535)],
            capacity: 1024,
            inbound: 1024,
            quotas: FlowQuotas {
                endpoint: 6,
                host: 2,
                ..AMPLE
            },
            mask: u32::MAX,
            is_counted: true,
        },
        Self {
            masquerade_v6: true,
            metadata: MetadataPolicy::Primary,
            path: DatapathMode::Stack,
            stack: 8,
            ports: &[(40960, 65535)],
            capacity: 1024,
            inbound: 1024,
            quotas: AMPLE,
            mask: MarkLayout::DEFAULT.mask(),
            is_counted: true,
        },
        Self {
            masquerade_v6: true,
            metadata: MetadataPolicy::Stack,
            path: DatapathMode::ServiceNat,
            stack: 24,
            ports: &[(40960, 65535)],
            capacity: 1024,
            inbound: 1024,
            quotas: AMPLE,
            mask: MarkLayout::DEFAULT.mask(),
            is_counted: true,
        },
    ];

    /// A variant with so little capacity that flows do not fit.
    pub const TINY: Self = Self {
        masquerade_v6: true,
        metadata: MetadataPolicy::Primary,
        path: DatapathMode::Direct,
        stack: 8,
        ports: &[(40960, 41471)],
        capacity: 8,
        inbound: 8,
        quotas: FlowQuotas {
            inbound: 3,
            ..AMPLE
        },
        mask: MarkLayout::DEFAULT.mask(),
        is_counted: true,
    };

    /// A variant with more capacity for flows than ports.
    pub const FEW_PORTS: Self = Self {
        capacity: 1024,
        ..Self::TINY
    };

    fn layout(&self) -> Result<MarkLayout> {
        MarkLayout::new(self.mask).ok().context("a mask")
    }

    /// The settings for loading the programs.
    ///
    /// # Errors
    /// When a setting is invalid.
    pub fn settings(&self) -> Result<DatapathSettings> {
        let mut slices = NO_SLICES;
        for (slice, (first, last)) in slices.iter_mut().zip(self.ports) {
            *slice = PortSlice::new(*first, *last).context("a port slice")?;
        }
        Ok(DatapathSettings {
            cache: 64,
            mark: self.layout()?,
            masquerade_v6: self.masquerade_v6,
            metadata: self.metadata,
            path: self.path,
            stack: self.stack,
            ports: FlowPorts::only(slices),
            flows_v4: self.capacity,
            flows_v6: self.capacity,
            inbound: self.inbound,
            quotas: self.quotas,
            ..DatapathSettings::default()
        })
    }

    /// The settings in the model's form.
    pub(super) fn model(&self) -> Result<Settings> {
        let layout = self.layout()?;
        Ok(Settings {
            marks: Marks {
                mask: layout.mask(),
                shift: layout.shift(),
                exception: layout.exception(),
                done: layout.done(),
            },
            masquerade: [true, self.masquerade_v6],
            metadata: match self.metadata {
                MetadataPolicy::Primary => Metadata::Primary,
                MetadataPolicy::Own => Metadata::Own,
                MetadataPolicy::Block => Metadata::Block,
                MetadataPolicy::Stack => Metadata::Stack,
            },
            quotas: Quotas {
                endpoint: self.quotas.endpoint.into(),
                inbound: self.quotas.inbound.into(),
                host: self.quotas.host.into(),
            },
            path_stack: self.path == DatapathMode::Stack,
            service_nat: self.path == DatapathMode::ServiceNat,
            capacities: Capacities {
                flows: self.capacity as usize,
                inbound: self.inbound as usize,
                stack: self.stack as usize,
            },
            ports: self.ports.to_vec(),
            lookups: CompatLookups::NONE,
        })
    }
}
