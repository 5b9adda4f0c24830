//! The life of translated flows after their packets: what user space does for them while the agent
//! runs.
//!
//! The programs create flows and keep them fresh. User space finds idle ones and passes them to the
//! reaper program, which checks them again under the flow's lock. User space never deletes a flow
//! by itself. While the agent is down, all flows stay.

mod blocks;
mod census;
mod crowd;
mod handle;
mod judge;
mod lifetimes;
mod list;
#[cfg(any(test, feature = "model"))]
pub mod model;
mod moved;
mod pace;
mod pods;
mod ports;
mod pressed;
mod pressure;
mod protocols;
mod quota;
mod refusals;
mod report;
mod resting;
mod runner;
mod shortages;
mod stale;
mod stats;
mod sweep;
mod tables;
mod tracker;

pub use census::{Census, Used};
pub use handle::{Answer, Handle, Look, Lookups, Switch};
pub use lifetimes::Lifetimes;
pub use pace::{EARLY, LONGEST, POLL, PRESSED, SHORTEST};
pub use ports::{Renewed, renew};
pub use pressed::Pressed;
pub use pressure::pressure;
pub use protocols::{name as protocol_name, number as protocol_number};
pub use quota::Limits;
pub use refusals::{LATELY, REFUSALS, Refusals, Refused};
pub use report::{Report, Top};
pub use resting::{Mark, Resting};
pub use runner::{Running, start};
pub use stale::{Lasting, Removed};
pub use stats::status;
pub use sweep::{FlowPolicy, Surroundings, Sweep, Sweeper};
pub use tables::{Capacities, NatCounters, NoteKind, Tables};
pub use tracker::{StackLifetimes, Tracker};
