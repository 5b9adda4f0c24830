//! The actor on a model kernel: what it writes, answers and forgets.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};

use anyhow::Result;
use api::ids::EniNumber;
use api::types::ServiceNatStatus;
use api::types::{Attachment, HealthState};
use api::types::{ForeignProgram, MissingFeature};
use api::{ApiError, ErrorCode};
use datapath_common::config::PortSlice;
use datapath_common::counter::{Counter, Program};
use datapath_common::outcome::Outcome;
use loader::bpf::DatapathSettings;
use loader::intent::Endpoint;
use loader::intent::masquerade::NO_SLICES;
use loader::intent::pod_routes::PodRoutes;
use loader::kernel::fixture;
use loader::kernel::{Address, Endpoints, Kernel, MapEntry, MapKey, Observed, Step, StepKind};
use loader::netfilter::untracked::Untracked;
use loader::netlink::Others;
use loader::reconcile::model::ModelKernel;
use serde_json::Value;
use tempfile::TempDir;
use tokio::sync::{mpsc, oneshot};

use super::*;
use crate::actor::deferred_deletes::Pending;
use crate::actor::parts::Restored;
use crate::host::host_snapshot::Facts;
use crate::host::interpreted::Interpreted;
use crate::server::{Command, EndpointRequest};
use crate::state::store::Store;
use config::Config;
use sources::numbering::Numbering;

mod allocation;
mod demand;
mod device_name;
mod enis;
mod flat;
mod ingress;
mod kept;
mod ledger;
mod orphans;
mod records;
mod signals;
mod waiting;

/// A model kernel that keeps facts as the real one does.
struct ModelHost {
    model: ModelKernel,
    facts: Option<Facts>,
    displaced: BTreeSet<u32>,
    interpreted: Interpreted,
    untracked: Untracked,
}

impl Kernel for ModelHost {
    async fn observe(&mut self) -> Result<Observed> {
        let observed = self.model.observe().await?;
        self.facts = Some(Facts::of(&observed));
        Ok(observed)
    }

    async fn observe_endpoints(&mut self, endpoints: &Endpoints) -> Result<Observed> {
        let observed = self.model.observe_endpoints(endpoints).await?;
        if let Some(facts) = &mut self.facts {
            let new = observed.links.iter();
            let new = new.map(|(index, link)| (*index, link.clone()));
            facts.links.extend(new);
        }
        Ok(observed)
    }

    async fn apply(&mut self, step: &Step) -> Result<()> {
        self.model.apply(step).await
    }
}

impl Host for ModelHost {
    fn facts(&self) -> Option<&Facts> {
        self.facts.as_ref()
    }

    async fn observe_addresses(&mut self) -> Result<()> {
        let observed = self.model.observe().await?;
        if let Some(facts) = &mut self.facts {
            facts.take_addresses(&observed.addresses);
        }
        Ok(())
    }

    fn events(&self) -> Result<BoxStream<'static, Change>> {
        Ok(futures_util::stream::pending().boxed())
    }

    async fn glance(&mut self) -> Result<bool> {
        Ok(true)
    }

    fn keeps_notes(&mut self) -> bool {
        false
    }

    fn set_pod_routes(&mut self, _routes: PodRoutes) {}

    async fn follow_pod_routes(&mut self, _endpoints: &BTreeMap<EndpointId, Endpoint>) -> bool {
        false
    }

    fn translation_ports(&mut self) -> [PortSlice; PortSlice::MAX] {
        NO_SLICES
    }

    fn port_problem(&self) -> Option<String> {
        None
    }

    fn settled(&mut self) {}

    fn service_nat(&self) -> ServiceNatStatus {
        ServiceNatStatus::default()
    }

    fn map_entries(&self) -> Result<BTreeMap<MapKey, MapEntry>> {
        Ok(self.model.state.maps.clone())
    }

    fn datapath_settings(&self) -> DatapathSettings {
        DatapathSettings::default()
    }

    fn counters(&self) -> Result<BTreeMap<(Program, Outcome), Counter>> {
        Ok(BTreeMap::new())
    }

    fn features(&self) -> Result<BTreeMap<String, Value>> {
        Ok(BTreeMap::new())
    }

    fn missing_features(&self) -> Vec<MissingFeature> {
        Vec::new()
    }

    fn interpreted(&self) -> Interpreted {
        self.interpreted.clone()
    }

    fn foreign_programs(&self, _devices: &BTreeSet<u32>) -> Result<Vec<ForeignProgram>> {
        Ok(Vec::new())
    }

    fn unpinned(&self) -> Option<&str> {
        None
    }

    fn untracked(&self) -> &Untracked {
        &self.untracked
    }

    fn displaced(&self) -> Result<BTreeSet<u32>> {
        Ok(self.displaced.clone())
    }

    async fn inspect(&mut self, _endpoint: &Endpoint) -> Vec<String> {
        Vec::new()
    }

    async fn others(&mut self, _devices: &BTreeSet<u32>) -> Result<Others> {
        Ok(Others::default())
    }
}

