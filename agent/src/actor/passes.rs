//! Passes of the actor: over the whole node, over some endpoints, and the checks for changes in
//! between.

use loader::intent::pod_routes::PodRoutes;
use loader::kernel::Endpoints;
use loader::netlink::Change;
use loader::reconcile::Pass;
use loader::stamp::Stamp;
use tokio::time::Instant as Timer;

use super::Actor;
use crate::host::kernel::Host;

impl<K: Host> Actor<K> {
    /// Brings the kernel to the intent. Does nothing before the first good document: an intent
    /// without one would remove what an earlier agent set up.
    pub(crate) async fn run_pass(&mut self) {
        let began = Timer::now();
        self.records.folders = self.stamps();
        let seen = self.passes.seen.take();
        let mut has_more = false;
        if self.documents.source.value.is_some() && self.take_orphans().await {
            self.look_once().await;
            self.carry_out_pending();
            self.drop_dead();
            let recorded = self.intent.endpoints.values();
            let recorded = recorded.filter(|endpoint| !endpoint.is_orphan());
            let restored = self.records.store.restore(recorded);
            self.records.unsaved = restored.err().map(|error| format!("{error:#}"));
            let changed = self.take_kernel_settings();
            // By now there may be other programs than those that were compared with.
            let seen = seen.filter(|_| !changed);
            let pass = self.reconciler.pass_from(&self.intent, seen).await;
            self.take_pass(pass);
            self.note_detours();
            self.forget_deleted();
            self.passes.is_outdated = false;
            self.note_devices();
            self.tell_sweeper();
            self.look_at_addresses();
            let endpoints = &self.intent.endpoints;
            has_more = self
                .reconciler
                .kernel_mut()
                .follow_pod_routes(endpoints)
                .await;
        }
        let time = began..Timer::now();
        self.passes
            .pacer
            .passed(time, self.passes.last.is_clean(), self.passes.last.next_due);
        if has_more {
            self.passes.pacer.event(Timer::now(), Change::Own);
        }
    }

    /// Takes the settings that follow from the kernel's state; true if one of them changed.
    fn take_kernel_settings(&mut self) -> bool {
        let kernel = self.reconciler.kernel_mut();
        let settings = &mut self.intent.settings;
        let before = (settings.service_nat, settings.ports);
        settings.service_nat = kernel.keeps_notes();
        let routes = PodRoutes::of(&self.intent);
        kernel.set_pod_routes(routes);
        let settings = &mut self.intent.settings;
        settings.ports = kernel.translation_ports();
        before != (settings.service_nat, settings.ports)
    }

    /// Takes the result of a pass, and logs its changes and its new failures.
    fn take_pass(&mut self, pass: Pass) {
        self.passes.work.count(pass.applied, pass.failures.len());
        if pass.applied > 0 {
            tracing::info!(
                steps = pass.applied,
                left = pass.remaining,
                "kernel changed"
            );
        }
        if pass.failures != self.passes.last.failures {
            for failure in &pass.failures {
                tracing::warn!(step = failure.step, error = failure.error, "step failed");
            }
        }
        if pass.remaining == 0 && pass.failures.is_empty() {
            self.reconciler.kernel_mut().settled();
        }
        self.passes.last = pass;
    }

    /// Lets follow what time alone changes, and what a pass has found.
    fn look_at_addresses(&mut self) {
        self.update_addresses();
        self.addresses.save();
        self.drop_unused_pools();
        self.renumber();
    }

    /// Checks for changes without an event. A pass follows if there is one.
    pub(super) async fn glance(&mut self) {
        if self.has_moved().await {
            return self.run_pass().await;
        }
        self.look_at_addresses();
        self.passes.pacer.glanced(Timer::now());
    }

    async fn has_moved(&mut self) -> bool {
        // A kernel that cannot be read is the pass's to report.
        let has_moved = self.reconciler.kernel_mut().glance().await.unwrap_or(true);
        let has_moved = has_moved || self.records.folders != self.stamps();
        let kernel = self.reconciler.kernel_mut();
        has_moved
            || kernel.keeps_notes() != self.intent.settings.service_nat
            || kernel.translation_ports() != self.intent.settings.ports
    }

    /// The folders of records and of deletes that the CNI plugin left, as they are now.
    fn stamps(&self) -> [Stamp; 2] {
        [self.records.store.stamp(), self.records.pending.stamp()]
    }

    /// Brings some endpoints to the intent. A whole pass follows soon.
    pub(crate) async fn run_endpoints(&mut self, of: Endpoints) {
        let Some(pass) = self.reconciler.pass_endpoints(&self.intent, &of).await else {
            return self.run_pass().await;
        };
        tracing::debug!(
            steps = pass.applied,
            left = pass.remaining,
            "endpoints changed"
        );
        for failure in &pass.failures {
            tracing::warn!(step = failure.step, error = failure.error, "step failed");
        }
        self.passes.work.count(pass.applied, pass.failures.len());
        if pass.remaining == 0 && pass.failures.is_empty() {
            let endpoints = &self.intent.endpoints;
            let is_gone = |id| of.contains_key(&id) && !endpoints.contains_key(&id);
            self.records.store.forget_deleted(is_gone);
        }
        let views = &mut self.passes.last.view.endpoints;
        views.retain(|id, _| !of.contains_key(id));
        views.extend(pass.endpoints);
        self.passes.last.applied += pass.applied;
        self.passes.last.remaining += pass.remaining;
        // Until the next whole pass has looked, what could not be removed is still there.
        if let Some(lingering) = &mut self.passes.last.lingering {
            lingering.extend(pass.lingering);
        }
        self.passes.last.failures.extend(pass.failures);
        self.passes.is_outdated = true;
        self.tell_sweeper();
        self.passes.pacer.event(Timer::now(), Change::Own);
    }

    /// Runs a pass if the last one does not know every endpoint.
    pub(crate) async fn update(&mut self) {
        if self.passes.is_outdated {
            self.run_pass().await;
        }
    }
}
