//! A cloud that a server and a test share.

use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use jiff::{SignedDuration, Timestamp};
use tokio::sync::Notify;

use crate::cloud::{Cloud, Effect};
use crate::error::Failure;

/// Carries out an effect in the world beyond the cloud. The fake is locked for so long: nothing in
/// here may call it.
pub type OnEffect = Box<dyn FnMut(&Cloud, Effect) + Send>;

/// A cloud with a clock, shared by a server and a test.
#[derive(Clone)]
pub struct Fake(Arc<Shared>);

struct Shared {
    state: Mutex<State>,
    /// Notified after each change: the next timed change may be another one.
    changed: Notify,
}

struct State {
    cloud: Cloud,
    on_effect: OnEffect,
    /// The time by which the cloud's clock is ahead of the machine's.
    ahead: SignedDuration,
    requests: u64,
    refused: Vec<Failure>,
}

impl fmt::Debug for Fake {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.debug_struct("Fake").finish_non_exhaustive()
    }
}

impl State {
    fn now(&self) -> Timestamp {
        let now = Timestamp::now();
        now.checked_add(self.ahead).unwrap_or(now)
    }

    fn deliver(&mut self) {
        for effect in self.cloud.take_effects() {
            (self.on_effect)(&self.cloud, effect);
        }
    }
}

impl Fake {
    /// Shares a cloud. Each effect is carried out before the call that has it is answered.
    #[must_use]
    pub fn new(cloud: Cloud, on_effect: OnEffect) -> Self {
        let state = State {
            cloud,
            on_effect,
            ahead: SignedDuration::ZERO,
            requests: 0,
            refused: Vec::new(),
        };
        Self(Arc::new(Shared {
            state: Mutex::new(state),
            changed: Notify::new(),
        }))
    }

    fn state(&self) -> MutexGuard<'_, State> {
        // After a test that panicked while it read, other tests can still use the cloud.
        let state = self.0.state.lock();
        state.unwrap_or_else(PoisonError::into_inner)
    }

    /// Reads or changes the cloud at the time of its clock, and carries out the effects.
    pub fn with<T>(&self, act: impl FnOnce(&mut Cloud, Timestamp) -> T) -> T {
        let mut state = self.state();
        let now = state.now();
        state.cloud.advance(now);
        let result = act(&mut state.cloud, now);
        state.deliver();
        drop(state);
        self.0.changed.notify_one();
        result
    }

    /// Reads the cloud as it is, without moving it to the time of its clock.
    pub fn peek<T>(&self, read: impl FnOnce(&Cloud) -> T) -> T {
        read(&self.state().cloud)
    }

    /// Puts the cloud's clock ahead, and does what is due by then. Signatures are still judged by
    /// the machine's clock.
    pub fn skip(&self, time: SignedDuration) {
        let mut state = self.state();
        state.ahead = state.ahead.saturating_add(time);
        drop(state);
        self.with(|_, _| ());
    }

    /// The errors of requests so far that stood for no call. They are not in the cloud's log.
    #[must_use]
    pub fn refusals(&self) -> Vec<Failure> {
        self.state().refused.clone()
    }

    pub(super) fn note_refusal(&self, failure: Failure) {
        self.state().refused.push(failure);
    }

    /// An id for the next request.
    pub(super) fn request_id(&self) -> String {
        let mut state = self.state();
        state.requests += 1;
        format!("00000000-0000-4000-8000-{:012x}", state.requests)
    }

    /// Does what is due when its time comes.
    pub(super) async fn tick(&self) {
        loop {
            let next = {
                let state = self.state();
                let now = state.now();
                let next = state.cloud.next_due();
                next.map(|next| next.duration_since(now))
            };
            let changed = self.0.changed.notified();
            match next {
                None => changed.await,
                Some(wait) => {
                    let wait = Duration::try_from(wait).unwrap_or_default();
                    // Due times are exact; a clock that is slightly late would spin.
                    let wait = wait + Duration::from_millis(1);
                    tokio::select! {
                        () = changed => {}
                        () = tokio::time::sleep(wait) => self.with(|_, _| ()),
                    }
                }
            }
        }
    }
}
