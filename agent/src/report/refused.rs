//! Entries of documents and objects that are not used.

use std::collections::BTreeMap;

use api::types::{Refused, RefusedKind};
use loader::intent::Problem;

use crate::actor::Actor;
use crate::host::kernel::Host;
use sources::follow::Followed;

impl<K: Host> Actor<K> {
    /// Entries that are not used, each with the reason.
    pub(crate) fn refused(&self) -> Vec<Refused> {
        let documents = self.refused_documents().into_iter();
        let of_node = self.intent.node.unfollowed.refused.iter().map(of_node);
        let pools = self.intent.policy.pools.iter();
        let of_pools = pools.flat_map(|pools| pools.refused()).cloned();
        let all = documents.chain(of_node).chain(of_pools);
        all.chain(self.addresses.pools_refused().cloned())
            .chain(self.observers.cluster_warnings.refused())
            .collect()
    }

    /// Documents and files of which nothing is used as they are now.
    fn refused_documents(&self) -> Vec<Refused> {
        let (pools, agent) = (self.documents.files.pools(), self.documents.files.agent());
        let pools = pools.as_ref().and_then(Followed::refused);
        let agent = agent.as_ref().and_then(Followed::refused);
        let all = [
            ("node document", self.documents.source.refused()),
            ("pools", pools),
            ("ip-masq-agent", agent),
        ];
        let all = all.into_iter();
        all.filter_map(|(entry, reason)| {
            Some(Refused {
                kind: RefusedKind::Document,
                entry: entry.to_owned(),
                reason: reason?.to_owned(),
            })
        })
        .collect()
    }
}

/// Number of refused entries by kind.
pub(crate) fn counts(all: &[Refused]) -> Vec<(RefusedKind, u64)> {
    let mut counts = BTreeMap::from(RefusedKind::ALL.map(|kind| (kind, 0)));
    for refused in all {
        *counts.entry(refused.kind).or_default() += 1;
    }
    counts.into_iter().collect()
}

/// A problem of the node document as an entry that is refused.
fn of_node(problem: &Problem) -> Refused {
    Refused {
        kind: kind(problem),
        entry: "node document".to_owned(),
        reason: problem.to_string(),
    }
}

/// The kind of the document's entry that a problem concerns.
fn kind(problem: &Problem) -> RefusedKind {
    let path = &problem.path;
    if path.contains(".addresses[") {
        RefusedKind::Address
    } else if path.contains("prefixes[") || path.contains(".cidrs[") {
        RefusedKind::Block
    } else if path.starts_with("spec.ipam.pools") {
        RefusedKind::Pool
    } else {
        RefusedKind::Eni
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_problem_is_about_the_entry_that_its_path_names() {
        for (path, expected) in [
            ("status.eni.enis.eni-1", RefusedKind::Eni),
            ("status.eni.enis.eni-1.subnet.cidr", RefusedKind::Eni),
            ("status.eni.enis.eni-1.addresses[2]", RefusedKind::Address),
            ("status.eni.enis.eni-1.prefixes[0]", RefusedKind::Block),
            ("status.eni.enis.eni-1.ipv6-prefixes[0]", RefusedKind::Block),
            ("spec.ipam.pools.allocated[0].cidrs[1]", RefusedKind::Block),
            ("spec.ipam.pools.allocated[0].pool", RefusedKind::Pool),
        ] {
            let problem = Problem {
                path: path.to_owned(),
                message: String::new(),
            };
            assert_eq!(kind(&problem), expected, "{path}");
        }
    }
}
