//! Plain values: families, owners, requests, times, errors.

pub(super) mod counts;
pub(super) mod error;
pub(super) mod family;
pub(super) mod owner;
pub(super) mod pod;
pub(super) mod request;
pub(super) mod time;
