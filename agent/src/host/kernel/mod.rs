//! The real kernel: netlink and the datapath as one.

pub(crate) mod pins;
pub(crate) mod programs;
mod silent;

use std::collections::{BTreeMap, BTreeSet};
use std::mem;
use std::time::Instant;

use anyhow::{Context as _, Result};
use api::ids::EndpointId;
use api::types::ServiceNatStatus;
use api::types::{ForeignProgram, MissingFeature};
use datapath_common::config::PortSlice;
use datapath_common::counter::{Counter, Program};
use datapath_common::outcome::Outcome;
use futures_util::StreamExt as _;
use futures_util::stream::BoxStream;
use loader::bpf::DatapathSettings;
use loader::intent::pod_routes::PodRoutes;
use loader::intent::{Endpoint, Settings};
use loader::kernel::{Endpoints, Kernel, MapEntry, MapKey, Object, Observed, Step, StepKind};
use loader::netfilter::untracked::Untracked;
use loader::netlink::{Change, Netlink, Others};
use loader::observation::gateways::{self, Gateway};
use serde_json::Value;

use self::pins::Pins;
use self::programs::Programs;
use self::silent::Silent;
use super::host_snapshot::Facts;
use super::pod_routes::Followed;
use super::policy::PolicyWatch;
use crate::fault_points::{self, Point};
use crate::host::interpreted::Interpreted;

/// A kernel that also answers what only people ask.
pub(crate) trait Host: Kernel {
    /// The last observation; `None` when it failed or there was none.
    fn facts(&self) -> Option<&Facts>;

    /// Observes the addresses of the host's devices alone, for [`Self::facts`].
    fn observe_addresses(&mut self) -> impl Future<Output = Result<()>> + Send;

    /// A stream with one item for each burst of changes.
    fn events(&self) -> Result<BoxStream<'static, Change>>;

    /// Observes the state for which the kernel sends no event. Returns true if it has changed since
    /// the last observation.
    fn glance(&mut self) -> impl Future<Output = Result<bool>> + Send;

    /// The entries of the datapath's maps, now.
    fn map_entries(&self) -> Result<BTreeMap<MapKey, MapEntry>>;

    /// The settings that the programs were loaded with.
    fn datapath_settings(&self) -> DatapathSettings;

    /// The datapath's counters.
    fn counters(&self) -> Result<BTreeMap<(Program, Outcome), Counter>>;

    /// The kernel's features, by name.
    fn features(&self) -> Result<BTreeMap<String, Value>>;

    /// True if flows of the host's stack are recorded. Checks for reasons to start with that.
    fn keeps_notes(&mut self) -> bool;

    /// Sets the routes of new pods, and lets running pods follow.
    fn set_pod_routes(&mut self, routes: PodRoutes);

    /// Brings the routes of some running pods to what new ones get; true if there are more to do.
    fn follow_pod_routes(
        &mut self,
        endpoints: &BTreeMap<EndpointId, Endpoint>,
    ) -> impl Future<Output = bool> + Send;

    /// The ports of translation. Checks for reasons to change them.
    fn translation_ports(&mut self) -> [PortSlice; PortSlice::MAX];

    /// The problem that ports shared by host and translation cause, if any.
    fn port_problem(&self) -> Option<String>;

    /// Says that a pass left nothing to do.
    fn settled(&mut self);

    /// The state of service NAT.
    fn service_nat(&self) -> ServiceNatStatus;

    /// The features that the kernel lacks.
    fn missing_features(&self) -> Vec<MissingFeature>;

    /// The programs of the datapath that the kernel interprets.
    fn interpreted(&self) -> Interpreted;

    /// Programs of others on these devices.
    fn foreign_programs(&self, devices: &BTreeSet<u32>) -> Result<Vec<ForeignProgram>>;

    /// Foreign objects in the kernel; of foreign routes, those out of these devices.
    fn others(&mut self, devices: &BTreeSet<u32>) -> impl Future<Output = Result<Others>> + Send;

    /// Inspects an endpoint's end inside the pod; returns its differences from the created state.
    fn inspect(&mut self, endpoint: &Endpoint) -> impl Future<Output = Vec<String>> + Send;

    /// Devices where a foreign `ingress` qdisc has the place of our clsact.
    fn displaced(&self) -> Result<BTreeSet<u32>>;

    /// Why maps of ours are not pinned; `None` where they are.
    fn unpinned(&self) -> Option<&str>;

    /// The table that keeps exceptions of the direct path from being dropped.
    fn untracked(&self) -> &Untracked;
}

/// The kernel of the node.
pub(crate) struct HostKernel {
    netlink: Netlink,
    programs: Programs,
    pins: Pins,
    watch: PolicyWatch,
    untracked: Untracked,
    /// The pods whose routes follow the configuration.
    followed: Followed,
    facts: Option<Facts>,
    /// The state without events, as the last observation showed it.
    silent: Silent,
    /// True if steps were applied since the last observation.
    in_plan: bool,
    /// The gateways that the last observation showed.
    gateways: Vec<Gateway>,
    /// The last logged error of publishing the gateways' MACs to the programs.
    gateways_error: Option<String>,
}

