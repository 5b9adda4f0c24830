//! The invariants.

use std::collections::BTreeMap;
use std::net::IpAddr;

use ipnet::IpNet;

use ipam::{
    AllocateError, AnnouncedBlock, BlockView, Counts, Draining, Family, Lease, Life, Owner,
    Request, Source, State, Want,
};

use super::model::Run;
use super::world::POOLS;

/// Checks the invariants after every step.
pub(super) fn everything(run: &mut Run) {
    let allocator = &run.allocator;
    let model: BTreeMap<IpAddr, Owner> = run
        .held
        .iter()
        .map(|(address, held)| (*address, held.owner.clone()))
        .collect();
    let leases: BTreeMap<IpAddr, Owner> = allocator
        .leases()
        .map(|lease| (lease.address, lease.owner.clone()))
        .collect();
    assert_eq!(leases, model, "who has what");
    let cooling: Vec<IpAddr> = allocator.cooling().map(|c| c.address).collect();
    assert_eq!(cooling, run.cooling.keys().copied().collect::<Vec<_>>());
    for lease in allocator.leases() {
        assert_eq!(
            lease.pool, run.held[&lease.address].pool,
            "an address stays in its pool"
        );
    }
    let state = allocator.state();
    let text = serde_json::to_string(&state).unwrap();
    assert_eq!(serde_json::from_str::<State>(&text).unwrap(), state);

    let views = allocator.blocks();
    let mut sum = Counts::default();
    for view in &views {
        assert!(view.counts.add_up(), "{view:?}");
        sum += view.counts;
        block(run, view);
    }
    let held = run.held.len() + run.cooling.len();
    assert_eq!(
        sum.in_use() + sum.outside,
        held as u64,
        "each address in one block: {views:?}"
    );
    let reached: Vec<_> = views
        .iter()
        .filter_map(|view| match &view.life {
            Life::Gone => Some("block gone"),
            Life::Draining(Draining::MovesTo(_)) => Some("moves"),
            Life::Draining(Draining::Undecided) => Some("undecided"),
            Life::Draining(Draining::Released) | Life::Announced | Life::Usable => None,
        })
        .collect();
    run.reached.extend(reached);
}

/// Checks one block: its life is that of the world, and its free addresses are those without an
/// owner.
fn block(run: &Run, view: &BlockView) {
    let held = |address: &IpAddr| {
        view.cidr.contains(address)
            && (run.held.contains_key(address) || run.cooling.contains_key(address))
    };
    if view.life == Life::Gone {
        assert_eq!(view.counts.free, 0);
        return;
    }
    let announced = announced(run, view);
    let is_ready = match &announced.source {
        Source::Node => true,
        Source::Device(id) => run.ready.contains(id),
    };
    match &view.life {
        Life::Usable => assert!(is_ready && view.pool == announced.pool, "{view:?}"),
        Life::Announced => assert!(!is_ready && view.pool == announced.pool, "{view:?}"),
        Life::Draining(Draining::Undecided) => assert_eq!(announced.pool, None),
        Life::Draining(Draining::MovesTo(pool)) => {
            assert_eq!(Some(pool), announced.pool.as_ref());
            assert_ne!(view.pool, announced.pool);
            let mut all = run.held.keys().chain(run.cooling.keys());
            assert!(
                all.any(held),
                "a block that nobody uses has moved: {view:?}"
            );
        }
        Life::Draining(Draining::Released) => {
            assert_eq!(view.counts.in_use() + view.counts.outside, 0, "{view:?}");
        }
        Life::Gone => unreachable!(),
    }
    let free = free(run, announced);
    assert_eq!(view.counts.free, free as u64, "{view:?}");
}

/// Number of a block's free addresses, counted one by one; for a wide block the window less those
/// in use.
fn free(run: &Run, announced: &AnnouncedBlock) -> usize {
    let net = announced.cidr;
    let held =
        |address: &IpAddr| run.held.contains_key(address) || run.cooling.contains_key(address);
    let first = number(net.network());
    let last = number(net.broadcast()).min(first + u128::from(ipam::WINDOW) - 1);
    if last - first < 1024 {
        let all = (first..=last).map(|n| address(net, n));
        return all
            .filter(|a| !held(a) && is_allowed(run, announced, *a))
            .count();
    }
    if run
        .announced
        .excluded
        .iter()
        .any(|all| all.contains(&net.network()))
    {
        return 0;
    }
    let mut all = run.held.keys().chain(run.cooling.keys());
    let is_within = |a: &&IpAddr| net.contains(*a) && number(**a) <= last;
    usize::try_from(last - first).unwrap() + 1 - all.by_ref().filter(is_within).count()
}

fn number(address: IpAddr) -> u128 {
    match address {
        IpAddr::V4(address) => u32::from(address).into(),
        IpAddr::V6(address) => address.into(),
    }
}

fn address(like: IpNet, number: u128) -> IpAddr {
    match like {
        IpNet::V4(_) => IpAddr::V4(u32::try_from(number).unwrap().into()),
        IpNet::V6(_) => IpAddr::V6(number.into()),
    }
}

fn announced<'a>(run: &'a Run, view: &BlockView) -> &'a AnnouncedBlock {
    let mut blocks = run.announced.blocks.iter();
    blocks
        .find(|block| block.cidr == view.cidr)
        .expect("a block that nobody announced")
}

