use std::net::{IpAddr, Ipv4Addr};
use std::sync::{Arc, Mutex};

use api::ids::{EniNumber, MacAddr};
use api::types::ObjectKind;
use api::types::{ObjectState, Readiness};
use datapath_common::abi::EniEntry;
use datapath_common::counter::Program;

use super::model::ModelKernel;
use super::*;
use crate::constants;
use crate::intent::masquerade::HostPorts;
use crate::kernel::fixture::{ETH0, host, id, intent, link, mac, plug};
use crate::kernel::{Attachment, Hook, MapEntry, MapKey, Object, Selector, StepKind};
use crate::observation::ownership::is_fence;

/// A reconciler of a model kernel, with a clock that stands still until it is moved.
struct Bench {
    reconciler: Reconciler<ModelKernel>,
    now: Arc<Mutex<Instant>>,
    intent: Intent,
}

impl Bench {
    fn new() -> Self {
        let now = Arc::new(Mutex::new(Instant::now()));
        let clock = Arc::clone(&now);
        let read = move || *clock.lock().unwrap();
        Self {
            reconciler: Reconciler::new(ModelKernel::new(host()), read),
            now,
            intent: intent(),
        }
    }

    fn settled() -> Self {
        let mut bench = Self::new();
        assert!(bench.pass().is_clean());
        bench
    }

    fn pass(&mut self) -> Pass {
        block_on(self.reconciler.pass(&self.intent))
    }

    fn kernel(&mut self) -> &mut ModelKernel {
        self.reconciler.kernel_mut()
    }

    fn wait(&mut self, time: Duration) {
        *self.now.lock().unwrap() += time;
    }
}

pub(super) fn block_on<T>(future: impl Future<Output = T>) -> T {
    let runtime = tokio::runtime::Builder::new_current_thread().build();
    runtime.unwrap().block_on(future)
}

fn eni_entry(bench: &mut Bench, number: u8) -> Option<EniEntry> {
    let key = MapKey::Eni(EniNumber(number));
    match bench.kernel().state.maps.get(&key) {
        Some(MapEntry::Eni(_, entry)) => Some(*entry),
        _ => None,
    }
}

#[test]
fn a_pass_goes_on_from_what_its_caller_saw() {
    let mut bench = Bench::new();
    let seen = block_on(bench.kernel().observe()).unwrap();
    let by_itself = Bench::new().pass();
    let pass = block_on(bench.reconciler.pass_from(&bench.intent, Some(seen)));
    assert_eq!(pass, by_itself);
    assert!(pass.is_clean());
    assert_eq!(bench.pass().applied, 0);
}

#[test]
fn a_fresh_host_is_ready_after_one_pass() {
    let mut bench = Bench::new();
    let pass = bench.pass();
    assert!(pass.is_clean(), "{:?}", pass.failures);
    assert!(pass.view.node.is_ready());
    for eni in pass.view.enis.values() {
        assert_eq!(eni.readiness, Readiness::Ready, "{}", eni.id);
    }
    for endpoint in pass.view.endpoints.values() {
        assert_eq!(endpoint.readiness, Readiness::Ready, "{}", endpoint.owner);
    }
    let state = |o: &api::types::OwnedObject| o.state;
    assert!(
        pass.view
            .objects
            .list()
            .iter()
            .all(|o| state(o) == ObjectState::Present)
    );
    assert_eq!(bench.reconciler.repairs(), Repairs::default());

    let again = bench.pass();
    assert!(again.is_clean());
    assert_eq!(again.applied, 0);
}

