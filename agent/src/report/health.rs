//! The agent's health: one judgement for the status, the probes, `towpath ready`, STATUS and
//! metrics.

use api::types::{Health, HealthState};
use api::{ApiError, ErrorCode};

/// All that the judgement goes by.
#[derive(Clone, Debug, Default)]
pub(crate) struct Snapshot<'a> {
    /// True where a good node document is known, also an earlier one.
    pub(crate) has_document: bool,
    /// True where that one is of an agent before this one: its source has given none yet.
    pub(crate) is_kept: bool,
    /// Why the newest document is not good.
    pub(crate) document_error: Option<&'a str>,
    /// Why the node as a whole, such as its primary ENI, is not ready.
    pub(crate) node: Option<&'a str>,
    /// True where new pods can use at least one ENI.
    pub(crate) has_eni: bool,
    /// Other things that the node waits for: pools, service CIDRs, a public address.
    pub(crate) waits: Vec<String>,
    /// Pools without an address left. A full node serves its pods.
    pub(crate) exhausted: Vec<String>,
    /// Other problems, which keep no pod off.
    pub(crate) problems: Vec<String>,
}

/// The judgement: each reason with the state that it leads to.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Verdict(Vec<(HealthState, String)>);

impl Snapshot<'_> {
    /// Judges.
    pub(crate) fn judge(self) -> Verdict {
        let mut missing = Vec::new();
        let mut problems = Vec::new();
        match (self.has_document, self.document_error) {
            (false, Some(error)) => missing.push(format!(
                "no valid node document; existing objects stay: {error}"
            )),
            (false, None) => missing.push("no node document yet".to_owned()),
            (true, error) if self.is_kept => problems.push(format!(
                "the document kept from before the restart is in force: {}",
                error.unwrap_or("its source has not answered yet")
            )),
            (true, Some(error)) => problems.push(format!(
                "the last good node document stays in force: {error}"
            )),
            (true, None) => {}
        }
        // Without a document the rest follows from its absence.
        if self.has_document {
            missing.extend(self.node.map(|reason| format!("node: {reason}")));
            if !self.has_eni {
                missing.push("no ENI is ready".to_owned());
            }
            missing.extend(self.waits);
            problems.extend(self.exhausted);
        }
        problems.extend(self.problems);
        let missing = missing.into_iter();
        let missing = missing.map(|reason| (HealthState::NotReady, reason));
        let problems = problems.into_iter();
        let problems = problems.map(|reason| (HealthState::Degraded, reason));
        Verdict(missing.chain(problems).collect())
    }
}

impl Verdict {
    /// All of it, for the status.
    pub(crate) fn health(self) -> Health {
        let states = self.0.iter().map(|(state, _)| *state);
        Health {
            state: states.max().unwrap_or(HealthState::Ready),
            reasons: self.0.into_iter().map(|(_, reason)| reason).collect(),
        }
    }

    /// Readiness as a yes or no: only reasons that make the agent not ready are errors.
    ///
    /// # Errors
    /// With these reasons.
    pub(crate) fn ready(self) -> Result<(), ApiError> {
        let missing = self.0.into_iter();
        let missing = missing.filter(|(state, _)| *state == HealthState::NotReady);
        let missing: Vec<_> = missing.map(|(_, reason)| reason).collect();
        if missing.is_empty() {
            return Ok(());
        }
        Err(ApiError::new(ErrorCode::NotReady, missing.join("; ")))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn owned(texts: &[&str]) -> Vec<String> {
        texts.iter().map(|&text| text.to_owned()).collect()
    }

    /// A reason that no probe may fail of.
    const FULL: &str = "pool default has no IPv4 address left";

    /// States, with the health of each and a reason that it gives.
    fn states() -> Vec<(&'static str, Snapshot<'static>, HealthState, &'static str)> {
        use HealthState::{Degraded, NotReady, Ready};
        let ready = Snapshot {
            has_document: true,
            has_eni: true,
            ..Snapshot::default()
        };
        let of = |change: &dyn Fn(&mut Snapshot<'_>)| {
            let mut snapshot = ready.clone();
            change(&mut snapshot);
            snapshot
        };
        vec![
            (
                "starting",
                Snapshot::default(),
                NotReady,
                "no node document yet",
            ),
            (
                "no document",
                of(&|s| {
                    s.has_document = false;
                    s.document_error = Some("EOF");
                }),
                NotReady,
                "EOF",
            ),
            (
                "an earlier document",
                of(&|s| s.document_error = Some("EOF")),
                Degraded,
                "EOF",
            ),
            (
                "a kept document",
                of(&|s| s.is_kept = true),
                Degraded,
                "kept from before the restart is in force: its source has not answered yet",
            ),
            (
                "no primary ENI",
                of(&|s| s.node = Some("no device")),
                NotReady,
                "node: no device",
            ),
            (
                "no ENI",
                of(&|s| s.has_eni = false),
                NotReady,
                "no ENI is ready",
            ),
            (
                "no pools",
                of(&|s| s.waits = owned(&["the pools"])),
                NotReady,
                "the pools",
            ),
            (
                "exhausted",
                of(&|s| s.exhausted = owned(&[FULL])),
                Degraded,
                FULL,
            ),
            (
                "drift",
                of(&|s| s.problems = owned(&["a route is gone"])),
                Degraded,
                "a route",
            ),
            (
                "exhausted, no ENI",
                of(&|s| {
                    s.exhausted = owned(&[FULL]);
                    s.has_eni = false;
                }),
                NotReady,
                "no ENI is ready",
            ),
            ("ready", ready.clone(), Ready, ""),
        ]
    }

    #[test]
    fn status_and_probes_agree_in_every_state() {
        for (name, snapshot, state, reason) in states() {
            let verdict = snapshot.judge();
            let health = verdict.clone().health();
            assert_eq!(health.state, state, "{name}: {health:?}");
            assert!(
                health.reasons.join("\n").contains(reason),
                "{name}: {health:?}"
            );
            assert_eq!(
                health.reasons.is_empty(),
                state == HealthState::Ready,
                "{name}: {health:?}"
            );
            let refused = verdict.ready().err();
            assert_eq!(
                refused.is_some(),
                state == HealthState::NotReady,
                "{name}: {refused:?}"
            );
            if let Some(refused) = refused {
                assert_eq!(refused.code, ErrorCode::NotReady, "{name}");
                assert!(refused.message.contains(reason), "{name}: {refused}");
                assert!(!refused.message.contains(FULL), "{name}: {refused}");
            }
        }
    }
}
