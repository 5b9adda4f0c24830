//! A client of the Kubernetes API server: what every program of ours that talks to one needs.
//!
//! * [`client`]: the connection, by a kubeconfig or a service account, through a proxy or directly.
//! * [`follow`]: the objects of a resource and their changes, and [`lists`]: how they arrive.
//! * [`lease`]: leader election.
//! * [`objects`]: where resources are, and objects as JSON.
//! * [`retry`]: when to ask again, and [`mod@patient`]: watches that go by it.
//! * [`cause`]: errors as people read them.
//! * [`events`]: Events about objects of the cluster.
//! * [`client::traffic`]: counts of requests.
//! * [`mod@write`]: failed writes, by what is known of their outcome.

pub mod cause;
pub mod client;
pub mod events;
pub mod follow;
pub mod lease;
pub mod lists;
pub mod objects;
pub mod patient;
pub mod retry;
pub mod write;
