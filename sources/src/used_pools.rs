//! Documents of pools that were deleted while pods have addresses of them. The last documents stay
//! in force. Otherwise running pods would change their masquerade policy, and ENIs their bound
//! pool.

use std::collections::BTreeSet;
use std::sync::Arc;

use loader::intent::masquerade::Pools;

use crate::kept::{Kept, Subject};
use crate::pools;

/// Name of the source of the record.
const PLACE: &str = "pools that were deleted";

/// The documents that were in force last.
#[derive(Debug, Default)]
pub struct UsedPools {
    before: Option<Arc<Pools>>,
    /// Record of the pools that have no document any more.
    place: Option<Kept>,
    /// The record as it was written last.
    written: String,
}

impl UsedPools {
    /// With the documents that an earlier agent kept: those of `source`, where it keeps any, and those
    /// that had been deleted by then.
    pub fn open(kept: &Kept, source: Option<&str>) -> Self {
        let read = |text: &str| pools::read(source.unwrap_or(PLACE).as_ref(), text, None);
        let place = kept.of(Subject::RemovedPools);
        let written = place.read(PLACE).unwrap_or_default();
        let removed = place.read_as(PLACE, read).unwrap_or_default();
        let last = source.and_then(|source| kept.of(Subject::Pools).read_as(source, read));
        let last = last.unwrap_or_default();
        let all = removed.names().map(str::to_owned).collect();
        let before = last.with_removed(&removed, &all).unwrap_or(last);
        Self {
            before: Some(Arc::new(before)),
            place: Some(place),
            written,
        }
    }

    /// The documents that are in force, from those that were read and the names of the pools that are
    /// in use.
    pub fn in_force(
        &mut self,
        read: Option<Arc<Pools>>,
        used: &BTreeSet<String>,
    ) -> Option<Arc<Pools>> {
        let read = read?;
        let before = self.before.take().unwrap_or_default();
        let in_force = match read.with_removed(&before, used) {
            Some(all) => Arc::new(all),
            None => read,
        };
        self.keep(&in_force);
        self.before = Some(Arc::clone(&in_force));
        Some(in_force)
    }

    fn keep(&mut self, in_force: &Pools) {
        let text = in_force.removed_text().unwrap_or_default();
        if let Some(place) = &self.place
            && text != self.written
        {
            place.write(PLACE, &text);
            self.written = text;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pools(names: &[&str]) -> Arc<Pools> {
        let items = names.iter().map(|name| {
            serde_json::json!({
                "apiVersion": "cilium.io/v2alpha1", "kind": "CiliumPodIPPool",
                "metadata": {"name": name, "annotations": {
                    "ipam.cilium.io/skip-masquerade": "true",
                    "ipam.towpath.dev/subnet-ids": format!("subnet-{name}")
                }},
                "spec": {"ipv4": {"cidrs": ["10.9.0.0/16"], "maskSize": 28}}
            })
        });
        let list = serde_json::json!({"kind": "List", "items": items.collect::<Vec<_>>()});
        Arc::new(pools::read("pools".as_ref(), &list.to_string(), None).unwrap())
    }

    fn names(names: &[&str]) -> BTreeSet<String> {
        names.iter().map(|&name| name.to_owned()).collect()
    }

    fn check(in_force: Option<&Arc<Pools>>, expected: &[&str], removed: &[&str]) {
        let in_force = in_force.unwrap();
        let found: Vec<_> = in_force.names().collect();
        assert_eq!(found, expected);
        let found: Vec<_> = in_force.removed().collect();
        assert_eq!(found, removed);
        for name in removed {
            let whole = pools(&[name]);
            assert_eq!(
                in_force.for_allocation()[*name],
                whole.for_allocation()[*name]
            );
            let notes = in_force.notes().iter();
            assert_eq!(notes.filter(|note| note.contains(name)).count(), 1);
        }
    }

    #[test]
    fn a_pool_that_is_deleted_stays_until_no_pod_uses_it() {
        let mut all = UsedPools::default();
        let used = names(&["blue", "never"]);
        assert_eq!(all.in_force(None, &used), None, "nothing was read yet");
        check(
            all.in_force(Some(pools(&["blue", "red"])), &used).as_ref(),
            &["blue", "red"],
            &[],
        );
        check(
            all.in_force(Some(pools(&["red"])), &used).as_ref(),
            &["blue", "red"],
            &["blue"],
        );
        check(
            all.in_force(Some(pools(&[])), &used).as_ref(),
            &["blue"],
            &["blue"],
        );
        let back = all.in_force(Some(pools(&["blue"])), &used);
        assert_eq!(back, Some(pools(&["blue"])), "its document is back");
        check(
            all.in_force(Some(pools(&[])), &used).as_ref(),
            &["blue"],
            &["blue"],
        );
        check(
            all.in_force(Some(pools(&[])), &names(&[])).as_ref(),
            &[],
            &[],
        );
        check(all.in_force(Some(pools(&[])), &used).as_ref(), &[], &[]);
    }

    #[test]
    fn a_restart_changes_nothing_whenever_the_pool_was_deleted() {
        let state = tempfile::tempdir().unwrap();
        let kept = Kept::new(state.path(), "this");
        let used = names(&["blue", "red"]);
        kept.of(Subject::Pools)
            .write("pools", &pools(&["blue", "red"]).text());
        // One goes while no agent runs, the other one while the next agent does.
        let mut first = UsedPools::open(&kept, Some("pools"));
        check(
            first.in_force(Some(pools(&["red"])), &used).as_ref(),
            &["blue", "red"],
            &["blue"],
        );
        check(
            first.in_force(Some(pools(&[])), &used).as_ref(),
            &["blue", "red"],
            &["blue", "red"],
        );
        kept.of(Subject::Pools).write("pools", &pools(&[]).text());
        let mut second = UsedPools::open(&kept, Some("pools"));
        check(
            second.in_force(Some(pools(&[])), &used).as_ref(),
            &["blue", "red"],
            &["blue", "red"],
        );
        check(
            second.in_force(Some(pools(&[])), &names(&["red"])).as_ref(),
            &["red"],
            &["red"],
        );
        let mut third = UsedPools::open(&kept, Some("pools"));
        check(
            third.in_force(Some(pools(&[])), &used).as_ref(),
            &["red"],
            &["red"],
        );
        let mut rebooted = UsedPools::open(&Kept::new(state.path(), "other"), Some("pools"));
        check(
            rebooted.in_force(Some(pools(&[])), &used).as_ref(),
            &[],
            &[],
        );
    }
}
