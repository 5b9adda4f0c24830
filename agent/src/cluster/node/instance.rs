//! Identity of the instance: requested from its metadata service until that answers, without
//! blocking anything.

use apiserver::retry::Retry;
use kubernetes::node::node_template::Instance;
use tokio::sync::watch;
use tokio::time::sleep;

use crate::cluster::warnings::ClusterWarnings;
use config::MetadataEndpoint;
use sources::instance;
use sources::instance::InstanceError;

/// Topic of the warnings.
const TOPIC: &str = "instance";

/// State of the instance's identity.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(in crate::cluster) enum Looked {
    /// No answer has arrived yet.
    Asking,
    /// Unknown; it is requested again, if there is a metadata service.
    Unknown,
    /// Known. It is constant as long as the instance runs.
    Known(Instance),
}

impl Looked {
    pub(in crate::cluster) fn instance(&self) -> Option<&Instance> {
        match self {
            Self::Known(instance) => Some(instance),
            Self::Asking | Self::Unknown => None,
        }
    }
}

/// Begins to request it.
pub(in crate::cluster) fn look(
    endpoint: Option<MetadataEndpoint>,
    warnings: ClusterWarnings,
) -> watch::Receiver<Looked> {
    let Some(endpoint) = endpoint else {
        return watch::channel(Looked::Unknown).1;
    };
    let (sender, receiver) = watch::channel(Looked::Asking);
    tokio::spawn(async move {
        let mut retry = Retry::default();
        loop {
            let answer = tokio::select! {
                () = sender.closed() => return,
                answer = instance::ask(endpoint.address()) => answer,
            };
            let wait = match answer {
                Ok(instance) => {
                    tracing::info!(id = instance.id, kind = instance.kind, "instance known");
                    warnings.set(TOPIC, &[]);
                    sender.send_replace(Looked::Known(instance));
                    return;
                }
                Err(error) => {
                    warnings.set(TOPIC, &[text(endpoint, &error)]);
                    sender.send_replace(Looked::Unknown);
                    retry.failed(&error)
                }
            };
            tokio::select! {
                () = sender.closed() => return,
                () = sleep(wait) => {}
            }
        }
    });
    receiver
}

fn text(endpoint: MetadataEndpoint, error: &InstanceError) -> String {
    format!(
        "the instance's metadata service at {endpoint} does not identify the instance: {error}; the CiliumNode keeps its values, and Cilium's operator gives no ENIs to a node \
         without an instance id; see kubernetes.metadata-endpoint, which is null where there is no \
         such service"
    )
}
