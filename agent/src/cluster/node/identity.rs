//! Identity of this instance, from its metadata service, to detect a document of another instance.

use std::time::Duration;

use apiserver::retry::Retry;
use tokio::sync::watch;
use tokio::time::sleep;

use config::MetadataEndpoint;
use sources::instance;

/// The time that documents wait for the first answer.
const FIRST_ANSWER: Duration = Duration::from_secs(2);

/// The result so far.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(in crate::cluster) enum Identity {
    /// The first answer is awaited.
    Awaited,
    /// The service has not answered, or there is none.
    Unknown,
    /// The instance's id.
    Known(String),
}

impl Identity {
    /// Admits the document of an instance; one that names no instance may be any one's.
    ///
    /// # Errors
    /// With the reason why it is not used.
    pub(in crate::cluster) fn admits(&self, instance: Option<&str>) -> Result<(), String> {
        let Some(instance) = instance else {
            return Ok(());
        };
        match self {
            Self::Unknown => Ok(()),
            Self::Known(own) if own == instance => Ok(()),
            Self::Known(own) => Err(format!(
                "spec.instance-id: \"{instance}\" is refused; allowed: \"{own}\", which this instance \
                 is by its metadata service: the document is another machine's, as after an instance \
                 was replaced under the same name, and nothing of it is applied; delete the object, or \
                 have who made it write it for this instance"
            )),
            Self::Awaited => Err(format!(
                "spec.instance-id: \"{instance}\" is not compared yet: the instance's metadata service \
                 has {FIRST_ANSWER:?} to answer (kubernetes.metadata-endpoint)"
            )),
        }
    }
}

/// Starts reading the identity. Must be called inside a tokio runtime.
pub(in crate::cluster) fn look(endpoint: Option<MetadataEndpoint>) -> watch::Receiver<Identity> {
    let Some(endpoint) = endpoint else {
        return watch::channel(Identity::Unknown).1;
    };
    let (sender, receiver) = watch::channel(Identity::Awaited);
    tokio::spawn(async move {
        let mut retry = Retry::default();
        let patience = sleep(FIRST_ANSWER);
        tokio::pin!(patience);
        loop {
            let answer = instance::id(endpoint.address());
            tokio::pin!(answer);
            let answer = tokio::select! {
                () = sender.closed() => return,
                answer = &mut answer => answer,
                () = &mut patience, if *sender.borrow() == Identity::Awaited => {
                    sender.send_replace(Identity::Unknown);
                    answer.await
                }
            };
            let wait = match answer {
                Ok(id) => {
                    sender.send_replace(Identity::Known(id));
                    return;
                }
                Err(error) => {
                    tracing::debug!("the instance's id is unknown: {error}");
                    sender.send_replace(Identity::Unknown);
                    retry.failed(&error)
                }
            };
            sleep(wait).await;
        }
    });
    receiver
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_document_of_another_instance_is_refused() {
        let known = Identity::Known("i-new".to_owned());
        for (identity, instance, part) in [
            (&known, None, None),
            (&known, Some("i-new"), None),
            (&known, Some("i-old"), Some("another machine's")),
            (&known, Some("i-NEW"), Some("another machine's")),
            (&Identity::Unknown, Some("i-old"), None),
            (&Identity::Awaited, Some("i-old"), Some("not compared yet")),
            (&Identity::Awaited, None, None),
        ] {
            let error = identity.admits(instance).err();
            let says = |part: &str| error.as_deref().is_some_and(|error| error.contains(part));
            let name = format!("{identity:?} {instance:?}: {error:?}");
            assert_eq!(error.is_some(), part.is_some(), "{name}");
            assert!(part.is_none_or(says), "{name}");
        }
        let error = known.admits(Some("i-old")).unwrap_err();
        assert!(
            error.contains("\"i-old\"") && error.contains("\"i-new\""),
            "{error}"
        );
    }
}
