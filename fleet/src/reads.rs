//! Reads of EC2: those that come again and again, and those that nodes ask for, gathered.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::time::Duration;

use cloud::call::query::{Items, Query, What};
use cloud::inventory::Scope;
use cloud::{Class, EniId, Failure, InstanceId, VpcId};
use ipam::Time;

use crate::Settings;

/// Time for which requested reads are gathered.
pub(crate) const GATHERED: Duration = Duration::from_secs(2);
/// Maximum number of names in one read, as in one filter of EC2.
const NAMES: usize = 200;
/// A page of the listing of all ENIs for each of these, so that an idle operator makes few calls.
const LISTED: Duration = Duration::from_secs(10);
/// The shortest time between two listings of all ENIs.
const LISTED_LEAST: Duration = Duration::from_secs(30);
/// The time between two reads of the primary ENIs where listings of all ENIs are rarer: other ENIs
/// follow the security groups of these within two minutes.
const PRIMARIES: Duration = Duration::from_secs(90);
/// The most primary ENIs that are read by id. A listing of more costs fewer calls.
const PRIMARIES_BY_ID: usize = 1_000;
/// The longest wait after failures.
const RETRIED_MOST: Duration = Duration::from_mins(1);

/// A read that comes again and again, or as a whole.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Regular {
    Enis,
    Loose,
    /// On demand alone: see [`PRIMARIES`].
    Primaries,
    Subnets,
    RouteTables,
    Groups,
    Vpcs,
    /// On demand alone: few nodes have a static IP.
    Addresses,
}

impl Regular {
    const ALL: [Self; 8] = [
        Self::Enis,
        Self::Loose,
        Self::Primaries,
        Self::Subnets,
        Self::RouteTables,
        Self::Groups,
        Self::Vpcs,
        Self::Addresses,
    ];

    fn what(self) -> What {
        match self {
            Self::Enis => What::Enis(Scope::All),
            Self::Loose => What::Enis(Scope::Loose),
            Self::Primaries => What::Enis(Scope::Primaries),
            Self::Subnets => What::Subnets,
            Self::RouteTables => What::RouteTables,
            Self::Groups => What::Groups,
            Self::Vpcs => What::Vpcs,
            Self::Addresses => What::Addresses,
        }
    }

    fn of(what: &What) -> Option<Self> {
        Self::ALL.into_iter().find(|it| it.what() == *what)
    }
}

/// The state of a regular read.
#[derive(Clone, Debug, Default)]
struct Round {
    /// The beginning of the last complete one.
    last: Option<Time>,
    is_demanded: bool,
    is_running: bool,
    failures: u32,
    retry: Time,
}

/// Requested names.
#[derive(Clone, Debug)]
struct Names<T> {
    wanted: BTreeSet<T>,
    running: BTreeSet<T>,
}

impl<T> Default for Names<T> {
    fn default() -> Self {
        Self {
            wanted: BTreeSet::new(),
            running: BTreeSet::new(),
        }
    }
}

impl<T: Ord + Clone> Names<T> {
    /// Requests names, except for those that are being read.
    fn want<'a>(&mut self, names: impl IntoIterator<Item = &'a T>)
    where
        T: 'a,
    {
        let running = &self.running;
        let new = names.into_iter().filter(|it| !running.contains(*it));
        self.wanted.extend(new.cloned());
    }

    /// The next names to read.
    fn begin(&mut self) -> Option<BTreeSet<T>> {
        let chosen: BTreeSet<T> = self.wanted.iter().take(NAMES).cloned().collect();
        self.wanted.retain(|it| !chosen.contains(it));
        self.running.extend(chosen.iter().cloned());
        (!chosen.is_empty()).then_some(chosen)
    }

    fn end(&mut self, names: &BTreeSet<T>) {
        self.running.retain(|it| !names.contains(it));
    }
}

/// A read in flight, page by page.
#[derive(Clone, Debug)]
pub(crate) struct Reading {
    pub(crate) query: Query,
    /// The time at which its first page was requested.
    pub(crate) begun: Option<Time>,
    pub(crate) items: Items,
    /// Pages so far.
    pub(crate) pages: u32,
    /// Pages that had no answer and were requested again.
    pub(crate) repeats: u8,
}

impl Reading {
    /// Pages without an answer that a listing may have. With more it begins again.
    const MOST_REPEATS: u8 = 3;

    /// True if a page that failed is requested again, so that a long listing is not read in vain.
    /// EC2 forgets a token after a while, and the listing then begins again.
    pub(crate) fn repeats(&mut self, class: Class) -> bool {
        let is_later = self.query.page.is_some() && self.repeats < Self::MOST_REPEATS;
        let is_lost = class == Class::Unanswered && is_later;
        self.repeats += u8::from(is_lost);
        is_lost || class == Class::Throttled
    }
}

