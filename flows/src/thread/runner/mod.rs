//! The sweeper's thread. The agent's tasks share one thread, which a dump of a large map would
//! hold up.

use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use datapath_common::counter::NatStat;
use ipam::Family;
use nix::time::{ClockId, clock_gettime};

use super::handle::{CompatLookups, Handle, Request};
use super::pace::{POLL, Watch};
use crate::census::Used;
use crate::room::pressed::Pressed;
use crate::sweep::Sweeper;
use crate::tables::{NatCounters, Tables};
use crate::view::{list, stats};

/// A sweeper that runs. Dropping it ends it, after the sweep that it is at.
pub struct Running {
    handle: Handle,
    thread: Option<JoinHandle<()>>,
}

impl Drop for Running {
    fn drop(&mut self) {
        self.handle.stop();
        if let Some(thread) = self.thread.take()
            && thread.join().is_err()
        {
            tracing::error!("the sweeper of translated flows has panicked");
        }
    }
}

/// Starts the thread of a sweeper.
///
/// # Errors
/// When there can be no thread.
pub fn start<T: Tables + 'static>(sweeper: Sweeper<T>, handle: Handle) -> Result<Running> {
    let mut runner = Runner {
        sweeper,
        handle: handle.clone(),
        last: None,
        failed: None,
    };
    handle.has_sweeper();
    let thread = thread::Builder::new()
        .name("nat-sweeper".to_owned())
        .spawn(move || runner.run())
        .context("cannot start the sweeper's thread")?;
    Ok(Running {
        handle,
        thread: Some(thread),
    })
}

/// State that is kept of the last sweep.
struct Last {
    ended: Instant,
    /// CPU time of it.
    took: Duration,
    /// Failed allocations when it began.
    failed: u64,
    /// The counters when it ended.
    counters: NatCounters,
    /// Entries that it left.
    used: Used,
    /// Largest part of its quota that an endpoint used.
    fullest: f64,
    /// True if the sweep has found something to check again, or a destination short of ports.
    is_urgent: bool,
}

struct Runner<T> {
    sweeper: Sweeper<T>,
    handle: Handle,
    last: Option<Last>,
    /// Number of flows that could not be created by the last check, and true if it had grown; none
    /// before the first check.
    failed: Option<(u64, bool)>,
}

impl<T: Tables> Runner<T> {
    fn run(&mut self) {
        loop {
            let wakeup = self.handle.wait(POLL);
            if wakeup.stops {
                return;
            }
            for request in wakeup.requests {
                self.serve(request);
            }
            if let Err(error) = self.look(wakeup.at_once) {
                self.failed(&error);
            }
            self.clear_conntrack();
        }
    }

    /// Removes what conntrack has of addresses that are about to be given again.
    fn clear_conntrack(&mut self) {
        let began = Instant::now();
        let addresses = self.handle.leaving(began);
        if addresses.is_empty() {
            return;
        }
        let removed = self.sweeper.tracker.remove_leading_to(&addresses);
        self.handle
            .take_removed(&addresses, removed.as_ref().ok(), began);
        match removed {
            Ok(removed) => {
                for (address, (entries, example)) in &removed.leading_to {
                    tracing::info!(%address, entries, example, "deleted conntrack entries of a deleted pod");
                }
            }
            Err(error) => self.failed(&error),
        }
    }

    /// Sweeps if it is time to.
    fn look(&mut self, at_once: bool) -> Result<()> {
        let counters = self.sweeper.tables.counters()?;
        self.note_refusals(failures(&counters))?;
        let watch = self.watch(&counters, at_once);
        if let Some(used) = self.used(&counters) {
            self.sweeper.publish_rooms(&used)?;
        }
        let is_due = watch.as_ref().is_none_or(Watch::is_due);
        if !is_due {
            if at_once {
                // It ends the wait at once until the sweep has taken it.
                thread::sleep(POLL / 10);
            }
            return Ok(());
        }
        let before_sweep = cpu_time()?;
        let (around, mark) = self.handle.begin();
        let pressed = self.pressed(&counters);
        let swept = self.sweeper.sweep(&around, pressed);
        // A sweep that failed is not tried again before its time.
        let before = self.last.as_ref();
        let (used, fullest) = swept.as_ref().map_or_else(
            |_error| before.map_or_else(Default::default, |last| (last.used, last.fullest)),
            |sweep| (Used::of(&sweep.census), sweep.quotas.fullest),
        );
        self.last = Some(Last {
            ended: Instant::now(),
            took: cpu_time()?.saturating_sub(before_sweep),
            failed: failures(&counters),
            counters: self.sweeper.tables.counters().unwrap_or(counters),
            used,
            fullest,
            is_urgent: swept.as_ref().is_ok_and(|sweep| sweep.is_urgent),
        });
        let sweep = swept?;
        let found = CompatLookups {
            exempt: sweep.outdated.exempt != 0,
            elsewhere: sweep.outdated.elsewhere != 0,
        };
        self.handle.needs(mark, found)?;
        tracing::debug!(
            reaped = sweep.reaped.idle,
            gone = sweep.reaped.gone,
            pressed = sweep.is_pressed,
            took = ?sweep.took,
            "translated flows swept"
        );
        let capacities = self.sweeper.tables.capacities();
        self.handle
            .set_report(|report| report.take(sweep, capacities));
        Ok(())
    }

