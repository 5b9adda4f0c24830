//! Threads for periodic checks: the agent's task answers adds, and must not wait for a long check.

use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use anyhow::Context as _;

/// A thread of periodic checks. Dropping it ends it after the current check.
pub struct Periodic {
    stop: Arc<(Mutex<bool>, Condvar)>,
    thread: Option<JoinHandle<()>>,
}

/// A lock on a value that is whole at every moment, so that a panic elsewhere changes nothing.
pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Periodic {
    /// Starts a thread of this name. Each check returns the rest after it.
    ///
    /// # Errors
    /// If the thread cannot be started.
    pub fn start(
        name: &'static str,
        mut look: impl FnMut() -> Duration + Send + 'static,
    ) -> anyhow::Result<Self> {
        let stop = Arc::new((Mutex::new(false), Condvar::new()));
        let shared = stop.clone();
        let run = move || {
            let (stopped, woken) = &*shared;
            while !*lock(stopped) {
                let rest = look();
                let waited = woken.wait_timeout_while(lock(stopped), rest, |stopped| !*stopped);
                drop(waited.unwrap_or_else(PoisonError::into_inner));
            }
        };
        let thread = thread::Builder::new().name(name.to_owned()).spawn(run);
        Ok(Self {
            stop,
            thread: Some(thread.with_context(|| format!("start the thread {name}"))?),
        })
    }
}

impl Drop for Periodic {
    fn drop(&mut self) {
        *lock(&self.stop.0) = true;
        self.stop.1.notify_all();
        if let Some(thread) = self.thread.take()
            && thread.join().is_err()
        {
            tracing::error!("a thread that checks periodically has panicked");
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc;
    use std::time::Instant;

    use super::*;

    #[test]
    fn it_looks_again_after_each_rest_and_ends_when_it_is_dropped() {
        let (sender, looks) = mpsc::channel();
        let look = move || {
            sender.send(()).ok();
            Duration::from_millis(1)
        };
        let periodic = Periodic::start("test", look).unwrap();
        for _ in 0..3 {
            looks.recv_timeout(Duration::from_secs(10)).unwrap();
        }
        drop(periodic);
        while looks.try_recv().is_ok() {}
        assert_eq!(looks.try_recv(), Err(mpsc::TryRecvError::Disconnected));
    }

    #[test]
    fn a_long_rest_does_not_hold_up_its_end() {
        let began = Instant::now();
        let periodic = Periodic::start("test", || Duration::from_hours(1)).unwrap();
        drop(periodic);
        assert!(began.elapsed() < Duration::from_mins(1));
    }
}
