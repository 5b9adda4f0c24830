//! The beginning and the end of a step: what is learned from its answer.

use std::collections::BTreeSet;
use std::time::Duration;

use ipam::Time;
use ipnet::IpNet;

use super::progress::{INDEX_TRIES, Unanswered};
use super::{Facts, Memory, Node, Progress, Step};
use crate::inventory::{Change, SETTLES};
use crate::{
    Action, AllocationId, AttachState, Attachment, AttachmentId, Class, Eni, EniId, Failure, Kind,
};

/// Reads by id show an attachment after so long.
const ATTACH_SHOWS: Duration = Duration::from_secs(5);

/// The answer to a step.
#[derive(Clone, Debug)]
pub enum Outcome {
    /// The ENI that was created.
    Created(Box<Eni>),
    /// The attachment's id.
    Attached(AttachmentId),
    /// The blocks that the ENI got.
    Assigned(BTreeSet<IpNet>),
    /// Any other call went through.
    Done,
    /// The call failed.
    Failed(Failure),
}

/// Everything that a step changes beside its node.
#[derive(Debug)]
pub struct Context<'a> {
    /// The facts that are read.
    pub facts: &'a Facts,
    /// The memory that learns.
    pub memory: &'a mut Memory,
    /// The operator's own clock.
    pub now: Time,
}

/// A step is about to be sent. The node gets no other one before [`settle`].
pub fn begin(step: &Step, node: &Node, progress: &mut Progress, memory: &mut Memory) {
    progress.turn_to(node.instance.as_ref());
    if let Some((subnet, addresses)) = step.taking() {
        memory.pressure.begin(subnet, addresses);
    }
    if let Step::Associate {
        eni, allocation, ..
    } = step
    {
        memory.claims.begin(allocation, eni);
    }
    progress.unanswered = None;
    progress.in_flight = Some(step.clone());
}

/// A step was answered, or will not be.
pub fn settle(outcome: &Outcome, progress: &mut Progress, context: &mut Context<'_>) {
    let Some(step) = progress.in_flight.take() else {
        return;
    };
    if let Some((subnet, addresses)) = step.taking() {
        let has_taken = match outcome {
            Outcome::Failed(failure) => failure.class == Class::Unanswered,
            _ => true,
        };
        let pressure = &mut context.memory.pressure;
        pressure.end(subnet, addresses, has_taken.then_some(context.now));
    }
    if let Step::Associate { allocation, .. } = &step {
        settle_claim(allocation, outcome, context);
    }
    match outcome {
        Outcome::Failed(failure) => fail(step, failure, progress, context),
        _ => succeed(&step, outcome, progress, context),
    }
}

/// An address stays claimed unless EC2 says that the call had no effect.
fn settle_claim(id: &AllocationId, outcome: &Outcome, context: &mut Context<'_>) {
    let claims = &mut context.memory.claims;
    match outcome {
        Outcome::Failed(failure) => match failure.class {
            Class::AddressTaken => claims.refuse(id, context.now),
            Class::Unanswered => claims.hold(id, context.now),
            _ => claims.release(id),
        },
        _ => claims.hold(id, context.now),
    }
}

fn succeed(step: &Step, outcome: &Outcome, progress: &mut Progress, context: &mut Context<'_>) {
    let now = context.now;
    let inventory = &mut context.memory.inventory;
    match (step, outcome) {
        (_, Outcome::Created(eni)) => inventory.created((**eni).clone(), now),
        (
            Step::Attach {
                eni,
                instance,
                index,
            },
            Outcome::Attached(id),
        ) => {
            progress.taken_indices.clear();
            progress.index_tries = 0;
            let attachment = Attachment {
                id: id.clone(),
                instance: Some(instance.clone()),
                index: *index,
                card: 0,
                state: AttachState::Attaching,
                delete_on_termination: false,
            };
            inventory.expect(eni, Change::Attached(attachment), now);
        }
        (Step::Assign { eni, .. }, Outcome::Assigned(blocks)) => {
            inventory.expect(eni, Change::Assigned(blocks.clone()), now);
        }
        (Step::Mark { eni, .. }, _) => inventory.expect(eni, Change::Marked, now),
        (Step::Group { eni, groups }, _) => {
            inventory.expect(eni, Change::Grouped(groups.clone()), now);
        }
        (Step::Unassign { eni, blocks }, _) => {
            inventory.expect(eni, Change::Unassigned(blocks.clone()), now);
        }
        (Step::Detach { eni, .. }, _) => inventory.expect(eni, Change::Detached, now),
        (Step::Delete { eni }, _) => delete(eni, progress, context),
        (Step::Associate { eni, address, .. }, _) => {
            inventory.expect(eni, Change::Associated(*address), now);
        }
        // An answer of another kind than the step says no more than that it went through.
        _ => {}
    }
    context.memory.pauses.accept();
    progress.relist = None;
    progress.succeed(step.action());
}

/// EC2 answers the token of a deleted ENI with that ENI, so the next one needs another.
fn delete(eni: &EniId, progress: &mut Progress, context: &mut Context<'_>) {
    progress.salt = progress.salt.wrapping_add(1);
    context
        .memory
        .inventory
        .expect(eni, Change::Deleted, context.now);
}