/// True if an address can be given at all.
fn is_allowed(run: &Run, block: &AnnouncedBlock, address: IpAddr) -> bool {
    let net = block.cidr;
    let size = 1_u128 << (net.max_prefix_len() - net.prefix_len());
    let is_first = address == net.network() && !block.edges.allow_first;
    let is_last = address == net.broadcast() && !block.edges.allow_last;
    let is_edge = size > 2 && (is_first || is_last);
    !is_edge
        && !run
            .announced
            .excluded
            .iter()
            .any(|net| net.contains(&address))
}

/// Checks that an address was the right one to allocate: announced, ready, allowed, of the right
/// pool, and from the fullest block.
pub(super) fn may_be_given(run: &Run, request: &Request, lease: &Lease, before: &[BlockView]) {
    let own = |view: &&BlockView| view.cidr.contains(&lease.address) && view.life == Life::Usable;
    let view = before
        .iter()
        .find(own)
        .expect("an address of no usable block");
    let block = announced(run, view);
    assert_eq!(lease.block, view.cidr);
    assert_eq!(lease.pool, block.pool);
    if let Source::Device(eni) = &block.source {
        assert!(run.ready.contains(eni), "{eni} is not ready");
    }
    assert!(is_allowed(run, block, lease.address), "{lease:?}");
    match request.want {
        Want::Address(address) => {
            assert_eq!(lease.address, address);
            assert!(request.pool.is_none() || request.pool == lease.pool);
        }
        Want::Any(family) => {
            let pool = request.pool.as_deref().unwrap_or(POOLS[0]);
            assert_eq!(lease.pool.as_deref(), Some(pool));
            let rank = |view: &BlockView| {
                let held = view.counts.in_use() + view.counts.outside;
                (held == 0, view.counts.free)
            };
            let has_rested = |view: &&BlockView| {
                let block = announced(run, view);
                fresh(run, block).count() < free(run, block)
            };
            let all = usable(before, pool, family);
            let best = all.filter(has_rested).map(rank).min();
            if best.is_some() {
                assert_eq!(Some(rank(view)), best, "not the fullest block: {before:?}");
            }
            has_rested_longest(run, lease, usable(before, pool, family));
        }
    }
}

fn usable<'a>(
    views: &'a [BlockView],
    pool: &'a str,
    family: Family,
) -> impl Iterator<Item = &'a BlockView> {
    let of_pool = views
        .iter()
        .filter(move |view| view.pool.as_deref() == Some(pool));
    let of_family = of_pool.filter(move |view| Family::of_net(view.cidr) == family);
    of_family.filter(|view| view.life == Life::Usable && view.counts.free > 0)
}

/// A request for any address fails only where none can be given.
pub(super) fn is_no_excuse(request: &Request, error: &AllocateError, before: &[BlockView]) {
    if let AllocateError::UnknownPool { pool, family }
    | AllocateError::Exhausted { pool, family, .. }
    | AllocateError::NotReady { pool, family, .. } = error
        && matches!(request.want, Want::Any(_))
    {
        let mut usable = usable(before, pool, *family);
        assert!(
            usable.next().is_none() || matches!(error, AllocateError::NotReady { .. }),
            "{error}: {before:?}"
        );
    }
}

/// After blocks were given back, what demand leaves free is there, or nothing more can be taken.
pub(super) fn enough_is_kept(run: &Run) {
    let views = run.allocator.blocks();
    for (pool, needed) in run.allocator.demand() {
        for (family, needed) in needed {
            let free: u64 = usable(&views, &pool, family)
                .map(|view| view.counts.free)
                .sum();
            let released = views.iter().any(|view| {
                view.pool.as_ref() == Some(&pool)
                    && Family::of_net(view.cidr) == family
                    && view.life == Life::Draining(Draining::Released)
            });
            let held = |address: &&IpAddr| {
                let mut live = views.iter().filter(|view| view.life != Life::Gone);
                Family::of(**address) == family && live.any(|v| v.cidr.contains(*address))
            };
            let of_pool = run
                .held
                .iter()
                .filter(|(_, h)| h.pool.as_ref() == Some(&pool));
            let used = of_pool.map(|(address, _)| address).filter(held).count() as u64;
            let cooling = run
                .allocator
                .cooling()
                .filter(|c| c.pool.as_ref() == Some(&pool));
            let cooling = cooling.map(|c| c.address).filter(|a| held(&a)).count() as u64;
            assert!(
                !released || free >= needed.saturating_sub(used + cooling),
                "{pool} {family}: {free} free of {needed} wanted while blocks are given back"
            );
        }
    }
}

/// Checks that a recently released address is allocated only if all free ones are recently
/// released, and in the order of their releases.
fn has_rested_longest<'a>(run: &Run, lease: &Lease, of_pool: impl Iterator<Item = &'a BlockView>) {
    let Some(own) = run.fresh.get(&lease.address) else {
        return;
    };
    for view in of_pool {
        let block = announced(run, view);
        let fresh: Vec<_> = fresh(run, block).collect();
        assert_eq!(fresh.len(), free(run, block), "{view:?} has rested ones");
        assert!(fresh.iter().all(|until| *until >= own), "{lease:?}");
    }
}

/// Ends of the cooldowns of a block's free addresses that were released recently.
fn fresh<'a>(run: &'a Run, block: &'a AnnouncedBlock) -> impl Iterator<Item = &'a u64> {
    let is_free = |address: &IpAddr| {
        let is_held = run.held.contains_key(address) || run.cooling.contains_key(address);
        block.cidr.contains(address) && !is_held && is_allowed(run, block, *address)
    };
    let all = run.fresh.iter();
    all.filter(move |(address, _)| is_free(address))
        .map(|(_, until)| until)
}
