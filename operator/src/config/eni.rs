//! Settings of ENIs that are created.

use std::collections::BTreeMap;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// ENIs.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields, rename_all = "kebab-case")]
pub struct EniSection {
    /// Tags of every ENI that is created, beside the operator's own.
    pub tags: BTreeMap<String, String>,
    /// Assign prefixes (/28) in place of single addresses where the instance can have them: true or
    /// false.
    pub prefixes: bool,
    /// Security groups where a node's security-group-tags match none: none (no ENI is created), or
    /// primary (those of the primary ENI).
    pub groups_fallback: GroupsFallback,
}

/// The security groups where tags match none.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
#[schemars(inline)]
pub enum GroupsFallback {
    /// No ENI is created.
    #[default]
    None,
    /// Those of the primary ENI.
    Primary,
}
