//! The operator's standing: leader, follower, or observer beside another operator.

use anyhow::Result;
use apiserver::lease;
use fleet::{Input, Standing};
use ipam::Time;
use tokio::sync::watch;

use super::actor::Inbox;
use super::health::Beat;
use crate::config::{Config, OtherOperator};
use crate::holder::Verdict;

/// The settings that decide.
#[derive(Clone, Copy, Debug)]
pub(super) struct Mode {
    /// Steps are shown and not carried out.
    pub(super) is_dry: bool,
    /// Nothing is changed beside another operator.
    pub(super) yields: bool,
}

impl Mode {
    pub(super) fn of(config: &Config) -> Self {
        Self {
            is_dry: config.dry_run,
            yields: config.other_operator == OtherOperator::Refuse,
        }
    }
}

/// The task that decides on the standing.
pub(super) struct Task {
    pub(super) mode: Mode,
    pub(super) lease: watch::Receiver<lease::Standing>,
    pub(super) other: watch::Receiver<Verdict>,
    /// The inbox of the fleet.
    pub(super) inbox: Inbox,
    pub(super) beat: Beat,
    /// The standing for the other tasks.
    pub(super) shared: watch::Sender<Standing>,
}

impl Task {
    /// Hands the fleet its standing whenever the lease or another operator changes it.
    pub(super) async fn run(self) -> Result<()> {
        let Self {
            mode,
            mut lease,
            mut other,
            inbox,
            beat,
            shared,
        } = self;
        let mut known = Verdict::Unknown;
        let mut since = None;
        loop {
            let verdict = other.borrow_and_update().clone();
            if verdict != known {
                log(&verdict);
                // While the cluster cannot be read, the last verdict holds.
                if !matches!(verdict, Verdict::Unreadable(_)) {
                    known = verdict;
                }
            }
            let (standing, term) = {
                let lease = lease.borrow_and_update();
                (
                    decide(mode, &lease, &known),
                    lease.term.map(|term| term.since),
                )
            };
            // There was another leader between two terms, even if it was not observed.
            let is_new = term != std::mem::replace(&mut since, term);
            if is_new && !inbox.give(Input::Standing(Standing::Following)).await {
                return Ok(());
            }
            if shared.send_replace(standing) != standing || is_new {
                tracing::debug!("standing: {standing:?}");
                if !inbox.give(Input::Standing(standing)).await {
                    return Ok(());
                }
            }
            let change = async {
                tokio::select! {
                    changed = lease.changed() => changed,
                    changed = other.changed() => changed,
                }
            };
            let changed = beat.rest(change).await;
            if changed.is_err() {
                return Ok(());
            }
        }
    }
}

fn log(verdict: &Verdict) {
    match verdict {
        Verdict::Held(holder) => tracing::warn!("nothing is changed: {holder}"),
        Verdict::Free => tracing::info!("no other operator serves ENIs in this cluster"),
        Verdict::Unreadable(cause) => tracing::warn!("look for another operator: {cause}"),
        Verdict::Unknown => {}
    }
}

fn decide(mode: Mode, lease: &lease::Standing, other: &Verdict) -> Standing {
    if mode.is_dry {
        return Standing::Watching;
    }
    let Some(term) = lease.term else {
        return Standing::Following;
    };
    match other {
        Verdict::Held(_) if mode.yields => return Standing::Watching,
        Verdict::Unknown | Verdict::Unreadable(_) if mode.yields => return Standing::Following,
        Verdict::Held(_) | Verdict::Unknown | Verdict::Unreadable(_) | Verdict::Free => {}
    }
    let until = u64::try_from(term.until.as_millis()).unwrap_or(u64::MAX);
    Standing::Leading {
        until: Time::from_millis(until),
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use apiserver::lease::election::Term;
    use kubernetes::holder::Holder;

    use super::*;

    #[test]
    fn a_leader_changes_nothing_beside_another_operator_or_before_it_has_looked() {
        let leads = lease::Standing {
            term: Some(Term {
                since: Duration::from_secs(5),
                until: Duration::from_secs(20),
            }),
            ..lease::Standing::default()
        };
        let follows = lease::Standing::default();
        let leading = Standing::Leading {
            until: Time::from_millis(20_000),
        };
        let cni = Verdict::Held(Holder::VpcCni);
        let cases = [
            ((false, true), &follows, &Verdict::Free, Standing::Following),
            ((false, true), &leads, &Verdict::Free, leading),
            (
                (false, true),
                &leads,
                &Verdict::Unknown,
                Standing::Following,
            ),
            ((false, true), &leads, &cni, Standing::Watching),
            ((false, true), &follows, &cni, Standing::Following),
            ((false, false), &leads, &cni, leading),
            ((false, false), &leads, &Verdict::Unknown, leading),
            ((true, true), &leads, &Verdict::Free, Standing::Watching),
            (
                (true, true),
                &follows,
                &Verdict::Unknown,
                Standing::Watching,
            ),
        ];
        for ((is_dry, yields), lease, other, expected) in cases {
            let mode = Mode { is_dry, yields };
            assert_eq!(
                decide(mode, lease, other),
                expected,
                "{mode:?} {lease:?} {other:?}"
            );
        }
    }
}
