//! The kernel's network configuration over rtnetlink: read it, change it, hear of changes.
//!
//! Everything happens in the network namespace of the thread that calls; the agent's threads are
//! all in the node's. Only `netns` enters another one, and has left it when a call returns.

mod apply;
mod endpoint;
mod errno;
mod events;
pub(crate) mod netfilter;
mod netns;
mod observe;
mod others;
mod socket;
mod sysctl;

use std::collections::{BTreeMap, BTreeSet};

use anyhow::{Context, bail};
use futures_util::Stream;
use ipam::Family;
use netlink_packet_route::AddressFamily;

pub(crate) use self::errno::RequestError;
pub use self::events::Change;
use self::events::Watched;
pub use self::netns::{namespaces_by_mac, netns_at};
pub use self::others::Others;
use self::socket::Socket;
pub(crate) use self::sysctl::Held as HeldSysctl;
use self::sysctl::NodeSysctls;
pub(crate) use self::sysctl::netfilter as netfilter_sysctl;
pub use self::sysctl::{PortSysctls, find_sysctls_in, routing_sysctls, write_reserved_ports};
use crate::intent::Endpoint;
use crate::intent::pod_routes::PodRoutes;
use crate::kernel::{Address, Link, Observed, StepKind, Sysctl};
use crate::observation::gateways::Gateway;

/// The owner of the agent's netlink socket: one request at a time.
pub struct Netlink {
    socket: Socket,
    protocol: u8,
    /// The inputs of new pods' routes.
    pod_routes: PodRoutes,
    /// The permanent neighbours last seen, whose loss is an event.
    watched: Watched,
    /// The reader of routes.
    routes: observe::Reader,
    /// The sysctls of the node as a whole.
    node: NodeSysctls,
}

impl Netlink {
    /// Opens a socket in the network namespace of the calling thread. `protocol` is what the routes
    /// inside a pod carry; every route and rule of the host has its own.
    ///
    /// To be called inside a tokio runtime.
    ///
    /// # Errors
    /// When the kernel has no rtnetlink or refuses the socket.
    pub fn open(protocol: u8) -> anyhow::Result<Self> {
        let socket = socket::connect()
            .and_then(Socket::new)
            .context("open a netlink socket")?;
        Ok(Self {
            socket,
            protocol,
            pod_routes: PodRoutes::default(),
            watched: Watched::default(),
            routes: observe::Reader::default(),
            node: NodeSysctls::new(),
        })
    }

    /// Reads everything but maps and attachments, which stay as they are.
    ///
    /// # Errors
    /// When a table cannot be read; `observed` is then unchanged.
    pub async fn observe(&mut self, observed: &mut Observed) -> anyhow::Result<()> {
        observe::all(&mut self.socket, &mut self.routes, observed).await?;
        observed.sysctls.extend(self.node.read());
        self.watched.replace(&observed.neighbours);
        Ok(())
    }

    /// Reads some devices by their names, with their sysctls and the routes and permanent neighbours
    /// that are on them.
    ///
    /// # Errors
    /// When one cannot be read.
    pub async fn observe_devices(
        &mut self,
        names: &[String],
        observed: &mut Observed,
    ) -> anyhow::Result<()> {
        observe::devices(&mut self.socket, names, observed).await
    }

    /// Makes a change of these gateways' MACs an event, and the kernel resolve those again that
    /// were not confirmed for a while.
    ///
    /// # Errors
    /// When the kernel refuses.
    pub async fn watch_gateways(&mut self, gateways: &[Gateway]) -> anyhow::Result<()> {
        let known = gateways.iter().map(|g| ((g.ifindex, g.address), g.mac));
        self.watched.replace_gateways(known);
        for gateway in gateways.iter().filter(|gateway| gateway.is_stale) {
            apply::neighbours::use_one(&mut self.socket, gateway.ifindex, gateway.address).await?;
        }
        Ok(())
    }

    /// Makes the kernel resolve those gateways again that were not confirmed since they were
    /// watched.
    ///
    /// # Errors
    /// When the kernel refuses.
    pub async fn confirm_gateways(&mut self) -> anyhow::Result<()> {
        for (ifindex, address) in self.watched.take_stale() {
            apply::neighbours::use_one(&mut self.socket, ifindex, address).await?;
        }
        Ok(())
    }

    /// The sysctls that we manage of the node and of these devices, by their indexes.
    ///
    /// # Errors
    /// When the kernel does not let itself be read.
    pub async fn sysctls(
        &mut self,
        devices: &BTreeSet<u32>,
    ) -> anyhow::Result<BTreeMap<Sysctl, String>> {
        let mut all = self.node.read();
        for ifindex in devices {
            let found = observe::sysctls(&mut self.socket, *ifindex).await;
            all.extend(found.with_context(|| format!("read the device {ifindex}"))?);
        }
        Ok(all)
    }

    /// Every address on the host's devices.
    ///
    /// # Errors
    /// When they cannot be read.
    pub async fn addresses(&mut self) -> anyhow::Result<BTreeSet<Address>> {
        let addresses = observe::addresses(&mut self.socket).await;
        addresses.context("read the addresses")
    }

    /// Every device.
    ///
    /// # Errors
    /// When they cannot be read.
    pub async fn links(&mut self) -> anyhow::Result<Vec<Link>> {
        let links = observe::links(&mut self.socket).await;
        let (links, _sysctls) = links.context("read the links")?;
        Ok(links.into_values().collect())
    }