#[test]
fn a_failure_holds_back_its_own_eni_only() {
    let mut bench = Bench::new();
    bench.kernel().refuse = Box::new(|step| *step == StepKind::SetUp(ETH0 + 1));
    let pass = bench.pass();
    assert!(!pass.is_clean());
    assert_eq!(pass.failures.len(), 1, "{:?}", pass.failures);
    assert_eq!(pass.failures[0].scope, "eni 1");
    assert_eq!(
        pass.view.enis[&EniNumber(1)].readiness,
        Readiness::not_ready("add link eth1 up: refused")
    );
    assert!(pass.view.enis[&EniNumber(2)].readiness.is_ready());
    assert!(pass.view.node.is_ready());
    assert_eq!(
        pass.view.endpoints[&id("b")].readiness.reason(),
        Some("ENI 1, which owns 10.0.1.65, is not ready")
    );
    assert!(pass.view.endpoints[&id("c")].readiness.is_ready());
    assert_eq!(eni_entry(&mut bench, 1), None, "nothing after the failure");

    bench.kernel().refuse = Box::new(|_| false);
    assert!(bench.pass().is_clean());
}

/// The objects that are missing after two passes in which one object always fails.
fn missing_without(object: Object, bench: &mut Bench) -> BTreeSet<Object> {
    let intent = bench.intent.clone();
    bench.kernel().refuse = Box::new(move |step| makes(step, &object));
    for _ in 0..2 {
        let pass = bench.pass();
        let failed = pass.failures.iter().map(|failure| &failure.error);
        assert!(failed.eq(&["refused"]), "{object:?}: {:?}", pass.failures);
    }
    let left = plan(&intent, &bench.kernel().state).steps;
    assert!(left.iter().all(|planned| planned.adds), "{left:?}");
    left.into_iter().map(|planned| planned.object).collect()
}

/// True if a step brings this object about.
fn makes(step: &StepKind, object: &Object) -> bool {
    match (step, object) {
        (StepKind::SetSysctl(sysctl, _), Object::Sysctl(other, _)) => sysctl == other,
        (StepKind::ReservePorts(_), Object::ReservedPorts(_)) => true,
        (StepKind::SetMtu { ifindex, .. }, Object::Mtu { ifindex: other, .. })
        | (StepKind::SetUp(ifindex), Object::Up(other)) => ifindex == other,
        (StepKind::CreateEndpointDevice(endpoint), Object::Device(id)) => endpoint.id() == *id,
        (StepKind::AddAddress(one), Object::Address(other)) => one == other,
        (StepKind::AddRoute(one), Object::Route(other)) => one == other,
        (StepKind::AddRule(one), Object::Rule(other)) => one == other,
        (StepKind::AddNeighbour(one), Object::Neighbour(other)) => one == other,
        (StepKind::PutMapEntry(one), Object::MapEntry(other)) => one == other,
        (StepKind::Attach(one), Object::Attachment(other)) => one == other,
        _ => false,
    }
}

/// Undoes everything of ours but devices and fences, without which nothing else may be there.
fn undo_all(state: &mut Observed) {
    state.maps.clear();
    state.attachments.clear();
    state.neighbours.clear();
    state.addresses.retain(|address| address.ifindex <= ETH0);
    state.routes.retain(is_fence);
    state
        .rules
        .retain(|rule| rule.priority == constants::RULE_ENI);
    state.sysctls.values_mut().for_each(String::clear);
    state.host.ports = Some(HostPorts::default());
    for link in state.links.values_mut().filter(|link| link.ifindex > ETH0) {
        link.up = false;
        link.mtu = 1400;
    }
}

