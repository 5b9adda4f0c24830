//! The model of the leases, and the allocator that is compared with it.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;

use ipam::{
    Advanced, AllocateError, Allocator, Announcement, Barrier, BlockView, Claim, Draining, Family,
    Formula, Lease, Life, Owner, Problem, Request, SeenEndpoint, Settings, State, Time, Want,
};

use super::check;
use super::world::{ADDRESSES, ENIS, OWNERS, Op, POOLS, announcement, name};
use crate::support::*;

/// A lease in the model.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Held {
    pub(super) owner: Owner,
    pub(super) pool: Option<String>,
    /// `None` once it is claimed.
    until: Option<u64>,
    since: u64,
}

/// The model, and the allocator.
pub(super) struct Run {
    pub(super) allocator: Allocator,
    pub(super) held: BTreeMap<IpAddr, Held>,
    /// Until when each address cools down.
    pub(super) cooling: BTreeMap<IpAddr, u64>,
    /// Until when those cooled down that were released a short time ago.
    pub(super) fresh: BTreeMap<IpAddr, u64>,
    pub(super) announced: Announcement,
    pub(super) ready: BTreeSet<String>,
    now: u64,
    /// Situations that the sequence has reached.
    pub(super) reached: BTreeSet<&'static str>,
}

fn options() -> Settings {
    Settings {
        barriers: [Barrier::DOCUMENT].into(),
        ..settings(Formula::Linear, "default=4,mars=2")
    }
}

impl Run {
    pub(super) fn new() -> Self {
        let allocator = Allocator::restore(options(), State::default(), Some(&[]), at(0)).0;
        Self {
            allocator,
            held: BTreeMap::new(),
            cooling: BTreeMap::new(),
            fresh: BTreeMap::new(),
            announced: Announcement::default(),
            ready: BTreeSet::new(),
            now: 0,
            reached: BTreeSet::new(),
        }
    }

    fn time(&self) -> Time {
        at(self.now)
    }

    pub(super) fn step(&mut self, op: &Op) {
        match op {
            Op::Announce {
                blocks,
                pools,
                excluded,
                mars_is_v4,
            } => {
                let new = announcement(*blocks, pools, *excluded, *mars_is_v4);
                self.announce(new);
            }
            Op::Ready(bits) => {
                let ready = ENIS
                    .iter()
                    .enumerate()
                    .filter(|(n, _)| bits & (1 << n) != 0);
                self.ready = ready.map(|(_, eni)| (*eni).to_owned()).collect();
                self.allocator.set_ready(self.ready.clone());
            }
            Op::Allocate { owner, pool, v6 } => {
                let family = if *v6 { V6 } else { V4 };
                self.allocate(*owner, *pool, Want::Any(family));
            }
            Op::AllocateBoth { owner, pool } => self.allocate_both(*owner, *pool),
            Op::Exactly {
                owner,
                pool,
                address,
            } => self.allocate(*owner, *pool, Want::Address(ip(ADDRESSES[*address]))),
            Op::Adopt { owner, address } => self.adopt(*owner, *address),
            Op::Claim(n) => self.claim(*n),
            Op::Release(n) => self.release(*n),
            Op::Pass { seconds, all_quiet } => self.pass(*seconds, *all_quiet),
            Op::Rebalance => self.rebalance(),
            Op::Collect { living, ago } => self.collect(*living, *ago),
            Op::Restart { file, lost, stray } => self.restart(*file, *lost, *stray),
        }
        check::everything(self);
    }

    fn announce(&mut self, new: Announcement) {
        self.announced = new.clone();
        let changes = self.allocator.observe(new);
        let is_overlap = |problem: &Problem| matches!(problem, Problem::Overlap { .. });
        if changes.problems.iter().any(is_overlap) {
            self.reached.insert("overlap");
        }
        for lease in &changes.orphaned {
            assert!(self.held.contains_key(&lease.address));
        }
        self.learn_pools();
    }

