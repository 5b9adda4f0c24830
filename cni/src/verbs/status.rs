//! STATUS: whether the node has a network.
//!
//! By the specification it fails whenever no pod can be added. Ours fails only until the agent was
//! ready once in this boot. While it fails, kubelet reports the Node as not ready: its running pods
//! leave their Services and are evicted. They need neither an agent nor a free address.

use std::time::Duration;

use super::Call;
use crate::agent::CallError;
use crate::failure::{Code, Failure};
use crate::log;
use crate::request::environment::{Command, Variables};
use crate::state::note::Note;

/// The time that the agent may take to say whether it is ready: who does not answer soon is not.
const REPLY_TIMEOUT: Duration = Duration::from_secs(5);

/// Carries out STATUS, and what is queued if the agent answers.
///
/// # Errors
/// When the agent was not ready yet in this boot, or a delegated plugin's STATUS fails.
pub(super) fn status<V: Variables>(call: &Call<'_, V>) -> Result<(), Failure> {
    let agent = call.agent.hurried(REPLY_TIMEOUT);
    call.queue.settle(&agent, None)?;
    let note = Note::new(&call.config.state_dir);
    if !note.is_of_this_boot() {
        agent.has_network().map_err(|error| not_available(&error))?;
        if let Err(error) = note.leave() {
            log::warn(&format!("{}: {error}", note.path().display()));
        }
    }
    // Our pods do without an agent. Of another plugin we do not know what its pods do without.
    match call.delegate()? {
        Some(delegate) => delegate.call(Command::Status, &call.config.raw),
        None => Ok(()),
    }
}

fn not_available(error: &CallError) -> Failure {
    let message = match error {
        CallError::Refused(_) => "the agent is not ready: no pod can be added",
        CallError::Unreachable(..)
        | CallError::Timeout(_)
        | CallError::Answer(_)
        | CallError::OtherVersion(_) => "no agent answers: no pod can be added",
    };
    Failure::new(Code::NotAvailable, message).with_details(error.to_string())
}
