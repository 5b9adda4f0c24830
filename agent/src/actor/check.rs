//! State of one endpoint in the kernel, freshly read, and readiness of the node for pods.

use api::ids::{EndpointId, Owner};
use api::types::EndpointCheck;
use api::{ApiError, ErrorCode};
use loader::intent::Endpoint;
use loader::kernel::Scope;
use loader::plan::plan;

use super::admission;
use crate::actor::Actor;
use crate::host::kernel::Host;

impl<K: Host> Actor<K> {
    /// Checks that all objects of an endpoint are there. Repairs nothing.
    pub(crate) async fn check_endpoint(
        &mut self,
        owner: &Owner,
    ) -> Result<EndpointCheck, ApiError> {
        let id = EndpointId::of(owner);
        let endpoint = self.intent.endpoints.get(&id);
        let endpoint = endpoint.filter(|endpoint| endpoint.owner == *owner || endpoint.is_orphan());
        // The runtime knows of an orphan what its lost record said.
        let endpoint = endpoint.map(|endpoint| Endpoint {
            owner: owner.clone(),
            ..endpoint.clone()
        });
        let endpoint = endpoint.ok_or_else(|| {
            let message = format!("{owner} has no endpoint");
            ApiError::new(ErrorCode::UnknownEndpoint, message)
        })?;
        let attachment =
            admission::attachment(&self.intent, self.reconciler.kernel().facts(), &endpoint)?;
        let unreadable = |error: anyhow::Error| {
            let message = format!("the kernel could not be read: {error:#}");
            ApiError::new(ErrorCode::NotReady, message)
        };
        let kernel = self.reconciler.kernel_mut();
        let observed = kernel.observe().await.map_err(unreadable)?;
        let mut problems = kernel.inspect(&endpoint).await;
        let mut plan = plan(&self.intent, &observed);
        let steps = plan.steps.iter();
        let of_endpoint = steps.filter(|planned| planned.step.scope == Scope::Endpoint(id));
        problems.extend(of_endpoint.map(|planned| {
            let is = if planned.adds { "missing" } else { "left over" };
            format!("{is}: {}", planned.object.describe(&observed.links))
        }));
        plan.view.spread();
        let view = plan.view.endpoints.get(&id);
        let reason = view.and_then(|view| view.readiness.reason());
        problems.extend(reason.map(str::to_owned));
        Ok(EndpointCheck {
            attachment,
            problems,
        })
    }

    /// True if the node takes pods, by the judgement that the status shows. What only degrades is
    /// left out of the snapshot: it would change nothing.
    pub(crate) fn ready(&self) -> Result<(), ApiError> {
        self.snapshot(&self.enis(), Vec::new()).judge().ready()
    }
}
