//! Settings of plain pools.

use std::collections::BTreeMap;

use ipnet::{Ipv4Net, Ipv6Net};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// Plain pools.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields, rename_all = "kebab-case")]
pub struct PoolsSection {
    /// Give nodes blocks of each CiliumPodIPPool with CIDRs: true or false.
    pub plain: bool,
    /// Pools to create where there are none of these names, each as the spec of a CiliumPodIPPool:
    /// default: {ipv4: {cidrs: [172.16.0.0/16], maskSize: 24}}. An existing pool stays unchanged.
    pub create: BTreeMap<String, NewPool>,
    /// Give each Node the addresses that it has or can have as extended resources,
    /// towpath.dev/ipv4-POOL and towpath.dev/ipv6-POOL: true or false. It needs the right to patch
    /// nodes/status.
    pub advertise: bool,
    /// Turn spec.ipam.podCIDRs of each CiliumNode into blocks of the pool default, as for nodes that
    /// leave Cilium's mode cluster-pool: true or false.
    pub migrate_pod_cidrs: bool,
}

impl Default for PoolsSection {
    fn default() -> Self {
        Self {
            plain: true,
            create: BTreeMap::new(),
            advertise: false,
            migrate_pod_cidrs: false,
        }
    }
}

/// The spec of a pool, in the form of the resource.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, rename_all = "camelCase")]
#[schemars(inline)]
pub struct NewPool {
    /// IPv4 addresses.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ipv4: Option<NewSpace<Ipv4Net, 32>>,
    /// IPv6 addresses.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ipv6: Option<NewSpace<Ipv6Net, 128>>,
    /// Give the first address of each block.
    #[serde(default, rename = "allowFirstIP", skip_serializing_if = "is_false")]
    pub allow_first_ip: bool,
    /// Give the last address of each block.
    #[serde(default, rename = "allowLastIP", skip_serializing_if = "is_false")]
    pub allow_last_ip: bool,
}

/// The addresses of a family.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, rename_all = "camelCase")]
#[schemars(inline, bound = "")]
pub struct NewSpace<Net, const LONGEST: u32> {
    /// CIDRs.
    #[schemars(with = "Vec<String>")]
    pub cidrs: Vec<Net>,
    /// The length of a block's prefix.
    pub mask_size: super::Count<1, LONGEST>,
}

/// The form that `skip_serializing_if` takes.
#[expect(
    clippy::trivially_copy_pass_by_ref,
    reason = "the derived code calls it with a reference"
)]
fn is_false(flag: &bool) -> bool {
    !*flag
}
