//! The node's real kernel as the actor sees it: the lower half's parts put together.

pub(crate) mod earlier_ports;
pub(crate) mod host_snapshot;
pub(crate) mod interpreted;
pub(crate) mod kernel;
pub(crate) mod netns;
pub(crate) mod netns_lock;
pub(crate) mod other_cni;
pub(crate) mod pod_routes;
pub(crate) mod policy;
pub(crate) mod ports;
pub(crate) mod reservation;
pub(crate) mod service_nat;
