//! The egress of the current packet.

use datapath_common::masquerade::PolicyInput;

use super::flow::Sender;

/// A pod's packet that leaves the node.
#[derive(Clone, Copy)]
pub(crate) struct EgressContext {
    pub(crate) sender: Sender,
    pub(crate) input: PolicyInput,
    /// True if its flow may be a translated one, or one from the outside, whatever policy says of
    /// new ones.
    pub(crate) may_be_translated: bool,
}
