//! `status.ipam.operator-status.error`: why a node does not get what it wants, in one line.

use std::fmt;

/// A kind of reason, for people and for alerts.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
#[non_exhaustive]
pub enum Reason {
    /// The document does not say enough yet.
    NotReady,
    /// EC2 does not know the instance, or calls it terminated.
    InstanceGone,
    /// The instance is in a state in which EC2 changes nothing of it.
    NotRunning,
    /// The instance has as many ENIs and addresses as it can have.
    AtCapacity,
    /// No eligible subnet has room.
    SubnetFull,
    /// No subnet is eligible.
    NoSubnet,
    /// No security group can be chosen.
    NoSecurityGroup,
    /// Several pools are bound to one ENI.
    TwoPools,
    /// The annotations of a pool cannot be read.
    BadPool,
    /// The operator's rights do not suffice.
    Denied,
    /// EC2 refuses calls for their number.
    Throttled,
    /// A quota of the account is reached.
    QuotaExceeded,
    /// The operator has no credentials.
    Credentials,
    /// EC2 does not know the instance type.
    UnknownType,
    /// No public address has the tags.
    StaticIpMissing,
    /// A rule in the document cannot be read.
    BadDocument,
    /// There is no such pool.
    PoolUnknown,
    /// The pool has nothing to give.
    PoolUnusable,
    /// The pool has no free block.
    PoolFull,
    /// Part of a pool is refused.
    PoolRefused,
    /// The pool is being deleted, and nodes have blocks of it.
    PoolInUse,
    /// Two nodes have a block.
    BlockConflict,
    /// The kubelet takes more pods than its node can have addresses for.
    MaxPodsTooHigh,
    /// EC2 has unassigned unused blocks.
    BlocksReleased,
    /// The agent claims blocks whose release to EC2 was pending.
    BlocksClaimedAgain,
    /// A call failed.
    CallFailed,
}

impl Reason {
    /// The reason as an event has it: one word in `CamelCase`.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::NotReady => "NotReady",
            Self::NotRunning => "NotRunning",
            Self::InstanceGone => "InstanceGone",
            Self::AtCapacity => "AtCapacity",
            Self::SubnetFull => "SubnetFull",
            Self::NoSubnet => "NoSubnet",
            Self::NoSecurityGroup => "NoSecurityGroup",
            Self::TwoPools => "TwoPools",
            Self::BadPool => "BadPool",
            Self::Denied => "Denied",
            Self::Throttled => "Throttled",
            Self::QuotaExceeded => "QuotaExceeded",
            Self::Credentials => "Credentials",
            Self::UnknownType => "UnknownType",
            Self::StaticIpMissing => "StaticIpMissing",
            Self::BadDocument => "BadDocument",
            Self::PoolUnknown => "PoolUnknown",
            Self::PoolUnusable => "PoolUnusable",
            Self::PoolFull => "PoolFull",
            Self::PoolRefused => "PoolRefused",
            Self::PoolInUse => "PoolInUse",
            Self::BlockConflict => "BlockConflict",
            Self::MaxPodsTooHigh => "MaxPodsTooHigh",
            Self::BlocksReleased => "BlocksReleased",
            Self::BlocksClaimedAgain => "BlocksClaimedAgain",
            Self::CallFailed => "CallFailed",
        }
    }
}

/// A report.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Report {
    /// The kind of reason.
    pub reason: Reason,
    /// The reason.
    pub text: String,
    /// Since when, as RFC 3339 has it.
    pub since: String,
    /// The next try, where there is one.
    pub next: Option<String>,
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let reason = self.reason.name();
        write!(f, "{reason}: {}, since {}", self.text, self.since)?;
        match &self.next {
            Some(next) => write!(f, ", next try {next}"),
            None => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_report_is_one_line() {
        let mut report = Report {
            reason: Reason::SubnetFull,
            text: "subnet-1 has no free prefix".to_owned(),
            since: "2026-11-26T12:00:00Z".to_owned(),
            next: Some("2026-11-26T12:15:00Z".to_owned()),
        };
        let expected = "SubnetFull: subnet-1 has no free prefix, since 2026-11-26T12:00:00Z, next try \
                        2026-11-26T12:15:00Z";
        assert_eq!(report.to_string(), expected);
        report.next = None;
        assert!(expected.starts_with(&report.to_string()));
    }
}
