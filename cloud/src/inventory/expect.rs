//! Expectations: what EC2 answered and reads may not show yet.

use std::collections::BTreeSet;
use std::net::Ipv4Addr;
use std::time::Duration;

use ipam::Time;
use ipnet::IpNet;

use crate::{AttachState, Attachment, Eni, GroupId};

/// An agreeing read counts if it began so long after the change. An earlier one can be followed by
/// a read that is older in what it shows.
pub const SETTLES: Duration = Duration::from_secs(30);
/// After so long reads are right, whatever the answer was.
pub const GIVES_UP: Duration = Duration::from_mins(1);

/// A change that EC2 confirmed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Change {
    /// The ENI was created.
    Created,
    /// It was attached.
    Attached(Attachment),
    /// It got blocks.
    Assigned(BTreeSet<IpNet>),
    /// Blocks were taken from it.
    Unassigned(BTreeSet<IpNet>),
    /// It goes from its instance.
    Detached,
    /// EC2 deletes it with its instance.
    Marked,
    /// It got other security groups.
    Grouped(BTreeSet<GroupId>),
    /// Its own address got a public address.
    Associated(Ipv4Addr),
    /// It was deleted.
    Deleted,
}

/// A change that is believed until reads settle it.
#[derive(Clone, Debug)]
pub(super) struct Expectation {
    pub(super) change: Change,
    pub(super) since: Time,
}

impl Expectation {
    /// Reports if a read that began at `begun` ends it. `read` is the ENI in that read. Reads by id
    /// lag little: a late one decides.
    pub(super) fn is_settled(&self, begun: Time, read: Option<&Eni>, by_id: bool) -> bool {
        let age = begun.since(self.since);
        age >= GIVES_UP || (age >= SETTLES && (by_id || self.change.agrees(read)))
    }

    /// Reports if a read that began then is too early to deny it.
    pub(super) fn outlasts(&self, begun: Time) -> bool {
        begun.since(self.since) < GIVES_UP
    }
}

impl Change {
    /// Makes an earlier answer void as far as this one is about the same blocks or groups.
    /// Returns true if a part of it still holds.
    pub(super) fn supersede(&self, earlier: &mut Self) -> bool {
        match (self, earlier) {
            (Self::Assigned(new), Self::Unassigned(old))
            | (Self::Unassigned(new), Self::Assigned(old)) => {
                old.retain(|block| !new.contains(block));
                !old.is_empty()
            }
            (Self::Grouped(_), Self::Grouped(_)) => false,
            _ => true,
        }
    }

    /// Reports if a read shows the change.
    fn agrees(&self, read: Option<&Eni>) -> bool {
        let Some(eni) = read else {
            return *self == Self::Deleted;
        };
        match self {
            Self::Created => true,
            Self::Attached(ours) => eni.instance() == ours.instance.as_ref(),
            Self::Assigned(blocks) => eni.blocks.is_superset(blocks),
            Self::Unassigned(blocks) => eni.blocks.is_disjoint(blocks),
            Self::Detached => !eni.is_attached(),
            Self::Marked => eni
                .attachment
                .as_ref()
                .is_some_and(|it| it.delete_on_termination),
            Self::Grouped(groups) => eni.groups == *groups,
            Self::Associated(public) => eni.public == Some(*public),
            Self::Deleted => false,
        }
    }

    /// Puts the change on top of a read.
    pub(super) fn apply(&self, eni: &mut Eni) {
        match self {
            Self::Created | Self::Deleted => {}
            Self::Attached(ours) => {
                eni.attachment.get_or_insert_with(|| ours.clone());
            }
            Self::Assigned(blocks) => eni.blocks.extend(blocks),
            Self::Unassigned(blocks) => eni.blocks.retain(|block| !blocks.contains(block)),
            Self::Detached => {
                if let Some(attachment) = &mut eni.attachment {
                    attachment.state = AttachState::Detaching;
                }
            }
            Self::Marked => {
                if let Some(attachment) = &mut eni.attachment {
                    attachment.delete_on_termination = true;
                }
            }
            Self::Grouped(groups) => eni.groups.clone_from(groups),
            Self::Associated(public) => eni.public = Some(*public),
        }
    }
}
