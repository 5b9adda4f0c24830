//! How the agent and the sweeper's thread speak with each other.

use std::collections::BTreeSet;
use std::net::IpAddr;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use anyhow::Result;

use super::report::Report;
use super::resting::Resting;
use super::sweep::{FlowPolicy, Surroundings};
use super::tables::Tables;
use crate::api::types::{FlowFilter, NatFlows, NatFlushed, NatStats};

/// Where the sweeper's answer goes. One that is dropped was not answered.
pub type Answer<T> = Box<dyn FnOnce(Result<T>) + Send>;

/// A look at the maps of flows by the sweeper's thread.
pub type Look = Box<dyn FnOnce(&dyn Tables) + Send>;

/// What can be asked of the sweeper.
pub(super) enum Request {
    /// The flows that a filter takes.
    List(FlowFilter, Answer<NatFlows>),
    /// Remove the flows that a filter takes.
    Flush(FlowFilter, Answer<NatFlushed>),
    /// Statistics.
    Stats(Answer<NatStats>),
    /// A look at the maps.
    Look(Look),
}

/// Where the programs look for flows that were made under another policy. A look that finds nothing costs
/// each new flow.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Lookups {
    /// For packets that policy exempts.
    pub exempt: bool,
    /// At the ENI that another policy gave.
    pub elsewhere: bool,
}

