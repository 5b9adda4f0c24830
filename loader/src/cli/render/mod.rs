//! What the socket answers, as text for people.

mod lists;
mod status;

pub(super) use lists::{attachment, config, endpoints, enis, metrics, objects, removed};
pub(super) use status::status;
