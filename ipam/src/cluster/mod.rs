//! Blocks of nodes out of plain pools, for a whole cluster.
//!
//! * [`Ledger`] knows the pools, and the blocks that each node has in its `allocated`. It grants free
//!   ones.
//! * [`Takeover`] says when a new leader may begin to grant.
//!
//! A block is taken while any node has it, whatever pool it is listed under, and while a write that
//! grants it can still reach the API server. The ledger never takes a block from a node: its agent
//! gives it back, or the node goes. So nothing is lost when a pool shrinks, is deleted or comes back.

mod demand;
mod held;
mod judge;
mod ledger;
mod pool;
mod search;
mod takeover;
mod view;

pub use self::demand::{Blocks, Grant, Needed, Requested, Shortfall};
pub use self::ledger::Ledger;
pub use self::pool::{PoolSpec, Refusal, Space};
pub use self::takeover::Takeover;
pub use self::view::{PoolView, SpaceView};
