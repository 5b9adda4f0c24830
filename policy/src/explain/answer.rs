//! The explanation of a packet's fate, and its construction.

use std::net::IpAddr;

use api::ids::EniNumber;
use api::types::{Explanation, Onward, Step, Verdict};
use datapath_common::outcome::DropReason;

use super::flows::IngressEni;

/// A packet of an endpoint that the datapath does not know by this source, so that it takes it
/// for another's.
#[must_use]
pub fn unknown_source() -> Explanation {
    let mut trace = Trace::default();
    trace.step(
        "source",
        "an endpoint's that the datapath does not know yet".to_owned(),
    );
    trace.drop(DropReason::SpoofedSource)
}

/// Adds a check of the room for the packet's flow, which may refuse it.
pub(super) fn with_room(
    explanation: Explanation,
    room: &str,
    refusal: Option<DropReason>,
) -> Explanation {
    let mut trace = Trace {
        steps: explanation.steps,
    };
    trace.step("room", room.to_owned());
    match refusal {
        Some(reason) => trace.drop(reason),
        None => Explanation {
            steps: trace.steps,
            ..explanation
        },
    }
}

/// Explains a packet that gets there through the host's stack. It is dropped if it is dropped
/// there.
pub(super) fn through_stack(explanation: Explanation) -> Explanation {
    let Explanation {
        steps,
        verdict,
        why,
        eni,
        snat,
        port,
        then: _,
    } = explanation;
    if verdict == Verdict::Dropped {
        return Trace { steps }.finish(verdict, &why);
    }
    Explanation {
        then: Some(Onward {
            verdict,
            why,
            eni,
            snat,
            port,
        }),
        ..Trace { steps }.finish(Verdict::Stack, "stack")
    }
}

/// The steps so far.
#[derive(Default)]
pub(super) struct Trace {
    steps: Vec<Step>,
}

impl Trace {
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

    /// A packet of a flow that takes the host's stack in both directions.
    pub(super) fn of_stack(&mut self, ingress: IngressEni) -> Explanation {
        let mark = match ingress {
            IngressEni::Eni(eni) => format!("with the mark of ENI {eni}"),
            IngressEni::Elsewhere => "without a mark".to_owned(),
        };
        let answer = format!("through the host's stack in both directions, {mark}");
        self.end("flow", &answer, Verdict::Stack, "stack-flow")
    }

    /// Adds the step that the packet passes the host's stack.
    pub(super) fn detour(&mut self, why: &str) {
        let path = format!("through the host's stack, where FORWARD rules may drop it: {why}");
        self.step("path", path);
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
