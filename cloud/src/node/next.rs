//! The next step of a node.

use ipam::Time;

use super::deficit::{self, Plan};
use super::progress::Unanswered;
use super::view::{Ready, View};
use super::{Condition, Node, Progress, Reason, Step, World, finish, release, static_ip};
use crate::call::budget::Need;
use crate::inventory::{SETTLES, Scope};

/// The things to do for a node.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Next {
    /// The next call.
    pub step: Option<Step>,
    /// The need for that call.
    pub need: Option<Need>,
    /// The read that has to come before a call.
    pub read: Option<Scope>,
    /// The reasons that the node does not get on.
    pub conditions: Vec<Condition>,
}

impl Next {
    fn stuck(condition: Condition) -> Self {
        Self {
            conditions: vec![condition],
            ..Self::default()
        }
    }

    fn reading(scope: Scope, condition: Condition) -> Self {
        Self {
            read: Some(scope),
            ..Self::stuck(condition)
        }
    }

    /// The time of the node's next check, if nothing of it changes before.
    #[must_use]
    pub fn at(&self) -> Option<Time> {
        self.conditions.iter().filter_map(|it| it.until).min()
    }
}

/// The next step of a node.
#[must_use]
pub fn next(node: &Node, progress: &Progress, world: &World<'_>) -> Next {
    if node.is_ignored || progress.is_busy() {
        return Next::default();
    }
    let ready = match ready(node, world) {
        Ok(ready) => ready,
        Err(condition) => return Next::stuck(condition),
    };
    let fresh = Progress::default();
    let is_about_it = progress.instance == node.instance;
    let progress = if is_about_it { progress } else { &fresh };
    let view = View::new(node, progress, world, ready);
    let early = unread(&view).or_else(|| unanswered(&view));
    let mut next = early.or_else(|| gone(&view)).unwrap_or_else(|| plan(&view));
    next.need = next.step.as_ref().map(|step| need(&view, step));
    next
}

/// The need for a step.
fn need(view: &View<'_>, step: &Step) -> Need {
    match step {
        Step::Mark { .. }
        | Step::Group { .. }
        | Step::Unassign { .. }
        | Step::Detach { .. }
        | Step::Delete { .. } => Need::Order,
        // Its agent gives no address to a pod before that.
        Step::Associate { .. } => Need::NoAddresses,
        _ if view.has_no_addresses() => Need::NoAddresses,
        _ if view.node.pending > 0 => Need::WaitingPods,
        _ => Need::Deficit,
    }
}

/// The fields that a plan needs, or the first one that is missing.
fn ready<'a>(node: &'a Node, world: &World<'_>) -> Result<Ready<'a>, Condition> {
    let missing = |field| {
        let detail = format!("{field} is missing, expected what the instance's metadata has");
        Condition::new(Reason::NotReady, detail)
    };
    let instance = node
        .instance
        .as_ref()
        .ok_or_else(|| missing("spec.instance-id"))?;
    let name = node.instance_type.as_ref();
    let name = name.ok_or_else(|| missing("spec.eni.instance-type"))?;
    let location = node.location.as_ref();
    let location = location.ok_or_else(|| missing("spec.eni.vpc-id or availability-zone"))?;
    let limits = world.facts.limits.get(name).copied().ok_or_else(|| {
        let detail = format!("limits of instance type {name} are not known");
        Condition::new(Reason::UnknownType, detail)
    })?;
    Ok(Ready {
        instance,
        location,
        limits,
    })
}

/// Nothing is done before this leader has read the node's ENIs, attached and loose ones.
fn unread(view: &View<'_>) -> Option<Next> {
    let inventory = &view.world.memory.inventory;
    let epoch = view.world.facts.epoch;
    if inventory.loose_read().is_none_or(|begun| begun < epoch) {
        let condition = Condition::new(Reason::Listing, "loose ENIs are not listed yet");
        return Some(Next::reading(Scope::Loose, condition));
    }
    if inventory
        .read_of(view.instance)
        .is_none_or(|begun| begun < epoch)
    {
        let condition = Condition::new(Reason::Listing, "the instance's ENIs are not read yet");
        return Some(Next::reading(of_instance(view), condition));
    }
    let relist = view.progress.relist?.after(SETTLES);
    if inventory.loose_read().is_some_and(|begun| begun >= relist) {
        return None;
    }
    let condition = Condition::new(Reason::Listing, "a client token was used by another call");
    Some(Next::reading(Scope::Loose, condition.until(relist)))
}

