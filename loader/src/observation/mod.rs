//! Facts that follow from an observation of the kernel: the owner of each object, gateways' MACs,
//! changes by network managers, and the view for people. Nothing here does I/O.

pub mod foreign_config;
pub mod gateways;
pub mod ownership;
pub mod view;
