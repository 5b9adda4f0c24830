//! The network cards of the instance's ENIs, from its metadata service. The node document does not have
//! them.

use std::time::Duration;

use apiserver::retry::Retry;
use tokio::time::sleep;

use crate::server::{Command, Handle};
use config::MetadataEndpoint;
use sources::instance;

/// Interval between look-ups: an ENI that is attached later has to be known soon.
const PERIOD: Duration = Duration::from_mins(1);

/// Follows them, where there is a metadata service. Must be called inside a tokio runtime.
pub(in crate::cluster) fn follow(endpoint: Option<MetadataEndpoint>, agent: Handle) {
    let Some(endpoint) = endpoint else { return };
    tokio::spawn(async move {
        let mut retry = Retry::default();
        let mut known = None;
        loop {
            let wait = match instance::cards(endpoint.address()).await {
                Ok(cards) => {
                    retry.succeeded();
                    if known.as_ref() != Some(&cards) {
                        agent.tell(Command::Cards(cards.clone())).await;
                        known = Some(cards);
                    }
                    PERIOD
                }
                Err(error) => {
                    tracing::debug!("network cards of ENIs are unknown: {error}");
                    retry.failed(&error)
                }
            };
            sleep(wait).await;
        }
    });
}
