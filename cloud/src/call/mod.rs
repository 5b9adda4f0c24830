//! Calls of EC2: actions, budgets, refusals, limits, retries.

pub(super) mod action;
pub mod budget;
pub(super) mod error;
pub(super) mod limits;
pub(super) mod pause;
pub mod query;
pub(super) mod token;