#[test]
fn one_object_that_always_fails_holds_back_only_what_rests_on_it() {
    let mut settled = Bench::settled();
    let state = settled.kernel().state.clone();
    let objects = plan(&settled.intent, &state).objects;
    let mut alone = 0;
    for object in objects {
        let mut bench = Bench::settled();
        undo_all(&mut bench.kernel().state);
        let intent = bench.intent.clone();
        let there = plan(&intent, &bench.kernel().state);
        if !there.steps.iter().any(|planned| planned.object == object) {
            continue;
        }
        let missing = missing_without(object, &mut bench);
        let most = match object {
            // Its routes, and for an ENI its entry.
            Object::Up(_) => 6,
            // The device stays down, and has no route.
            Object::Attachment(hook) if hook.program == Program::FromEndpoint => 4,
            // The ENI's entry.
            Object::Attachment(_) | Object::MapEntry(MapEntry::EniDevice(..)) => 2,
            Object::Address(_) => 3,
            // The address, its route and the ENI's entry.
            Object::Rule(rule) if rule.priority == constants::RULE_OWN_ADDRESS => 4,
            Object::Sysctl(sysctl, _) if sysctl.name == "accept_ra" => 9,
            _ => 1,
        };
        assert!(missing.contains(&object), "{object:?}");
        assert!(missing.len() <= most, "{object:?} holds back {missing:#?}");
        alone += usize::from(missing.len() == 1);
    }
    assert!(alone > 20, "{alone}");
}

#[test]
fn a_failed_program_keeps_its_endpoint_down_and_nothing_else_waits() {
    let mut bench = Bench::settled();
    let mut devices = bench.kernel().state.devices_of(|one| one == id("b"));
    let ifindex = devices.pop_first().unwrap();
    bench.kernel().set_down(ifindex);
    let hook = Hook {
        ifindex,
        program: Program::FromEndpoint,
    };
    bench.kernel().state.attachments.remove(&hook);
    for value in bench.kernel().state.sysctls.values_mut() {
        value.clear();
    }
    bench.kernel().refuse = Box::new(move |step| *step == StepKind::Attach(hook));
    let pass = bench.pass();
    assert_eq!(pass.failures.len(), 1, "{:?}", pass.failures);
    assert!(
        !bench.kernel().state.links[&ifindex].up,
        "nothing guards it"
    );
    let intent = bench.intent.clone();
    let left = plan(&intent, &bench.kernel().state).steps;
    let left: Vec<_> = left.iter().map(|planned| planned.object.kind()).collect();
    let route = ObjectKind::Route;
    assert_eq!(
        left,
        [ObjectKind::Attachment, ObjectKind::LinkState, route, route]
    );

    // A program that runs and cannot be replaced guards the pod as well.
    bench
        .kernel()
        .state
        .attachments
        .insert(hook, Attachment::Stale);
    bench.pass();
    let state = &bench.kernel().state;
    assert!(state.links[&ifindex].up);
    assert_eq!(state.attachments[&hook], Attachment::Stale);
}

#[test]
fn a_removal_that_fails_holds_back_only_what_rests_on_it() {
    let mut bench = Bench::settled();
    bench.intent.endpoints.clear();
    let key = MapKey::Address("10.0.0.20".parse().unwrap());
    bench.kernel().refuse = Box::new(move |step| *step == StepKind::DeleteMapEntry(key));
    bench.pass();
    let intent = bench.intent.clone();
    let left = plan(&intent, &bench.kernel().state).steps;
    let left: Vec<_> = left.iter().map(|planned| planned.object).collect();
    let [
        Object::MapEntry(entry),
        Object::Device(device),
        Object::Attachment(hook),
    ] = left[..]
    else {
        panic!("{left:#?}");
    };
    assert_eq!((entry.key(), device), (key, id("a")));
    assert_eq!(hook.program, Program::FromEndpoint);
}

#[test]
fn a_failure_that_stays_keeps_no_repair_elsewhere_from_being_counted() {
    let mut bench = Bench::new();
    bench.kernel().refuse = Box::new(|step| *step == StepKind::SetUp(ETH0 + 1));
    assert!(!bench.pass().is_clean());
    assert_eq!(bench.reconciler.repairs().total, 0);
    for _ in 0..2 {
        let rules = &mut bench.kernel().state.rules;
        rules.retain(|rule| rule.priority != constants::RULE_PODS);
        assert!(!bench.pass().is_clean());
    }
    let of_both_families = 2 * 2;
    assert_eq!(bench.reconciler.repairs().total, of_both_families);
    bench.kernel().refuse = Box::new(|_| false);
    assert!(bench.pass().is_clean());
    assert_eq!(bench.reconciler.repairs().total, of_both_families);
}

