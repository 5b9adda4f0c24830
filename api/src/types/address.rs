//! Addresses and pools: requested, held, listed.

use std::collections::BTreeMap;
use std::fmt;
use std::net::IpAddr;

use ipam::BlockView;
use ipam::Family;
use ipnet::{IpNet, Ipv4Net};
use serde::{Deserialize, Serialize};

use super::endpoint::{EniRef, addresses};
use crate::ids::Owner;
use crate::ids::PodRef;

/// The request for addresses without an endpoint: body of `PUT /v1/addresses`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(
    rename_all = "kebab-case",
    deny_unknown_fields,
    expecting = "an object with owner"
)]
pub struct AskAddresses {
    /// Owner of the addresses.
    pub owner: Owner,
    /// The requested addresses; without any, the agent chooses.
    #[serde(
        default,
        deserialize_with = "addresses",
        skip_serializing_if = "Option::is_none"
    )]
    pub addresses: Option<Vec<IpAddr>>,
    /// The families to allocate addresses of; without any, those of the configuration.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub families: Vec<Family>,
    /// The pools to allocate from; without one for a family, the default pool.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub pools: BTreeMap<Family, String>,
    /// Name of the CNI network: what a garbage collection is about.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub network: Option<String>,
    /// The pod, for logs, lists and errors.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pod: Option<PodRef>,
}

/// Addresses that an owner has now: the answer to `PUT /v1/addresses`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub struct Leased {
    /// Owner of the addresses.
    pub owner: Owner,
    /// The addresses.
    pub addresses: Vec<LeasedAddress>,
    /// Seconds until the addresses are taken back unless they are claimed; absent if they are
    /// claimed already.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub expires_seconds: Option<u64>,
}

/// An address that an owner has now.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub struct LeasedAddress {
    /// The address.
    pub address: IpAddr,
    /// The pool that it is of.
    pub pool: String,
    /// True if packets from the address keep their source when they leave the VPC.
    pub skip_masquerade: bool,
    /// The ENI that owns it; absent of an address of a plain pool.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub eni: Option<EniRef>,
    /// The VPC's router as that ENI sees it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub gateway: Option<IpAddr>,
    /// The subnet that the ENI is in.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub subnet: Option<Ipv4Net>,
    /// CIDRs of the VPC, the primary one first.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub vpc_cidrs: Vec<IpNet>,
}

/// Every address that is leased or in cooldown: the answer to `GET /v1/addresses`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub struct Addresses {
    /// The leases.
    pub leases: Vec<LeaseStatus>,
    /// Addresses in cooldown.
    pub cooling: Vec<CoolingStatus>,
}

/// One lease.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub struct LeaseStatus {
    /// The address.
    pub address: IpAddr,
    /// Owner of the address.
    pub owner: Owner,
    /// The pool that it was allocated from; absent if that is unknown.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pool: Option<String>,
    /// The pool whose masquerade policy applies to the address.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub policy: Option<String>,
    /// The block that it was allocated from.
    pub block: IpNet,
    /// Use of the address by its owner.
    pub state: LeaseState,
    /// True if its block is gone: no ENI delivers it any more.
    pub orphan: bool,
    /// Seconds until it is taken back, if it is not claimed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub expires_seconds: Option<u64>,
    /// The pod, if the request named it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pod: Option<PodRef>,
}

/// Use of a leased address by its owner.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum LeaseState {
    /// An endpoint of ours uses it.
    Endpoint,
    /// An endpoint of ours uses it, whose record is lost.
    Orphaned,
    /// Its owner has claimed it, and has no endpoint of ours.
    Claimed,
    /// It is not claimed yet.
    Unclaimed,
    /// The agent itself uses it (`agent-addresses.ingress`).
    Agent,
}

/// One address in cooldown after its release.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub struct CoolingStatus {
    /// The address.
    pub address: IpAddr,
    /// The pool that it was allocated from; absent if that is unknown.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pool: Option<String>,
    /// Seconds that the cooldown lasts at least.
    pub seconds: u64,
    /// True if flows of its last owner were found at the latest look.
    pub flows: bool,
    /// Conntrack entries that lead to the address again after they were removed, if there are any.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub entries: Option<String>,
}

/// The addresses of a pool and a family: a row of `GET /v1/pools`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub struct PoolStatus {
    /// The pool; absent for blocks whose pool is unknown.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pool: Option<String>,
    /// The family.
    pub family: Family,
    /// Leased addresses.
    pub in_use: u64,
    /// Leased addresses that are not claimed yet.
    pub unclaimed: u64,
    /// Addresses in cooldown.
    pub cooling: u64,
    /// Addresses that can be given now.
    pub free: u64,
    /// Pods that wait for an address, and owners of whom no pod is known.
    pub waiting: u64,
    /// Free addresses of blocks that give nothing: their ENI is not ready, or they drain.
    #[serde(default)]
    pub unavailable: u64,
    /// Addresses that are never given.
    pub excluded: u64,
    /// Total number of addresses that the node requests.
    pub requested: u64,
    /// The blocks.
    pub blocks: Vec<BlockView>,
}

/// Source of the node's addresses.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum AllocationMode {
    /// Each comes with its request (`ipam.enabled: false`).
    #[default]
    Disabled,
    /// From a node document on disk.
    File,
    /// From blocks of pools in a `CiliumNode` (`kubernetes.ipam.mode: multi-pool`).
    MultiPool,
    /// One by one from a `CiliumNode` (`kubernetes.ipam.mode: crd`).
    Crd,
}

impl fmt::Display for AllocationMode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Disabled => "disabled",
            Self::File => "file",
            Self::MultiPool => "multi-pool",
            Self::Crd => "crd",
        })
    }
}

/// State of allocation: part of `GET /v1/status`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub struct AllocationStatus {
    /// True if the agent allocates addresses (`ipam.enabled`).
    pub enabled: bool,
    /// Source of the node's addresses.
    #[serde(default)]
    pub mode: AllocationMode,
    /// Conditions that block the first allocation.
    pub waiting: Vec<String>,
    /// The pools, without their blocks.
    pub pools: Vec<PoolStatus>,
    /// Demand that has been unmet for two minutes.
    #[serde(default)]
    pub unanswered: Vec<UnansweredStatus>,
    /// Leases whose blocks are gone.
    pub orphans: Vec<LeaseStatus>,
    /// Inconsistencies.
    pub problems: Vec<String>,
}

/// Demand for a pool that exceeds what the node was given, and that is not met any further.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub struct UnansweredStatus {
    /// The pool.
    pub pool: String,
    /// The family.
    pub family: Family,
    /// Total number of requested addresses.
    pub wanted: u64,
    /// Number of addresses that the node was given.
    pub given: u64,
    /// Time without a new address, in seconds.
    pub seconds: u64,
}

impl fmt::Display for UnansweredStatus {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self {
            pool,
            family,
            wanted,
            given,
            seconds,
        } = self;
        write!(
            f,
            "pool {pool}, {family}: {wanted} addresses are requested and {given} are given, without \
             a change for {seconds} s: see the operator's log, what the instance type can have of \
             ENIs and addresses (and max-allocate), and whether subnets have free addresses"
        )
    }
}
