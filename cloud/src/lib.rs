//! A cloud's network interfaces as values. No I/O, no clock, no Kubernetes types.
//!
//! * [`inventory`]: the ENIs that EC2 has, as far as reads and answers show.
//! * [`want`]: the addresses that a node wants. [`place`], [`subnet`], [`groups`]: where they can
//!   come from.
//! * [`pool`]: the pools that ENIs are bound to.
//! * [`node`]: the next call for a node, and what is learned from its answer.
//! * [`budget`]: how many calls are made, and which of those that wait is next.
//! * [`query`]: reads of EC2.
//! * [`sweep`]: ENIs that nothing holds any more.
//!
//! State is EC2's alone. All that this library remembers can be lost at any moment, and the next
//! operator adopts, finishes or deletes what it finds.

mod action;
mod block;
pub mod budget;
mod eni;
mod error;
mod forecast;
pub mod groups;
mod id;
mod instance;
pub mod inventory;
mod limits;
pub mod node;
mod pause;
pub mod place;
pub mod pool;
pub mod query;
pub mod subnet;
pub mod sweep;
pub mod tags;
#[cfg(test)]
mod test_fixture;
mod token;
mod vpc;
pub mod want;

pub use self::action::Action;
pub use self::block::{Kind, PREFIX_SIZE, PREFIX_V4, PREFIX_V6, blocks};
pub use self::eni::{AttachState, Attachment, Eni, InterfaceKind};
pub use self::error::{Class, Failure};
pub use self::forecast::Forecast;
pub use self::id::{AttachmentId, EniId, GroupId, InstanceId, RouteTableId, SubnetId, VpcId};
pub use self::instance::{Instance, InstanceState};
pub use self::inventory::Inventory;
pub use self::limits::{LEARNED_FOR, Learned, Limits, LimitsError, TypeInfo};
pub use self::pause::{Pause, Pauses};
pub use self::tags::Tags;
pub use self::token::Seed;
pub use self::vpc::Vpc;
