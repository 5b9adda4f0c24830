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
mod demand;
mod lease;
mod manager;
pub mod node;
mod settings;
mod state;
mod value;

pub use self::agent::{AgentAddresses, AgentPools};
pub use self::allocator::{
    Advanced, Allocator, Conflict, Dropped, Rebalanced, Restored, SeenEndpoint, WhyDropped,
};
pub use self::announcement::{AnnouncedBlock, Announcement, Changes, Problem};
pub use self::block::{Barred, BlockView, Draining, EdgeRules, Life, Source, WINDOW};
pub use self::demand::{Demand, Formula, ParsePreAllocationError, PreAllocation};
pub use self::lease::{Claim, Cooling, Lease};
pub use self::manager::{Allocation, KeptBlocks, Kind, Manager, Wanted};
pub use self::settings::{Barrier, DEFAULT_POOL, Settings};
pub use self::state::{State, StateError};
pub use self::value::counts::Counts;
pub use self::value::error::{AllocateError, NothingHeld};
pub use self::value::family::Family;
pub use self::value::owner::Owner;
pub use self::value::pod::Pod;
pub use self::value::request::{Request, Want};
pub use self::value::time::Time;
