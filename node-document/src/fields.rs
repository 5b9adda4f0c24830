//! The fields of a `CiliumNode` that are read, by their exact names.
//!
//! Casing is mixed in the resource itself: kebab-case, except for names of Kubernetes. Fields that
//! are not listed here are ignored: the resource has many more, and gets new ones. A missing or
//! null field is the zero value, as for Cilium's own reader. ENI number 0 is therefore often left
//! out.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::marker::PhantomData;
use std::ops::Deref;

use serde::de::value::MapAccessDeserializer;
use serde::de::{Error, MapAccess, Visitor};
use serde::{Deserialize, Deserializer};

use document::nullable;
use loader::intent::Problem;

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
    #[serde(deserialize_with = "object")]
    pub(super) spec: Spec,
    #[serde(deserialize_with = "object")]
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
    /// The instance that the object was made for.
    #[serde(rename = "instance-id", deserialize_with = "nullable")]
    pub(super) instance_id: String,
    #[serde(deserialize_with = "nullable")]
    pub(super) addresses: List<NodeAddress>,
    #[serde(deserialize_with = "object")]
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
    /// Number of spare addresses of the default pool that the node keeps.
    #[serde(rename = "pre-allocate", deserialize_with = "nullable")]
    pub(super) pre_allocate: i64,
    /// The flat pool that agents before Cilium 1.20 read: address to ENI.
    #[serde(deserialize_with = "nullable")]
    pub(super) pool: BTreeMap<String, PoolEntry>,
    /// The flat IPv6 pool, as `pool`.
    #[serde(rename = "ipv6-pool", deserialize_with = "nullable")]
    pub(super) ipv6_pool: BTreeMap<String, PoolEntry>,
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
    pub(super) allocated: List<AllocatedPool>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub(super) struct AllocatedPool {
    #[serde(deserialize_with = "nullable")]
    pub(super) pool: String,
    #[serde(deserialize_with = "nullable")]
    pub(super) cidrs: List<String>,
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
    #[serde(deserialize_with = "object")]
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
    /// Reason why the operator cannot meet the demand.
    #[serde(deserialize_with = "nullable")]
    pub(super) error: String,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub(super) struct EniStatus {
    #[serde(deserialize_with = "nullable")]
    pub(super) enis: Entries,
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
    pub(super) addresses: List<String>,
    #[serde(deserialize_with = "nullable")]
    pub(super) prefixes: List<String>,
    #[serde(deserialize_with = "nullable")]
    pub(super) ipv6_prefixes: List<String>,
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
    pub(super) cidrs: List<String>,
}

/// Reads an object only. A derived type would also read its fields from a list, and a list by
/// mistake would then be a node without ENIs.
fn object<'de, D, T>(deserializer: D) -> Result<T, D::Error>
where
    D: Deserializer<'de>,
    T: Deserialize<'de> + Default,
{
    Option::<Object<T>>::deserialize(deserializer)
        .map(|object| object.map_or_else(T::default, |Object(value)| value))
}

struct Object<T>(T);

impl<'de, T: Deserialize<'de>> Deserialize<'de> for Object<T> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_map(ObjectVisitor(PhantomData))
    }
}

struct ObjectVisitor<T>(PhantomData<T>);

impl<'de, T: Deserialize<'de>> Visitor<'de> for ObjectVisitor<T> {
    type Value = Object<T>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an object")
    }

    fn visit_map<A: MapAccess<'de>>(self, access: A) -> Result<Object<T>, A::Error> {
        T::deserialize(MapAccessDeserializer::new(access)).map(Object)
    }
}

/// The entries of the ENIs by key, in the document's order.
#[derive(Debug, Default)]
pub(super) struct Entries(pub(super) Vec<(String, Entry)>);

/// An entry of the ENIs.
#[derive(Debug, Default)]
pub(super) struct Entry {
    /// The readable part of the entry.
    pub(super) eni: Eni,
    /// Fields of a wrong type, by their paths within the entry.
    pub(super) wrong: Vec<Problem>,
    /// Elements of lists that have a wrong type, by their paths.
    pub(super) elements: Vec<Problem>,
}

impl Entry {
    /// An entry of which nothing can be read.
    pub(super) fn unreadable(path: String, message: String) -> Self {
        Self {
            wrong: vec![Problem { path, message }],
            ..Self::default()
        }
    }
}

impl<'de> Deserialize<'de> for Entries {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_map(EntriesVisitor)
    }
}

struct EntriesVisitor;

impl<'de> Visitor<'de> for EntriesVisitor {
    type Value = Entries;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a map")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut access: A) -> Result<Entries, A::Error> {
        let mut keys = BTreeSet::new();
        let mut entries = Vec::new();
        while let Some((key, eni)) = access.next_entry::<String, Eni>()? {
            if !keys.insert(key.clone()) {
                return Err(Error::custom(format_args!("the key {key:?} stands twice")));
            }
            let entry = Entry {
                eni,
                ..Entry::default()
            };
            entries.push((key, entry));
        }
        Ok(Entries(entries))
    }
}

/// A list whose elements may be null, which stands for the zero value.
#[derive(Debug)]
pub(super) struct List<T>(Vec<T>);

impl<T> Default for List<T> {
    fn default() -> Self {
        Self(Vec::new())
    }
}

impl<T> Deref for List<T> {
    type Target = [T];

    fn deref(&self) -> &[T] {
        &self.0
    }
}

impl<'de, T: Deserialize<'de> + Default> Deserialize<'de> for List<T> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let values = Vec::<Option<T>>::deserialize(deserializer)?.into_iter();
        Ok(Self(values.map(Option::unwrap_or_default).collect()))
    }
}
