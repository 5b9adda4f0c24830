//! The reasons that a node does not get on, for its status and for events.

use std::fmt;

use ipam::Time;

use crate::Class;

/// A reason, a word that stays the same over releases.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Reason {
    /// The node's document lacks something.
    NotReady,
    /// The operator has not read enough yet.
    Listing,
    /// The Elastic IP addresses are not read yet.
    UnlistedAddresses,
    /// The limits of the instance type are not known.
    UnknownType,
    /// EC2 has no such instance.
    InstanceGone,
    /// The instance is in a state in which it cannot change.
    NotRunning,
    /// The instance can have no more.
    AtCapacity,
    /// The node wants no more: `max-allocate`.
    AtMaxAllocate,
    /// No subnet is eligible.
    NoSubnet,
    /// The eligible subnets are full.
    SubnetFull,
    /// No security group can be chosen.
    NoSecurityGroup,
    /// No Elastic IP address can be the node's static IP.
    StaticIpMissing,
    /// Several pools are bound to one ENI.
    TwoPools,
    /// The instance cannot have IPv6 prefixes.
    NoIpv6,
    /// An answer did not come.
    Unanswered,
    /// EC2 limits the rate of calls.
    Throttled,
    /// The operator has no right to make a call.
    Denied,
    /// The account can have no more ENIs.
    QuotaExceeded,
    /// The operator's credentials are not accepted.
    Credentials,
    /// EC2 refuses a call as wrong.
    Refused,
}

impl Reason {
    /// The reason that a refusal stands for.
    #[must_use]
    pub fn of(class: Class) -> Self {
        match class {
            Class::Throttled => Self::Throttled,
            Class::InstanceGone => Self::InstanceGone,
            Class::NotNow => Self::NotRunning,
            Class::SubnetFull => Self::SubnetFull,
            Class::AdapterLimit | Class::SlotLimit => Self::AtCapacity,
            Class::Quota => Self::QuotaExceeded,
            Class::Denied => Self::Denied,
            Class::Credentials => Self::Credentials,
            Class::Unanswered | Class::NotFound => Self::Unanswered,
            Class::AddressTaken => Self::StaticIpMissing,
            Class::IndexTaken | Class::TokenMismatch | Class::Invalid => Self::Refused,
        }
    }
}

impl fmt::Display for Reason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(self, f)
    }
}

/// A reason with its details.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Condition {
    /// The reason.
    pub reason: Reason,
    /// The details.
    pub detail: String,
    /// The next try, where one is due by time.
    pub until: Option<Time>,
}

impl Condition {
    pub(super) fn new(reason: Reason, detail: impl fmt::Display) -> Self {
        Self {
            reason,
            detail: detail.to_string(),
            until: None,
        }
    }

    pub(super) fn until(self, until: Time) -> Self {
        Self {
            until: Some(until),
            ..self
        }
    }
}

impl fmt::Display for Condition {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.reason, self.detail)
    }
}