#[test]
fn a_failure_of_the_node_does_not_stop_enis() {
    let mut bench = Bench::new();
    bench.kernel().refuse = Box::new(
        |step| matches!(step, StepKind::SetSysctl(sysctl, _) if sysctl.name == "ip_forward"),
    );
    let pass = bench.pass();
    assert!(!pass.view.node.is_ready());
    assert!(pass.view.enis.values().all(|eni| eni.readiness.is_ready()));
}

#[test]
fn a_kernel_that_cannot_be_read_keeps_the_last_view() {
    let mut bench = Bench::settled();
    bench.kernel().budget = Some(0);
    let pass = bench.pass();
    assert!(!pass.is_clean());
    assert_eq!(pass.failures[0].step, "read the kernel's state");
    assert!(!pass.view.node.is_ready());
    assert_eq!(pass.view.enis.len(), 3);
}

#[test]
fn nothing_changes_before_it_could_be_announced() {
    let mut bench = Bench::settled();
    bench.kernel().steps.clear();
    let rules = std::mem::take(&mut bench.kernel().state.rules);
    bench.kernel().forbid = true;
    let pass = bench.pass();
    assert_eq!(bench.kernel().steps, []);
    assert_eq!(pass.failures.len(), 1, "{:?}", pass.failures);
    assert_eq!(pass.failures[0].step, "prepare a change");
    assert!(!pass.view.node.is_ready(), "readiness is reported");

    bench.kernel().forbid = false;
    assert!(bench.pass().is_clean());
    assert_eq!(bench.kernel().state.rules, rules);
}

#[test]
fn what_is_to_be_is_announced_where_nothing_is_to_be_done_too() {
    let mut bench = Bench::settled();
    bench.kernel().forbid = true;
    let pass = bench.pass();
    assert_eq!(pass.failures.len(), 1, "{:?}", pass.failures);
    assert_eq!(pass.failures[0].step, "prepare a change");
}

#[test]
fn what_others_undo_is_put_back_and_counted() {
    let mut bench = Bench::settled();
    let state = &mut bench.kernel().state;
    state
        .rules
        .retain(|rule| rule.priority != constants::RULE_PODS);
    let hook = Hook {
        ifindex: ETH0,
        program: Program::FromNetwork,
    };
    state.attachments.remove(&hook);
    state.links.get_mut(&(ETH0 + 1)).unwrap().mtu = 1500;
    assert!(bench.pass().is_clean());
    let repairs = bench.reconciler.repairs();
    assert_eq!(repairs.total, 4, "{repairs:?}");
    assert_eq!(repairs.by_kind[&ObjectKind::Rule], 2, "both families");
    assert_eq!(repairs.by_kind[&ObjectKind::Attachment], 1);
    assert_eq!(repairs.by_kind[&ObjectKind::Mtu], 1);
    assert_eq!(repairs.wars, []);
}

#[test]
fn a_pod_whose_device_is_set_down_keeps_it() {
    let mut bench = Bench::settled();
    let before = bench.kernel().state.clone();
    bench.kernel().set_down(100);
    let pass = bench.pass();
    assert!(pass.is_clean(), "{:?}", pass.failures);
    assert_eq!(bench.kernel().state, before);
    let repairs = bench.reconciler.repairs();
    assert_eq!(repairs.by_kind[&ObjectKind::LinkState], 1);
    assert_eq!(repairs.by_kind.get(&ObjectKind::Device), None);
    // The group of a device in use is nothing to repair.
    bench.kernel().state.links.get_mut(&100).unwrap().group = 0;
    assert_eq!(bench.pass().applied, 0);
}

