//! Steps that finish what was begun: loose ENIs, marks, security groups.

use super::deficit::{self, Plan};
use super::share::Share;
use super::view::View;
use super::{Condition, Reason, Step};

/// A loose ENI is attached if the node still wants it, or else deleted. EC2 refuses both before it
/// has made the ENI, which reads by id show.
pub(super) fn loose(view: &View<'_>) -> Plan {
    let Some(eni) = view.loose.first() else {
        return Plan::Nothing;
    };
    if eni.is_pending {
        return Plan::Waits;
    }
    match view.free_index().filter(|_| deficit::wants(view, eni)) {
        Some(index) => Plan::Step(Step::Attach {
            eni: eni.id.clone(),
            instance: view.instance.clone(),
            index,
        }),
        None => Plan::Step(Step::Delete {
            eni: eni.id.clone(),
        }),
    }
}

/// EC2 deletes ENIs that the operator created with the instance. The agent gets to know an ENI
/// first, because pods wait for that.
pub(super) fn mark(view: &View<'_>) -> Plan {
    if !view.node.rules.delete_on_termination {
        return Plan::Nothing;
    }
    let published = &view.node.published;
    let ours = view
        .counted
        .iter()
        .filter(|eni| eni.is_attached() && view.is_ours(eni) && published.contains(&eni.id));
    let mut unmarked = ours.filter_map(|eni| {
        let attachment = eni.attachment.as_ref()?;
        (!attachment.delete_on_termination).then(|| Step::Mark {
            eni: eni.id.clone(),
            attachment: attachment.id.clone(),
        })
    });
    unmarked.next().map_or(Plan::Nothing, Plan::Step)
}

/// ENIs that the operator created have the security groups that are chosen for their pool.
pub(super) fn groups(view: &View<'_>) -> Plan {
    let mut stuck = Plan::Nothing;
    for share in &view.shares.all {
        match groups_of(view, share) {
            Plan::Nothing | Plan::Waits => {}
            Plan::Step(step) => return Plan::Step(step),
            Plan::Stuck(condition) => stuck = Plan::Stuck(condition),
        }
    }
    stuck
}

fn groups_of(view: &View<'_>, share: &Share<'_>) -> Plan {
    let mut ours = share
        .counted
        .iter()
        .filter(|eni| view.is_ours(eni))
        .peekable();
    if ours.peek().is_none() {
        return Plan::Nothing;
    }
    match view.groups(share) {
        Ok(wanted) => {
            let step = ours
                .find(|eni| eni.groups != wanted)
                .map(|eni| Step::Group {
                    eni: eni.id.clone(),
                    groups: wanted.clone(),
                });
            step.map_or(Plan::Nothing, Plan::Step)
        }
        Err(error) => Plan::Stuck(Condition::new(Reason::NoSecurityGroup, error)),
    }
}
