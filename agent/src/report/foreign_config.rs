//! Configuration that network managers leave on the node's ENIs.

use std::collections::BTreeSet;

use api::types::ForeignConfig;
use api::types::Readiness;
use loader::netlink::Others;
use loader::observation::foreign_config::{Placed, Seen, foreign_config};

use crate::actor::Actor;
use crate::host::kernel::Host;

impl<K: Host> Actor<K> {
    /// The devices of the ENIs.
    pub(crate) fn eni_devices(&self) -> BTreeSet<u32> {
        let enis = self.passes.last.view.enis.values();
        enis.filter_map(|eni| eni.device.as_ref())
            .map(|device| device.ifindex)
            .collect()
    }

    /// Foreign configuration of the ENIs in use. An excluded ENI belongs to other software.
    pub(crate) fn foreign_config(&self, others: &Others) -> Vec<ForeignConfig> {
        let Some(facts) = self.reconciler.kernel().facts() else {
            return Vec::new();
        };
        let enis = self.intent.node.enis.values().filter_map(|eni| {
            let view = self.passes.last.view.enis.get(&eni.number)?;
            let in_use = !matches!(view.readiness, Readiness::Excluded { .. });
            in_use.then(|| Placed {
                eni,
                ifindex: view.device.as_ref().map(|device| device.ifindex),
                last: self.documents.last_devices.get(&eni.number).copied(),
            })
        });
        let enis: Vec<_> = enis.collect();
        let seen = Seen {
            links: &facts.links,
            addresses: &facts.nets,
            routes: &others.routes,
            rules: &others.rules,
        };
        foreign_config(&enis, seen)
    }

    /// Records the devices of the ENIs, so that an ENI whose MAC changes can still be identified.
    pub(crate) fn note_devices(&mut self) {
        for (number, eni) in &self.passes.last.view.enis {
            if let Some(device) = &eni.device {
                self.documents.last_devices.insert(*number, device.ifindex);
            }
        }
    }
}