/// Answers to a former address of an ENI are translated back for a moment. New flows have the new
/// address.
#[test]
fn an_old_translation_address_is_known_for_a_while() {
    let mut bench = Bench::settled();
    let [old, new] = ["10.0.1.10", "10.0.1.11"].map(|a| a.parse::<Ipv4Addr>().unwrap());
    let translated_for = |bench: &mut Bench, address: Ipv4Addr| {
        let entry = bench
            .kernel()
            .state
            .maps
            .get(&MapKey::Address(address.into()));
        match entry {
            Some(MapEntry::Address(_, entry)) => entry.is_translation().then(|| entry.eni()),
            _ => None,
        }
    };
    assert_eq!(translated_for(&mut bench, old), Some(1));
    let eni = bench.intent.node.enis.get_mut(&EniNumber(1)).unwrap();
    eni.primary_address = Some(new);
    let pass = bench.pass();
    assert!(pass.is_clean());
    assert_eq!(pass.next_due, Some(Duration::from_secs(1)));
    assert_eq!(translated_for(&mut bench, new), Some(1));
    assert_eq!(translated_for(&mut bench, old), Some(1));
    bench.wait(Duration::from_millis(400));
    assert_eq!(bench.pass().next_due, Some(Duration::from_millis(600)));
    assert_eq!(translated_for(&mut bench, old), Some(1));
    bench.wait(Duration::from_millis(600));
    let pass = bench.pass();
    assert!(pass.is_clean());
    assert_eq!(pass.next_due, None);
    assert_eq!(translated_for(&mut bench, old), None);

    // A pod that gets the address has it at once.
    let eni = bench.intent.node.enis.get_mut(&EniNumber(1)).unwrap();
    eni.primary_address = Some(old);
    let pod = bench.intent.endpoints.get_mut(&id("b")).unwrap();
    eni.blocks.insert(IpAddr::from(new).into());
    pod.addresses.insert(new.into());
    assert!(bench.pass().is_clean());
    let key = MapKey::Address(new.into());
    let entry = bench.kernel().state.maps.get(&key).copied();
    assert!(matches!(entry, Some(MapEntry::Address(_, entry)) if entry.is_endpoint()));
}

#[test]
fn a_device_waits_for_its_program() {
    let mut bench = Bench::settled();
    let hook = Hook {
        ifindex: 100,
        program: Program::FromEndpoint,
    };
    for _ in 0..11 {
        bench.kernel().state.attachments.remove(&hook);
        assert!(bench.pass().is_clean());
    }
    // A war, so the next repair has to wait.
    bench.kernel().state.attachments.remove(&hook);
    bench.kernel().set_down(100);
    let pass = bench.pass();
    assert_eq!(pass.next_due, Some(Duration::from_secs(1)));
    assert!(!bench.kernel().state.links[&100].up);
    bench.wait(Duration::from_secs(1));
    assert!(bench.pass().is_clean());
    assert!(bench.kernel().state.links[&100].up);

    // And it stays down where the program cannot be attached at all.
    let mut bench = Bench::new();
    bench.kernel().refuse = Box::new(move |step| *step == StepKind::Attach(hook));
    assert!(!bench.pass().is_clean());
    assert!(!bench.kernel().state.links[&100].up);
    assert!(bench.kernel().state.links[&101].up);
}

#[test]
fn a_pod_whose_device_is_unfinished_or_gone_gets_a_new_one() {
    let mut bench = Bench::settled();
    for (undo, ifindex) in [
        (ModelKernel::unfinish as fn(&mut _, _), 100),
        (ModelKernel::unplug, 103),
    ] {
        let pod = &bench.kernel().state.links[&ifindex];
        let id = crate::observation::ownership::endpoint_device(pod).unwrap();
        undo(bench.kernel(), ifindex);
        let pass = bench.pass();
        assert!(pass.is_clean(), "{:?}", pass.failures);
        let view = &pass.view.endpoints[&id];
        assert!(view.readiness.is_ready());
        let link = &bench.kernel().state.links[&view.ifindex.unwrap()];
        assert!(link.up && link.ifindex > ifindex);
    }
    let repairs = bench.reconciler.repairs();
    assert_eq!(repairs.by_kind[&ObjectKind::Device], 2);
}

