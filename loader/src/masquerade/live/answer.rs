//! The answer to what becomes of a packet, and how it is put together.

use std::net::IpAddr;

use datapath_common::outcome::DropReason;
use serde::{Deserialize, Serialize};

use super::flows::Came;
use crate::types::EniNumber;

/// The fate of a packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Verdict {
    /// Out by an ENI with another source.
    Translated,
    /// Out by an ENI with its own source.
    Untranslated,
    /// Into another pod's namespace.
    Delivered,
    /// Up to the host's stack.
    Stack,
    /// Dropped.
    Dropped,
}

/// What becomes of a packet, and why.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub struct Explanation {
    /// What was looked at, in the programs' order, and what was found.
    pub steps: Vec<Step>,
    /// The fate of the packet.
    pub verdict: Verdict,
    /// Why: `exempt-vpc`, `exempt-native`, `exempt-masq-agent`, `exempt-link-local`, `skip-pool`,
    /// `off`, `translated`, `inbound`, `stack`, `stack-flow`, `local` or `host`; for a dropped packet
    /// the reason's name.
    pub why: String,
    /// The ENI by which it leaves.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub eni: Option<EniNumber>,
    /// The source that the outside sees, where it is another one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub snat: Option<IpAddr>,
    /// The port that the outside sees, where the flow is there.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub port: Option<u16>,
    /// What becomes of it after the host's stack, which all packets of the pod take, unless the
    /// host's rules drop or change it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub then: Option<Onward>,
}

/// What becomes of a packet that the host's stack sends on; the fields are those of
/// [`Explanation`].
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub struct Onward {
    /// The fate of the packet.
    pub verdict: Verdict,
    /// Why.
    pub why: String,
    /// The ENI by which it leaves.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub eni: Option<EniNumber>,
    /// The source that the outside sees, where it is another one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub snat: Option<IpAddr>,
    /// The port that the outside sees, where the flow is there.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub port: Option<u16>,
}

/// One question and its answer.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub struct Step {
    /// The place that was looked at.
    pub question: String,
    /// The finding.
    pub answer: String,
}

impl Explanation {
    /// A packet of an endpoint that the datapath does not know by this source, so that it takes it
    /// for another's.
    #[must_use]
    pub fn unknown_source() -> Self {
        let mut told = Told::default();
        told.step(
            "source",
            "an endpoint's that the datapath does not know yet".to_owned(),
        );
        told.drop(DropReason::SpoofedSource)
    }

    /// The same with a look at the room for its flow, which may refuse it.
    pub(super) fn with_room(mut self, room: &str, refusal: Option<DropReason>) -> Self {
        let mut told = Told {
            steps: std::mem::take(&mut self.steps),
        };
        told.step("room", room.to_owned());
        match refusal {
            Some(reason) => told.drop(reason),
            None => Self {
                steps: told.steps,
                ..self
            },
        }
    }

    /// The same for a packet that gets there through the host's stack. What is dropped then is
    /// dropped.
    pub(super) fn through_stack(self) -> Self {
        let Self {
            steps,
            verdict,
            why,
            eni,
            snat,
            port,
            then: _,
        } = self;
        if verdict == Verdict::Dropped {
            return Told { steps }.finish(verdict, &why);
        }
        Self {
            then: Some(Onward {
                verdict,
                why,
                eni,
                snat,
                port,
            }),
            ..Told { steps }.finish(Verdict::Stack, "stack")
        }
    }
}

/// The steps so far.
#[derive(Default)]
pub(super) struct Told {
    steps: Vec<Step>,
}

impl Told {
    pub(super) fn step(&mut self, question: &str, answer: String) {
        self.steps.push(Step {
            question: question.to_owned(),
            answer,
        });
    }

    pub(super) fn finish(&mut self, verdict: Verdict, why: &str) -> Explanation {
        Explanation {
            steps: std::mem::take(&mut self.steps),
            verdict,
            why: why.to_owned(),
            eni: None,
            snat: None,
            port: None,
            then: None,
        }
    }

    pub(super) fn end(
        &mut self,
        question: &str,
        answer: &str,
        verdict: Verdict,
        why: &str,
    ) -> Explanation {
        self.step(question, answer.to_owned());
        self.finish(verdict, why)
    }

    /// A packet of a flow that takes the host's stack both ways.
    pub(super) fn of_stack(&mut self, came: Came) -> Explanation {
        let mark = match came {
            Came::Eni(eni) => format!("with the mark of ENI {eni}"),
            Came::Elsewhere => "without a mark".to_owned(),
        };
        let answer = format!("through the host's stack both ways, {mark}");
        self.end("flow", &answer, Verdict::Stack, "stack-flow")
    }

    /// Says that the packet takes the host's stack on its way.
    pub(super) fn detour(&mut self, why: &str) {
        let way = format!("through the host's stack, where FORWARD rules may drop it: {why}");
        self.step("way", way);
    }

    pub(super) fn drop(&mut self, reason: DropReason) -> Explanation {
        self.step("drop", reason.explanation().to_owned());
        self.finish(Verdict::Dropped, reason.name())
    }

    /// A packet for which an ENI is missing.
    pub(super) fn without_eni(&mut self, question: &str, eni: u8) -> Explanation {
        self.step(question, format!("ENI {eni} is not ready"));
        self.drop(DropReason::EniNotReady)
    }

    pub(super) fn leave(
        &mut self,
        verdict: Verdict,
        why: &str,
        eni: EniNumber,
        snat: Option<IpAddr>,
    ) -> Explanation {
        Explanation {
            eni: Some(eni),
            snat,
            ..self.finish(verdict, why)
        }
    }
}
