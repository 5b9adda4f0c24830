//! A cloud's network interfaces as values. No I/O, no clock, no Kubernetes types.

mod block;
mod eni;
mod id;
mod limits;
pub mod tags;
pub mod want;

pub use self::block::{Kind, PREFIX_SIZE, PREFIX_V4, PREFIX_V6, blocks};
pub use self::eni::{AttachState, Attachment, Eni, InterfaceKind};
pub use self::id::{AttachmentId, EniId, GroupId, InstanceId, RouteTableId, SubnetId, VpcId};
pub use self::limits::{LEARNED_FOR, Learned, Limits, LimitsError, TypeInfo};
pub use self::tags::Tags;