/// A switch without effect.
struct NoSwitch;

impl nat::LookupControl for NoSwitch {
    fn set(&self, _lookups: nat::CompatLookups) -> Result<()> {
        Ok(())
    }
}

/// A node's disk and kernel, which outlive agents.
struct Machine {
    folder: TempDir,
    /// The state folder, without the records.
    state: TempDir,
    config: Config,
    kernel: Option<ModelKernel>,
}

impl Machine {
    fn new() -> Self {
        Self {
            folder: tempfile::tempdir().unwrap(),
            state: tempfile::tempdir().unwrap(),
            config: Config::default(),
            kernel: Some(ModelKernel::new(fixture::host())),
        }
    }

    /// A new agent, which knows no document yet.
    fn boot(&mut self) -> Actor<ModelHost> {
        let kernel = ModelHost {
            model: self.kernel.take().unwrap(),
            untracked: Untracked::new(0),
            facts: None,
            displaced: BTreeSet::new(),
            interpreted: Interpreted::default(),
        };
        let (store, stored) = Store::open(self.folder.path()).unwrap();
        let settings = fixture::intent().settings;
        let nat = nat::Handle::new(Arc::new(NoSwitch)).unwrap();
        let endpoints = stored.endpoints.values();
        let restored = Restored {
            addresses: Addresses::open(&self.config, self.state.path(), endpoints).unwrap(),
            store,
            stored,
            pending: Pending::new(&self.state.path().join("pending-deletes")),
            numbering: Numbering::open(self.state.path(), "this boot"),
        };
        let mut actor = Actor::new(kernel, settings, restored, nat);
        actor.documents.path = "/node.yaml".into();
        actor
    }

    /// A new agent that has read the document.
    async fn start(&mut self) -> Actor<ModelHost> {
        let mut actor = self.boot();
        give_document(&mut actor);
        actor.run_pass().await;
        actor
    }

    /// The agent dies.
    fn kill(&mut self, mut actor: Actor<ModelHost>) {
        let host = actor.reconciler.kernel_mut();
        let model = std::mem::replace(&mut host.model, ModelKernel::new(Observed::default()));
        self.kernel = Some(model);
    }

    /// The records of leases or of cooldowns.
    fn ledger(&self, kind: &str) -> Vec<PathBuf> {
        let entries = fs::read_dir(self.state.path().join("addresses")).unwrap();
        let paths = entries.map(|entry| entry.unwrap().path());
        let is_one = |path: &PathBuf| {
            let name = path.file_name().unwrap().to_str().unwrap();
            name.starts_with(&format!("{kind}_"))
        };
        paths.filter(is_one).collect()
    }

    /// The state folder is emptied.
    fn lose_state(&mut self) {
        self.folder = tempfile::tempdir().unwrap();
        self.state = tempfile::tempdir().unwrap();
    }

    fn records(&self) -> BTreeSet<String> {
        let entries = fs::read_dir(self.folder.path()).unwrap();
        entries
            .map(|entry| entry.unwrap().file_name().into_string().unwrap())
            .collect()
    }
}