    /// An adopted address gets its pool when its block is known, and keeps it then.
    fn learn_pools(&mut self) {
        for lease in self.allocator.leases() {
            if let Some(held) = self.held.get_mut(&lease.address)
                && held.pool.is_none()
            {
                held.pool.clone_from(&lease.pool);
            }
        }
    }

    fn allocate(&mut self, n: usize, pool: Option<usize>, want: Want) {
        let request = Request {
            owner: owner(&name(n)),
            pod: None,
            pool: pool.map(|n| POOLS[n].to_owned()),
            want,
        };
        let before = self.allocator.blocks();
        match self.allocator.allocate(&request, self.time()) {
            Ok(lease) => self.given(&request, &lease, &before),
            Err(error) => self.refused(&request, &error, &before),
        }
    }

    fn allocate_both(&mut self, n: usize, pool: Option<usize>) {
        let requests = [V6, V4].map(|family| Request {
            owner: owner(&name(n)),
            pod: None,
            pool: pool.map(|n| POOLS[n].to_owned()),
            want: Want::Any(family),
        });
        let before = self.allocator.blocks();
        // An existing lease waits for its claim again, whether the other family fails or not.
        match self.allocator.allocate_all(&requests, self.time()) {
            Ok(leases) => {
                for (request, lease) in requests.iter().zip(&leases) {
                    self.given(request, lease, &before);
                }
                self.reached.insert("both given");
            }
            Err(error) => {
                let failed = requests
                    .iter()
                    .find(|r| Some(r.want.family()) == family(&error));
                let failed = failed.unwrap_or(&requests[0]);
                self.refused(failed, &error, &before);
                self.reached.insert("both refused");
            }
        }
        for (address, held) in &mut self.held {
            let lease = self.allocator.lease_of(*address);
            if let Some(Claim::Unclaimed { until }) = lease.map(|lease| lease.claim)
                && held.owner == requests[0].owner
                && until == at(self.now + 600)
            {
                held.until = Some(self.now + 600);
            }
        }
    }

    fn given(&mut self, request: &Request, lease: &Lease, before: &[BlockView]) {
        assert_eq!(lease.owner, request.owner);
        assert_eq!(lease.family(), request.want.family());
        if let Some(held) = self.held.get_mut(&lease.address) {
            assert_eq!(held.owner, request.owner, "{} is somebody's", lease.address);
            held.until = held.until.map(|_| self.now + 600);
            self.reached.insert("given again");
            return;
        }
        let has = |held: &(&IpAddr, &Held)| {
            held.1.owner == request.owner && Family::of(*held.0) == lease.family()
        };
        assert!(
            !self.held.iter().any(|h| has(&h)),
            "{} has one",
            request.owner
        );
        assert!(
            !self.cooling.contains_key(&lease.address),
            "{} is cooling",
            lease.address
        );
        check::may_be_given(self, request, lease, before);
        let is_fresh = self.fresh.contains_key(&lease.address);
        self.reached.insert(match request.want {
            Want::Any(_) if is_fresh => "given for want of rested ones",
            Want::Any(_) => "given",
            Want::Address(_) => "given explicitly",
        });
        let held = Held {
            owner: lease.owner.clone(),
            pool: lease.pool.clone(),
            until: Some(self.now + 600),
            since: self.now,
        };
        self.held.insert(lease.address, held);
    }

