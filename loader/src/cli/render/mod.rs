//! What the socket answers, as text for people.

mod lists;
mod status;

pub(super) use lists::{attachment, endpoints, enis, metrics, objects};
pub(super) use status::status;