fn give_document(actor: &mut Actor<ModelHost>) {
    let node = Arc::new(fixture::intent().node);
    let (_sender, mut receiver) = watch::channel(NodeSource {
        is_refused: false,
        value: Some(node),
        error: None,
        generation: 1,
    });
    actor.take_document(&mut receiver);
}

/// A file that stands for a namespace as far as `is_gone` looks: the test's own.
const LIVE: &str = "/proc/self/ns/net";

fn endpoint(container: &str, addresses: &[&str]) -> Endpoint {
    Endpoint {
        netns: LIVE.into(),
        ..fixture::endpoint(container, addresses)
    }
}

fn request(endpoint: &Endpoint) -> EndpointRequest {
    EndpointRequest {
        owner: endpoint.owner.clone(),
        netns: endpoint.netns.clone(),
        addresses: endpoint.addresses.clone(),
        ask: Box::default(),
    }
}

async fn add(
    actor: &mut Actor<ModelHost>,
    request: EndpointRequest,
) -> Result<Attachment, ApiError> {
    actor.add(vec![request]).await.remove(0)
}

/// As `add`, without a look at the namespace, which a model has not.
async fn make(actor: &mut Actor<ModelHost>, endpoint: Endpoint) -> Result<Attachment, ApiError> {
    let admitted = actor.record(endpoint);
    actor.finish(vec![admitted]).await.remove(0)
}

/// Deletes the endpoint of an owner, which has to succeed.
async fn delete(actor: &mut Actor<ModelHost>, owner: &Owner) {
    let answers = actor.delete(std::slice::from_ref(owner)).await;
    assert!(matches!(answers.as_slice(), [Ok(())]), "{answers:?}");
}

fn devices(actor: &Actor<ModelHost>) -> BTreeSet<EndpointId> {
    let links = actor.reconciler.kernel().model.state.links.values();
    links
        .filter_map(|link| EndpointId::from_device(&link.name))
        .collect()
}

fn writes(actor: &Actor<ModelHost>) -> usize {
    actor.reconciler.kernel().model.steps.len()
}

#[tokio::test]
async fn an_endpoint_is_added_once_and_deleted_for_good() {
    let mut machine = Machine::new();
    let mut actor = machine.start().await;
    let pod = endpoint("x", &["10.0.1.66", "2001:db8:0:1:a::66"]);
    let first = make(&mut actor, pod.clone()).await.unwrap();
    assert_eq!(first.mtu, 9001);
    assert_eq!(devices(&actor), [pod.id()].into());
    assert_eq!(machine.records().len(), 1);

    let before = writes(&actor);
    assert_eq!(add(&mut actor, request(&pod)).await.unwrap(), first);
    assert_eq!(writes(&actor), before, "a repeated add writes nothing");

    let mut other = request(&pod);
    other.addresses = ["10.0.1.67".parse().unwrap()].into();
    let error = add(&mut actor, other).await.unwrap_err();
    assert_eq!(error.code, ErrorCode::OwnerConflict);

    for _ in 0..2 {
        delete(&mut actor, &pod.owner).await;
        assert!(devices(&actor).is_empty() && machine.records().is_empty());
    }
}

#[tokio::test]
async fn an_add_that_fails_leaves_nothing() {
    let mut machine = Machine::new();
    let mut actor = machine.start().await;
    actor.reconciler.kernel_mut().model.refuse =
        Box::new(|step| matches!(step, StepKind::AddNeighbour(_)));
    let error = make(&mut actor, endpoint("x", &["10.0.1.66"]))
        .await
        .unwrap_err();
    assert_eq!(error.code, ErrorCode::SetUpFailed);
    assert!(devices(&actor).is_empty() && machine.records().is_empty());
    assert!(actor.endpoints().is_empty());
}