    fn refused(&mut self, request: &Request, error: &AllocateError, before: &[BlockView]) {
        check::is_no_excuse(request, error, before);
        self.reached.insert(match error {
            AllocateError::Restoring { .. } => "restoring",
            AllocateError::NoFamily { .. } => "no family",
            AllocateError::UnknownPool { .. } => "unknown pool",
            AllocateError::Exhausted { .. } => "exhausted",
            AllocateError::NotReady { .. } => "not ready",
            AllocateError::NotInBlock { .. } => "not in a block",
            AllocateError::OtherPool { .. } => "other pool",
            AllocateError::Barred { .. } => "barred",
            AllocateError::InUse { address, owner } => {
                assert_eq!(self.held[address].owner, *owner);
                "in use"
            }
            AllocateError::CoolingDown { address, until } => {
                assert_eq!(at(self.cooling[address]), *until);
                "cooling down"
            }
            AllocateError::BlockDraining { .. } => "draining",
            AllocateError::HasAnother { has, .. } => {
                assert_eq!(self.held[has].owner, request.owner);
                "has another"
            }
            AllocateError::Orphaned { address, .. } => {
                assert_eq!(self.held[address].owner, request.owner);
                "orphaned"
            }
            AllocateError::NotMasqueraded { .. } | AllocateError::PolicyUnknown { .. } => {
                unreachable!("the allocator knows no policy")
            }
        });
    }

    /// An owner turns out to have an address, unless it has one of that family already.
    fn adopt(&mut self, n: usize, address: usize) {
        let (owner, address) = (owner(&name(n)), ip(ADDRESSES[address]));
        let has_one = |(held, of): (&IpAddr, &Held)| {
            of.owner == owner && *held != address && Family::of(*held) == Family::of(address)
        };
        if self.held.iter().any(has_one) {
            return;
        }
        let adopted = self.allocator.adopt(&owner, address, self.time());
        if let Some(held) = self.held.get(&address) {
            let is_own = held.owner == owner;
            assert_eq!(adopted.is_ok(), is_own, "{adopted:?}");
            return;
        }
        adopted.unwrap();
        self.reached.insert("adopted at work");
        self.cooling.remove(&address);
        let held = Held {
            owner,
            pool: None,
            until: None,
            since: self.now,
        };
        self.held.insert(address, held);
        self.learn_pools();
    }

    fn claim(&mut self, n: usize) {
        let owner = owner(&name(n));
        let mine = self.held.iter_mut().filter(|(_, held)| held.owner == owner);
        let mine: BTreeSet<IpAddr> = mine
            .map(|(address, held)| {
                held.until = None;
                *address
            })
            .collect();
        let claimed = self.allocator.claim(&owner).unwrap_or_default();
        let claimed: BTreeSet<IpAddr> = claimed.iter().map(|lease| lease.address).collect();
        assert_eq!(claimed, mine);
    }

    fn release(&mut self, n: usize) {
        let owner = owner(&name(n));
        let released = self.allocator.release(&owner, self.time());
        let released = released.iter().map(|lease| lease.address).collect();
        self.cool(&released, |held| held.owner == owner);
        let again = self.allocator.release(&owner, self.time());
        assert_eq!(again, [], "a second release does nothing");
    }

    /// Moves the matching leases to the cooling ones, and checks that they are the reported ones.
    fn cool(&mut self, reported: &BTreeSet<IpAddr>, fits: impl Fn(&Held) -> bool) {
        let fitting = self.held.iter().filter(|(_, held)| fits(held));
        let fitting: BTreeSet<IpAddr> = fitting.map(|(address, _)| *address).collect();
        assert_eq!(*reported, fitting);
        for address in fitting {
            self.held.remove(&address);
            self.fresh.remove(&address);
            self.cooling.insert(address, self.now + 30);
        }
    }

