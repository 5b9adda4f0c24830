//! Watches that leave the server alone for longer and longer after failures.

use futures_util::{Stream, StreamExt as _, stream};
use kube::runtime::watcher::{Event, Result};
use tokio::time::sleep;

use super::retry::Retry;

/// The events of a watch, which goes on after each failure once [`Retry`] has waited.
pub fn patient<K: Send>(
    events: impl Stream<Item = Result<Event<K>>> + Send,
) -> impl Stream<Item = Result<Event<K>>> + Send {
    let state = (Box::pin(events), Retry::default(), None);
    stream::unfold(state, |(mut events, mut retry, wait)| async move {
        if let Some(wait) = wait {
            sleep(wait).await;
        }
        let event = events.next().await?;
        let wait = match &event {
            // A list that begins is no answer yet.
            Ok(Event::Init) => None,
            Ok(_answer) => {
                retry.succeeded();
                None
            }
            Err(error) => Some(retry.failed(error)),
        };
        Some((event, (events, retry, wait)))
    })
}

#[cfg(test)]
mod tests {
    use kube::core::DynamicObject;
    use kube::runtime::watcher::Error;
    use tokio::time::Instant;

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn the_watch_of_a_server_that_is_away_goes_on_within_ten_seconds() {
        let away = || Err(Error::NoResourceVersion);
        let mut attempts = Vec::new();
        for _ in 0..20 {
            attempts.extend([Ok(Event::<DynamicObject>::Init), away()]);
        }
        attempts.extend([Ok(Event::InitDone), away(), Ok(Event::InitDone)]);
        let mut events = Box::pin(patient(stream::iter(attempts)));
        let mut waits = Vec::new();
        let mut begun = Instant::now();
        while let Some(event) = events.next().await {
            waits.push(begun.elapsed().as_millis());
            begun = Instant::now();
            drop(event);
        }
        let after_failures: Vec<_> = waits.iter().copied().filter(|wait| *wait > 0).collect();
        let [first, .., last, again] = *after_failures.as_slice() else {
            panic!("{waits:?}");
        };
        assert!((500..=1000).contains(&first), "{waits:?}");
        assert!((5000..=10_000).contains(&last), "{waits:?}");
        assert!((500..=1000).contains(&again), "after an answer: {waits:?}");
    }
}
