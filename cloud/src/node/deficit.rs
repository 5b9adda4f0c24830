//! The step that brings missing addresses.

use ipam::Family;

use super::share::{Share, has_prefix_v6};
use super::view::View;
use super::{Blocks, Condition, Create, Reason, Step};
use crate::object::block::PREFIX_V6;
use crate::object::subnet::Subnet;
use crate::object::tags;
use crate::place::PlaceError;
use crate::{Kind, Seed};

/// The result of a part of the plan.
#[derive(Debug)]
pub(super) enum Plan {
    /// There is nothing to do.
    Nothing,
    /// This is to be done.
    Step(Step),
    /// A read shows soon when to go on.
    Waits,
    /// Something is missing and cannot be had now.
    Stuck(Condition),
}

/// IPv4 addresses. Prefixes are tried everywhere before single addresses are tried anywhere.
pub(super) fn ipv4(view: &View<'_>, share: &Share<'_>) -> Plan {
    let want = share.want(view.node);
    if want.bring == 0 {
        return Plan::Nothing;
    }
    let may = view.node.rules.prefixes && view.limits.prefixes && !want.singles_only;
    let kinds: &[Kind] = if may {
        &[Kind::Prefix, Kind::Address]
    } else {
        &[Kind::Address]
    };
    let mut stuck = None;
    for kind in kinds {
        let count = want.blocks(*kind);
        if count == 0 {
            let detail = format!("max-allocate {} leaves no room", view.node.marks.max);
            return Plan::Stuck(Condition::new(Reason::AtMaxAllocate, detail));
        }
        let blocks = Blocks { kind: *kind, count };
        if let Some(step) = assign(view, share, blocks) {
            return Plan::Step(step);
        }
        match create(view, share, Family::V4, Some(blocks)) {
            Ok(step) => return Plan::Step(step),
            Err(condition) => stuck = Some(condition),
        }
    }
    stuck.map_or(Plan::Nothing, Plan::Stuck)
}

/// An IPv6 prefix: one is enough for a pool of a node.
pub(super) fn ipv6(view: &View<'_>, share: &Share<'_>) -> Plan {
    if share.asks_ipv6() && !view.limits.prefixes {
        let detail = format!(
            "instance {} cannot have an IPv6 /{PREFIX_V6}",
            view.instance
        );
        return Plan::Stuck(Condition::new(Reason::NoIpv6, detail));
    }
    if !view.wants_ipv6_without(share, None) {
        return Plan::Nothing;
    }
    let blocks = Blocks {
        kind: Kind::PrefixV6,
        count: 1,
    };
    if let Some(step) = assign(view, share, blocks) {
        return Plan::Step(step);
    }
    create(view, share, Family::V6, None).map_or_else(Plan::Stuck, Plan::Step)
}

/// Blocks for an ENI that is there: the one with fewest free slots, so that ENIs fill up.
fn assign(view: &View<'_>, share: &Share<'_>, wanted: Blocks) -> Option<Step> {
    let candidates = share.counted.iter().filter_map(|eni| {
        let learned = &view.world.memory.learned;
        let family = wanted.kind.family();
        let slots = learned.slots(&eni.id, family, &view.limits, view.world.now);
        let free = slots.saturating_sub(eni.taken(family));
        let subnet = view.world.facts.subnets.get(&eni.placement.subnet)?;
        let room = view
            .world
            .memory
            .pressure
            .room(subnet, wanted.kind, view.world.now);
        let fitting = room / wanted.kind.addresses().max(1);
        let count = wanted.count.min(free).min(fitting);
        (count > 0).then_some((free, &eni.id, *eni, count))
    });
    let (_, _, eni, count) = candidates.min_by_key(|(free, id, _, _)| (*free, *id))?;
    Some(Step::Assign {
        eni: eni.id.clone(),
        subnet: eni.placement.subnet.clone(),
        blocks: Blocks { count, ..wanted },
    })
}