fn fail(step: Step, failure: &Failure, progress: &mut Progress, context: &mut Context<'_>) {
    let now = context.now;
    // The next attempt after a refusal may have other parameters, which the old token forbids.
    if failure.action == Action::Create && failure.class != Class::Unanswered {
        progress.salt = progress.salt.wrapping_add(1);
    }
    match failure.class {
        Class::Throttled => {}
        Class::Unanswered => {
            progress.delay(failure, now);
            lose(step, progress, context);
        }
        Class::NotFound => miss(&step, failure, progress, context),
        Class::InstanceGone => progress.lose_instance(failure, now),
        Class::SubnetFull => refuse_subnet(&step, failure, progress, context),
        Class::AdapterLimit => refuse_attach(&step, failure, progress, context),
        Class::SlotLimit => refuse_assign(&step, failure, progress, context),
        Class::IndexTaken => try_next_index(step, failure, progress, now),
        // A listing shows the ENIs of all tokens that earlier leaders used.
        Class::TokenMismatch => drop(progress.relist.get_or_insert(now)),
        Class::Denied | Class::Quota | Class::Credentials => {
            context.memory.pauses.refuse(failure, now);
        }
        Class::NotNow => {
            progress.delay(failure, now);
            // An ENI that cannot be deleted is held: a read by id shows by what.
            if let Step::Delete { eni } = &step {
                context.memory.inventory.doubt(eni, now);
            }
        }
        Class::Invalid | Class::AddressTaken => progress.delay(failure, now),
    }
}

/// Remembers a call without an answer, unless it can be repeated without harm.
fn lose(step: Step, progress: &mut Progress, context: &Context<'_>) {
    let shows = match step {
        Step::Create(_) => Duration::ZERO,
        Step::Attach { .. } | Step::Detach { .. } => ATTACH_SHOWS,
        Step::Assign { .. } | Step::Unassign { .. } => SETTLES,
        Step::Mark { .. } | Step::Group { .. } | Step::Delete { .. } | Step::Associate { .. } => {
            return;
        }
    };
    let eni = step.eni().and_then(|id| context.memory.inventory.get(id));
    progress.unanswered = Some(Unanswered {
        before: eni.map(|it| it.blocks.clone()).unwrap_or_default(),
        reads_from: context.now.after(shows),
        step,
    });
}

/// EC2 has no such object: it does not show it yet, or it is gone.
fn miss(step: &Step, failure: &Failure, progress: &mut Progress, context: &mut Context<'_>) {
    let now = context.now;
    let inventory = &mut context.memory.inventory;
    match step.eni() {
        Some(eni) if inventory.is_fresh(eni, now) => progress.delay(failure, now),
        Some(eni) if matches!(step, Step::Delete { .. }) => delete(eni, progress, context),
        Some(eni) => {
            inventory.doubt(eni, now);
            progress.delay(failure, now);
        }
        None => progress.delay(failure, now),
    }
}

fn refuse_subnet(
    step: &Step,
    failure: &Failure,
    progress: &mut Progress,
    context: &mut Context<'_>,
) {
    let subnet = step
        .taking()
        .and_then(|(id, _)| context.facts.subnets.get(id));
    match (subnet, step.refused_kind()) {
        (Some(subnet), Some(kind)) => {
            let pressure = &mut context.memory.pressure;
            pressure.refuse(&subnet.id, subnet.free, kind, context.now);
            // A subnet without a single address has no prefix either.
            if kind == Kind::Address {
                pressure.refuse(&subnet.id, subnet.free, Kind::Prefix, context.now);
            }
        }
        _ => progress.delay(failure, context.now),
    }
}

fn refuse_attach(
    step: &Step,
    failure: &Failure,
    progress: &mut Progress,
    context: &mut Context<'_>,
) {
    let Step::Attach { instance, .. } = step else {
        return progress.delay(failure, context.now);
    };
    let enis = context.memory.inventory.of_instance(instance);
    let attached = enis.filter_map(|it| it.attachment.as_ref());
    let attached = attached.filter(|it| it.card == 0).count();
    let attached = u16::try_from(attached).unwrap_or(u16::MAX);
    context
        .memory
        .learned
        .refuse_attach(instance.clone(), attached, context.now);
}

fn refuse_assign(
    step: &Step,
    failure: &Failure,
    progress: &mut Progress,
    context: &mut Context<'_>,
) {
    let memory = &mut *context.memory;
    let eni = step.eni().and_then(|id| memory.inventory.get(id));
    match (step, eni) {
        (Step::Assign { blocks, .. }, Some(eni)) => {
            let (id, family) = (eni.id.clone(), blocks.kind.family());
            let taken = eni.taken(family);
            memory.learned.refuse_assign(id, family, taken, context.now);
        }
        _ => progress.delay(failure, context.now),
    }
}

/// The index is taken, or the ENI is attached already: a read by id shows which.
fn try_next_index(step: Step, failure: &Failure, progress: &mut Progress, now: Time) {
    if let Step::Attach { index, .. } = step {
        progress.taken_indices.insert(index);
    }
    progress.index_tries += 1;
    if progress.index_tries >= INDEX_TRIES {
        progress.index_tries = 0;
        progress.taken_indices.clear();
        progress.delay(failure, now);
    }
    progress.unanswered = Some(Unanswered {
        before: BTreeSet::new(),
        reads_from: now,
        step,
    });
}