/// All reads.
#[derive(Clone, Debug, Default)]
pub(crate) struct Reads {
    rounds: BTreeMap<Regular, Round>,
    enis: Names<EniId>,
    instances: Names<InstanceId>,
    states: Names<InstanceId>,
    types: Names<String>,
    /// Pages that wait for their budget.
    pub(crate) waiting: VecDeque<Reading>,
    gathered: Time,
    /// The time at which the due reads of the inventory were last requested.
    pub(crate) requested: Time,
    /// Pages of the last listing of all ENIs, those of others included.
    pages: u32,
    /// The time at which the primary ENIs were last requested.
    primaries: Time,
    vpcs: BTreeSet<VpcId>,
    /// The VPCs of the last read of them.
    read_vpcs: BTreeSet<VpcId>,
    /// Reads that failed last, by the call of EC2.
    pub(crate) failures: BTreeMap<&'static str, Failure>,
}

impl Reads {
    /// Adds VPCs to read, which makes all reads due. A VPC without nodes is still read, since ENIs
    /// can be left there.
    pub(crate) fn add_vpcs(&mut self, vpcs: BTreeSet<VpcId>) {
        if !vpcs.is_subset(&self.vpcs) {
            self.vpcs.extend(vpcs);
            self.demand_all();
        }
    }

    /// A VPC that no read has covered yet.
    pub(crate) fn unread_vpc(&self) -> Option<&VpcId> {
        self.vpcs.difference(&self.read_vpcs).next()
    }

    /// Makes all reads due that are limited to VPCs.
    fn demand_all(&mut self) {
        for regular in Regular::ALL {
            if !matches!(regular, Regular::Addresses | Regular::Primaries) {
                self.demand(regular);
            }
        }
    }

    /// Makes a regular read due.
    pub(crate) fn demand(&mut self, regular: Regular) {
        self.rounds.entry(regular).or_default().is_demanded = true;
    }

    /// Requests the reads that a plan needs. The first listing of all ENIs covers a part of them.
    pub(crate) fn want(&mut self, scope: &Scope) {
        let is_listed = self
            .rounds
            .get(&Regular::Enis)
            .is_some_and(|it| it.last.is_some());
        match scope {
            Scope::Loose | Scope::Instances(_) if !is_listed => {}
            Scope::All => self.demand(Regular::Enis),
            Scope::Loose => self.demand(Regular::Loose),
            Scope::Primaries => self.demand(Regular::Primaries),
            Scope::Instances(ids) => self.instances.want(ids),
            Scope::Ids(ids) => self.enis.want(ids),
        }
    }

    /// Requests the state of an instance.
    pub(crate) fn want_state(&mut self, instance: &InstanceId) {
        self.states.want([instance]);
    }

    /// Requests an instance type.
    pub(crate) fn want_type(&mut self, name: &str) {
        self.types.want([&name.to_owned()]);
    }

    /// Lets the reads wait that are due now.
    pub(crate) fn schedule(&mut self, settings: &Settings, now: Time) {
        for regular in Regular::ALL {
            if self.is_due(regular, settings, now) {
                let round = self.rounds.entry(regular).or_default();
                round.is_running = true;
                round.is_demanded = false;
                self.begin(regular.what());
            }
        }
        if now.since(self.gathered) < GATHERED {
            return;
        }
        let before = self.waiting.len();
        while let Some(ids) = self.enis.begin() {
            self.begin(What::Enis(Scope::Ids(ids)));
        }
        while let Some(ids) = self.instances.begin() {
            self.begin(What::Enis(Scope::Instances(ids)));
        }
        while let Some(ids) = self.states.begin() {
            self.begin(What::Instances(ids));
        }
        while let Some(names) = self.types.begin() {
            self.begin(What::Types(names));
        }
        if self.waiting.len() > before {
            self.gathered = now;
        }
    }

    /// The time at which reads are looked for next, whatever happens until then.
    pub(crate) fn next(&self, now: Time) -> Time {
        let requested = self.requested.after(GATHERED);
        let gathered = self.gathered.after(GATHERED);
        let is_any_wanted = !self.enis.wanted.is_empty()
            || !self.instances.wanted.is_empty()
            || !self.states.wanted.is_empty()
            || !self.types.wanted.is_empty();
        let times = [Some(requested), is_any_wanted.then_some(gathered)];
        // What was due at this moment has been looked for.
        let later = times.into_iter().flatten().filter(|time| *time > now);
        later.min().unwrap_or_else(|| now.after(GATHERED))
    }

