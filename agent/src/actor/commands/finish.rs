//! Making endpoints that were admitted.

use std::collections::BTreeMap;

use api::ids::EndpointId;
use api::types::{Attachment, Readiness};
use api::{ApiError, ErrorCode};
use loader::intent::Endpoint;
use loader::kernel::Endpoints;

use super::Admitted;
use crate::actor::{Actor, admission};
use crate::host::kernel::Host;

impl<K: Host> Actor<K> {
    /// Makes what was admitted, and leaves nothing of new endpoints that cannot be made.
    pub(crate) async fn finish(
        &mut self,
        admitted: Vec<Result<Admitted, ApiError>>,
    ) -> Vec<Result<Attachment, ApiError>> {
        self.records.store.sync();
        let wanted = admitted.iter().flatten();
        let wanted = wanted.map(|one| (one.endpoint.id(), one.endpoint.addresses.clone()));
        let wanted: Endpoints = wanted.collect();
        if !wanted.is_empty() {
            self.run_endpoints(wanted.clone()).await;
        }
        // A network manager of the host changes new devices, also while they are being set up.
        let ids = wanted.into_iter();
        let unfinished: Endpoints = ids.filter(|(id, _)| !self.is_set_up(*id)).collect();
        if !unfinished.is_empty() {
            self.run_endpoints(unfinished).await;
        }
        let mut failed = Endpoints::new();
        let mut pods = BTreeMap::new();
        let mut answers = Vec::new();
        for admitted in admitted {
            let answer = admitted.and_then(|Admitted { endpoint, new }| {
                let answer = self.attached(&endpoint);
                if answer.is_err() && new {
                    pods.insert(endpoint.id(), endpoint.about.pod.clone());
                    failed.insert(endpoint.id(), endpoint.addresses);
                }
                answer
            });
            answers.push(answer);
        }
        if !failed.is_empty() {
            for id in failed.keys() {
                match self.forget(*id) {
                    Ok(Some(owner)) => {
                        let pod = pods.get(id).and_then(Option::as_ref);
                        self.addresses.take_back(&owner, pod, true);
                    }
                    Ok(None) => {}
                    Err(error) => {
                        tracing::error!("cannot delete the record of a failed endpoint: {error:#}");
                    }
                }
            }
            self.run_endpoints(failed).await;
        }
        answers
    }

    fn is_set_up(&self, id: EndpointId) -> bool {
        let view = self.passes.last.view.endpoints.get(&id);
        view.is_some_and(|view| matches!(view.readiness, Readiness::Ready))
    }

    /// The answer for an endpoint that should work by now.
    fn attached(&self, endpoint: &Endpoint) -> Result<Attachment, ApiError> {
        let view = self.passes.last.view.endpoints.get(&endpoint.id());
        match view.map(|view| &view.readiness) {
            Some(Readiness::Ready) => {
                admission::attachment(&self.intent, self.reconciler.kernel().facts(), endpoint)
            }
            Some(Readiness::NotReady { reason } | Readiness::Excluded { reason }) => {
                Err(ApiError::new(ErrorCode::SetUpFailed, reason.clone()))
            }
            None => Err(ApiError::new(
                ErrorCode::SetUpFailed,
                "its namespace went away, or the kernel could not be read; see the log",
            )),
        }
    }
}