/// After a call without an answer, the same creation is safe, and any other call needs a read.
fn unanswered(view: &View<'_>) -> Option<Next> {
    let lost = view.progress.unanswered.as_ref()?;
    if let Step::Create(_) = lost.step {
        return Some(match blocked(view, &lost.step) {
            Some(condition) => Next::stuck(condition),
            None => Next {
                step: Some(lost.step.clone()),
                ..Next::default()
            },
        });
    }
    if is_resolved(view, lost) {
        return None;
    }
    let detail = format!("{} had no answer", lost.step.action());
    let condition = Condition::new(Reason::Unanswered, detail).until(lost.reads_from);
    let ids = lost.step.eni().cloned().into_iter().collect();
    Some(Next::reading(Scope::Ids(ids), condition))
}

/// Reports if reads show whether the call took effect.
fn is_resolved(view: &View<'_>, lost: &Unanswered) -> bool {
    let inventory = &view.world.memory.inventory;
    let Some(eni) = lost.step.eni().and_then(|id| inventory.get(id)) else {
        return true;
    };
    let shows = match &lost.step {
        Step::Attach { .. } => eni.attachment.is_some(),
        Step::Detach { .. } => !eni.is_attached(),
        // EC2 gives all or none. Blocks that it took just before are hidden if it gives them again.
        Step::Assign { blocks, .. } => {
            let new = eni.blocks.difference(&lost.before).count();
            u32::try_from(new).is_ok_and(|new| new >= blocks.count)
        }
        Step::Unassign { blocks, .. } => eni.blocks.is_disjoint(blocks),
        _ => false,
    };
    let read = inventory.read_by_id(&eni.id);
    shows || read.is_some_and(|begun| begun >= lost.reads_from)
}

/// An instance that EC2 does not know gets nothing for a while, and until a read shows an ENI of it.
/// Loose ENIs that were created for it are deleted.
fn gone(view: &View<'_>) -> Option<Next> {
    let gone = view.progress.gone.as_ref()?;
    let inventory = &view.world.memory.inventory;
    let mut attached = inventory
        .of_instance(view.instance)
        .filter(|it| !it.is_loose());
    let is_shown = attached.any(|it| {
        inventory
            .read_at(&it.id)
            .is_some_and(|begun| begun > gone.since)
    });
    if is_shown && gone.until <= view.world.now {
        return None;
    }
    let step = view.loose.first().map(|eni| Step::Delete {
        eni: eni.id.clone(),
    });
    // One read when the wait is over; later the listings of all ENIs are enough.
    let looked = inventory
        .read_of(view.instance)
        .is_some_and(|begun| begun >= gone.until);
    let look = gone.until <= view.world.now && !looked;
    Some(Next {
        step: step.filter(|step| blocked(view, step).is_none()),
        read: look.then(|| of_instance(view)),
        conditions: vec![gone.condition()],
        need: None,
    })
}

fn plan(view: &View<'_>) -> Next {
    let mut next = Next::default();
    take(view, static_ip::associate(view), &mut next);
    // While an ENI waits to be attached, no other one is created.
    let mut open = next.step.is_none() && !take(view, finish::loose(view), &mut next);
    for share in view.shares.by_need(view.node) {
        for part in [deficit::ipv4, deficit::ipv6] {
            if open {
                let plan = part(view, share);
                take(view, plan, &mut next);
                open = next.step.is_none();
            }
        }
    }
    let release = [release::unassign, release::detach];
    for part in [finish::mark, finish::groups].into_iter().chain(release) {
        if next.step.is_none() {
            let plan = part(view);
            take(view, plan, &mut next);
        }
    }
    next.conditions.extend(view.conflicts());
    next
}

/// Takes over a plan. Returns true if it has a step, one that has to wait included.
fn take(view: &View<'_>, plan: Plan, next: &mut Next) -> bool {
    match plan {
        Plan::Nothing => false,
        Plan::Waits => true,
        Plan::Stuck(condition) => {
            next.conditions.push(condition);
            false
        }
        Plan::Step(step) => {
            match blocked(view, &step) {
                Some(condition) => next.conditions.push(condition),
                None => next.step = Some(step),
            }
            true
        }
    }
}

/// The reason that a step has to wait.
fn blocked(view: &View<'_>, step: &Step) -> Option<Condition> {
    let (action, now) = (step.action(), view.world.now);
    if let Some(pause) = view.world.memory.pauses.of(action, now) {
        let reason = Reason::of(pause.failure.class);
        return Some(Condition::new(reason, &pause.failure).until(pause.until));
    }
    view.progress.wait(action, now).map(super::Wait::condition)
}

fn of_instance(view: &View<'_>) -> Scope {
    Scope::Instances([view.instance.clone()].into())
}
