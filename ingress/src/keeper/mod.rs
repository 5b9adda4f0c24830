//! Execution of the steps: calls of the plugin, writes of the record, and updates of the user.

use std::collections::BTreeSet;
use std::io;
use std::net::IpAddr;
use std::path::Path;
use std::time::Duration;

use towpath_cni::request::environment::Command;
use towpath_cni::request::owner::Owner;

use crate::answer::Answer;
use crate::file::RecordFile;
use crate::plugin::{CallError, call};
use crate::record::{Entry, Memory, Record, State, Step, next};
use crate::request::Request;

/// The user of the addresses.
pub trait User {
    /// Uses exactly these addresses from now on. Idempotent.
    fn take(
        &self,
        owner: &Owner,
        addresses: &BTreeSet<IpAddr>,
    ) -> impl Future<Output = Result<(), Refusal>> + Send;

    /// Uses what an owner has no more. Repeated, it changes nothing.
    fn leave(&self, owner: &Owner) -> impl Future<Output = Result<(), String>> + Send;
}

/// Addresses are not used.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Refusal {
    /// Not yet: they are kept.
    Later(String),
    /// Never: the plugin gets them back.
    Never(String),
}

/// Between what a process that is killed leaves things.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Moment {
    /// The request is on disk, and the plugin was not called.
    Asked,
    /// ADD is done, and only memory knows.
    Added,
    /// The addresses are on disk and not in use.
    Given,
    /// They are in use.
    Taken,
    /// They are not in use any more, and the record still has them as used.
    Left,
    /// DEL is owed by the record, and not sent.
    Leaving,
    /// DEL is done, and the record owes it.
    Deleted,
}

impl Moment {
    /// All, in the order of a life.
    pub const ALL: [Self; 7] = [
        Self::Asked,
        Self::Added,
        Self::Given,
        Self::Taken,
        Self::Left,
        Self::Leaving,
        Self::Deleted,
    ];

    /// Its name.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Asked => "asked",
            Self::Added => "added",
            Self::Given => "given",
            Self::Taken => "taken",
            Self::Left => "left",
            Self::Leaving => "leaving",
            Self::Deleted => "deleted",
        }
    }
}

/// The outcome of a step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Progress {
    /// There may be another one at once.
    Stepped,
    /// There is nothing to do, before this moment if there is one.
    Rests(Option<Duration>),
}

/// Keeps the addresses of one agent.
#[derive(Debug)]
pub struct Keeper {
    file: RecordFile,
    record: Record,
    memory: Memory,
    timeout: Duration,
    reach: fn(Moment),
    damaged: Option<String>,
    problem: Option<String>,
    delete_problems: Vec<(Request, String)>,
    failures: u64,
}

impl Keeper {
    /// Reads the record in a folder. `timeout` is the maximum time of a call, and `reach` is called
    /// at each moment.
    ///
    /// # Errors
    /// If there is a record that cannot be opened.
    pub fn open(folder: &Path, timeout: Duration, reach: fn(Moment)) -> io::Result<Self> {
        let file = RecordFile::new(folder);
        let (record, damaged) = file.read()?;
        Ok(Self {
            file,
            record,
            memory: Memory::default(),
            timeout,
            reach,
            damaged,
            problem: None,
            delete_problems: Vec::new(),
            failures: 0,
        })
    }

    /// The record on disk.
    #[must_use]
    pub fn record(&self) -> &Record {
        &self.record
    }

    /// Number of calls and steps that have failed.
    #[must_use]
    pub fn failures(&self) -> u64 {
        self.failures
    }

    /// The problems, the newest of each kind.
    #[must_use]
    pub fn problems(&self) -> Vec<String> {
        let deletes = self.delete_problems.iter().map(|(_, text)| text.clone());
        let damaged = self.damaged.iter().map(|reason| {
            format!(
                "the record of the agent's own addresses cannot be read and is set aside: {reason}"
            )
        });
        let problem = self.problem.iter().cloned();
        problem.chain(deletes).chain(damaged).collect()
    }

    /// Takes the next step for what is wanted. `now` is since any moment that stays.
    pub async fn step(
        &mut self,
        wanted: Option<&Request>,
        user: &impl User,
        now: Duration,
    ) -> Progress {
        let step = next(&self.record, wanted, &self.memory, now);
        let place = match step {
            Step::Rest(until) => return Progress::Rests(until),
            Step::Add => {
                if let Some(wanted) = wanted {
                    let added = self.add(wanted).await;
                    self.judge(added, now);
                }
                return Progress::Stepped;
            }
            Step::Delete(place) | Step::Leave(place) | Step::Take(place) | Step::Check(place) => {
                place
            }
        };
        let Some(entry) = self.record.entries.get(place).cloned() else {
            return Progress::Rests(None);
        };
        match step {
            Step::Delete(_) => {
                let deleted = self.delete(place, &entry.request.for_delete(wanted)).await;
                self.judge_delete(&entry.request, deleted, now);
            }
            Step::Leave(_) => {
                let left = self.leave(place, &entry.request, user).await;
                if left.is_err() {
                    self.judge_delete(&entry.request, left, now);
                }
            }
            Step::Take(_) => {
                let taken = self.take(place, &entry, user).await;
                self.judge(taken, now);
            }
            Step::Check(_) => {
                let checked = self.check(place, &entry, user).await;
                self.judge(checked, now);
            }
            Step::Add | Step::Rest(_) => {}
        }
        Progress::Stepped
    }

