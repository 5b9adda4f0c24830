//! Calls that no node makes for a while: EC2 refused them to the operator as such.

use std::collections::BTreeMap;
use std::time::Duration;

use ipam::Time;

use crate::{Action, Class, Failure};

/// The pause of a denied call, and of creations beyond the account's quota.
const REFUSED: Duration = Duration::from_mins(5);
/// The first pause of all calls after credentials were refused.
const CREDENTIALS: Duration = Duration::from_secs(10);

/// Calls that no node makes for a while.
#[derive(Clone, Debug, Default)]
pub struct Pauses {
    by_action: BTreeMap<Action, Pause>,
    all: Option<Pause>,
    refusals: u32,
}

/// A pause and the refusal that began it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Pause {
    /// The refusal.
    pub failure: Failure,
    /// Its end.
    pub until: Time,
}

impl Pauses {
    /// Records a refusal. Only the classes that concern the whole operator begin a pause.
    pub fn refuse(&mut self, failure: &Failure, now: Time) {
        let pause = |delay| Pause {
            failure: failure.clone(),
            until: now.after(delay),
        };
        match failure.class {
            Class::Denied | Class::Quota => {
                self.by_action.insert(failure.action, pause(REFUSED));
            }
            // Calls that were in flight together count as one.
            Class::Credentials if self.of_all(now).is_none() => {
                let delay = CREDENTIALS.saturating_mul(1 << self.refusals.min(5));
                self.all = Some(pause(delay.min(REFUSED)));
                self.refusals += 1;
            }
            _ => {}
        }
    }

    /// A call went through: credentials are good.
    pub fn accept(&mut self) {
        self.refusals = 0;
    }

    /// The pause of a call, if it has one now.
    #[must_use]
    pub fn of(&self, action: Action, now: Time) -> Option<&Pause> {
        let own = self.by_action.get(&action).filter(|it| it.until > now);
        self.of_all(now).or(own)
    }

    fn of_all(&self, now: Time) -> Option<&Pause> {
        self.all.as_ref().filter(|it| it.until > now)
    }

    /// Forgets pauses that are over.
    pub fn forget(&mut self, now: Time) {
        self.by_action.retain(|_, it| it.until > now);
        self.all.take_if(|it| it.until <= now);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn failure(action: Action, code: &str) -> Failure {
        Failure::answered(action, 400, code, "")
    }

    fn at(seconds: u64) -> Time {
        Time::from_millis(seconds * 1000)
    }

    #[test]
    fn a_denied_call_alone_pauses_for_five_minutes() {
        let mut pauses = Pauses::default();
        pauses.refuse(&failure(Action::Create, "UnauthorizedOperation"), at(0));
        pauses.refuse(&failure(Action::Attach, "IncorrectState"), at(0));
        assert!(pauses.of(Action::Create, at(299)).is_some());
        assert!(pauses.of(Action::Create, at(300)).is_none());
        assert!(pauses.of(Action::Attach, at(1)).is_none());
        pauses.forget(at(300));
        assert!(pauses.by_action.is_empty());
    }

    #[test]
    fn refused_credentials_pause_everything_for_longer_and_longer() {
        let mut pauses = Pauses::default();
        let refused = failure(Action::Assign, "ExpiredToken");
        let mut now = at(0);
        for expected in [10, 20, 40, 80, 160, 300, 300] {
            pauses.refuse(&refused, now);
            pauses.refuse(&refused, now);
            let pause = pauses.of(Action::Delete, now).unwrap();
            assert_eq!(pause.until.since(now), Duration::from_secs(expected));
            now = pause.until;
            pauses.forget(now);
        }
        pauses.accept();
        pauses.refuse(&refused, now);
        assert_eq!(
            pauses.of(Action::Delete, now).unwrap().until,
            now.after(CREDENTIALS)
        );
    }
}
