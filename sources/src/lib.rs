//! Documents of the node and its pools, ip-masq-agent files, and the instance's metadata: read, and
//! followed.

pub mod follow;
pub mod instance;
pub mod kept;
pub mod masq_agent;
pub mod node;
pub mod numbering;
pub mod pools;
pub mod record;
pub mod used_pools;
