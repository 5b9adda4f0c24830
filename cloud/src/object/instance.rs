//! An instance as EC2 shows it.

use crate::{InstanceId, SubnetId, Tags, VpcId};

/// An instance.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Instance {
    /// Its id.
    pub id: InstanceId,
    /// Its type, such as `m5.large`.
    pub kind: String,
    /// Its state.
    pub state: InstanceState,
    /// Its VPC; none once it is terminated.
    pub vpc: Option<VpcId>,
    /// The subnet of its primary ENI; none once it is terminated.
    pub subnet: Option<SubnetId>,
    /// Its availability zone.
    pub zone: String,
    /// Its tags.
    pub tags: Tags,
}

/// The state of an instance.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum InstanceState {
    /// `pending`.
    Pending,
    /// `running`.
    Running,
    /// `shutting-down`: it is about to be terminated, and its ENIs are still attached.
    ShuttingDown,
    /// `terminated`.
    Terminated,
    /// `stopping`.
    Stopping,
    /// `stopped`.
    Stopped,
    /// Any other, by EC2's word.
    Other(String),
}

impl InstanceState {
    /// The state by EC2's word.
    #[must_use]
    pub fn parse(text: &str) -> Self {
        match text {
            "pending" => Self::Pending,
            "running" => Self::Running,
            "shutting-down" => Self::ShuttingDown,
            "terminated" => Self::Terminated,
            "stopping" => Self::Stopping,
            "stopped" => Self::Stopped,
            other => Self::Other(other.to_owned()),
        }
    }

    /// Returns true if the instance is terminated. An unknown state does not count as terminated.
    #[must_use]
    pub fn is_terminated(&self) -> bool {
        *self == Self::Terminated
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_state_alone_is_the_end() {
        let states = [
            "pending",
            "running",
            "shutting-down",
            "terminated",
            "stopping",
            "stopped",
            "hibernating",
            "",
        ];
        let ended = states.map(|text| InstanceState::parse(text).is_terminated());
        assert_eq!(ended, states.map(|text| text == "terminated"));
    }
}
