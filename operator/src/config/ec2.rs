//! Settings of EC2's side.

use std::collections::BTreeMap;

use cloud::Action;
use document::nullable;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::values::{Calls, Count, Share, Span};

/// EC2.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields, rename_all = "kebab-case")]
pub struct Ec2Section {
    /// Region; null: that of the environment, else of the instance's metadata.
    pub region: Option<String>,
    /// URL of the endpoint; null: the region's.
    pub endpoint: Option<String>,
    /// Time limit of a call, credentials included, 1s to 5s. A lease has to outlast it.
    pub call_timeout: Span<1, 5>,
    /// Objects in a page, 5 to 1000.
    pub page_size: Count<5, 1000>,
    /// Share of EC2's budgets that the operator uses, 0.01 to 1. Other users of the account
    /// have the rest.
    pub share: Share,
    /// Budgets by action, where the account has others than EC2's default ones:
    /// create: {burst: 100, per-second: 5}.
    pub rates: BTreeMap<Action, RateSetting>,
    /// Times between reads.
    #[serde(deserialize_with = "nullable")]
    pub reads: ReadsSection,
}

impl Default for Ec2Section {
    fn default() -> Self {
        Self {
            region: None,
            endpoint: None,
            call_timeout: Span::of(5),
            page_size: Count::of(500),
            share: Share::of(cloud::call::budget::SHARE),
            rates: BTreeMap::new(),
            reads: ReadsSection::default(),
        }
    }
}

/// The times between reads of what others can change.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields, rename_all = "kebab-case")]
pub struct ReadsSection {
    /// Longest time between reads of all ENIs, 1m to 1h. Small clusters are read more often.
    pub enis: Span<60, 3600>,
    /// Time between reads of subnets and security groups, 10s to 1h.
    pub subnets: Span<10, 3600>,
    /// Time between reads of VPCs and route tables, 10s to 1h.
    pub network: Span<10, 3600>,
}

impl Default for ReadsSection {
    fn default() -> Self {
        Self {
            enis: Span::of(300),
            subnets: Span::of(60),
            network: Span::of(300),
        }
    }
}

/// A budget.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
#[schemars(inline)]
pub struct RateSetting {
    /// Calls at once.
    pub burst: Calls,
    /// Calls a second that come back.
    pub per_second: Calls,
}
