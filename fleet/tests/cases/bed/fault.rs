//! Faults of single works.

use std::time::Duration;

use cloud::Failure;
use cloud::call::query::Items;
use cloud::node::Outcome;
use fleet::{Input, Part, Task, Work, Written};
use ipam::Time;
use jiff::SignedDuration;

use super::{Bed, CALL, wire};

/// A fault of a work.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Fault {
    /// It has no effect and no answer.
    Unsent,
    /// It takes effect, and has no answer.
    AnswerLost,
    /// It takes effect after a while, and has no answer.
    Late(Duration),
    /// It takes effect twice.
    Twice,
}

impl Fault {
    pub(crate) const ALL: [Self; 4] = [
        Self::Unsent,
        Self::AnswerLost,
        Self::Late(Duration::from_secs(4)),
        Self::Twice,
    ];
}

/// A fault that waits for its work.
#[derive(Clone, Debug)]
pub(crate) struct Planned {
    /// The name of the work: an action of EC2, `status` or `spec`.
    pub(crate) what: &'static str,
    /// Works of that name that pass first.
    pub(crate) skip: u32,
    pub(crate) fault: Fault,
    /// The operator dies with it.
    pub(crate) kills: bool,
}

/// Faults of a bed's works, of EC2's answers and of clocks.
pub(crate) struct Faults {
    /// A fault that waits for its work.
    pub(crate) planned: Option<Planned>,
    /// Works of which no answer comes, and which take effect later.
    pub(super) late: Vec<(Time, Task)>,
    /// Works that a fault kept from being sent.
    pub(crate) unsent: Vec<Task>,
    /// Every input that is an answer comes twice.
    pub(crate) doubles: bool,
    /// The operator's time of day is ahead by so much.
    pub(crate) skew: SignedDuration,
    /// Changes what EC2 answers to reads.
    pub(crate) distort: fn(&mut Items),
}

impl Default for Faults {
    fn default() -> Self {
        Self {
            planned: None,
            late: Vec::new(),
            unsent: Vec::new(),
            doubles: false,
            skew: SignedDuration::ZERO,
            distort: |_| {},
        }
    }
}

fn name_of(task: &Task) -> &'static str {
    match task {
        Task::Call(step) => step.action().name(),
        Task::Patch { part, .. } => match part {
            Part::Spec => "spec",
            Part::Status => "status",
            Part::Metadata => "metadata",
        },
        Task::PatchPool { .. } => "pool",
        Task::List => "list",
        Task::Advertise { .. } => "advertise",
        Task::Read(_) => "read",
        Task::Delete { .. } => "delete",
        Task::Event(_) => "event",
    }
}

impl Bed {
    /// Lets the planned fault hit a work. Returns the work if it is to be carried out.
    pub(super) fn hit(&mut self, work: Work) -> Option<Work> {
        let Some(planned) = self
            .faults
            .planned
            .as_mut()
            .filter(|it| it.what == name_of(&work.task))
        else {
            return Some(work);
        };
        if planned.skip > 0 {
            planned.skip -= 1;
            return Some(work);
        }
        let planned = self.faults.planned.take().unwrap();
        if planned.fault == Fault::Twice && !planned.kills {
            self.carry_out_quietly(&work.task);
            return Some(work);
        }
        match planned.fault {
            Fault::Unsent => self.faults.unsent.push(work.task.clone()),
            Fault::AnswerLost => self.carry_out_quietly(&work.task),
            Fault::Twice => {
                self.carry_out_quietly(&work.task);
                self.carry_out_quietly(&work.task);
            }
            Fault::Late(after) => self
                .faults
                .late
                .push((self.now.after(after), work.task.clone())),
        }
        if planned.kills {
            self.kill();
        } else {
            self.lose_answer(&work);
        }
        None
    }

    fn carry_out_quietly(&mut self, task: &Task) {
        match task {
            Task::Call(step) => drop(self.call(wire::call(step))),
            Task::Patch { name, part, body } => {
                drop(self.patch(name, *part, body));
            }
            Task::PatchPool { name, body, .. } => drop(self.api.patch_pool(name, body, self.now)),
            _ => panic!("{task:?}"),
        }
    }

    fn lose_answer(&mut self, work: &Work) {
        let id = work.id;
        let input = match &work.task {
            Task::Call(step) => {
                let failure = Failure::unanswered(step.action(), "no reply within 5 s");
                let outcome = Outcome::Failed(failure);
                Input::Answer { id, outcome }
            }
            _ => Input::Written {
                id,
                written: Written::Failed {
                    reason: "no reply".to_owned(),
                    retry_after: None,
                },
            },
        };
        self.answer(CALL, input);
    }

    pub(super) fn let_late_works_happen(&mut self) {
        let now = self.now;
        let due = self.faults.late.extract_if(.., |(at, _)| *at <= now);
        let due: Vec<_> = due.collect();
        for (_, task) in due {
            let before = self.untrue();
            self.carry_out_quietly(&task);
            let after = self.untrue();
            let lost: Vec<_> = after.difference(&before).collect();
            assert!(lost.is_empty(), "{task:?} comes late, and takes {lost:?}");
        }
    }
}
