//! Faults that a call meets.

use serde::Deserialize;

/// A fault of the calls of one action.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Fault {
    /// The action; `*` stands for each.
    pub action: String,
    /// An id that the call has to name, such as an instance's; any call when unset.
    #[serde(default)]
    pub names: Option<String>,
    /// Calls that pass first.
    #[serde(default)]
    pub skip: u32,
    /// Calls that meet the fault.
    #[serde(default = "one")]
    pub count: u32,
    /// The kind.
    pub kind: FaultKind,
}

fn one() -> u32 {
    1
}

/// A kind of fault.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum FaultKind {
    /// The call has no effect and this error code.
    Refused(String),
    /// The call has no effect and no answer.
    Unheard,
    /// The call takes effect and has no answer.
    AnswerLost,
    /// The call takes effect, and the answer comes after so many milliseconds.
    Late(u64),
    /// The call takes effect twice, and the second answer comes.
    Twice,
    /// The call takes effect, and its answer ends halfway.
    Cut,
    /// The call takes effect, and its answer is not what it should be.
    Garbage,
}

/// Delivery of an answer.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Delivery {
    /// At once.
    #[default]
    Whole,
    /// Never.
    Lost,
    /// After so many milliseconds.
    Late(u64),
    /// Half of it.
    Cut,
    /// As text that is no answer.
    Garbage,
}

/// The faults that wait for their calls.
#[derive(Clone, Debug, Default)]
pub(crate) struct Faults(pub(crate) Vec<Fault>);

impl Faults {
    /// The fault that a call meets; each call that passes counts.
    pub(crate) fn of(&mut self, action: &str, names: &dyn Fn(&str) -> bool) -> Option<FaultKind> {
        let place = self.0.iter().position(|fault| {
            (fault.action == "*" || fault.action == action)
                && fault.names.as_deref().is_none_or(names)
        })?;
        let fault = self.0.get_mut(place)?;
        if fault.skip > 0 {
            fault.skip -= 1;
            return None;
        }
        fault.count = fault.count.saturating_sub(1);
        let kind = fault.kind.clone();
        if fault.count == 0 {
            self.0.remove(place);
        }
        Some(kind)
    }
}