impl Lookups {
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

/// Tells the programs where to look for flows.
pub trait Switch: Send + Sync {
    /// Tells them.
    ///
    /// # Errors
    /// When the kernel refuses.
    fn set(&self, lookups: Lookups) -> Result<()>;
}

/// What the two sides share.
#[derive(Default)]
pub(super) struct State {
    pub(super) around: Surroundings,
    pub(super) requests: Vec<Request>,
    pub(super) nudged: bool,
    pub(super) stops: bool,
    policy: Policy,
}

/// What is known of the masquerade policy.
#[derive(Default)]
struct Policy {
    /// Counts its changes.
    changes: u64,
    /// Whether the maps hold it.
    is_applied: bool,
    /// Where the programs look for flows of another policy.
    lookups: Lookups,
}

/// A way to tell and ask the sweeper. Clones are of the same one.
#[derive(Clone)]
pub struct Handle {
    state: Arc<(Mutex<State>, Condvar)>,
    report: Arc<Mutex<Report>>,
    switch: Arc<dyn Switch>,
}

/// The policy under which a sweep began.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct PolicyMark(Option<u64>);

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    // What is behind these locks is whole at every moment.
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Handle {
    /// A handle. The programs look for flows everywhere until a sweep finds no reason to.
    ///
    /// # Errors
    /// When the kernel refuses.
    pub fn new(switch: Arc<dyn Switch>) -> Result<Self> {
        switch.set(Lookups::ALL)?;
        let state = State {
            policy: Policy {
                lookups: Lookups::ALL,
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

    /// Says that policy is about to change, before any map says so: from now on the programs look for flows
    /// everywhere, so that those that are translated stay so, and leave by the ENI by which they did.
    ///
    /// # Errors
    /// When the kernel refuses; then policy must not change.
    pub fn policy_changes(&self, policy: Arc<dyn FlowPolicy>) -> Result<()> {
        let mut state = lock(&self.state.0);
        self.switch.set(Lookups::ALL)?;
        state.policy = Policy {
            changes: state.policy.changes + 1,
            is_applied: false,
            lookups: Lookups::ALL,
        };
        state.around.policy = Some(policy);
        Ok(())
    }

    /// Says what a pass of the agent came to: the addresses of the endpoints that there are to be,
    /// and whether the maps hold all that they should.
    pub fn passed(&self, endpoints: BTreeSet<IpAddr>, is_clean: bool) {
        let mut state = lock(&self.state.0);
        let is_news = state.around.endpoints.as_deref() != Some(&endpoints);
        let was_applied = state.policy.is_applied;
        state.policy.is_applied = is_clean;
        if is_news {
            state.around.endpoints = Some(Arc::new(endpoints));
        }
        if is_news || was_applied != is_clean {
            state.nudged = true;
            self.state.1.notify_all();
        }
    }

    /// Sets the numbers of ENIs that rest.
    pub fn rest(&self, resting: Resting) {
        lock(&self.state.0).around.resting = resting;
    }

    /// Asks for the flows that a filter takes.
    pub fn list(&self, filter: FlowFilter, answer: Answer<NatFlows>) {
        self.ask(Request::List(filter, answer));
    }

    /// Has the flows removed that a filter takes.
    pub fn flush(&self, filter: FlowFilter, answer: Answer<NatFlushed>) {
        self.ask(Request::Flush(filter, answer));
    }

    /// Has the sweeper's thread look at the maps. A look that is dropped was not taken.
    pub fn look(&self, look: Look) {
        self.ask(Request::Look(look));
    }

    /// Where the programs look for flows that were made under another policy.
    #[must_use]
    pub fn lookups(&self) -> Lookups {
        lock(&self.state.0).policy.lookups
    }

    /// Asks for statistics.
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

    /// What the sweeper has found last.
    #[must_use]
    pub fn report(&self) -> Report {
        lock(&self.report).clone()
    }

    /// Whether the last sweep found nothing of an address that no endpoint has any more.
    #[must_use]
    pub fn is_quiet(&self, address: IpAddr) -> bool {
        lock(&self.report).is_quiet(address)
    }

    /// Ends the cooldown of all addresses.
    #[cfg(test)]
    pub(crate) fn swept(&self) {
        self.set_report(|report| *report = Report::of_nothing());
    }

    pub(super) fn set_report(&self, change: impl FnOnce(&mut Report)) {
        change(&mut lock(&self.report));
    }

    /// Has the sweeper end. What is asked from now on is not answered.
    pub(super) fn stop(&self) {
        let mut state = lock(&self.state.0);
        state.stops = true;
        state.requests.clear();
        self.state.1.notify_all();
    }

    /// Waits for something to do, no longer than `time`; what there is then.
    pub(super) fn wait(&self, time: Duration) -> Woken {
        let is_idle =
            |state: &mut State| !state.stops && !state.nudged && state.requests.is_empty();
        let waited = self
            .state
            .1
            .wait_timeout_while(lock(&self.state.0), time, is_idle);
        let (mut state, _timeout) = waited.unwrap_or_else(PoisonError::into_inner);
        Woken {
            stops: state.stops,
            nudged: state.nudged,
            requests: std::mem::take(&mut state.requests),
        }
    }

    /// What a sweep has to know; the nudge is taken.
    pub(super) fn begin(&self) -> (Surroundings, PolicyMark) {
        let mut state = lock(&self.state.0);
        state.nudged = false;
        let mut around = state.around.clone();
        if state.policy.lookups == Lookups::NONE {
            around.policy = None;
        }
        let counts = state.policy.is_applied && around.policy.is_some();
        (around, PolicyMark(counts.then_some(state.policy.changes)))
    }

    /// Says for which look-ups a sweep found translated flows. The programs need no others, if all of the
    /// sweep was under the policy that holds now: new ones cannot come.
    ///
    /// # Errors
    /// When the kernel refuses.
    pub(super) fn needs(&self, PolicyMark(mark): PolicyMark, found: Lookups) -> Result<()> {
        let mut state = lock(&self.state.0);
        let policy = state.around.policy.as_ref();
        let hides_pods = policy.is_some_and(|policy| policy.hides_pods());
        let before = state.policy.lookups;
        let needed = Lookups {
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

/// Why the sweeper woke.
pub(super) struct Woken {
    pub(super) stops: bool,
    pub(super) nudged: bool,
    pub(super) requests: Vec<Request>,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(Default)]
    struct Lamp(Mutex<Lookups>);

    impl Switch for Lamp {
        fn set(&self, lookups: Lookups) -> Result<()> {
            *lock(&self.0) = lookups;
            Ok(())
        }
    }

    struct Nothing;

    impl FlowPolicy for Nothing {
        fn is_exempt(&self, _pod: IpAddr, _remote: IpAddr) -> bool {
            false
        }

        fn exit(&self, _pod: IpAddr, _remote: IpAddr, owner: u8) -> u8 {
            owner
        }
    }

    fn handle() -> (Arc<Lamp>, Handle) {
        let lamp = Arc::new(Lamp::default());
        let handle = Handle::new(lamp.clone()).unwrap();
        (lamp, handle)
    }

    fn is_on(lamp: &Lamp) -> bool {
        lookups(lamp) != Lookups::NONE
    }

    fn lookups(lamp: &Lamp) -> Lookups {
        *lock(&lamp.0)
    }

    fn sweep(handle: &Handle) {
        let (_, mark) = handle.begin();
        handle.needs(mark, Lookups::NONE).unwrap();
    }

    #[test]
    fn flows_are_looked_up_until_a_whole_sweep_under_the_policy_finds_none() {
        let (lamp, handle) = handle();
        assert!(is_on(&lamp), "from the start");
        handle.passed(BTreeSet::new(), true);
        sweep(&handle);
        assert!(is_on(&lamp), "nobody has said what policy is");

        handle.policy_changes(Arc::new(Nothing)).unwrap();
        sweep(&handle);
        assert!(is_on(&lamp), "the maps do not hold it yet");
        handle.passed(BTreeSet::new(), false);
        sweep(&handle);
        assert!(is_on(&lamp), "nor after a pass with failures");
        handle.passed(BTreeSet::new(), true);
        sweep(&handle);
        assert!(!is_on(&lamp));

        let (_, mark) = handle.begin();
        handle.policy_changes(Arc::new(Nothing)).unwrap();
        handle.passed(BTreeSet::new(), true);
        handle.needs(mark, Lookups::NONE).unwrap();
        assert!(is_on(&lamp), "that sweep began under another policy");
        sweep(&handle);
        assert!(!is_on(&lamp));
    }

    #[test]
    fn where_pods_are_hidden_flows_are_looked_up_for_ever() {
        struct Hiding;
        impl FlowPolicy for Hiding {
            fn is_exempt(&self, _pod: IpAddr, _remote: IpAddr) -> bool {
                false
            }

            fn exit(&self, _pod: IpAddr, _remote: IpAddr, owner: u8) -> u8 {
                owner
            }

            fn hides_pods(&self) -> bool {
                true
            }
        }
        let (lamp, handle) = handle();
        handle.policy_changes(Arc::new(Hiding)).unwrap();
        handle.passed(BTreeSet::new(), true);
        sweep(&handle);
        let exempt = Lookups {
            exempt: true,
            elsewhere: false,
        };
        assert_eq!(lookups(&lamp), exempt);
        handle.policy_changes(Arc::new(Nothing)).unwrap();
        handle.passed(BTreeSet::new(), true);
        sweep(&handle);
        assert!(!is_on(&lamp));
    }

    #[test]
    fn each_look_up_ends_when_no_flow_needs_it_any_more() {
        let (lamp, handle) = handle();
        handle.policy_changes(Arc::new(Nothing)).unwrap();
        handle.passed(BTreeSet::new(), true);
        let elsewhere = Lookups {
            exempt: false,
            elsewhere: true,
        };
        for (found, left) in [
            (Lookups::ALL, Lookups::ALL),
            (elsewhere, elsewhere),
            // It does not come back without a change of policy.
            (Lookups::ALL, elsewhere),
            (Lookups::NONE, Lookups::NONE),
        ] {
            let (around, mark) = handle.begin();
            assert!(around.policy.is_some());
            handle.needs(mark, found).unwrap();
            assert_eq!(lookups(&lamp), left);
        }
        assert!(handle.begin().0.policy.is_none());
    }

    #[test]
    fn a_sweep_that_began_before_the_maps_held_the_policy_does_not_count() {
        let (lamp, handle) = handle();
        handle.policy_changes(Arc::new(Nothing)).unwrap();
        let (_, mark) = handle.begin();
        handle.passed(BTreeSet::new(), true);
        handle.needs(mark, Lookups::NONE).unwrap();
        assert!(is_on(&lamp));
    }

    #[test]
    fn the_sweeper_is_nudged_by_what_changed_and_not_by_what_did_not() {
        let (_lamp, handle) = handle();
        let soon = Duration::from_millis(1);
        let pods = BTreeSet::from([IpAddr::from([10, 0, 0, 1])]);
        assert!(!handle.wait(soon).nudged);
        handle.passed(pods.clone(), true);
        assert!(handle.wait(soon).nudged);
        let (around, _) = handle.begin();
        assert_eq!(around.endpoints.as_deref(), Some(&pods));
        handle.passed(pods, true);
        assert!(!handle.wait(soon).nudged);
        handle.passed(BTreeSet::new(), true);
        assert!(handle.wait(soon).nudged);
    }

    #[test]
    fn what_is_asked_after_the_end_is_dropped() {
        let (_lamp, handle) = handle();
        let (sender, mut receiver) = tokio::sync::oneshot::channel();
        handle.stop();
        handle.stats(Box::new(move |stats| drop(sender.send(stats))));
        assert!(receiver.try_recv().is_err());
        assert!(handle.wait(Duration::ZERO).stops);
    }
}
