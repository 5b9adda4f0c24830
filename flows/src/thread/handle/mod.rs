//! Communication between the agent and the sweeper's thread.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use anyhow::Result;
use api::types::{FlowFilter, NatFlows, NatFlushed, NatStats};

use super::report::Report;
use crate::sweep::resting::Resting;
use crate::sweep::stale::{Lasting, Removed, Stale};
use crate::sweep::{FlowPolicy, SweepInput};
use crate::tables::Tables;

/// Receiver of the sweeper's answer. A dropped one gets no answer.
pub type Answer<T> = Box<dyn FnOnce(Result<T>) + Send>;

/// A function that reads the maps of flows on the garbage-collection thread.
pub type Look = Box<dyn FnOnce(&dyn Tables) + Send>;

/// Request to the sweeper.
pub(super) enum Request {
    /// The flows that match a filter.
    List(FlowFilter, Answer<NatFlows>),
    /// Remove the flows that match a filter.
    Flush(FlowFilter, Answer<NatFlushed>),
    /// Statistics.
    Stats(Answer<NatStats>),
    /// Reads the maps.
    Look(Look),
}

/// Extra look-ups of the programs for flows that were opened under another policy. A look-up that
/// finds nothing costs each new flow.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CompatLookups {
    /// For packets that policy exempts.
    pub exempt: bool,
    /// At the ENI that another policy gave.
    pub elsewhere: bool,
}

impl CompatLookups {
    /// Everywhere.
    pub const ALL: Self = Self {
        exempt: true,
        elsewhere: true,
    };
    /// Nowhere.
    pub const NONE: Self = Self {
        exempt: false,
        elsewhere: false,
    };
}

/// Switch of the programs' extra look-ups for flows.
pub trait LookupControl: Send + Sync {
    /// Sets the look-ups.
    ///
    /// # Errors
    /// When the kernel refuses.
    fn set(&self, lookups: CompatLookups) -> Result<()>;
}

/// State that the two sides share.
#[derive(Default)]
pub(crate) struct State {
    pub(crate) around: SweepInput,
    pub(super) requests: Vec<Request>,
    pub(super) at_once: bool,
    pub(super) stops: bool,
    policy: Policy,
    stale: Stale,
    /// True once there is a sweeper.
    has_sweeper: bool,
}

/// State of the masquerade policy.
#[derive(Default)]
struct Policy {
    /// Number of its changes.
    changes: u64,
    /// True if the maps hold it.
    is_applied: bool,
    /// Extra look-ups of the programs for flows of another policy.
    lookups: CompatLookups,
}

/// A handle to the sweeper. Clones refer to the same one.
#[derive(Clone)]
pub struct Handle {
    state: Arc<(Mutex<State>, Condvar)>,
    report: Arc<Mutex<Report>>,
    switch: Arc<dyn LookupControl>,
}