    fn pass(&mut self, seconds: u64, all_quiet: bool) {
        self.now += seconds;
        let now = self.now;
        let is_quiet =
            |address: IpAddr| all_quiet || address.to_string().ends_with(['0', '2', '4']);
        let before = (self.allocator.demand(), self.allocator.blocks());
        let advanced = self.allocator.advance(self.time(), is_quiet);
        if advanced == Advanced::default() {
            let after = (self.allocator.demand(), self.allocator.blocks());
            assert_eq!(after, before, "nothing is reported");
        }
        let due = |until: u64| until <= now;
        let loud = self
            .cooling
            .iter()
            .any(|(a, until)| due(*until) && !is_quiet(*a));
        let cooled: BTreeSet<IpAddr> = advanced.cooled.into_iter().collect();
        let expected = self.cooling.iter();
        let expected = expected.filter(|(a, until)| due(**until) && is_quiet(**a));
        assert_eq!(cooled, expected.map(|(a, _)| *a).collect());
        let fresh = self
            .cooling
            .extract_if(.., |address, _| cooled.contains(address));
        self.fresh.extend(fresh);
        // 130 seconds after the release.
        self.fresh.retain(|_, until| *until + 100 > now);
        let expired = advanced.expired.iter().map(|lease| lease.address).collect();
        self.cool(&expired, |held| held.until.is_some_and(due));
        for (name, is_so) in [
            ("not quiet", loud),
            ("cooled", !cooled.is_empty()),
            ("expired", !expired.is_empty()),
            ("forgotten", advanced.forgotten > 0),
        ] {
            if is_so {
                self.reached.insert(name);
            }
        }
    }

    fn rebalance(&mut self) {
        let result = self.allocator.rebalance();
        for net in &result.released {
            self.reached.insert("released block");
            let mut all = self.held.keys().chain(self.cooling.keys());
            assert!(!all.any(|address| net.contains(address)), "{net} is in use");
        }
        if !result.retaken.is_empty() {
            self.reached.insert("retaken block");
        }
        let again = self.allocator.rebalance();
        assert_eq!(again, ipam::Rebalanced::default(), "nothing is left to do");
        check::enough_is_kept(self);
    }

    fn collect(&mut self, living: u16, ago: u64) {
        let living: BTreeSet<Owner> = (0..OWNERS)
            .filter(|n| living & (1 << n) != 0)
            .map(|n| owner(&name(n)))
            .collect();
        let listed = self.now.saturating_sub(ago);
        let now = self.time();
        let collected = self.allocator.release_others(&living, at(listed), now);
        let collected: BTreeSet<IpAddr> = collected.iter().map(|l| l.address).collect();
        if !collected.is_empty() {
            self.reached.insert("collected");
        }
        self.cool(&collected, |held| {
            !living.contains(&held.owner) && held.since < listed
        });
    }

    fn restart(&mut self, file: bool, lost: Option<usize>, stray: Option<(usize, usize)>) {
        let text = serde_json::to_string(&self.allocator.state()).unwrap();
        let state: State = serde_json::from_str(&text).unwrap();
        let state = if file { state } else { State::default() };
        let seen = self.endpoints(lost, stray);
        let (allocator, restored) = Allocator::restore(options(), state, Some(&seen), self.time());
        self.allocator = allocator;
        self.expect(file, &seen);
        if !restored.adopted.is_empty() {
            self.reached.insert("adopted");
        }
        if !restored.dropped.is_empty() {
            self.reached.insert("dropped");
        }
        let adopted = restored.adopted.iter().map(|lease| lease.address);
        let mut adopted: Vec<IpAddr> = adopted.collect();
        adopted.dedup();
        assert_eq!(adopted.len() + restored.kept, self.held.len());

        let request = any("pod-0", POOLS[0], V4);
        let early = self.allocator.allocate(&request, self.time());
        assert!(
            matches!(early, Err(AllocateError::Restoring { .. })),
            "{early:?}"
        );
        self.reached.insert("restoring");
        assert_eq!(self.allocator.rebalance(), ipam::Rebalanced::default());
        self.allocator.set_ready(self.ready.clone());
        self.announce(self.announced.clone());
    }

