//! Blocks of nodes out of plain pools, for a whole cluster.
//!
//! * [`Ledger`] has the pools, and each node's blocks in `allocated`. It grants free blocks.
//! * [`Takeover`] decides when a new leader may start to grant.
//!
//! A block is taken while any node has it, under any pool, and while a write that grants it can
//! still reach the API server. The ledger never takes a block from a node: its agent releases it,
//! or the node is removed. So no address is lost when a pool shrinks, is deleted or comes back.

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
