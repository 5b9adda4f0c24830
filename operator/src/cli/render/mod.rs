//! Tables.

use fleet::{
    Allowance, LeakView, NodeView, ObstacleView, PoolView, SpaceView, SubnetView, WhyView,
};
use terminal::{Paint, Table, Tone, one_line};

use crate::check::{Judgement, State};
use crate::cleanup::{Fate, Remnant};
use crate::config::{Row, Source};
use crate::max_pods::MaxPods;

/// The table of EC2's judgements.
pub(super) fn judgements(all: &[Judgement], paint: Paint) -> String {
    let mut table = Table::new(["CALL", "STATE", "REASON"]);
    for judgement in all {
        let (tone, state) = match judgement.state {
            State::Allowed => (Tone::Plain, "allowed"),
            State::Untried => (Tone::Warning, "untried"),
            State::Optional => (Tone::Warning, "optional"),
            State::Refused => (Tone::Bad, "refused"),
        };
        let reason = judgement.reason.clone().unwrap_or_default();
        let reason = match judgement.state {
            State::Optional => format!("for static IPs alone: {reason}"),
            State::Allowed | State::Untried | State::Refused => reason,
        };
        table.row(tone, [judgement.call.to_owned(), state.to_owned(), reason]);
    }
    table.render(paint)
}

/// The table of instance types.
pub(super) fn max_pods(all: &[MaxPods], paint: Paint) -> String {
    let header = [
        "TYPE",
        "ENIS",
        "BLOCKS PER ENI",
        "BLOCK",
        "ADDRESSES",
        "MAX PODS",
    ];
    let mut table = Table::new(header);
    for it in all {
        let block = if it.prefixes { "/28" } else { "/32" };
        let cells = [
            it.instance_type.clone(),
            it.enis.to_string(),
            it.blocks_per_eni.to_string(),
            block.to_owned(),
            it.addresses.to_string(),
            it.max_pods.to_string(),
        ];
        table.row(Tone::Plain, cells);
    }
    table.render(paint)
}

/// The table of a cluster's ENIs.
pub(super) fn remnants(all: &[Remnant], paint: Paint) -> String {
    let mut table = Table::new(["ENI", "INSTANCE", "CREATED", "STATE"]);
    for remnant in all {
        let (tone, state) = match &remnant.fate {
            Fate::Deleted => (Tone::Plain, "deleted".to_owned()),
            Fate::Deletable => (Tone::Plain, "deletable".to_owned()),
            Fate::InUse => (Tone::Warning, "in use".to_owned()),
            Fate::Failed(cause) => (Tone::Bad, format!("not deleted: {cause}")),
        };
        let cells = [
            remnant.eni.clone(),
            remnant.instance.clone().unwrap_or_default(),
            remnant.created.clone().unwrap_or_default(),
            state,
        ];
        table.row(tone, cells);
    }
    table.render(paint)
}

/// The table of settings.
pub(super) fn settings(all: &[Row], paint: Paint) -> String {
    let mut table = Table::new(["KEY", "VALUE", "SOURCE"]);
    for row in all {
        let (tone, source) = match row.source {
            Source::File => (Tone::Good, "file"),
            Source::Default => (Tone::Plain, "default"),
        };
        let cells = [row.key.clone(), row.value.clone(), source.to_owned()];
        table.row(tone, cells);
    }
    table.render(paint)
}

/// The table of nodes.
pub(super) fn nodes(all: &[NodeView], paint: Paint) -> String {
    let header = [
        "NODE",
        "INSTANCE",
        "ADDRESSES",
        "MISSING",
        "ENIS",
        "NEXT STEP",
        "OBSTACLE",
    ];
    let mut table = Table::new(header);
    for node in all {
        let tone = match &node.obstacle {
            Some(_) => Tone::Warning,
            None => Tone::Plain,
        };
        let most = node
            .enis_most
            .map_or("?".to_owned(), |most| most.to_string());
        let cells = [
            node.name.clone(),
            node.instance.clone().unwrap_or_default(),
            node.addresses.to_string(),
            node.missing.to_string(),
            format!("{}/{most}", node.enis),
            node.step.clone().unwrap_or_default(),
            node.obstacle.as_ref().map(obstacle).unwrap_or_default(),
        ];
        table.row(tone, cells);
    }
    table.render(paint)
}

fn obstacle(obstacle: &ObstacleView) -> String {
    let ObstacleView {
        reason,
        text,
        next_try,
    } = obstacle;
    match next_try {
        Some(next) => format!("{reason}: {text}, next try {next}"),
        None => format!("{reason}: {text}"),
    }
}

