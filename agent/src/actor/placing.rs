//! The node as documents, pools and the kernel have it together.

use std::collections::BTreeSet;
use std::net::IpAddr;

use loader::constants::highest_number;
use loader::intent::{Eni, Node, Settings};
use tokio::time::Instant;

use crate::actor::Actor;
use crate::allocation::adapter as allocation;
use crate::host::kernel::Host;
use loader::netlink::Change;
use node_document::{place, take_enis};

impl<K: Host> Actor<K> {
    /// Takes up, once, the numbers that an agent without a record of them has given.
    fn adopt_numbers(&mut self, enis: &[Eni]) {
        let kernel = self.reconciler.kernel();
        let Some(facts) = kernel
            .facts()
            .filter(|_| !self.documents.numbering.is_adopted())
        else {
            return;
        };
        match kernel.map_entries() {
            Ok(maps) => self.documents.numbering.adopt(enis, &maps, &facts.links),
            Err(error) => tracing::warn!("numbers of ENIs may change: {error:#}"),
        }
    }

    /// Takes the node as it is by now.
    pub(crate) fn take_node(&mut self) {
        let Some(node) = &self.documents.source.value else {
            return;
        };
        let mut node = Node::clone(node);
        let mut enis = take_enis(&mut node);
        let endpoints = self.intent.endpoints.values();
        let used = endpoints.flat_map(|endpoint| &endpoint.addresses);
        let used: BTreeSet<IpAddr> = used.copied().collect();
        self.bind(&mut enis, &used);
        self.adopt_numbers(&enis);
        self.documents.numbering.recall(&mut node, &mut enis, &used);
        let highest = highest_number(self.intent.settings.mark);
        let links = self.reconciler.kernel().facts().map(|facts| &facts.links);
        let around = self.documents.numbering.around(&enis, highest, links);
        place(&mut node, enis, &around);
        if let Some(enis) = self.documents.numbering.recall_left_out(&mut node) {
            place(&mut node, enis, &around);
        }
        if let Some(links) = links {
            self.documents.numbering.saw(&node, links);
        }
        self.documents.numbering.learn(&node);
        self.intent.node = node;
        self.passes.pacer.event(Instant::now(), Change::Own);
    }

    fn bind(&self, enis: &mut [Eni], used: &BTreeSet<IpAddr>) {
        let Settings {
            masquerade,
            default_pool,
            ..
        } = &self.intent.settings;
        let documents = self.intent.policy.pools.as_deref();
        let are_read = documents.is_some() || masquerade.pools.is_none();
        if are_read {
            let (pools, _) = allocation::pools(documents, default_pool);
            allocation::bind(enis, &pools);
        } else {
            // The ENIs that they are bound to are unknown.
            allocation::keep_used(enis, used);
        }
    }

    /// Places the node's ENIs again if their numbers may change: devices were added or removed, or
    /// a busy number has become free.
    pub(crate) fn renumber(&mut self) {
        let kernel = self.reconciler.kernel();
        let Some(facts) = kernel.facts() else { return };
        let mut is_due = self
            .documents
            .numbering
            .is_outdated(&self.intent.node, &facts.links);
        self.observers
            .nat
            .rest(self.documents.numbering.resting(self.intent.settings.mark));
        if self.documents.numbering.has_retired()
            && let Ok(maps) = kernel.map_entries()
        {
            is_due |= self
                .documents
                .numbering
                .free(&maps, &self.observers.nat.report());
        }
        if is_due {
            self.take_node();
        }
    }
}