/// A new ENI with its first blocks.
fn create(
    view: &View<'_>,
    share: &Share<'_>,
    family: Family,
    ipv4: Option<Blocks>,
) -> Result<Step, Condition> {
    let slots = slots_of_new(view, family)?;
    let (facts, memory, now) = (view.world.facts, view.world.memory, view.world.now);
    let (location, pressure) = (&share.location, &memory.pressure);
    let places = location.places(&facts.subnets, family, pressure, now);
    let places = places.map_err(|error| no_place(&error))?;
    let kind = ipv4.map_or(Kind::PrefixV6, |it| it.kind);
    let addresses = ipv4.map_or(0, |it| it.count.min(slots.into()) * kind.addresses());
    let subnet = places.best(kind, addresses, pressure, now);
    let subnet = subnet.ok_or_else(|| {
        let detail = format!(
            "no room for blocks of kind {kind:?}, by {}",
            places.rule.name()
        );
        Condition::new(Reason::SubnetFull, detail)
    })?;
    let groups = view.groups(share);
    let groups = groups.map_err(|error| Condition::new(Reason::NoSecurityGroup, error))?;
    let room = pressure.room(subnet, kind, now).saturating_sub(1);
    let ipv4 = ipv4.map(|blocks| Blocks {
        count: blocks
            .count
            .min(slots.into())
            .min(room / kind.addresses().max(1)),
        ..blocks
    });
    let cluster = memory.inventory.cluster();
    let seed = Seed {
        cluster,
        instance: view.instance,
        known: &view.ids(),
        now: view.world.date,
        salt: view.progress.salt,
    };
    Ok(Step::Create(Box::new(Create {
        instance: view.instance.clone(),
        subnet: subnet.id.clone(),
        groups,
        description: format!("Towpath ({})", view.instance),
        ipv4,
        ipv6_prefix: with_ipv6(view, share, subnet),
        tags: tags::of_creation(
            cluster,
            view.instance,
            view.world.date,
            &share.tags(&facts.eni_tags),
        ),
        token: seed.token(),
    })))
}

/// The slots that another ENI of the instance would have.
fn slots_of_new(view: &View<'_>, family: Family) -> Result<u16, Condition> {
    let slots = match family {
        Family::V4 => view.limits.slots,
        Family::V6 => view.limits.slots_v6,
    };
    if view.free_index().is_none() || slots == 0 {
        let detail = format!(
            "instance {} has {} of {} ENIs and their slots are taken",
            view.instance,
            view.attached(),
            view.limits.adapters
        );
        return Err(Condition::new(Reason::AtCapacity, detail));
    }
    Ok(slots)
}

/// An IPv6 prefix comes with a new ENI if the node lacks one and the subnet has some.
fn with_ipv6(view: &View<'_>, share: &Share<'_>, subnet: &Subnet) -> bool {
    let pressure = &view.world.memory.pressure;
    view.wants_ipv6_without(share, None)
        && view.limits.slots_v6 > 0
        && pressure.room(subnet, Kind::PrefixV6, view.world.now) > 0
}

fn no_place(error: &PlaceError) -> Condition {
    let reason = match error {
        PlaceError::None { .. } => Reason::NoSubnet,
        PlaceError::Full(_) => Reason::SubnetFull,
    };
    Condition::new(reason, error)
}

/// Reports if the node still wants a loose ENI.
pub(super) fn wants(view: &View<'_>, eni: &crate::Eni) -> bool {
    let is_of = |share: &&Share<'_>| share.loose.iter().any(|it| it.id == eni.id);
    let Some(share) = view.shares.all.iter().find(is_of) else {
        return false;
    };
    let ipv4 = share.want_without(view.node, Some(&eni.id)).bring > 0 && eni.own.is_some();
    let ipv6 = has_prefix_v6(eni) && view.wants_ipv6_without(share, Some(&eni.id));
    ipv4 || ipv6
}
