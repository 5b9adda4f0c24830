//! Services of the cluster: their CIDRs, and the other addresses that the service proxy translates.

use std::collections::BTreeSet;
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use apiserver::client::Connection;
use apiserver::follow::{self, Resource, Trouble};
use apiserver::objects;
use kubernetes::services;
use loader::intent::ClusterServices;
use tokio::sync::watch;

/// Services of the cluster, and the reasons why nothing newer is known.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct ServicesSource {
    /// Known services.
    pub(crate) known: ClusterServices,
    /// The reason why the CIDRs are not followed.
    pub(crate) cidrs_error: Option<String>,
    /// The reason why the addresses are not followed.
    pub(crate) addresses_error: Option<String>,
}

/// Follows the services; their CIDRs where the configuration has none.
pub(super) fn follow(
    connection: &Connection,
    wants_cidrs: bool,
) -> watch::Receiver<ServicesSource> {
    let (sender, receiver) = watch::channel(ServicesSource::default());
    let sender = Arc::new(sender);
    if wants_cidrs {
        follow_cidrs(connection, Arc::clone(&sender));
    } else {
        sender.send_modify(|source| source.known.cidrs = Some([].into()));
    }
    let resource = Resource {
        versions: vec![objects::services(&connection.client)],
        lists: connection.lists.clone(),
        config: connection.watching().labels(services::SELECTOR),
        absent: follow::LOOK_FOR,
        settle: Duration::ZERO,
    };
    tokio::spawn(resource.follow(services::addresses, move |update| {
        let update = match update {
            Ok(all) => Ok(all.values().flatten().copied().collect()),
            Err(trouble) => Err(text("Services", trouble)),
        };
        sender.send_if_modified(|source| {
            take(
                &mut source.known.addresses,
                &mut source.addresses_error,
                update,
            )
        });
        !sender.is_closed()
    }));
    receiver
}

fn follow_cidrs(connection: &Connection, sender: Arc<watch::Sender<ServicesSource>>) {
    let resource = Resource {
        versions: objects::service_cidrs(&connection.client),
        lists: connection.lists.clone(),
        config: connection.watching(),
        absent: follow::LOOK_FOR,
        settle: Duration::ZERO,
    };
    tokio::spawn(resource.follow(services::cidrs, move |update| {
        let update = match update {
            Ok(all) => Some(all.values().flatten().copied().collect())
                .filter(|cidrs: &BTreeSet<_>| !cidrs.is_empty())
                .ok_or_else(|| "no ServiceCIDR object has a CIDR".to_owned()),
            Err(trouble) => Err(text("ServiceCIDR objects", trouble)),
        };
        sender.send_if_modified(|source| {
            take(&mut source.known.cidrs, &mut source.cidrs_error, update)
        });
        !sender.is_closed()
    }));
}

fn text(what: &str, trouble: Trouble) -> String {
    match trouble {
        Trouble::Absent => format!("the API server has no {what}"),
        Trouble::Failed(error) => format!("{what} are not followed: {error}"),
    }
}

/// Takes an update. Returns true if it changes anything. An error leaves the known value in force.
fn take<T: PartialEq + fmt::Debug>(
    known: &mut Option<T>,
    error: &mut Option<String>,
    update: Result<T, String>,
) -> bool {
    match update {
        Ok(new) => {
            let cleared = error.take().is_some();
            if known.as_ref() == Some(&new) {
                return cleared;
            }
            tracing::debug!(?new, "service addresses taken");
            *known = Some(new);
            true
        }
        Err(new) => {
            if error.as_ref() == Some(&new) {
                return false;
            }
            tracing::warn!(error = new, "service addresses stay as they were");
            *error = Some(new);
            true
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_error_leaves_what_is_known_in_force() {
        let (mut known, mut error) = (None, None);
        assert!(take(&mut known, &mut error, Ok(1)));
        assert!(!take(&mut known, &mut error, Ok(1)));
        assert!(take(&mut known, &mut error, Err("away".to_owned())));
        assert!(!take(&mut known, &mut error, Err("away".to_owned())));
        assert_eq!((known, error.as_deref()), (Some(1), Some("away")));
        assert!(take(&mut known, &mut error, Ok(1)), "the error is gone");
        assert_eq!((known, error), (Some(1), None));
    }
}
