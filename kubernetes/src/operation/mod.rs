//! An operator's side of a `CiliumNode`, as values: its reading of the object, and the patches that it
//! writes. No cloud, no clock, no client.
//!
//! * [`node`]: a `CiliumNode`, each field judged by itself.
//! * [`allocated`]: `spec.ipam.pool` and `spec.ipam.pools.allocated`, for agents of both generations.
//! * [`bindings`]: pools that are bound to ENIs.
//! * [`status`]: `status.eni.enis` in Cilium's form.
//! * [`report`]: why a node does not get what it wants.
//! * [`pending`]: pods that wait for an address.
//! * [`plain`]: blocks of plain pools in a node's spec.
//! * [`pool`]: a `CiliumPodIPPool` as a plain pool.
//! * [`readiness`]: the taint of nodes whose agent is not ready.
//! * [`patch`]: merge patches that leave foreign fields alone and write nothing that is there.

pub mod allocated;
pub mod bindings;
mod field;
pub mod node;
pub mod patch;
pub mod pending;
pub mod plain;
pub mod pool;
pub mod readiness;
pub mod report;
pub mod status;

pub use self::field::Problem;
