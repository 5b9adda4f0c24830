//! Paths of packets: delivery to a pod, egress by an ENI, replies, and the host's stack.

pub(crate) mod deliver;
pub(crate) mod egress;
pub(crate) mod host;
pub(crate) mod record;
pub(crate) mod redirect;
pub(crate) mod reply;
pub(crate) mod stack;
