//! Refused entries that are due for an event: each when it first appears, and then at a low rate
//! while it lasts.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

/// The problem that stands for all entries beyond those that are named.
const OTHERS: &str = "others";

/// An event that is due.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Due {
    /// The key that keeps it apart from the others.
    pub problem: String,
    /// The entry, and why it is refused.
    pub message: String,
}

/// The subjects and times of events. Times are since any moment, on a clock that does not jump.
#[derive(Debug, Default)]
pub struct Refusals {
    last: BTreeMap<String, Duration>,
}

impl Refusals {
    /// The time after which an event about an entry that is still refused is repeated. Events are
    /// kept for an hour.
    pub const AGAIN: Duration = Duration::from_hours(1);
    /// At most so many entries have an event each; the others have one together.
    pub const NAMED: usize = 10;

    /// The events that are due now, where these entries are refused.
    pub fn due(&mut self, now: Duration, refused: impl IntoIterator<Item = String>) -> Vec<Due> {
        let mut seen = BTreeSet::new();
        let mut named = Vec::new();
        for entry in refused {
            if seen.insert(entry.clone()) && named.len() < Self::NAMED {
                named.push(Due {
                    problem: entry.clone(),
                    message: entry,
                });
            }
        }
        let others = seen.len().saturating_sub(named.len());
        if others > 0 {
            named.push(Due {
                problem: OTHERS.to_owned(),
                message: format!("and {others} more; towpath status on the node names each"),
            });
        }
        self.last
            .retain(|message, _| named.iter().any(|due| due.message == *message));
        named.retain(|due| {
            let last = self.last.get(&due.message);
            last.is_none_or(|last| now >= *last + Self::AGAIN)
        });
        for due in &named {
            self.last.insert(due.message.clone(), now);
        }
        named
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(seconds: u64) -> Duration {
        Duration::from_secs(seconds)
    }

    fn messages(refusals: &mut Refusals, now: u64, refused: &[&str]) -> Vec<String> {
        let refused = refused.iter().map(|&entry| entry.to_owned());
        let due = refusals.due(at(now), refused);
        due.into_iter().map(|due| due.message).collect()
    }

    #[test]
    fn an_entry_has_an_event_when_it_comes_up_and_each_hour_while_it_lasts() {
        let mut refusals = Refusals::default();
        assert_eq!(messages(&mut refusals, 0, &["a", "a"]), ["a"]);
        assert_eq!(messages(&mut refusals, 5, &["a", "b"]), ["b"]);
        assert!(messages(&mut refusals, 3599, &["a", "b"]).is_empty());
        assert_eq!(messages(&mut refusals, 3600, &["a", "b"]), ["a"]);
        assert_eq!(messages(&mut refusals, 3605, &["a", "b"]), ["b"]);
        // It was mended, and is broken again.
        assert!(messages(&mut refusals, 3610, &["b"]).is_empty());
        assert_eq!(messages(&mut refusals, 3615, &["a", "b"]), ["a"]);
    }

    #[test]
    fn very_many_entries_have_few_events() {
        let mut refusals = Refusals::default();
        let all: Vec<_> = (0..25).map(|number| number.to_string()).collect();
        let due = refusals.due(at(0), all.clone());
        assert_eq!(due.len(), Refusals::NAMED + 1);
        let others = due.last().unwrap();
        assert!(others.message.starts_with("and 15 more;"), "{others:?}");
        assert!(refusals.due(at(5), all.clone()).is_empty());
        // Another number is news of the same event.
        let fewer = refusals.due(at(10), all.into_iter().take(20));
        assert_eq!(fewer.len(), 1);
        assert_eq!(fewer[0].problem, others.problem);
    }
}
