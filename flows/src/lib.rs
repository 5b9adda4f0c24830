//! The life of translated flows after their packets: what user space does for them while the agent
//! runs.
//!
//! The programs create flows and keep them fresh. User space finds idle ones and passes them to the
//! reaper program, which checks them again under the flow's lock. User space never deletes a flow
//! by itself. While the agent is down, all flows stay.

mod census;
mod lifetimes;
#[cfg(any(test, feature = "model"))]
pub mod model;
mod ports;
mod room;
mod sweep;
mod tables;
mod thread;
mod tracker;
mod view;

pub use census::{Census, Used};
pub use lifetimes::Lifetimes;
pub use ports::{Renewed, renew};
pub use room::pressed::Pressed;
pub use room::pressure::pressure;
pub use room::quota::Limits;
pub use sweep::outcome::{Outdated, QuotaUse, Reaped, Sweep};
pub use sweep::resting::{Mark, Resting};
pub use sweep::stale::{Lasting, Removed};
pub use sweep::{FlowPolicy, SweepInput, Sweeper};
pub use tables::{Capacities, NatCounters, NoteKind, Tables};
pub use thread::handle::{Answer, CompatLookups, Handle, Look, LookupControl};
pub use thread::pace::{EARLY, LONGEST, POLL, PRESSED, SHORTEST};
pub use thread::report::{Report, Top};
pub use thread::runner::{Running, start};
pub use tracker::{StackLifetimes, Tracker};
pub use view::protocols::{name as protocol_name, number as protocol_number};
pub use view::refusals::{LATELY, REFUSALS, Refusals, Refused};
pub use view::stats::status;
