//! EC2's network interfaces, played.
//!
//! [`Cloud`] is a machine: state and time become answers, and effects that the caller carries out.
//! It has no clock and does no I/O, so a simulation runs it in virtual time. The feature `server`
//! adds EC2's own protocol over TCP: any client of AWS can call it.

mod answer;
mod call;
mod cloud;
mod error;
mod family;
mod fault;
#[cfg(test)]
mod fixture;
mod iam;
#[cfg(feature = "server")]
pub mod server;
mod settings;
mod space;
pub mod world;

pub use self::answer::{Answer, Item, Page};
pub use self::call::{
    Assign, Associate, Attach, Call, Change, Create, Describe, Filter, Modify, Request, What,
};
pub use self::cloud::{
    Addresses, AttachState, Attachment, Cloud, Effect, Elastic, Eni, Instance, InstanceState,
    Logged, LoggedPage, Placement, Public, Reply, Subnet,
};
pub use self::error::{Failure, Result};
pub use self::family::Family;
pub use self::fault::{Delivery, Fault, FaultKind};
pub use self::iam::{Policy, PolicyError};
pub use self::settings::limits::Limits;
pub use self::settings::throttle::Rate;
pub use self::settings::{Settings, Span};
pub use self::space::Ask;