/// One node.
pub(super) fn why(view: &WhyView, paint: Paint) -> String {
    let mut text = nodes(std::slice::from_ref(&view.node), paint);
    let mut lines = Vec::new();
    if view.is_busy {
        lines.push("a change is in progress at EC2".to_owned());
    }
    lines.extend(
        view.need
            .as_ref()
            .map(|need| format!("urgency of the next step: {need}")),
    );
    let obstacles = view.obstacles.iter().map(obstacle);
    lines.extend(obstacles.map(|it| format!("obstacle: {it}")));
    lines.extend(view.findings.iter().map(|it| format!("finding: {it}")));
    lines.extend(view.problems.iter().map(|it| format!("document: {it}")));
    lines.extend(view.write_fault.iter().map(|it| format!("write: {it}")));
    if !lines.is_empty() {
        text.push('\n');
    }
    for line in lines {
        text.push_str(&one_line(&line));
        text.push('\n');
    }
    let mut table = Table::new(["ENI", "USE"]);
    for (eni, role) in &view.enis {
        table.row(Tone::Plain, [eni.clone(), role.clone()]);
    }
    format!("{text}\n{}", table.render(paint))
}

/// The table of subnets.
pub(super) fn subnets(all: &[SubnetView], paint: Paint) -> String {
    let mut table = Table::new(["SUBNET", "ZONE", "ROOM", "LASTS", "REFUSED"]);
    for subnet in all {
        let refused = subnet.refused.iter();
        let refused: Vec<String> = refused
            .map(|(kind, until)| format!("{kind} until {until}"))
            .collect();
        let tone = if refused.is_empty() {
            Tone::Plain
        } else {
            Tone::Warning
        };
        let cells = [
            subnet.id.clone(),
            subnet.zone.clone(),
            subnet.room.to_string(),
            subnet
                .lasts_seconds
                .map_or("-".to_owned(), |it| format!("{} min", it / 60)),
            refused.join(", "),
        ];
        table.row(tone, cells);
    }
    table.render(paint)
}

/// The table of pools. Blocks by family, nodes that are short of them and orphans are columns of
/// plain pools alone.
pub(super) fn pools(all: &[PoolView], paint: Paint) -> String {
    let header = [
        "POOL",
        "NODES",
        "ENIS",
        "ADDRESSES",
        "WANTED",
        "IPV4",
        "IPV6",
        "SHORT",
        "ORPHANS",
        "FAULTS",
    ];
    let none = || "-".to_owned();
    let mut table = Table::new(header);
    for pool in all {
        let plain = pool.plain.as_ref();
        let is_well = pool.faults.is_empty() && plain.is_none_or(|it| it.short_nodes == 0);
        let tone = if is_well { Tone::Plain } else { Tone::Warning };
        let space = |space: Option<SpaceView>| {
            space.map_or_else(none, |it| format!("{}/{}", it.taken, it.blocks))
        };
        let cells = [
            pool.name.clone(),
            pool.nodes.to_string(),
            pool.enis.to_string(),
            pool.addresses.to_string(),
            pool.wanted.to_string(),
            space(plain.and_then(|it| it.ipv4)),
            space(plain.and_then(|it| it.ipv6)),
            plain.map_or_else(none, |it| it.short_nodes.to_string()),
            plain.map_or_else(none, |it| it.orphans.len().to_string()),
            pool.faults.join("; "),
        ];
        table.row(tone, cells);
    }
    table.render(paint)
}

/// The table of budgets.
pub(super) fn budgets(all: &[Allowance], paint: Paint) -> String {
    let header = [
        "CALL",
        "BURST",
        "RATE/S",
        "NOW",
        "THROTTLED",
        "WAITING",
        "PAUSE",
    ];
    let mut table = Table::new(header);
    for budget in all {
        let tone = if budget.pause.is_some() || budget.factor < 1.0 {
            Tone::Warning
        } else {
            Tone::Plain
        };
        let cells = [
            budget.action.clone(),
            format!("{:.0}", budget.burst),
            format!("{:.1}", budget.per_second),
            format!("{:.0} %", budget.factor * 100.0),
            budget.throttled.to_string(),
            budget.waiting.to_string(),
            budget.pause.clone().unwrap_or_default(),
        ];
        table.row(tone, cells);
    }
    table.render(paint)
}

/// The table of ENIs that cannot be deleted.
pub(super) fn leaks(all: &[LeakView], paint: Paint) -> String {
    let mut table = Table::new(["ENI", "FAILURES", "REASON"]);
    for leak in all {
        let cells = [
            leak.eni.clone(),
            leak.failures.to_string(),
            leak.reason.clone(),
        ];
        table.row(Tone::Bad, cells);
    }
    table.render(paint)
}

#[cfg(test)]
mod tests;
