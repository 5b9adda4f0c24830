//! Address management as values: blocks, pools, leases, cooldown, demand. No I/O, no clock, no
//! Kubernetes types.
//!
//! * [`Allocator`] gives addresses to owners. It is told what the node has
//!   ([`Allocator::observe`]), what is ready ([`Allocator::set_ready`]) and what time it is; it
//!   answers requests, and says what the node wants and what it can spare.
//! * [`Manager`] is an allocator for one [`Kind`] of resource: where blocks are read and demand is
//!   written, and what an answer carries beside the address. [`node::PodsOnEnis`] is the kind of
//!   pods, and [`AgentAddresses`] the kind of the agent's own addresses.
//! * [`cluster`] is the other side of plain pools: blocks for the nodes of a whole cluster.
//!
//! Invariants: never two owners of one address, an address that nobody has and nobody gets, an
//! address that is given before the start is over. `docs/guide/ipam.md` tells users what they meet.

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
