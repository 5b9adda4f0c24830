//! A cloud's network interfaces as values. No I/O, no clock, no Kubernetes types.

mod action;
mod block;
pub mod budget;
mod eni;
mod error;
pub mod groups;
mod id;
pub mod inventory;
mod limits;
pub mod node;
mod pause;
pub mod place;
pub mod subnet;
pub mod sweep;
pub mod tags;
#[cfg(test)]
mod test_fixture;
mod token;
pub mod want;

pub use self::action::Action;
pub use self::block::{Kind, PREFIX_SIZE, PREFIX_V4, PREFIX_V6, blocks};
pub use self::eni::{AttachState, Attachment, Eni, InterfaceKind};
pub use self::error::{Class, Failure};
pub use self::id::{AttachmentId, EniId, GroupId, InstanceId, RouteTableId, SubnetId, VpcId};
pub use self::inventory::Inventory;
pub use self::limits::{LEARNED_FOR, Learned, Limits, LimitsError, TypeInfo};
pub use self::pause::{Pause, Pauses};
pub use self::tags::Tags;
pub use self::token::Seed;
