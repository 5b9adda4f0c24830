//! The socket's answers, as text for people.

mod addresses;
mod cluster;
mod lists;
mod masquerade;
mod nat;
mod status;

pub(super) use addresses::{addresses, pools};
pub(super) use lists::{attachment, config, endpoints, enis, metrics, objects, removed};
pub(super) use masquerade::{explanation, masquerade};
pub(super) use nat::{nat_flows, nat_flushed, nat_stats};
pub(super) use status::status;
