//! A cloud beside a cluster: EC2's network interfaces, played, and operators that call it.
//!
//! [`Site`] plays it for nodes of a fabric: an ENI that the cloud attaches is a device there, and the
//! router's source check knows addresses from the moment at which the cloud assigns them.

pub mod audit;
mod driver;
mod operator;
mod served;
mod site;
mod world;

pub use operator::{Ended, Operator, OperatorSpec};
pub use served::Served;
pub use site::{Site, SiteSpec};
pub use world::{policy, policy_with_static_ips, subnet};

/// The name of the cluster that operators serve.
pub const CLUSTER: &str = "blue";
