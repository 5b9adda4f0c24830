//! Requests that failed for want of addresses.

use std::collections::BTreeMap;

use crate::{Family, Owner, Time};

/// Who asked in vain, for what, and until when that counts.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct PendingRequests {
    by_owner: BTreeMap<(Owner, Family), (String, Time)>,
}

impl PendingRequests {
    /// Notes a request, or that it was made again. An owner waits for one pool: that of its last
    /// attempt.
    pub(crate) fn put(&mut self, owner: Owner, family: Family, pool: String, until: Time) {
        self.by_owner.insert((owner, family), (pool, until));
    }

    /// The owner has what it wanted.
    pub(crate) fn remove(&mut self, owner: &Owner, family: Family) {
        self.by_owner.remove(&(owner.clone(), family));
    }

    /// Forgets what is over, and shortens what a clock that was set back would prolong. Answers how
    /// many requests it forgot.
    pub(crate) fn expire(&mut self, now: Time, longest: Time) -> usize {
        let before = self.by_owner.len();
        self.by_owner.retain(|_, (_, until)| *until > now);
        for (_, until) in self.by_owner.values_mut() {
            *until = longest.min(*until);
        }
        before - self.by_owner.len()
    }

    /// The pool and family of each request.
    pub(crate) fn iter(&self) -> impl Iterator<Item = (&str, Family)> {
        let all = self.by_owner.iter();
        all.map(|((_, family), (pool, _))| (pool.as_str(), *family))
    }
}