    fn is_due(&self, regular: Regular, settings: &Settings, now: Time) -> bool {
        // Without a node, ENIs that were left behind are all there is to see, in every VPC.
        let is_alone = self.vpcs.is_empty();
        if is_alone && regular != Regular::Loose {
            return false;
        }
        let fresh = Round::default();
        let round = self.rounds.get(&regular).unwrap_or(&fresh);
        if round.is_running || now < round.retry {
            return false;
        }
        let Some(age) = round.last.map(|last| now.since(last)) else {
            let waits = matches!(
                regular,
                Regular::Loose | Regular::Primaries | Regular::Addresses
            );
            return !waits || round.is_demanded || (is_alone && regular == Regular::Loose);
        };
        if round.is_demanded {
            return age >= GATHERED;
        }
        match regular {
            Regular::Loose => is_alone && age >= settings.reads.enis,
            Regular::Primaries | Regular::Addresses => false,
            Regular::Enis => age >= self.listing(settings),
            Regular::Subnets | Regular::Groups => age >= settings.reads.subnets,
            Regular::RouteTables | Regular::Vpcs => age >= settings.reads.network,
        }
    }

    /// The time between two listings of all ENIs.
    fn listing(&self, settings: &Settings) -> Duration {
        let paced = LISTED.saturating_mul(self.pages).max(LISTED_LEAST);
        paced.min(settings.reads.enis)
    }

    /// True if the primary ENIs are to be read, because listings come too rarely.
    pub(crate) fn begin_primaries(&mut self, settings: &Settings, now: Time) -> bool {
        let is_due = self.listing(settings) > PRIMARIES && now.since(self.primaries) >= PRIMARIES;
        if is_due {
            self.primaries = now;
        }
        is_due
    }

    /// Requests the primary ENIs of all nodes.
    pub(crate) fn want_primaries(&mut self, ids: BTreeSet<EniId>) {
        self.want(&if ids.len() > PRIMARIES_BY_ID {
            Scope::Primaries
        } else {
            Scope::Ids(ids)
        });
    }

    fn begin(&mut self, what: What) {
        let items = what.items();
        let has_vpc = !matches!(
            what,
            What::Instances(_)
                | What::Types(_)
                | What::Addresses
                | What::Enis(Scope::Ids(_) | Scope::Instances(_))
        );
        let vpcs = if has_vpc {
            self.vpcs.clone()
        } else {
            BTreeSet::new()
        };
        self.waiting.push_back(Reading {
            query: Query {
                what,
                vpcs,
                page: None,
            },
            begun: None,
            items,
            pages: 0,
            repeats: 0,
        });
    }

    /// A read is complete.
    pub(crate) fn complete(&mut self, reading: &Reading) {
        self.end(&reading.query.what);
        self.failures.remove(reading.query.what.action().name());
        if let Some(regular) = Regular::of(&reading.query.what) {
            let round = self.rounds.entry(regular).or_default();
            round.last = reading.begun;
            round.failures = 0;
        }
        if reading.query.what == What::Vpcs {
            self.read_vpcs.clone_from(&reading.query.vpcs);
        }
        if reading.query.what == What::Enis(Scope::All) {
            self.pages = reading.pages;
        }
    }

    /// A read failed. It comes again, after longer and longer waits if it is a regular one.
    pub(crate) fn fail(&mut self, reading: &Reading, failure: Failure, now: Time) {
        self.end(&reading.query.what);
        self.failures
            .insert(reading.query.what.action().name(), failure);
        match &reading.query.what {
            What::Enis(Scope::Ids(ids)) => self.enis.want(ids),
            What::Enis(Scope::Instances(ids)) => self.instances.want(ids),
            What::Instances(ids) => self.states.want(ids),
            What::Types(names) => self.types.want(names),
            what => {
                if let Some(regular) = Regular::of(what) {
                    let round = self.rounds.entry(regular).or_default();
                    round.is_demanded = true;
                    round.failures = round.failures.saturating_add(1);
                    let wait = Duration::from_secs(1 << round.failures.min(6));
                    round.retry = now.after(wait.min(RETRIED_MOST));
                }
            }
        }
    }

    fn end(&mut self, what: &What) {
        match what {
            What::Enis(Scope::Ids(ids)) => self.enis.end(ids),
            What::Enis(Scope::Instances(ids)) => self.instances.end(ids),
            What::Instances(ids) => self.states.end(ids),
            What::Types(names) => self.types.end(names),
            what => {
                if let Some(regular) = Regular::of(what) {
                    self.rounds.entry(regular).or_default().is_running = false;
                }
            }
        }
    }
}