/// The policy under which a sweep began.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct PolicyMark(Option<u64>);

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    // The values in these locks are consistent at every moment.
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Handle {
    /// A handle. The programs look for flows everywhere until a sweep finds no reason to.
    ///
    /// # Errors
    /// When the kernel refuses.
    pub fn new(switch: Arc<dyn LookupControl>) -> Result<Self> {
        switch.set(CompatLookups::ALL)?;
        let state = State {
            policy: Policy {
                lookups: CompatLookups::ALL,
                ..Policy::default()
            },
            ..State::default()
        };
        Ok(Self {
            state: Arc::new((Mutex::new(state), Condvar::new())),
            report: Arc::default(),
            switch,
        })
    }

    /// Announces a change of policy, before any map changes. From now on the programs look up flows
    /// everywhere, so that translated flows stay translated, and leave by their ENI.
    ///
    /// # Errors
    /// If the kernel refuses. Then policy must not change.
    pub fn policy_changes(&self, policy: Arc<dyn FlowPolicy>) -> Result<()> {
        let mut state = lock(&self.state.0);
        self.switch.set(CompatLookups::ALL)?;
        state.policy = Policy {
            changes: state.policy.changes + 1,
            is_applied: false,
            lookups: CompatLookups::ALL,
        };
        state.around.policy = Some(policy);
        Ok(())
    }

    /// Records the result of a pass of the agent: the addresses of the endpoints that are to exist,
    /// and true if the maps hold all that they should.
    pub fn passed(&self, endpoints: BTreeSet<IpAddr>, is_clean: bool) {
        let mut state = lock(&self.state.0);
        let is_news = state.around.endpoints.as_deref() != Some(&endpoints);
        let was_applied = state.policy.is_applied;
        state.policy.is_applied = is_clean;
        if is_news {
            state.around.endpoints = Some(Arc::new(endpoints));
        }
        if is_news || was_applied != is_clean {
            state.at_once = true;
            self.state.1.notify_all();
        }
    }

    /// Sets the numbers of ENIs that rest.
    pub fn rest(&self, resting: Resting) {
        lock(&self.state.0).around.resting = resting;
    }

    /// Sets the addresses that only wait until conntrack has nothing of their last pods any more.
    pub fn set_leaving(&self, addresses: &BTreeSet<IpAddr>) {
        lock(&self.state.0).stale.set(addresses, Instant::now());
    }

    /// True if no entry of conntrack is known to lead to such an address any more. Without a
    /// sweeper there is no search for entries.
    #[must_use]
    pub fn is_forgotten(&self, address: IpAddr) -> bool {
        let state = lock(&self.state.0);
        !state.has_sweeper || state.stale.is_clean(address, Instant::now())
    }

    /// Those of these addresses to which entries of conntrack lead again that were removed.
    #[must_use]
    pub fn lasting(&self) -> BTreeMap<IpAddr, Lasting> {
        lock(&self.state.0).stale.lasting()
    }

    /// Requests the flows that match a filter.
    pub fn list(&self, filter: FlowFilter, answer: Answer<NatFlows>) {
        self.ask(Request::List(filter, answer));
    }

    /// Requests the removal of the flows that match a filter.
    pub fn flush(&self, filter: FlowFilter, answer: Answer<NatFlushed>) {
        self.ask(Request::Flush(filter, answer));
    }

    /// Requests a read of the maps by the garbage-collection thread. A function that is dropped was
    /// not run.
    pub fn look(&self, look: Look) {
        self.ask(Request::Look(look));
    }

    /// Extra look-ups of the programs for flows that were opened under another policy.
    #[must_use]
    pub fn lookups(&self) -> CompatLookups {
        lock(&self.state.0).policy.lookups
    }

    /// Requests statistics.
    pub fn stats(&self, answer: Answer<NatStats>) {
        self.ask(Request::Stats(answer));
    }

    fn ask(&self, request: Request) {
        let mut state = lock(&self.state.0);
        if !state.stops {
            state.requests.push(request);
            self.state.1.notify_all();
        }
    }

    /// The sweeper's latest report.
    #[must_use]
    pub fn report(&self) -> Report {
        lock(&self.report).clone()
    }

    /// True if the last sweep found no entry of an address that no endpoint has any more.
    #[must_use]
    pub fn is_quiet(&self, address: IpAddr) -> bool {
        lock(&self.report).is_quiet(address)
    }

    /// Ends the cooldown of all addresses.
    #[cfg(any(test, feature = "model"))]
    pub fn swept(&self) {
        self.set_report(|report| *report = Report::of_nothing());
    }

    pub(super) fn set_report(&self, change: impl FnOnce(&mut Report)) {
        change(&mut lock(&self.report));
    }

    /// Says that there is a sweeper from now on.
    pub(super) fn has_sweeper(&self) {
        lock(&self.state.0).has_sweeper = true;
    }

    /// The addresses to look up in conntrack now.
    pub(super) fn leaving(&self, now: Instant) -> BTreeSet<IpAddr> {
        lock(&self.state.0).stale.due(now)
    }

    /// Takes the removed entries of these addresses; none if conntrack could not be read.
    pub(super) fn take_removed(
        &self,
        addresses: &BTreeSet<IpAddr>,
        removed: Option<&Removed>,
        began: Instant,
    ) {
        let now = Instant::now();
        let took = now.duration_since(began);
        let stale = &mut lock(&self.state.0).stale;
        stale.take(addresses, removed, now, took);
    }

    /// Ends the sweeper. Later requests are not answered.
    pub(crate) fn stop(&self) {
        let mut state = lock(&self.state.0);
        state.stops = true;
        state.requests.clear();
        self.state.1.notify_all();
    }

    /// Waits for something to do, no longer than `time`; returns the pending work.
    pub(super) fn wait(&self, time: Duration) -> Woken {
        let is_idle =
            |state: &mut State| !state.stops && !state.at_once && state.requests.is_empty();
        let waited = self
            .state
            .1
            .wait_timeout_while(lock(&self.state.0), time, is_idle);
        let (mut state, _timeout) = waited.unwrap_or_else(PoisonError::into_inner);
        Woken {
            stops: state.stops,
            at_once: state.at_once,
            requests: std::mem::take(&mut state.requests),
        }
    }

    /// State of the node for a sweep, and its policy; clears the nudge.
    pub(super) fn begin(&self) -> (SweepInput, PolicyMark) {
        let mut state = lock(&self.state.0);
        state.at_once = false;
        let mut around = state.around.clone();
        if state.policy.lookups == CompatLookups::NONE {
            around.policy = None;
        }
        let counts = state.policy.is_applied && around.policy.is_some();
        (around, PolicyMark(counts.then_some(state.policy.changes)))
    }

    /// Sets the look-ups for which a sweep found translated flows. The programs need no others, if
    /// all of the sweep was under the current policy: no new ones can come.
    ///
    /// # Errors
    /// When the kernel refuses.
    pub(crate) fn needs(&self, PolicyMark(mark): PolicyMark, found: CompatLookups) -> Result<()> {
        let mut state = lock(&self.state.0);
        let policy = state.around.policy.as_ref();
        let hides_pods = policy.is_some_and(|policy| policy.hides_pods());
        let before = state.policy.lookups;
        let needed = CompatLookups {
            exempt: before.exempt && (found.exempt || hides_pods),
            elsewhere: before.elsewhere && found.elsewhere,
        };
        let counts = state.policy.is_applied && mark == Some(state.policy.changes);
        if counts && needed != before {
            self.switch.set(needed)?;
            state.policy.lookups = needed;
        }
        Ok(())
    }
}

/// Reason for the sweeper to wake.
pub(super) struct Woken {
    pub(super) stops: bool,
    pub(super) at_once: bool,
    pub(super) requests: Vec<Request>,
}

#[cfg(test)]
mod tests;