    /// Endpoints in the kernel: one for every owner that has claimed its addresses.
    fn endpoints(&self, lost: Option<usize>, stray: Option<(usize, usize)>) -> Vec<SeenEndpoint> {
        let lost = lost.map(|n| owner(&name(n)));
        let mut by_owner: BTreeMap<Owner, BTreeSet<IpAddr>> = BTreeMap::new();
        for (address, held) in &self.held {
            if held.until.is_none() && Some(&held.owner) != lost.as_ref() {
                by_owner
                    .entry(held.owner.clone())
                    .or_default()
                    .insert(*address);
            }
        }
        if let Some((n, address)) = stray {
            let address = ip(ADDRESSES[address]);
            let owner = owner(&name(n));
            let has_family = |addresses: &BTreeSet<IpAddr>| {
                addresses
                    .iter()
                    .any(|a| Family::of(*a) == Family::of(address))
            };
            if !by_owner.values().any(|all| all.contains(&address))
                && !by_owner.get(&owner).is_some_and(has_family)
            {
                by_owner.entry(owner).or_default().insert(address);
            }
        }
        let all = by_owner.into_iter();
        all.map(|(owner, addresses)| SeenEndpoint { owner, addresses })
            .collect()
    }

    /// Updates the model for a restart: the kernel is right, and the file adds the rest.
    fn expect(&mut self, file: bool, seen: &[SeenEndpoint]) {
        let mut held = BTreeMap::new();
        let mut cooling = if file {
            self.cooling.clone()
        } else {
            BTreeMap::new()
        };
        // The file knows the release of what is free.
        let was_held = &self.held;
        self.fresh
            .retain(|address, _| file && !was_held.contains_key(address));
        let owners: BTreeSet<&Owner> = seen.iter().map(|endpoint| &endpoint.owner).collect();
        for endpoint in seen {
            for address in &endpoint.addresses {
                let known = self
                    .held
                    .get(address)
                    .filter(|held| file && held.owner == endpoint.owner);
                let fresh = Held {
                    owner: endpoint.owner.clone(),
                    pool: None,
                    until: None,
                    since: self.now,
                };
                let known = known.cloned().map(|held| Held {
                    until: None,
                    ..held
                });
                held.insert(*address, known.unwrap_or(fresh));
            }
        }
        for (address, old) in self.held.iter().filter(|_| file) {
            if held.contains_key(address) {
                continue;
            }
            let is_awaited = old.until.is_some_and(|until| until > self.now);
            if is_awaited && !owners.contains(&old.owner) {
                held.insert(*address, old.clone());
            } else {
                cooling.insert(*address, self.now + 30);
            }
        }
        cooling.retain(|address, _| !held.contains_key(address));
        self.fresh.retain(|address, _| !held.contains_key(address));
        self.held = held;
        self.cooling = cooling;
        // Only the allocator knows the pool with which a cooling address is adopted.
        self.learn_pools();
    }

    /// Everybody goes, everything is there and ready: every address can be had again.
    pub(super) fn finish(mut self) {
        for n in 0..OWNERS {
            self.release(n);
        }
        self.pass(100_000, true);
        self.ready = ENIS.iter().map(|eni| (*eni).to_owned()).collect();
        self.allocator.set_ready(self.ready.clone());
        assert_eq!(self.held, BTreeMap::new());
        assert_eq!(self.cooling, BTreeMap::new());
        check::everything(&mut self);
        for view in self.allocator.blocks() {
            assert_eq!(view.counts.in_use(), 0, "{view:?}");
            let may_drain = matches!(view.life, Life::Draining(ref why) if !matches!(why, Draining::MovesTo(_)));
            assert!(view.life == Life::Usable || may_drain, "{view:?}");
        }
        let leases = self.allocator.leases();
        assert!(
            leases
                .into_iter()
                .all(|lease| lease.claim == Claim::Claimed)
        );
    }
}

/// The family that an error is about.
fn family(error: &AllocateError) -> Option<Family> {
    match error {
        AllocateError::NoFamily { family, .. }
        | AllocateError::UnknownPool { family, .. }
        | AllocateError::Exhausted { family, .. }
        | AllocateError::NotReady { family, .. } => Some(*family),
        AllocateError::HasAnother { has: address, .. }
        | AllocateError::Orphaned { address, .. }
        | AllocateError::BlockDraining { address, .. } => Some(Family::of(*address)),
        _ => None,
    }
}
