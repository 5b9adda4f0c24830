//! Documents of the node and its pools, ip-masq-agent files, and the instance's metadata: read, and
//! followed.

pub mod follow;
pub mod instance;
pub mod masq_agent;
pub mod node;
pub(crate) mod numbering;
pub mod pools;
pub(crate) mod used_pools;