impl HostKernel {
    pub(crate) fn new(
        netlink: Netlink,
        programs: Programs,
        pins: Pins,
        settings: &Settings,
    ) -> Self {
        Self {
            netlink,
            watch: PolicyWatch::new(programs.nat.clone(), settings.masquerade.clone()),
            programs,
            pins,
            untracked: Untracked::new(settings.mark.exception()),
            followed: Followed::default(),
            facts: None,
            silent: Silent::default(),
            in_plan: false,
            gateways: Vec::new(),
            gateways_error: None,
        }
    }

    /// Publishes the gateways' MACs to the programs. A failure stops nothing, since the kernel has
    /// them, too.
    async fn tell_gateways(&mut self, observed: &Observed) {
        self.gateways = gateways::list(observed);
        let watched = self.netlink.watch_gateways(&self.gateways).await;
        self.publish_gateways(watched);
    }

    /// Renews the programs' entries of gateways for some seconds.
    async fn renew_gateways(&mut self) {
        let confirmed = self.netlink.confirm_gateways().await;
        self.publish_gateways(confirmed);
    }

    fn publish_gateways(&mut self, watched: Result<()>) {
        let published = self
            .programs
            .datapath
            .know_gateways(&self.gateways)
            .and(watched);
        let error = published.err().map(|error| format!("{error:#}"));
        if let Some(error) = &error
            && self.gateways_error.as_ref() != Some(error)
        {
            tracing::warn!("the programs may not know the gateways' MACs: {error}");
        }
        self.gateways_error = error;
    }
}

impl Kernel for HostKernel {
    async fn observe(&mut self) -> Result<Observed> {
        if mem::take(&mut self.in_plan) {
            fault_points::reach(Point::PlanEnd);
        }
        self.facts = None;
        self.pins.keep(&mut self.programs.datapath);
        self.untracked.keep();
        let mut observed = Observed::default();
        self.netlink
            .observe(&mut observed)
            .await
            .context("read the network configuration")?;
        observed.host.ports = self.programs.reservation.host_ports();
        self.programs
            .datapath
            .observe(&mut observed)
            .context("read the datapath")?;
        self.silent = Silent::of(&observed);
        self.tell_gateways(&observed).await;
        self.facts = Some(Facts::of(&observed));
        Ok(observed)
    }

    async fn observe_endpoints(&mut self, endpoints: &Endpoints) -> Result<Observed> {
        if mem::take(&mut self.in_plan) {
            fault_points::reach(Point::PlanEnd);
        }
        let mut observed = Observed::default();
        let devices: Vec<_> = endpoints.keys().map(|id| id.device()).collect();
        self.netlink
            .observe_devices(&devices, &mut observed)
            .await
            .context("read the devices of endpoints")?;
        let addresses = endpoints.values().flatten();
        self.programs
            .datapath
            .observe_endpoints(addresses, &mut observed)
            .context("read the endpoints' part of the datapath")?;
        if let Some(facts) = &mut self.facts {
            let new = observed.links.iter();
            facts
                .links
                .extend(new.map(|(index, link)| (*index, link.clone())));
        }
        Ok(observed)
    }

    fn announce(&mut self, objects: &BTreeSet<Object>) -> Result<()> {
        self.watch.announce(objects)
    }

    fn announce_more(&mut self, objects: &BTreeSet<Object>) -> Result<()> {
        self.watch.announce_more(objects)
    }

    async fn delete_together(&mut self, devices: &[u32]) {
        if let Err(error) = self.netlink.delete_together(devices).await {
            tracing::debug!("devices are deleted one by one: {error:#}");
        }
    }

    async fn apply(&mut self, step: &Step) -> Result<()> {
        if !mem::replace(&mut self.in_plan, true) {
            fault_points::reach(Point::PlanBegin);
        }
        let name = fault_points::step_name(&step.kind);
        fault_points::reach(Point::Apply(name));
        match &step.kind {
            StepKind::PutMapEntry(_)
            | StepKind::DeleteMapEntry(_)
            | StepKind::Attach(_)
            | StepKind::Detach(_) => self.programs.datapath.apply(&step.kind)?,
            StepKind::ReservePorts(ports) => {
                self.programs.reservation.reserve(&ports.reserved())?;
            }
            StepKind::SetSysctl(..)
            | StepKind::SetMtu { .. }
            | StepKind::SetUp(_)
            | StepKind::CreateEndpointDevice(_)
            | StepKind::DeleteDevice(_)
            | StepKind::AddAddress(_)
            | StepKind::DeleteAddress(_)
            | StepKind::AddRoute(_)
            | StepKind::DeleteRoute(_)
            | StepKind::AddRule(_)
            | StepKind::DeleteRule(_)
            | StepKind::AddNeighbour(_)
            | StepKind::DeleteNeighbour(_) => self.netlink.apply(&step.kind).await?,
        }
        if let StepKind::PutMapEntry(MapEntry::Address(address, entry)) = &step.kind
            && entry.is_endpoint()
        {
            self.programs.service_nat.known(*address);
        }
        if let StepKind::CreateEndpointDevice(endpoint) = &step.kind {
            self.followed.done(endpoint.id());
        }
        fault_points::reach(Point::Applied(name));
        Ok(())
    }
}

