//! Address management as values: blocks, pools, leases, cooldown, demand. No I/O, no clock, no
//! Kubernetes types.
//!
//! * [`Allocator`] allocates addresses to owners. Its inputs are the node's blocks
//!   ([`Allocator::observe`]), the ready ENIs ([`Allocator::set_ready`]) and the time. It answers
//!   requests, and computes the node's demand and its surplus.
//! * [`Manager`] is an allocator for one [`Kind`] of resource. The kind reads blocks, writes
//!   demand, and adds details to an allocated address. [`node::PodsOnEnis`] is the kind of pods,
//!   and [`AgentAddresses`] the kind of the agent's own addresses.
//! * [`cluster`] is the other side of plain pools: blocks for the nodes of a whole cluster.
//!
//! Invariants: no address has two owners, no address leaks, and no address is allocated before the
//! start is over. `docs/guide/ipam.md` describes the behaviour for users.

mod agent;
mod allocator;
mod announcement;
mod block;
pub mod cluster;
mod counts;
mod demand;
mod error;
mod family;
mod lease;
mod manager;
pub mod node;
mod owner;
mod pod;
mod request;
mod settings;
mod state;
mod time;

pub use self::agent::{AgentAddresses, AgentPools};
pub use self::allocator::{
    Advanced, Allocator, Conflict, Dropped, Rebalanced, Restored, SeenEndpoint, WhyDropped,
};
pub use self::announcement::{AnnouncedBlock, Announcement, Changes, Problem};
pub use self::block::{Barred, BlockView, Draining, EdgeRules, Life, Source, WINDOW};
pub use self::counts::Counts;
pub use self::demand::{Demand, Formula, ParsePreAllocationError, PreAllocation};
pub use self::error::{AllocateError, NothingHeld};
pub use self::family::Family;
pub use self::lease::{Claim, Cooling, Lease};
pub use self::manager::{Allocation, KeptBlocks, Kind, Manager, Wanted};
pub use self::owner::Owner;
pub use self::pod::Pod;
pub use self::request::{Request, Want};
pub use self::settings::{Barrier, DEFAULT_POOL, Settings};
pub use self::state::{State, StateError};
pub use self::time::Time;
