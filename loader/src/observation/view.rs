//! The state of the node, for people and for the socket: each ENI and endpoint with its readiness,
//! and every object of ours beside what should be.

use std::collections::BTreeMap;
use std::net::{IpAddr, Ipv4Addr};
use std::path::PathBuf;

use api::ids::{EndpointId, EniNumber, MacAddr, Owner};
use api::types::MasqueradeView;
use api::types::ObjectState;
use api::types::OwnedObject;
use api::types::Readiness;
use serde::{Deserialize, Serialize};

use crate::kernel::{Link, Object, Scope};

/// A device, as far as a reader wants to know it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct DeviceView {
    /// Its name.
    pub name: String,
    /// Its index.
    pub ifindex: u32,
    /// Its MTU now, in bytes.
    pub mtu: u32,
}

/// One ENI of the node document.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct EniView {
    /// The cloud's id.
    pub id: String,
    /// Its number.
    pub number: EniNumber,
    /// Its MAC.
    pub mac: MacAddr,
    /// Its own IPv4 address, where it has one.
    pub primary_address: Option<Ipv4Addr>,
    /// Its device, where there is exactly one.
    pub device: Option<DeviceView>,
    /// Its routing table.
    pub table: u32,
    /// Number of single addresses that the VPC delivers to it for pods.
    pub addresses: usize,
    /// Number of prefixes that the VPC delivers to it for pods.
    pub prefixes: usize,
    /// True if what it needs is in the kernel.
    pub readiness: Readiness,
    /// Why it gives no addresses, though what is set up stays; `None` where it gives some.
    pub stale: Option<String>,
}

impl EniView {
    /// True if new pods can use it.
    #[must_use]
    pub fn for_new_pods(&self) -> Readiness {
        match &self.stale {
            Some(reason) if self.readiness.is_ready() => Readiness::not_ready(format!(
                "{reason}; running pods keep it, and no new pod gets an address"
            )),
            Some(_) | None => self.readiness.clone(),
        }
    }
}

/// One endpoint.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct EndpointView {
    /// Its owner.
    pub owner: Owner,
    /// The pod's network namespace, as a path.
    pub netns: PathBuf,
    /// Name of its host-side device.
    pub device: String,
    /// Index of its host-side device, once it is there.
    pub ifindex: Option<u32>,
    /// MTU of its interface, in bytes.
    pub mtu: u32,
    /// Its addresses and the ENI that owns each; none where no ENI of the node document does.
    pub addresses: BTreeMap<IpAddr, Option<EniNumber>>,
    /// Its readiness.
    pub readiness: Readiness,
}

/// The whole node.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct View {
    /// Readiness of the node's own objects, the primary device included.
    pub node: Readiness,
    /// The primary ENI's device, where it is known.
    pub primary: Option<DeviceView>,
    /// The ENIs of the node document.
    pub enis: BTreeMap<EniNumber, EniView>,
    /// The endpoints.
    pub endpoints: BTreeMap<EndpointId, EndpointView>,
    /// The inputs of the masquerade decision.
    pub masquerade: MasqueradeView,
    /// Our objects in the kernel, each with its state.
    #[serde(skip)]
    pub objects: OwnedObjects,
}

/// Our objects in the kernel, each with its state. A full node has thousands of objects in each
/// pass, so they become text only on request.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct OwnedObjects {
    found: Vec<(Object, Scope, ObjectState)>,
    links: BTreeMap<u32, Link>,
}

impl OwnedObjects {
    /// Objects, and the devices that they are on.
    pub(crate) fn new(
        found: impl IntoIterator<Item = (Object, Scope, ObjectState)>,
        links: &BTreeMap<u32, Link>,
    ) -> Self {
        Self {
            found: found.into_iter().collect(),
            links: links.clone(),
        }
    }

    /// The objects in words.
    #[must_use]
    pub fn list(&self) -> Vec<OwnedObject> {
        let words = |(object, scope, state): &(Object, Scope, ObjectState)| OwnedObject {
            kind: object.kind(),
            object: object.describe(&self.links),
            scope: scope.to_string(),
            state: *state,
        };
        self.found.iter().map(words).collect()
    }
}

impl View {
    /// Notes that something of a scope is missing. The first reason stands, and so does one that
    /// resolving gave.
    pub(crate) fn note_missing(&mut self, scope: Scope, reason: &str) {
        if let Some(readiness) = self.readiness_mut(scope)
            && readiness.is_ready()
        {
            *readiness = Readiness::not_ready(reason);
        }
    }

    /// Notes what failed in a scope: it explains better than what is missing because of it.
    pub(crate) fn note_failure(&mut self, scope: Scope, reason: &str) {
        if let Some(readiness @ (Readiness::Ready | Readiness::NotReady { .. })) =
            self.readiness_mut(scope)
        {
            *readiness = Readiness::not_ready(reason);
        }
    }

    /// An endpoint is no readier than the ENIs that own its addresses.
    pub fn spread(&mut self) {
        for endpoint in self.endpoints.values_mut() {
            let waits = endpoint.addresses.iter().find_map(|(address, number)| {
                let number = (*number)?;
                let ready = self.enis.get(&number)?.readiness.is_ready();
                (!ready).then(|| format!("ENI {number}, which owns {address}, is not ready"))
            });
            if let Some(reason) = waits
                && endpoint.readiness.is_ready()
            {
                endpoint.readiness = Readiness::NotReady { reason };
            }
        }
    }

    fn readiness_mut(&mut self, scope: Scope) -> Option<&mut Readiness> {
        match scope {
            Scope::Node => Some(&mut self.node),
            Scope::Eni(number) => self.enis.get_mut(&number).map(|eni| &mut eni.readiness),
            Scope::Endpoint(id) => self.endpoints.get_mut(&id).map(|e| &mut e.readiness),
        }
    }
}

impl Default for View {
    fn default() -> Self {
        Self {
            node: Readiness::not_ready("the kernel has not been read yet"),
            primary: None,
            enis: BTreeMap::new(),
            endpoints: BTreeMap::new(),
            masquerade: MasqueradeView::default(),
            objects: OwnedObjects::default(),
        }
    }
}