    /// Records the reasons for which flows could not be created. A packet is counted by its reason
    /// shortly after its flow, so there is one more check.
    fn note_refusals(&mut self, failed: u64) -> Result<()> {
        let (grows, grew) = match self.failed {
            None => (true, false),
            Some((before, grew)) => (before != failed, grew),
        };
        self.failed = Some((failed, grows));
        if grows || grew {
            let refused = self.sweeper.tables.refused()?;
            self.handle
                .set_report(|report| report.refusals.take(Instant::now(), refused));
        }
        Ok(())
    }

    /// Number of entries of the tables, from the last sweep and the counters since then; none
    /// before the first sweep.
    fn used(&self, counters: &NatCounters) -> Option<Used> {
        let last = self.last.as_ref()?;
        let grown = |made: NatStat, removed: NatStat, family| {
            let since = |stat| {
                let (now, then) = (counters.of(family, stat), last.counters.of(family, stat));
                now.saturating_sub(then)
            };
            since(made).saturating_sub(since(removed))
        };
        let flows = |family| grown(NatStat::Allocated, NatStat::Removed, family);
        let noted = |made, removed| {
            let of = |family| grown(made, removed, family);
            of(Family::V4) + of(Family::V6)
        };
        Some(Used {
            flows_v4: last.used.flows_v4 + flows(Family::V4),
            flows_v6: last.used.flows_v6 + flows(Family::V6),
            inbound: last.used.inbound + noted(NatStat::InboundNoted, NatStat::InboundRemoved),
            stack: last.used.stack + noted(NatStat::StackNoted, NatStat::StackRemoved),
        })
    }

    /// The tables in which room is short.
    fn pressed(&self, counters: &NatCounters) -> Pressed {
        let used = self.used(counters).unwrap_or_default();
        Pressed::of(&used, &self.sweeper.tables.capacities())
    }

    /// State since the last sweep; none before the first.
    fn watch(&self, counters: &NatCounters, at_once: bool) -> Option<Watch> {
        let (last, used) = (self.last.as_ref()?, self.used(counters)?);
        self.handle.set_report(|report| {
            report.used = used;
            report.counters = counters.clone();
        });
        let fullest = last.fullest + self.sweeper.limits.grown(&last.used, &used);
        Some(Watch {
            fill: used.fill(&self.sweeper.tables.capacities()).max(fullest),
            failed: failures(counters) != last.failed,
            at_once,
            urgent: last.is_urgent,
            since: last.ended.elapsed(),
            took: last.took,
        })
    }

    fn serve(&mut self, request: Request) {
        match request {
            Request::List(filter, answer) => answer(list::flows(&self.sweeper, &filter)),
            Request::Flush(filter, answer) => {
                let flushed = list::flush(&mut self.sweeper, &filter);
                if let Ok(flushed) = &flushed {
                    self.handle
                        .set_report(|report| report.flushed += flushed.removed);
                }
                answer(flushed);
            }
            Request::Look(look) => look(&self.sweeper.tables),
            Request::Stats(answer) => {
                answer(stats::stats(&self.sweeper, &self.handle.report()));
            }
        }
    }

    /// Notes an error, and logs it unless it is the one of the last time.
    fn failed(&self, error: &anyhow::Error) {
        let error = format!("{error:#}");
        self.handle.set_report(|report| {
            if report.error.as_ref() != Some(&error) {
                tracing::warn!("translated flows could not be swept: {error}");
                report.error = Some(error);
            }
        });
    }
}

/// Flows of either kind that could not be made.
fn failures(counters: &NatCounters) -> u64 {
    let sum = |stat| counters.sum(stat);
    let notes = sum(NatStat::InboundFailed).wrapping_add(sum(NatStat::StackFailed));
    sum(NatStat::Failed).wrapping_add(notes)
}

/// CPU time of this thread so far. On a busy node a sweep can last far longer than that.
fn cpu_time() -> Result<Duration> {
    let time = clock_gettime(ClockId::CLOCK_THREAD_CPUTIME_ID).context("read the thread's time")?;
    Ok(time.into())
}

#[cfg(test)]
mod tests;
