//! The state of the node's ENIs.

use api::types::{EniStatus, Readiness};
use loader::intent::{Eni, OtherEni};
use loader::observation::view::EniView;

use crate::actor::Actor;
use crate::host::kernel::Host;

impl<K: Host> Actor<K> {
    /// The ENIs.
    pub(crate) fn enis(&self) -> Vec<EniStatus> {
        let node = &self.intent.node;
        let numbered = node.enis.values().map(|eni| self.eni(eni));
        numbered.chain(node.others.iter().map(other)).collect()
    }

    fn eni(&self, eni: &Eni) -> EniStatus {
        let view = self.passes.last.view.enis.get(&eni.number);
        let device = view.and_then(|view| view.device.as_ref());
        let used = self.intent.endpoints.values();
        let used = used.flat_map(|endpoint| &endpoint.addresses);
        EniStatus {
            number: Some(eni.number),
            device_index: Some(eni.device_index),
            id: eni.id.clone(),
            mac: Some(eni.mac),
            device: device.map(|device| device.name.clone()),
            mtu: device.map(|device| device.mtu),
            primary_address: eni.primary_address,
            subnet: eni.subnet,
            table: Some(eni.table()),
            blocks: eni.blocks.iter().copied().collect(),
            addresses_in_use: used.filter(|address| eni.owns(**address)).count(),
            readiness: view.map_or_else(
                || Readiness::not_ready("not checked yet"),
                EniView::for_new_pods,
            ),
            notes: notes(eni),
        }
    }
}

/// An ENI's number and id, or its id alone.
pub(super) fn named(eni: &EniStatus) -> String {
    let number = eni.number;
    number.map_or_else(|| eni.id.clone(), |number| format!("{number} ({})", eni.id))
}

/// An entry of the document for which nothing is set up.
fn other(eni: &OtherEni) -> EniStatus {
    let whole = eni.whole.as_ref();
    EniStatus {
        number: None,
        device_index: eni.device_index,
        id: eni.id.clone(),
        mac: eni.mac,
        device: None,
        mtu: None,
        primary_address: whole.and_then(|eni| eni.primary_address),
        subnet: whole.and_then(|eni| eni.subnet),
        table: None,
        blocks: whole
            .iter()
            .flat_map(|eni| eni.blocks.iter().copied())
            .collect(),
        addresses_in_use: 0,
        readiness: eni.readiness.clone(),
        notes: Vec::new(),
    }
}

/// Notes on an ENI that do no harm to pods.
fn notes(eni: &Eni) -> Vec<String> {
    let own_address = eni.use_primary_address && !eni.number.is_primary();
    let note = "use-primary-address: its own address is a pod's to have, and not on the device";
    let own_address = own_address.then(|| note.to_owned());
    let overridden = eni.excluded_by_tags.as_ref();
    let overridden = overridden.filter(|_| eni.excluded.is_none()).map(|why| {
        let pools = eni.bound_to.join(" and ");
        match pools.as_str() {
            "" => format!("for pods that are on it until the pools are known, though {why}"),
            pools => format!("for pods because pool {pools} is bound to it, though {why}"),
        }
    });
    own_address.into_iter().chain(overridden).collect()
}