#[tokio::test]
async fn a_second_interface_of_a_container_is_refused_before_anything_is_made() {
    let mut machine = Machine::new();
    let mut actor = machine.start().await;
    let first = endpoint("x", &["10.0.1.66"]);
    make(&mut actor, first.clone()).await.unwrap();
    let before = (devices(&actor), machine.records(), writes(&actor));
    let mut second = endpoint("x", &["10.0.1.67"]);
    second.owner.interface = "net1".into();
    let error = add(&mut actor, request(&second)).await.unwrap_err();
    assert_eq!(
        (error.code, error.retry),
        (ErrorCode::SecondInterface, false)
    );
    let start = "x has eth0 already; allowed: one interface of this plugin a pod";
    assert!(error.message.starts_with(start), "{error}");
    // The runtime deletes both, in any order.
    actor
        .delete(&[second.owner.clone()])
        .await
        .remove(0)
        .unwrap();
    let after = (devices(&actor), machine.records(), writes(&actor));
    assert_eq!(after, before);
    actor.delete(&[first.owner]).await.remove(0).unwrap();
    make(&mut actor, second).await.unwrap();
}

/// The current state of the kernel decides, not that of the last pass.
#[tokio::test]
async fn an_address_that_the_host_has_just_got_is_refused() {
    let mut machine = Machine::new();
    let mut actor = machine.start().await;
    let taken = Address {
        ifindex: 1,
        net: "10.0.1.66/32".parse().unwrap(),
    };
    let model = &mut actor.reconciler.kernel_mut().model;
    model.state.addresses.insert(taken);
    let pod = endpoint("x", &["10.0.1.66"]);
    let error = add(&mut actor, request(&pod)).await.unwrap_err();
    assert_eq!(error.code, ErrorCode::AddressOfHost);
    assert!(machine.records().is_empty());
}

/// One that fails does not harm those that came with it.
#[tokio::test]
async fn a_burst_is_made_together_and_answered_one_by_one() {
    let mut machine = Machine::new();
    let mut actor = machine.start().await;
    let pods = [
        endpoint("x", &["10.0.1.66"]),
        endpoint("y", &["10.0.1.67"]),
        endpoint("z", &["10.0.2.66"]),
    ];
    let bad = pods[1].id();
    actor.reconciler.kernel_mut().model.refuse = Box::new(
        move |step| matches!(step, StepKind::CreateEndpointDevice(pod) if pod.id() == bad),
    );
    let admitted = pods.iter().map(|pod| actor.record(pod.clone())).collect();
    let answers = actor.finish(admitted).await;
    let codes: Vec<_> = answers
        .iter()
        .map(|a| a.as_ref().err().map(|e| e.code))
        .collect();
    assert_eq!(codes, [None, Some(ErrorCode::SetUpFailed), None]);
    assert_eq!(devices(&actor), [pods[0].id(), pods[2].id()].into());
    assert_eq!(machine.records().len(), 2);
}

/// A network manager can change a device while it is set up.
#[tokio::test]
async fn an_add_that_fails_once_is_tried_again_before_the_answer() {
    let mut machine = Machine::new();
    let mut actor = machine.start().await;
    let pod = endpoint("x", &["10.0.1.66"]);
    let is_first = AtomicBool::new(true);
    actor.reconciler.kernel_mut().model.refuse = Box::new(move |step| {
        let is_create = matches!(step, StepKind::CreateEndpointDevice(_));
        is_create && is_first.swap(false, Ordering::Relaxed)
    });
    let admitted = vec![actor.record(pod.clone())];
    let answers = actor.finish(admitted).await;
    assert!(answers[0].is_ok(), "{answers:?}");
    assert_eq!(devices(&actor), [pod.id()].into());
}

/// Requests that wait are taken together, and none out of its order.
#[tokio::test]
async fn what_waits_is_served_in_order() {
    let mut machine = Machine::new();
    let mut actor = machine.start().await;
    let pod = endpoint("x", &["10.0.1.66"]);
    make(&mut actor, pod.clone()).await.unwrap();
    let (sender, mut queue) = mpsc::channel(8);
    let (reply, repeated) = oneshot::channel();
    let first = Command::AddEndpoint(request(&pod), reply);
    let (reply, second) = oneshot::channel();
    sender
        .send(Command::AddEndpoint(request(&pod), reply))
        .await
        .unwrap();
    let (reply, deleted) = oneshot::channel();
    sender
        .send(Command::DeleteEndpoint(pod.owner.clone(), reply))
        .await
        .unwrap();
    let (reply, after) = oneshot::channel();
    sender
        .send(Command::AddEndpoint(request(&pod), reply))
        .await
        .unwrap();
    actor.serve(first, &mut queue).await;
    assert!(repeated.await.unwrap().is_ok() && second.await.unwrap().is_ok());
    deleted.await.unwrap().unwrap();
    assert!(devices(&actor).is_empty() && queue.try_recv().is_err());
    // A new one, for which the namespace counts: the test's own is the host's.
    let error = after.await.unwrap().unwrap_err();
    assert_eq!(error.field.as_deref(), Some("netns"));
}

