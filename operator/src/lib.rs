//! Towpath's operator: ENIs and addresses for the nodes of a cluster.
//!
//! * [`cli`]: the command line.
//! * [`config`]: settings, their help and their schema.
//! * [`check`]: the operator's rights.
//! * [`cleanup`]: the ENIs that a cluster leaves at its end.
//! * [`holder`]: another operator in the cluster.
//! * [`reading`]: whole reads of EC2 for commands.

pub mod check;
pub mod cleanup;
pub mod cli;
pub mod config;
pub mod holder;
pub mod reading;
