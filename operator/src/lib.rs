//! Towpath's operator: ENIs and addresses for the nodes of a cluster.
//!
//! * [`cli`]: the command line.
//! * [`config`]: settings, their help and their schema.
//! * [`run`]: the running operator.
//! * [`holder`]: another operator in the cluster.
//! * [`check`]: the operator's rights.
//! * [`cleanup`]: the ENIs that a cluster leaves at its end.
//! * [`reading`]: whole reads of EC2 for commands.

pub mod check;
pub mod cleanup;
pub mod cli;
pub mod config;
#[cfg(test)]
mod fixture;
pub mod holder;
mod http;
pub mod max_pods;
mod metrics;
pub mod reading;
pub mod run;