impl Host for HostKernel {
    fn facts(&self) -> Option<&Facts> {
        self.facts.as_ref()
    }

    async fn observe_addresses(&mut self) -> Result<()> {
        let addresses = self.netlink.addresses().await?;
        if let Some(facts) = &mut self.facts {
            facts.take_addresses(&addresses);
        }
        Ok(())
    }

    fn events(&self) -> Result<BoxStream<'static, Change>> {
        Ok(self.netlink.events()?.boxed())
    }

    async fn glance(&mut self) -> Result<bool> {
        let Some(facts) = &self.facts else {
            return Ok(true);
        };
        let host_ports = self.programs.reservation.host_ports();
        if self.programs.datapath.has_moved() || host_ports != facts.ports {
            return Ok(true);
        }
        if self.netlink.sysctls(&self.silent.enis).await? != self.silent.sysctls {
            return Ok(true);
        }
        if self.silent.are_maps_due() && self.programs.datapath.have_maps_changed()? {
            return Ok(true);
        }
        self.untracked.keep();
        self.renew_gateways().await;
        Ok(false)
    }

    fn map_entries(&self) -> Result<BTreeMap<MapKey, MapEntry>> {
        self.programs.datapath.map_entries()
    }

    fn datapath_settings(&self) -> DatapathSettings {
        self.programs.datapath.settings().clone()
    }

    fn counters(&self) -> Result<BTreeMap<(Program, Outcome), Counter>> {
        self.programs.datapath.counters()
    }

    fn features(&self) -> Result<BTreeMap<String, Value>> {
        let features = serde_json::to_value(self.programs.datapath.features())?;
        Ok(serde_json::from_value(features)?)
    }

    fn keeps_notes(&mut self) -> bool {
        self.programs.service_nat.look(&mut self.programs.datapath)
    }

    fn set_pod_routes(&mut self, routes: PodRoutes) {
        if self.netlink.set_pod_routes(routes) {
            self.followed.forget_all();
        }
    }

    async fn follow_pod_routes(&mut self, endpoints: &BTreeMap<EndpointId, Endpoint>) -> bool {
        let now = Instant::now();
        let (due, has_more) = self.followed.next(endpoints, now);
        for endpoint in due {
            let id = endpoint.id();
            match self.netlink.follow_pod_routes(endpoint).await {
                Ok(()) => self.followed.done(id),
                Err(error) if self.followed.failed(id, now) => tracing::warn!(
                    owner = %endpoint.owner,
                    "the pod's routes do not follow endpoint.internet-mtu: {error:#}"
                ),
                Err(_known) => {}
            }
        }
        has_more
    }

    fn translation_ports(&mut self) -> [PortSlice; PortSlice::MAX] {
        let Some(host) = self.facts.as_ref().and_then(|facts| facts.ports.as_ref()) else {
            return self.programs.ports.slices();
        };
        self.programs
            .ports
            .look(host, &mut self.programs.datapath, &self.programs.nat)
    }

    fn port_problem(&self) -> Option<String> {
        self.programs
            .ports
            .problem(self.facts.as_ref()?.ports.as_ref()?)
    }

    fn settled(&mut self) {
        self.programs.ports.settled(&self.programs.nat);
        self.programs.service_nat.settled();
    }

    fn service_nat(&self) -> ServiceNatStatus {
        self.programs.service_nat.status()
    }

    fn missing_features(&self) -> Vec<MissingFeature> {
        self.programs.datapath.features().missing()
    }

    fn interpreted(&self) -> Interpreted {
        let datapath = &self.programs.datapath;
        Interpreted {
            programs: datapath.interpreted(),
            jit: datapath.features().jit,
        }
    }

    fn foreign_programs(&self, devices: &BTreeSet<u32>) -> Result<Vec<ForeignProgram>> {
        let links = self.facts.iter().flat_map(|facts| facts.links.values());
        self.programs
            .datapath
            .foreign_programs(links.filter(|link| devices.contains(&link.ifindex)))
    }

    async fn inspect(&mut self, endpoint: &Endpoint) -> Vec<String> {
        self.netlink.inspect(endpoint).await
    }

    fn displaced(&self) -> Result<BTreeSet<u32>> {
        self.programs.datapath.displaced()
    }

    fn unpinned(&self) -> Option<&str> {
        self.pins.problem()
    }

    fn untracked(&self) -> &Untracked {
        &self.untracked
    }

    async fn others(&mut self, devices: &BTreeSet<u32>) -> Result<Others> {
        self.netlink.others(devices).await
    }
}
