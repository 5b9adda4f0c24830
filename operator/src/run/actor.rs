//! The task that owns the fleet: inputs in, works out.

use std::time::Duration;

use anyhow::Result;
use fleet::{Fleet, Input, Moment, Standing};
use tokio::sync::{mpsc, oneshot};
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep, timeout_at};

use super::carry::Carrier;
use super::clock::moment;
use super::health::{Beat, Health};

/// Inputs that are taken in before works are looked for.
const BATCH: usize = 256;
/// The loop comes round at least this often, so that a stalled one is found.
const ROUND: Duration = Duration::from_secs(5);
/// Works in flight have so long to end at shutdown: a call or a write, and its answer.
const ENDS: Duration = Duration::from_secs(10);

/// A read-only function of the fleet.
pub(crate) type Look = Box<dyn FnOnce(&Fleet, Moment) + Send>;

/// A message to the task.
pub(crate) enum Message {
    /// An input of the fleet.
    Input(Input),
    /// Reads the fleet.
    Look(Look),
}

/// The sender of messages to the task.
#[derive(Clone, Debug)]
pub(crate) struct Inbox(mpsc::Sender<Message>);

impl Inbox {
    /// An inbox and its messages.
    pub(super) fn new() -> (Self, mpsc::Receiver<Message>) {
        let (sender, messages) = mpsc::channel(4 * BATCH);
        (Self(sender), messages)
    }

    /// Hands an input over. Returns false once the task has ended.
    pub(super) async fn give(&self, input: Input) -> bool {
        self.0.send(Message::Input(input)).await.is_ok()
    }

    /// Reads the fleet; none once the task has ended.
    pub(crate) async fn look<T: Send + 'static>(
        &self,
        look: impl FnOnce(&Fleet, Moment) -> T + Send + 'static,
    ) -> Option<T> {
        let (sender, seen) = oneshot::channel();
        let look = move |fleet: &Fleet, at: Moment| {
            // The asker may be gone.
            let _gone = sender.send(look(fleet, at));
        };
        self.0.send(Message::Look(Box::new(look))).await.ok()?;
        seen.await.ok()
    }
}

/// Owns the fleet.
pub(super) struct Actor {
    pub(super) fleet: Fleet,
    pub(super) carrier: Carrier,
    pub(super) messages: mpsc::Receiver<Message>,
    pub(super) health: Health,
    pub(super) beat: Beat,
}

impl Actor {
    /// Works until `stop`. Then nothing new begins, and works in flight end.
    pub(super) async fn run(mut self, stop: impl Future<Output = ()>) -> Result<()> {
        let mut stop = std::pin::pin!(stop);
        let mut works = JoinSet::new();
        loop {
            let at = moment()?;
            for work in self.fleet.work(at) {
                tracing::debug!(id = %work.id, "begin {:?}", work.task);
                works.spawn(self.carrier.clone().carry_out(work, at.now));
            }
            self.beat.beat();
            let wake = self.fleet.wake_at(at.now);
            let wait = wake.map_or(ROUND, |wake| wake.since(at.now).min(ROUND));
            tokio::select! {
                () = &mut stop => break,
                message = self.messages.recv() => match message {
                    Some(message) => self.take(message)?,
                    None => break,
                },
                Some(done) = works.join_next(), if !works.is_empty() => self.answered(done)?,
                () = sleep(wait) => {}
            }
            self.drain(&mut works)?;
        }
        self.fleet
            .take(Input::Standing(Standing::Following), moment()?);
        let ends = Instant::now() + ENDS;
        while let Ok(Some(_done)) = timeout_at(ends, works.join_next()).await {}
        Ok(())
    }

    /// Handles all further inputs that have arrived, so that one plan serves all of them.
    fn drain(&mut self, works: &mut JoinSet<Option<Input>>) -> Result<()> {
        for _ in 0..BATCH {
            match self.messages.try_recv() {
                Ok(message) => self.take(message)?,
                Err(_) => break,
            }
        }
        while let Some(done) = works.try_join_next() {
            self.answered(done)?;
        }
        Ok(())
    }

    fn take(&mut self, message: Message) -> Result<()> {
        let at = moment()?;
        match message {
            Message::Input(input) => {
                if matches!(input, Input::Nodes(_)) {
                    self.health.list();
                }
                self.fleet.take(input, at);
            }
            Message::Look(look) => look(&self.fleet, at),
        }
        Ok(())
    }

    /// Handles the answer of a work. A work that panicked has none, and the fleet counts it as
    /// lost.
    fn answered(&mut self, done: Result<Option<Input>, tokio::task::JoinError>) -> Result<()> {
        match done {
            Ok(Some(input)) => self.fleet.take(input, moment()?),
            Ok(None) => {}
            Err(error) => tracing::error!("a work ended without an answer: {error}"),
        }
        Ok(())
    }
}
