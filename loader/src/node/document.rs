//! The fields of a `CiliumNode` that are read, by their exact names.
//!
//! Casing is mixed in the resource itself: kebab-case, except for what Kubernetes names. Fields
//! that are not listed here are let through: the resource has many more, and gets new ones. A
//! missing or null field is the zero value, as for Cilium's own reader; so ENI number 0 is often
//! left out.

use std::collections::BTreeMap;
use std::fmt;
use std::marker::PhantomData;

use serde::de::{Error, MapAccess, Visitor};
use serde::{Deserialize, Deserializer};

use crate::document::nullable;

/// A `CiliumNode` document.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub(super) struct CiliumNode {
    #[serde(rename = "apiVersion", deserialize_with = "nullable")]
    pub(super) api_version: String,
    #[serde(deserialize_with = "nullable")]
    pub(super) kind: String,
    #[serde(deserialize_with = "nullable")]
    pub(super) metadata: Metadata,
    #[serde(deserialize_with = "nullable")]
    pub(super) spec: Spec,
    #[serde(deserialize_with = "nullable")]
    pub(super) status: Status,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub(super) struct Metadata {
    #[serde(deserialize_with = "nullable")]
    pub(super) name: String,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub(super) struct Spec {
    #[serde(deserialize_with = "nullable")]
    pub(super) addresses: Vec<NodeAddress>,
    #[serde(deserialize_with = "nullable")]
    pub(super) eni: EniSpec,
    #[serde(deserialize_with = "nullable")]
    pub(super) ipam: IpamSpec,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub(super) struct NodeAddress {
    #[serde(rename = "type", deserialize_with = "nullable")]
    pub(super) kind: String,
    #[serde(deserialize_with = "nullable")]
    pub(super) ip: String,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default, rename_all = "kebab-case")]
pub(super) struct EniSpec {
    pub(super) first_interface_index: Option<i64>,
    #[serde(deserialize_with = "nullable")]
    pub(super) exclude_interface_tags: BTreeMap<String, String>,
    pub(super) use_primary_address: Option<bool>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub(super) struct IpamSpec {
    /// How many addresses of the default pool the node keeps in store.
    #[serde(rename = "pre-allocate", deserialize_with = "nullable")]
    pub(super) pre_allocate: i64,
    /// The flat pool that agents before Cilium 1.20 read: address to ENI.
    #[serde(deserialize_with = "nullable")]
    pub(super) pool: BTreeMap<String, PoolEntry>,
    #[serde(deserialize_with = "nullable")]
    pub(super) pools: IpamPools,
    /// Tags of the public address that the node is to have.
    #[serde(rename = "static-ip-tags", deserialize_with = "nullable")]
    pub(super) static_ip_tags: BTreeMap<String, String>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub(super) struct IpamPools {
    #[serde(deserialize_with = "nullable")]
    pub(super) allocated: Vec<AllocatedPool>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub(super) struct AllocatedPool {
    #[serde(deserialize_with = "nullable")]
    pub(super) pool: String,
    #[serde(deserialize_with = "nullable")]
    pub(super) cidrs: Vec<String>,
    #[serde(rename = "allowFirstIP", deserialize_with = "nullable")]
    pub(super) allow_first: bool,
    #[serde(rename = "allowLastIP", deserialize_with = "nullable")]
    pub(super) allow_last: bool,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub(super) struct PoolEntry {
    #[serde(deserialize_with = "nullable")]
    pub(super) resource: String,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub(super) struct Status {
    #[serde(deserialize_with = "nullable")]
    pub(super) eni: EniStatus,
    #[serde(deserialize_with = "nullable")]
    pub(super) ipam: IpamStatus,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default, rename_all = "kebab-case")]
pub(super) struct IpamStatus {
    /// The public address that the operator has chosen for `static-ip-tags`.
    #[serde(deserialize_with = "nullable")]
    pub(super) assigned_static_ip: String,
    #[serde(deserialize_with = "nullable")]
    pub(super) operator_status: OperatorStatus,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub(super) struct OperatorStatus {
    /// Why the operator cannot give what is asked for.
    #[serde(deserialize_with = "nullable")]
    pub(super) error: String,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub(super) struct EniStatus {
    #[serde(deserialize_with = "nullable")]
    pub(super) enis: Unique<Eni>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default, rename_all = "kebab-case")]
pub(super) struct Eni {
    #[serde(deserialize_with = "nullable")]
    pub(super) id: String,
    #[serde(deserialize_with = "nullable")]
    pub(super) ip: String,
    #[serde(deserialize_with = "nullable")]
    pub(super) public_ip: String,
    #[serde(deserialize_with = "nullable")]
    pub(super) mac: String,
    #[serde(deserialize_with = "nullable")]
    pub(super) number: i64,
    #[serde(deserialize_with = "nullable")]
    pub(super) subnet: Subnet,
    #[serde(deserialize_with = "nullable")]
    pub(super) vpc: Vpc,
    #[serde(deserialize_with = "nullable")]
    pub(super) addresses: Vec<String>,
    #[serde(deserialize_with = "nullable")]
    pub(super) prefixes: Vec<String>,
    #[serde(deserialize_with = "nullable")]
    pub(super) ipv6_prefixes: Vec<String>,
    #[serde(deserialize_with = "nullable")]
    pub(super) tags: BTreeMap<String, String>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub(super) struct Subnet {
    #[serde(deserialize_with = "nullable")]
    pub(super) id: String,
    #[serde(deserialize_with = "nullable")]
    pub(super) cidr: String,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default, rename_all = "kebab-case")]
pub(super) struct Vpc {
    #[serde(deserialize_with = "nullable")]
    pub(super) primary_cidr: String,
    #[serde(deserialize_with = "nullable")]
    pub(super) cidrs: Vec<String>,
}

/// A map in which no key stands twice: both readers would silently keep the last value.
#[derive(Debug)]
pub(super) struct Unique<T>(pub(super) BTreeMap<String, T>);

impl<T> Default for Unique<T> {
    fn default() -> Self {
        Self(BTreeMap::new())
    }
}

impl<'de, T: Deserialize<'de>> Deserialize<'de> for Unique<T> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_map(UniqueVisitor(PhantomData))
    }
}

struct UniqueVisitor<T>(PhantomData<T>);

impl<'de, T: Deserialize<'de>> Visitor<'de> for UniqueVisitor<T> {
    type Value = Unique<T>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a map")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut access: A) -> Result<Self::Value, A::Error> {
        let mut map = BTreeMap::new();
        while let Some((key, value)) = access.next_entry::<String, T>()? {
            if map.contains_key(&key) {
                return Err(Error::custom(format_args!(
                    "the key {key:?} stands twice; each is allowed once"
                )));
            }
            map.insert(key, value);
        }
        Ok(Unique(map))
    }
}
