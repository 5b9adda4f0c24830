//! Warnings of the cluster's side for the status: the newest of each topic.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};

use api::types::{Refused, RefusedKind};

use super::POOLS_PLACE;

/// The topic of pools: what is wrong with their restrictions and selectors.
pub(super) const POOLS_TOPIC: &str = "pools";

/// Warnings by topic.
#[derive(Clone, Debug, Default)]
pub(crate) struct ClusterWarnings(Arc<Mutex<BTreeMap<&'static str, Vec<String>>>>);

impl ClusterWarnings {
    /// Replaces the warnings of a topic. New ones are logged.
    pub(super) fn set(&self, topic: &'static str, warnings: &[String]) {
        let mut all = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let logged = all.insert(topic, warnings.to_owned()).unwrap_or_default();
        for warning in warnings.iter().filter(|warning| !logged.contains(warning)) {
            tracing::warn!("{warning}");
        }
    }

    /// Refused fields of the pools' objects.
    pub(crate) fn refused(&self) -> Vec<Refused> {
        let all = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let of_pools = all.get(POOLS_TOPIC).into_iter().flatten();
        let refused = of_pools.map(|warning| Refused {
            kind: if warning.contains("metadata.annotations") {
                RefusedKind::Annotation
            } else {
                RefusedKind::Pool
            },
            entry: POOLS_PLACE.to_owned(),
            reason: warning.clone(),
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
        let warnings = ClusterWarnings::default();
        warnings.set("a", &["one".to_owned(), "two".to_owned()]);
        warnings.set("b", &["three".to_owned()]);
        assert_eq!(warnings.all(), ["one", "two", "three"]);
        warnings.set("a", &[]);
        assert_eq!(warnings.all(), ["three"]);
        assert_eq!(warnings.refused(), []);
    }

    #[test]
    fn what_is_wrong_with_pools_is_an_entry_that_is_refused() {
        let warnings = ClusterWarnings::default();
        let texts = [
            "pool a: metadata.annotations.x: refused",
            "pool b selects no pod: y",
        ];
        warnings.set(POOLS_TOPIC, &texts.map(str::to_owned));
        let kinds: Vec<_> = warnings
            .refused()
            .iter()
            .map(|refused| refused.kind)
            .collect();
        assert_eq!(kinds, [RefusedKind::Annotation, RefusedKind::Pool]);
    }
}