/// No object of the endpoint is removed in between, so its packets go on.
#[test]
fn a_pods_device_gets_its_mac_back_and_keeps_all_that_is_on_it() {
    let mut bench = Bench::settled();
    let before = bench.kernel().state.clone();
    let other = Some(MacAddr([2, 0, 0, 0, 0, 0x99]));
    bench.kernel().state.links.get_mut(&100).unwrap().mac = other;
    let pass = bench.pass();
    assert!(pass.is_clean(), "{:?}", pass.failures);
    assert_eq!(pass.applied, 1);
    assert_eq!(bench.kernel().state, before);
    let repairs = bench.reconciler.repairs();
    assert_eq!(repairs.by_kind, [(ObjectKind::Device, 1)].into());
}

#[test]
fn changes_of_the_intent_and_of_devices_are_no_repairs() {
    let mut bench = Bench::settled();
    let removed = bench.intent.endpoints.remove(&id("a")).unwrap();
    assert!(bench.pass().is_clean());
    bench.intent.endpoints.insert(removed.id(), removed);
    assert!(bench.pass().is_clean());

    // The device's last IPv4 address goes, and the kernel drops the device's routes with it.
    let eni = bench.intent.node.enis.get_mut(&EniNumber(1)).unwrap();
    eni.use_primary_address = true;
    assert!(bench.pass().is_clean());
    assert_eq!(bench.reconciler.repairs().total, 0);

    bench.kernel().unplug(ETH0 + 1);
    let pass = bench.pass();
    assert!(pass.is_clean(), "{:?}", pass.failures);
    assert_eq!(
        pass.view.enis[&EniNumber(1)].readiness,
        Readiness::not_ready("no device with MAC 02:00:00:00:00:01")
    );
    assert_eq!(eni_entry(&mut bench, 1), None);

    plug(&mut bench.kernel().state, link(50, "ens6", mac(1)));
    assert!(bench.pass().is_clean());
    assert_eq!(eni_entry(&mut bench, 1).map(|e| e.ifindex()), Some(50));
    assert_eq!(bench.reconciler.repairs().total, 0);
}

#[test]
fn devices_of_deleted_endpoints_go_together_and_a_single_one_by_itself() {
    let mut bench = Bench::settled();
    let deleted = |bench: &mut Bench, names: &[&str]| {
        for name in names {
            bench.intent.endpoints.remove(&id(name));
        }
        assert!(bench.pass().is_clean());
        std::mem::take(&mut bench.kernel().together)
    };
    let of = |bench: &mut Bench, name: &str| {
        let links = bench.kernel().state.links.values();
        let mut its = links.filter(|link| link.name == id(name).device());
        its.next().unwrap().ifindex
    };
    let mut both = [of(&mut bench, "a"), of(&mut bench, "b")];
    both.sort_unstable();
    let mut together = deleted(&mut bench, &["a", "b"]);
    for devices in &mut together {
        devices.sort_unstable();
    }
    assert_eq!(together, [both]);
    assert_eq!(deleted(&mut bench, &["c"]), [] as [Vec<u32>; 0]);
}

