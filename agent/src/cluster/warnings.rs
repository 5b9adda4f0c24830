//! Remarks of the cluster's side for the status: the newest of each topic.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};

use api::types::{Refused, RefusedKind};

use super::POOLS_PLACE;

/// The topic of pools: what is wrong with their restrictions and selectors.
pub(super) const POOLS_TOPIC: &str = "pools";

/// Remarks by topic.
#[derive(Clone, Debug, Default)]
pub(crate) struct Remarks(Arc<Mutex<BTreeMap<&'static str, Vec<String>>>>);

impl Remarks {
    /// Replaces the remarks of a topic. New ones are logged.
    pub(super) fn set(&self, topic: &'static str, remarks: &[String]) {
        let mut all = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let told = all.insert(topic, remarks.to_owned()).unwrap_or_default();
        for remark in remarks.iter().filter(|remark| !told.contains(remark)) {
            tracing::warn!("{remark}");
        }
    }

    /// Refused fields of the pools' objects.
    pub(crate) fn refused(&self) -> Vec<Refused> {
        let all = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let of_pools = all.get(POOLS_TOPIC).into_iter().flatten();
        let refused = of_pools.map(|remark| Refused {
            kind: if remark.contains("metadata.annotations") {
                RefusedKind::Annotation
            } else {
                RefusedKind::Pool
            },
            entry: POOLS_PLACE.to_owned(),
            reason: remark.clone(),
        });
        refused.collect()
    }

    /// All of it.
    pub(crate) fn all(&self) -> Vec<String> {
        // A thread that panicked with the lock has left no partial change.
        let all = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        all.values().flatten().cloned().collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_topic_has_its_newest_words() {
        let remarks = Remarks::default();
        remarks.set("a", &["one".to_owned(), "two".to_owned()]);
        remarks.set("b", &["three".to_owned()]);
        assert_eq!(remarks.all(), ["one", "two", "three"]);
        remarks.set("a", &[]);
        assert_eq!(remarks.all(), ["three"]);
        assert_eq!(remarks.refused(), []);
    }

    #[test]
    fn what_is_wrong_with_pools_is_an_entry_that_is_refused() {
        let remarks = Remarks::default();
        let told = [
            "pool a: metadata.annotations.x: refused",
            "pool b selects no pod: y",
        ];
        remarks.set(POOLS_TOPIC, &told.map(str::to_owned));
        let kinds: Vec<_> = remarks
            .refused()
            .iter()
            .map(|refused| refused.kind)
            .collect();
        assert_eq!(kinds, [RefusedKind::Annotation, RefusedKind::Pool]);
    }
}
