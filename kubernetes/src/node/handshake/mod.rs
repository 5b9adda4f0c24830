//! The handshake of node and operator on the release of single addresses (`ipam.mode: crd`), by
//! `status.ipam.release-ips` of the node's `CiliumNode`.
//!
//! ```text
//!  operator: marked-for-release ──> node: ready-for-release ──> operator: released, out of the pool
//!                              └──> node: do-not-release              └──> node: the entry goes
//! ```
//!
//! An address is withheld from pods *before* the document has the agreement, and until the operator
//! has removed the address from the pool, or the entry. So it cannot be both allocated and
//! released, whichever write is lost or late.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;

use ipam::Family;
use serde::{Deserialize, Serialize};

/// Where an address stands: one of `status.ipam.release-ips`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Release {
    /// The operator would like to have it back.
    MarkedForRelease,
    /// The node releases the address, and withholds it from pods.
    ReadyForRelease,
    /// A pod has it.
    DoNotRelease,
    /// The operator has taken it from the ENI.
    Released,
}

/// The document's part of the handshake.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Seen {
    /// The addresses of `spec.ipam.pool`.
    pub pool: BTreeSet<IpAddr>,
    /// `status.ipam.release-ips`.
    pub release: BTreeMap<IpAddr, Release>,
}

/// The addresses that pods do not get because their release is pending.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Handshake {
    withheld: BTreeSet<IpAddr>,
}

impl Handshake {
    /// Updates the handshake from a document, and returns the entries for `release-ips`. `is_held`
    /// is true for an address that is in use, cools down, or will be needed.
    ///
    /// Once this returns, addresses of [`Handshake::is_withheld`] must not be allocated.
    pub fn observe(
        &mut self,
        seen: &Seen,
        is_held: impl Fn(IpAddr) -> bool,
    ) -> BTreeMap<IpAddr, Release> {
        let answers = seen.release.iter().filter_map(|(address, release)| {
            let answer = match release {
                // Out of the pool too: that was the last step.
                Release::Released if !seen.pool.contains(address) => return None,
                Release::Released => Release::Released,
                // The address is in use, even if an earlier agent had agreed: a late refusal is
                // better than a loss.
                _ if is_held(*address) => Release::DoNotRelease,
                Release::MarkedForRelease | Release::ReadyForRelease => Release::ReadyForRelease,
                // The operator takes this entry back.
                Release::DoNotRelease => Release::DoNotRelease,
            };
            Some((*address, answer))
        });
        let answers: BTreeMap<_, _> = answers.collect();
        self.withheld = answers
            .iter()
            .filter(|(_, answer)| matches!(answer, Release::ReadyForRelease | Release::Released))
            .map(|(address, _)| *address)
            .collect();
        answers
    }

    /// The addresses that the operator would like to have back and that those who wait for one of a
    /// family will need, because too few others are free. Addresses in release do not count.
    #[must_use]
    pub fn promised(
        &self,
        seen: &Seen,
        family: Family,
        waiting: u64,
        is_held: impl Fn(IpAddr) -> bool,
    ) -> BTreeSet<IpAddr> {
        let is_free = |address: &&IpAddr| Family::of(**address) == family && !is_held(**address);
        let (asked_for, others): (Vec<&IpAddr>, Vec<&IpAddr>) = seen
            .pool
            .iter()
            .filter(is_free)
            .partition(|address| seen.release.contains_key(*address));
        let missing = usize::try_from(waiting).unwrap_or(usize::MAX);
        let missing = missing.saturating_sub(others.len());
        let is_open = |address: &IpAddr| {
            let is_marked = seen.release.get(address) == Some(&Release::MarkedForRelease);
            is_marked && !self.is_withheld(*address)
        };
        let open = asked_for.into_iter().copied().filter(is_open);
        open.take(missing).collect()
    }

    /// True if an address is being released and must not be allocated.
    #[must_use]
    pub fn is_withheld(&self, address: IpAddr) -> bool {
        self.withheld.contains(&address)
    }

    /// The addresses in release.
    #[must_use]
    pub fn withheld(&self) -> &BTreeSet<IpAddr> {
        &self.withheld
    }
}

#[cfg(test)]
mod tests;
