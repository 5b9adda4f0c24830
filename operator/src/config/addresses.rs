//! Settings of nodes' addresses.

use kubernetes::operation::allocated::Compat;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::values::{Count, Span};

/// Addresses of nodes.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields, rename_all = "kebab-case")]
pub struct AddressesSection {
    /// Spare addresses of a node whose CiliumNode has no pre-allocate, 1 to 4096.
    pub pre_allocate: Count<1, 4096>,
    /// Assign more at once to nodes where pods wait for an address: true or false.
    pub surge: bool,
    /// When spec.ipam.pools.allocated is written: until-agent (until the agent requests addresses
    /// there, as from Cilium 1.20 on), always, or never.
    pub allocated: Allocated,
    /// Release blocks that nodes do not claim, and delete ENIs that have none left: off or on. With
    /// allocated: always, nothing is released.
    pub release: Release,
    /// Time after which a block that its node does not claim is taken back, 1s to 1h.
    pub release_delay: Span<1, 3600>,
}

impl Default for AddressesSection {
    fn default() -> Self {
        Self {
            pre_allocate: Count::of(8),
            surge: true,
            allocated: Allocated::default(),
            release: Release::default(),
            release_delay: Span::of(180),
        }
    }
}

/// See [`AddressesSection::release`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
#[schemars(inline)]
pub enum Release {
    /// Nodes keep what they have.
    #[default]
    Off,
    /// Blocks and ENIs that are not needed go back.
    On,
}

/// See [`AddressesSection::allocated`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
#[schemars(inline)]
pub enum Allocated {
    /// Until the agent owns the field.
    #[default]
    UntilAgent,
    /// At each change.
    Always,
    /// Never.
    Never,
}

impl From<Allocated> for Compat {
    fn from(allocated: Allocated) -> Self {
        match allocated {
            Allocated::UntilAgent => Self::UntilAgent,
            Allocated::Always => Self::Always,
            Allocated::Never => Self::Never,
        }
    }
}