    /// Ids of the XDP programs of each device that has any, by the device's index.
    ///
    /// # Errors
    /// When the kernel does not let itself be read.
    pub async fn xdp_programs(&mut self) -> anyhow::Result<BTreeMap<u32, Vec<u32>>> {
        let programs = observe::xdp(&mut self.socket).await;
        programs.context("read the XDP programs of links")
    }

    /// Carries out one step. What is already so, or already gone, is success.
    ///
    /// # Errors
    /// When the kernel refuses, or when the step is about maps or attachments.
    pub async fn apply(&mut self, step: &StepKind) -> anyhow::Result<()> {
        let socket = &mut self.socket;
        match step {
            StepKind::SetSysctl(sysctl, value) => apply::sysctls::set(socket, *sysctl, value).await,
            StepKind::SetMtu { ifindex, mtu } => {
                apply::links::set_mtu(socket, *ifindex, *mtu).await
            }
            StepKind::SetUp(ifindex) => {
                apply::links::set_up(socket, *ifindex).await?;
                apply::links::peer_activated(socket, *ifindex).await
            }
            StepKind::CreateEndpointDevice(endpoint) => {
                endpoint::create(socket, endpoint, &self.pod_routes, self.protocol).await
            }
            StepKind::DeleteDevice(ifindex) => apply::links::delete(socket, *ifindex).await,
            StepKind::AddAddress(address) => apply::addresses::add(socket, address).await,
            StepKind::DeleteAddress(address) => apply::addresses::delete(socket, address).await,
            StepKind::AddRoute(route) => apply::routes::replace(socket, route).await,
            StepKind::DeleteRoute(route) => apply::routes::delete(socket, route).await,
            StepKind::AddRule(rule) => apply::rules::add(socket, rule).await,
            StepKind::DeleteRule(rule) => apply::rules::delete(socket, rule).await,
            StepKind::AddNeighbour(neighbour) => {
                self.watched.add(neighbour);
                apply::neighbours::add(socket, neighbour).await
            }
            StepKind::DeleteNeighbour(neighbour) => {
                apply::neighbours::delete(socket, neighbour).await
            }
            StepKind::PutMapEntry(_)
            | StepKind::DeleteMapEntry(_)
            | StepKind::Attach(_)
            | StepKind::Detach(_)
            | StepKind::ReservePorts(_) => bail!("{step:?} is no netlink step"),
        }
    }

    /// Removes devices together, in the time that one takes. Those that are left have to be removed
    /// one by one.
    ///
    /// # Errors
    /// When the kernel refuses.
    pub async fn delete_together(&mut self, devices: &[u32]) -> anyhow::Result<()> {
        apply::links::delete_together(&mut self.socket, devices).await
    }

    /// A stream with one item for each burst of changes to links, addresses, rules, routes, permanent
    /// neighbours, qdiscs and tc filters, and the sysctls that the kernel reports (forwarding and
    /// `rp_filter`). Only an observation shows a change to `arp_ignore`, `arp_announce`,
    /// `send_redirects` or `accept_ra`, and the loss of a TCX link. Lost notifications are an item,
    /// too. The stream ends if the socket fails. Then a new one has to be opened.
    ///
    /// # Errors
    /// When the socket cannot be opened or cannot join the notifications.
    pub fn events(&self) -> anyhow::Result<impl Stream<Item = Change> + Send + Unpin + use<>> {
        events::stream(self.watched.clone()).context("subscribe to the kernel's changes")
    }

    /// Sets the routes of new pods; true if they differ from before.
    pub fn set_pod_routes(&mut self, routes: PodRoutes) -> bool {
        let is_new = self.pod_routes != routes;
        self.pod_routes = routes;
        is_new
    }

    /// Brings the routes of a running pod to what new pods get.
    ///
    /// # Errors
    /// When the pod cannot be entered, or its kernel refuses.
    pub async fn follow_pod_routes(&self, endpoint: &Endpoint) -> anyhow::Result<()> {
        endpoint::pod_routes::follow(endpoint, &self.pod_routes, self.protocol).await
    }

    /// Inspects an endpoint's end inside the pod; returns its differences from the created state,
    /// as text.
    pub async fn inspect(&mut self, endpoint: &Endpoint) -> Vec<String> {
        endpoint::inspect::inspect(endpoint, &self.pod_routes, self.protocol).await
    }

    /// Foreign objects in the kernel; of foreign routes, those out of `devices`. None of them is
    /// ever touched.
    ///
    /// # Errors
    /// When the rules or routes cannot be read.
    pub async fn others(&mut self, devices: &BTreeSet<u32>) -> anyhow::Result<Others> {
        others::list(&mut self.socket, devices).await
    }
}

/// The kernel's number of a family.
fn address_family(family: Family) -> AddressFamily {
    match family {
        Family::V4 => AddressFamily::Inet,
        Family::V6 => AddressFamily::Inet6,
    }
}

/// The family that the kernel's number stands for.
fn family(number: AddressFamily) -> Option<Family> {
    match number {
        AddressFamily::Inet => Some(Family::V4),
        AddressFamily::Inet6 => Some(Family::V6),
        _ => None,
    }
}