#[test]
fn a_repair_war_is_named_and_slowed_down() {
    let mut bench = Bench::settled();
    let undo = |bench: &mut Bench| {
        let rules = &mut bench.kernel().state.rules;
        rules.retain(|rule| {
            rule.priority != constants::RULE_PODS || rule.family != ipam::Family::V4
        });
    };
    for _ in 0..11 {
        undo(&mut bench);
        assert!(bench.pass().is_clean());
    }
    undo(&mut bench);
    let pass = bench.pass();
    assert_eq!((pass.applied, pass.remaining), (0, 1));
    assert_eq!(pass.next_due, Some(Duration::from_secs(1)));
    assert!(!pass.view.node.is_ready());
    let wars = bench.reconciler.repairs().wars;
    assert_eq!(wars.len(), 1);
    assert_eq!(wars[0].object, "20: from all lookup 220");
    assert_eq!(wars[0].count, 11);

    // Another object is repaired at once.
    bench.kernel().state.links.get_mut(&(ETH0 + 2)).unwrap().mtu = 1500;
    assert_eq!(bench.pass().applied, 1);

    bench.wait(Duration::from_secs(1));
    assert!(bench.pass().is_clean());
    assert_eq!(bench.reconciler.repairs().wars[0].count, 12);
    bench.wait(Duration::from_mins(1));
    assert_eq!(bench.reconciler.repairs().wars, []);
    undo(&mut bench);
    assert!(bench.pass().is_clean());
}

#[test]
fn an_object_that_never_stays_is_a_war_too() {
    let mut bench = Bench::settled();
    let is_rule = |step: &StepKind| matches!(step, StepKind::AddRule(_));
    bench.kernel().swallow = Box::new(is_rule);
    let rules = &mut bench.kernel().state.rules;
    rules.retain(|rule| !(rule.priority == constants::RULE_SKIP && rule.selector != Selector::All));
    let mut passes = 0;
    while bench.reconciler.repairs().wars.is_empty() {
        bench.pass();
        passes += 1;
        assert!(passes < 20, "never seen as a war");
    }
    assert_eq!(bench.pass().applied, 0);
}

#[test]
fn an_eni_that_leaves_the_document_is_withdrawn_and_its_pods_are_fenced() {
    let mut bench = Bench::settled();
    bench.intent.node.enis.remove(&EniNumber(1));
    let pass = bench.pass();
    assert!(pass.is_clean(), "{:?}", pass.failures);
    let state = &bench.kernel().state;
    let eth1 = ETH0 + 1;
    assert!(!state.addresses.iter().any(|a| a.ifindex == eth1));
    assert!(!state.attachments.keys().any(|hook| hook.ifindex == eth1));
    assert!(!state.maps.contains_key(&MapKey::EniDevice(eth1)));
    let table: Vec<_> = state.routes.iter().filter(|r| r.table == 11).collect();
    assert!(table.iter().all(|r| is_fence(r)), "{table:?}");
    assert_eq!(table.len(), 2, "both families");
    let Some(MapEntry::Address(_, entry)) = state.maps.get(&MapKey::Address([10, 0, 1, 65].into()))
    else {
        panic!("the pod has lost its entry");
    };
    assert_eq!((entry.eni(), entry.eni_ifindex()), (1, 0));
    assert_eq!(
        pass.view.endpoints[&id("b")].readiness.reason(),
        Some("no ENI of the node document owns 10.0.1.65")
    );

    bench.intent.endpoints.remove(&id("b"));
    assert!(bench.pass().is_clean());
    let state = &bench.kernel().state;
    assert!(!state.routes.iter().any(|r| r.table == 11));
    assert!(
        !state
            .rules
            .iter()
            .any(|r| r.action == crate::kernel::Action::Table(11))
    );
}

#[test]
fn a_running_program_is_replaced_after_everything_else() {
    let mut bench = Bench::settled();
    let state = &mut bench.kernel().state;
    for attachment in state.attachments.values_mut() {
        *attachment = Attachment::Stale;
    }
    state.maps.clear();
    bench.kernel().steps.clear();
    assert!(bench.pass().is_clean());
    let steps = &bench.kernel().steps;
    let first = steps
        .iter()
        .position(|s| matches!(s.kind, StepKind::Attach(_)));
    let puts = steps
        .iter()
        .rposition(|s| matches!(s.kind, StepKind::PutMapEntry(_)));
    assert!(first > puts, "{steps:?}");
}
