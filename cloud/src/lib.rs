//! A cloud's network interfaces as values. No I/O, no clock, no Kubernetes types.
//!
//! * [`inventory`]: the ENIs that EC2 has, as far as reads and answers show.
//! * [`want`]: the addresses that a node wants. [`place`], [`object::subnet`], [`groups`]: where
//!   they can come from.
//! * [`elastic`]: Elastic IP addresses, of which a node can have one.
//! * [`pool`]: the pools that ENIs are bound to.
//! * [`node`]: the next call for a node, and what is learned from its answer.
//! * [`call::budget`]: how many calls are made, and which of those that wait is next.
//! * [`call::query`]: reads of EC2.
//! * [`sweep`]: ENIs that nothing holds any more.
//!
//! State is EC2's alone. All that this library remembers can be lost at any moment, and the next
//! operator adopts, finishes or deletes what it finds.

pub mod call;
pub mod elastic;
pub mod groups;
pub mod inventory;
pub mod node;
pub mod object;
pub mod place;
pub mod pool;
pub mod sweep;
#[cfg(test)]
mod test_fixture;
pub mod want;

pub use self::call::action::Action;
pub use self::call::error::{Class, Failure};
pub use self::call::limits::{LEARNED_FOR, Learned, Limits, LimitsError, TypeInfo};
pub use self::call::pause::{Pause, Pauses};
pub use self::call::token::Seed;
pub use self::inventory::Inventory;
pub use self::object::block::{Kind, PREFIX_SIZE, PREFIX_V4, PREFIX_V6, blocks};
pub use self::object::eni::{AttachState, Attachment, Eni, InterfaceKind, Placement};
pub use self::object::id::{
    AllocationId, AttachmentId, EniId, GroupId, InstanceId, RouteTableId, SubnetId, VpcId,
};
pub use self::object::instance::{Instance, InstanceState};
pub use self::object::tags::Tags;
pub use self::object::vpc::Vpc;
pub use self::place::forecast::Forecast;
