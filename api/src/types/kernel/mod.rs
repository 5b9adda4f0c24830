//! The node's kernel: ENIs, our objects and foreign ones, missing features.

pub(super) mod eni;
pub(super) mod feature;
pub(super) mod foreign;
pub(super) mod foreign_config;
pub(super) mod object;