    async fn add(&mut self, wanted: &Request) -> Result<(), String> {
        self.record.entries.push(Entry {
            request: wanted.clone(),
            state: State::Asked,
        });
        if let Err(error) = self.save() {
            self.record.entries.pop();
            return Err(error);
        }
        (self.reach)(Moment::Asked);
        let printed = call(wanted, Command::Add, &wanted.config, self.timeout).await;
        (self.reach)(Moment::Added);
        if let Err(error @ CallError::NotStarted { .. }) = &printed {
            let unsent = self.record.entries.pop();
            self.save()
                .inspect_err(|_| self.record.entries.extend(unsent))?;
            return Err(error.to_string());
        }
        let answer = printed
            .map_err(|error| error.to_string())
            .and_then(|printed| {
                let answer = Answer::parse(&printed);
                answer.map_err(|reason| format!("{} ADD failed: {reason}", wanted.plugin.display()))
            });
        // After a failure the record keeps the request, so that DEL follows.
        let Answer { addresses, result } = answer?;
        let place = self.record.entries.len().saturating_sub(1);
        self.record.set(place, State::Given { addresses, result });
        self.save()?;
        (self.reach)(Moment::Given);
        Ok(())
    }

    async fn take(&mut self, place: usize, entry: &Entry, user: &impl User) -> Result<(), String> {
        let State::Given { addresses, .. } = &entry.state else {
            return Ok(());
        };
        match user.take(&entry.request.owner, addresses).await {
            Ok(()) => {
                (self.reach)(Moment::Taken);
                self.memory.taken = Some(entry.request.clone());
                Ok(())
            }
            Err(Refusal::Later(reason)) => Err(reason),
            Err(Refusal::Never(reason)) => {
                self.leave(place, &entry.request, user).await?;
                Err(reason)
            }
        }
    }

    async fn check(&mut self, place: usize, entry: &Entry, user: &impl User) -> Result<(), String> {
        let State::Given { result, .. } = &entry.state else {
            return Ok(());
        };
        let request = &entry.request;
        let stdin = request.config_with(result);
        match call(request, Command::Check, &stdin, self.timeout).await {
            // Another failure has not reported the addresses as gone.
            Err(error) if error.is_of_addresses() => {
                self.leave(place, request, user).await?;
                Err(error.to_string())
            }
            Err(error) if !error.is_unknown_command() => Err(error.to_string()),
            Ok(_) | Err(_) => {
                self.memory.checked = Some(request.clone());
                Ok(())
            }
        }
    }

    /// Ends the use of the addresses, and records that DEL is owed.
    async fn leave(
        &mut self,
        place: usize,
        request: &Request,
        user: &impl User,
    ) -> Result<(), String> {
        user.leave(&request.owner).await?;
        (self.reach)(Moment::Left);
        self.memory.taken = None;
        self.memory.checked = None;
        self.record.set(place, State::Leaving);
        self.save()?;
        (self.reach)(Moment::Leaving);
        Ok(())
    }

    async fn delete(&mut self, place: usize, request: &Request) -> Result<(), String> {
        let called = call(request, Command::Del, &request.config, self.timeout).await;
        called.map_err(|error| error.to_string())?;
        (self.reach)(Moment::Deleted);
        let gone = self.record.entries.remove(place);
        self.save()
            .inspect_err(|_| self.record.entries.insert(place, gone))
    }

    fn judge(&mut self, done: Result<(), String>, now: Duration) {
        match done {
            Ok(()) => {
                // Given is not yet used.
                if self.memory.taken.is_some() {
                    self.memory.add = crate::backoff::Backoff::default();
                    self.problem = None;
                }
            }
            Err(reason) => {
                self.failures += 1;
                self.memory.add.fail(now);
                self.problem = Some(reason);
            }
        }
    }

    fn judge_delete(&mut self, request: &Request, done: Result<(), String>, now: Duration) {
        self.delete_problems.retain(|(of, _)| of != request);
        match done {
            Ok(()) => self.memory.delete_done(request),
            Err(reason) => {
                self.failures += 1;
                self.memory.delete_failed(request, now);
                self.delete_problems.push((request.clone(), reason));
            }
        }
    }

    fn save(&self) -> Result<(), String> {
        let written = self.file.write(&self.record);
        written.map_err(|error| format!("the record of the agent's own addresses: {error}"))
    }
}

#[cfg(test)]
mod tests;