/// Deletes that wait are one pass, whatever becomes of each.
#[tokio::test]
async fn deletes_that_wait_are_taken_together() {
    let mut machine = Machine::new();
    let mut actor = machine.start().await;
    let pods = [endpoint("x", &["10.0.1.66"]), endpoint("y", &["10.0.1.67"])];
    for pod in &pods {
        make(&mut actor, pod.clone()).await.unwrap();
    }
    let (sender, mut queue) = mpsc::channel(8);
    let mut answers = Vec::new();
    let unknown = endpoint("z", &["10.0.1.68"]);
    for pod in pods.iter().chain([&unknown]) {
        let (reply, answer) = oneshot::channel();
        let command = Command::DeleteEndpoint(pod.owner.clone(), reply);
        sender.send(command).await.unwrap();
        answers.push(answer);
    }
    let first = queue.try_recv().unwrap();
    actor.serve(first, &mut queue).await;
    assert!(queue.try_recv().is_err());
    for answer in answers {
        answer.await.unwrap().unwrap();
    }
    assert!(devices(&actor).is_empty() && machine.records().is_empty());
}

#[tokio::test]
async fn without_a_document_nothing_is_touched_and_nothing_promised() {
    let mut machine = Machine::new();
    let mut actor = machine.start().await;
    let pod = endpoint("x", &["10.0.1.66"]);
    make(&mut actor, pod.clone()).await.unwrap();
    machine.kill(actor);

    let mut actor = machine.boot();
    let before = writes(&actor);
    actor.run_pass().await;
    assert_eq!(writes(&actor), before);
    assert_eq!(devices(&actor), [pod.id()].into());
    let other = endpoint("y", &["10.0.1.67"]);
    let error = add(&mut actor, request(&other)).await.unwrap_err();
    assert_eq!(error.code, ErrorCode::NotReady);
    let status = actor.status().await;
    assert_eq!(status.health.state, HealthState::NotReady);

    give_document(&mut actor);
    actor.run_pass().await;
    assert_eq!(writes(&actor), before, "the next agent finds all in place");
    assert_eq!(actor.status().await.health.state, HealthState::Ready);
}

#[tokio::test]
async fn a_pod_that_died_while_the_agent_was_down_is_forgotten() {
    let mut machine = Machine::new();
    let mut actor = machine.start().await;
    let (dead, alive) = (endpoint("x", &["10.0.1.66"]), endpoint("y", &["10.0.1.67"]));
    make(&mut actor, dead.clone()).await.unwrap();
    make(&mut actor, alive.clone()).await.unwrap();
    let dead = Endpoint {
        netns: "/nowhere".into(),
        ..dead
    };
    actor.records.store.put(&dead).unwrap();
    machine.kill(actor);

    // The path is gone and the device is not: another process still holds the namespace.
    let actor = machine.start().await;
    assert_eq!(actor.endpoints().len(), 2);
    let ifindex = actor.passes.last.view.endpoints[&dead.id()]
        .ifindex
        .unwrap();
    machine.kill(actor);

    machine.kernel.as_mut().unwrap().unplug(ifindex);
    let actor = machine.start().await;
    assert_eq!(devices(&actor), [alive.id()].into());
    assert_eq!(actor.endpoints().len(), 1);
    assert_eq!(machine.records().len(), 1);
}

/// A pod with a shaper or a foreign program works; one without our source check is a fault.
#[tokio::test]
async fn a_shaper_or_a_program_of_others_is_a_note_and_a_lost_check_is_a_fault() {
    let mut machine = Machine::new();
    let mut actor = machine.start().await;
    let pod = endpoint("x", &["10.0.1.66"]);
    make(&mut actor, pod.clone()).await.unwrap();
    let ifindex = actor.passes.last.view.endpoints[&pod.id()].ifindex.unwrap();
    for what in ["a tbf qdisc", "a htb qdisc", "bpf policy at its egress"] {
        let state = &mut actor.reconciler.kernel_mut().model.state;
        state.via_stack.insert(ifindex, Some(what.to_owned()));
        actor.run_pass().await;
        let status = actor.status().await;
        assert_eq!(
            status.health.state,
            HealthState::Ready,
            "{:?}",
            status.health
        );
        assert_eq!(status.health.reasons, Vec::<String>::new());
        let note = &status.endpoint_notes[&pod.owner.to_string()];
        assert!(note.contains(what), "{note}");
    }
    actor.reconciler.kernel_mut().displaced.insert(ifindex);
    let status = actor.status().await;
    assert_eq!(status.health.state, HealthState::Degraded);
    let expected = "1 of 1 endpoints have a foreign ingress qdisc";
    assert_eq!(status.health.reasons, [expected]);
}

#[tokio::test]
async fn interpreted_programs_are_named_and_counted_and_make_the_agent_no_less_ready() {
    let mut machine = Machine::new();
    let mut actor = machine.start().await;
    assert_eq!(actor.status().await.health.reasons, Vec::<String>::new());
    assert_eq!(actor.figures().unwrap().interpreted, 0);
    let interpreted = Interpreted {
        programs: vec![Program::FromEndpoint, Program::ToEndpoint],
        jit: Some(false),
    };
    let problem = interpreted.problem();
    actor.reconciler.kernel_mut().interpreted = interpreted;
    let health = actor.status().await.health;
    assert_eq!(health.state, HealthState::Degraded);
    assert_eq!(health.reasons.first(), problem.as_ref());
    assert_eq!(actor.figures().unwrap().interpreted, 2);
    assert!(actor.ready().is_ok());
}

#[tokio::test]
async fn addresses_of_others_on_an_eni_are_named_and_make_it_no_less_ready() {
    let mut machine = Machine::new();
    let mut actor = machine.start().await;
    let devices = actor.passes.last.view.enis.values();
    let devices: Vec<_> = devices.filter_map(|eni| eni.device.clone()).collect();
    assert!(devices.len() > 1);
    let give_each = async |actor: &mut Actor<ModelHost>, net: &str| {
        for device in &devices {
            let (ifindex, net) = (device.ifindex, net.parse().unwrap());
            let state = &mut actor.reconciler.kernel_mut().model.state;
            state.addresses.insert(Address { ifindex, net });
        }
        actor.run_pass().await;
    };
    give_each(&mut actor, "fe80::1/64").await;
    let before = actor.status().await;
    assert_eq!(before.foreign_config, []);
    give_each(&mut actor, "10.0.77.77/24").await;
    let after = actor.status().await;
    let named: BTreeSet<_> = after.foreign_config.iter().map(|it| it.eni).collect();
    let secondary = after.enis.iter().map(|eni| eni.number);
    let secondary: BTreeSet<_> = secondary
        .flatten()
        .filter(|number| !number.is_primary())
        .collect();
    assert_eq!(named, secondary, "{:?}", after.foreign_config);
    assert_eq!(after.health, before.health);
}

#[tokio::test]
async fn the_host_and_what_is_no_namespace_are_refused() {
    let mut machine = Machine::new();
    let mut actor = machine.start().await;
    for path in [LIVE, "/nowhere", "/dev/null", "/proc/self/ns/mnt"] {
        let mut request = request(&endpoint("x", &["10.0.1.66"]));
        request.netns = Path::new(path).into();
        let error = add(&mut actor, request).await.unwrap_err();
        assert_eq!(error.code, ErrorCode::InvalidField, "{path}: {error}");
        assert_eq!(error.field.as_deref(), Some("netns"), "{path}");
    }
    assert!(machine.records().is_empty());
}
