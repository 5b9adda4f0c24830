//! Properties of the reconciler on the model kernel: whatever the start, the intent before, the
//! damage and the moment at which the agent dies, it gets there, leaks nothing and touches nothing
//! of others.

mod damage;
mod destinations;
mod foreign;
mod spec;

use std::collections::BTreeSet;
use std::net::IpAddr;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use api::ids::EniNumber;
use datapath_common::counter::Program;
use ipnet::IpNet;
use proptest::prelude::*;

use self::damage::{Damage, befall, damage};
use self::foreign::foreign;
use self::spec::{Spec, spec};
use super::model::ModelKernel;
use super::tests::block_on;
use super::{Pass, Reconciler};
use crate::constants;
use crate::intent::Intent;
use crate::kernel::fixture::{host, intent};
use crate::kernel::{
    Action, Attachment, Hook, MapEntry, MapKey, Neighbour, NextHop, Object, Observed, Rule,
    Selector,
};
use crate::observation::ownership::{endpoint_device, is_fence};
use crate::plan::plan;

/// Passes in which a live kernel has to be where it should be.
const PASSES: usize = 2;

fn start() -> ModelKernel {
    let mut state = host();
    foreign().put_into(&mut state);
    ModelKernel::new(state)
}

/// A clock by which all waits are over at the next observation.
fn hurried() -> impl Fn() -> Instant + Send + Sync + 'static {
    let (start, looks) = (Instant::now(), AtomicU32::new(0));
    move || start + Duration::from_mins(1) * looks.fetch_add(1, Ordering::Relaxed)
}

/// A fresh agent makes passes until one is clean; gives the kernel back.
fn converge(kernel: ModelKernel, intent: &Intent) -> ModelKernel {
    let mut reconciler = Reconciler::new(kernel, hurried());
    let mut last = Pass::default();
    for _ in 0..PASSES {
        last = block_on(reconciler.pass(intent));
        if last.is_clean() {
            let kernel = reconciler.into_kernel();
            let again = plan(intent, &kernel.state);
            assert_eq!(again.steps, [], "the second plan is empty");
            for id in intent.endpoints.keys() {
                let mut links = kernel.state.links.values();
                let device = links.find(|link| link.name == id.device());
                assert!(device.is_some_and(|link| link.up), "{id} has no device");
            }
            return kernel;
        }
    }
    panic!("not there after {PASSES} passes: {:?}", last.failures);
}

/// An agent works until it has carried out so many steps, then dies.
fn die_after(mut kernel: ModelKernel, intent: &Intent, steps: usize) -> ModelKernel {
    kernel.budget = Some(steps);
    let found = kernel.state.clone();
    let mut reconciler = Reconciler::new(kernel, hurried());
    block_on(reconciler.pass(intent));
    let mut kernel = reconciler.into_kernel();
    check_history(&kernel);
    assert_programmed(&found, &kernel);
    kernel.restart();
    kernel
}

/// The conditions after each single step of an agent on an undamaged kernel.
fn check_history(kernel: &ModelKernel) {
    let foreign = foreign();
    for state in &kernel.history {
        foreign.assert_untouched(state);
        assert_fenced(state);
        assert_guarded(state);
        assert_turned_back(state);
    }
}

/// No packet that is marked for an ENI falls through to the main table.
fn assert_fenced(state: &Observed) {
    for rule in state
        .rules
        .iter()
        .filter(|r| r.priority == constants::RULE_ENI)
    {
        let (Selector::Mark { mask, .. }, Action::Table(table)) = (rule.selector, rule.action)
        else {
            continue;
        };
        if mask.count_ones() < 4 {
            continue;
        }
        let fenced = state.routes.iter().any(|route| {
            route.table == table
                && is_fence(route)
                && route.destination == rule.family.default_route()
        });
        assert!(fenced, "{rule:?} leads to a table without an end");
    }
}

/// No pod that the datapath serves sends past its program.
fn assert_guarded(state: &Observed) {
    for entry in state.maps.values() {
        if let MapEntry::Address(address, value) = entry
            && value.is_endpoint()
            && state.links.contains_key(&value.ifindex())
        {
            let hook = Hook {
                ifindex: value.ifindex(),
                program: Program::FromEndpoint,
            };
            assert!(
                state.attachments.contains_key(&hook),
                "{address} is not guarded"
            );
        }
    }
}

/// By no ENI that is ready are flows translated before its programs turn answers back and keep the
/// host off their ports.
fn assert_turned_back(state: &Observed) {
    for entry in state.maps.values() {
        let MapEntry::Eni(number, entry) = entry else {
            continue;
        };
        for program in [Program::FromNetwork, Program::ToNetwork] {
            let ifindex = entry.ifindex();
            assert!(
                state.attachments.contains_key(&Hook { ifindex, program }),
                "ENI {number} is ready without {}",
                program.name()
            );
        }
    }
}

/// No pod's device comes up, or stays up, without its program: the stack would send the pod's
/// packets by the primary, whichever ENI owns their source.
fn assert_programmed(start: &Observed, kernel: &ModelKernel) {
    let unguarded = |state: &Observed| -> BTreeSet<u32> {
        let guarded = |ifindex| {
            let hook = Hook {
                ifindex,
                program: Program::FromEndpoint,
            };
            let attachment = state.attachments.get(&hook);
            matches!(attachment, Some(Attachment::Current | Attachment::Stale))
        };
        let pods = state
            .links
            .values()
            .filter(|l| endpoint_device(l).is_some());
        pods.filter(|link| link.up && !guarded(link.ifindex))
            .map(|link| link.ifindex)
            .collect()
    };
    let before = unguarded(start);
    for state in &kernel.history {
        let now = unguarded(state);
        assert!(now.is_subset(&before), "{now:?} are up without program");
    }
}

/// A finished device is never recreated, and an unfinished one always.
fn assert_kept(start: &Observed, kernel: &ModelKernel, intent: &Intent) {
    for link in start.links.values() {
        let Some(id) = endpoint_device(link).filter(|id| intent.endpoints.contains_key(id)) else {
            continue;
        };
        let finished = link.up || link.group == constants::DEVICE_GROUP;
        let kept = kernel.state.links.contains_key(&link.ifindex);
        assert_eq!(kept, finished, "{id}: {link:?}");
    }
}

/// Objects that are there before and after are there all the time.
///
/// An exception are two endpoints with one address, which no agent permits. The second may take it
/// from the first, and with it the number of a lost ENI, which another ENI then gets.
fn assert_steady(before: &Observed, kernel: &ModelKernel, intent: &Intent) {
    let lasting = |state: &Observed| -> BTreeSet<Lasting> {
        let entries = state.maps.values().map(|entry| match entry {
            MapEntry::Address(address, value) => Lasting::Endpoint(*address, value.ifindex()),
            MapEntry::Destination(..) | MapEntry::Eni(..) | MapEntry::EniDevice(..) => {
                Lasting::Entry(entry.key())
            }
        });
        let pod_routes = state
            .routes
            .iter()
            .filter(|r| r.table == constants::TABLE_PODS);
        entries
            .chain(pod_routes.map(|route| Lasting::Route(route.destination, route.next_hop)))
            .chain(state.attachments.keys().map(|hook| Lasting::Hook(*hook)))
            .chain(state.rules.iter().map(|rule| Lasting::Rule(*rule)))
            .chain(state.neighbours.iter().map(|n| Lasting::Neighbour(*n)))
            .collect()
    };
    let (before, after) = (lasting(before), lasting(&kernel.state));
    for state in &kernel.history {
        let now = lasting(state);
        for object in before.intersection(&after) {
            if *object == Lasting::Entry(MapKey::Eni(EniNumber::PRIMARY)) && is_contested(intent) {
                continue;
            }
            assert!(now.contains(object), "{object:?} was gone for a while");
        }
    }
}

/// True if two endpoints have one address.
fn is_contested(intent: &Intent) -> bool {
    let mut seen = BTreeSet::new();
    let mut all = intent.endpoints.values().flat_map(|e| &e.addresses);
    all.any(|address| !seen.insert(address))
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Lasting {
    Endpoint(IpAddr, u32),
    Entry(MapKey),
    Route(IpNet, NextHop),
    Hook(Hook),
    Rule(Rule),
    Neighbour(Neighbour),
}

/// Everything of ours as text, with devices by name: the same on every kernel that is in the same
/// state.
fn ours(kernel: &ModelKernel) -> BTreeSet<String> {
    let state = &kernel.state;
    let rules = state.rules.iter().map(|rule| Object::Rule(*rule));
    let routes = state.routes.iter().map(|route| Object::Route(*route));
    let addresses = state.addresses.iter().map(|a| Object::Address(*a));
    let neighbours = state.neighbours.iter().map(|n| Object::Neighbour(*n));
    let entries = state.maps.values().map(|entry| Object::MapEntry(*entry));
    let hooks = state
        .attachments
        .keys()
        .map(|hook| Object::Attachment(*hook));
    let mut all: BTreeSet<String> = rules
        .chain(routes)
        .chain(addresses)
        .chain(neighbours)
        .chain(entries)
        .chain(hooks)
        .map(|object| object.describe(&state.links))
        .collect();
    all.extend(
        state
            .links
            .values()
            .map(|link| format!("link {}", link.name)),
    );
    all
}

fn owns_all_addresses(intent: &Intent) -> bool {
    let mut addresses = intent.endpoints.values().flat_map(|e| &e.addresses);
    addresses.all(|address| intent.node.owner_of(*address).is_some())
}

/// Few cases in the ordinary run; `PROPTEST_CASES` sets more.
fn config() -> ProptestConfig {
    let mut config = ProptestConfig {
        failure_persistence: None,
        ..ProptestConfig::default()
    };
    if std::env::var_os("PROPTEST_CASES").is_none() {
        config.cases = 64;
    }
    config
}

proptest! {
    #![proptest_config(config())]

    #[test]
    fn any_start_converges_and_others_are_left_alone(
        before in spec(),
        damage in prop::collection::vec(damage(), 0..12),
        after in spec(),
        died in prop::option::of((0..120_usize, 0..120_usize)),
    ) {
        let (first, second) = died.unwrap_or((usize::MAX, usize::MAX));
        let mut kernel = die_after(start(), &before.intent(), first);
        for damage in &damage {
            befall(&mut kernel, damage);
        }
        kernel.budget = Some(second);
        let damaged = kernel.state.clone();
        let mut reconciler = Reconciler::new(kernel, hurried());
        block_on(reconciler.pass(&after.intent()));
        let mut kernel = reconciler.into_kernel();
        kernel.budget = None;
        let kernel = converge(kernel, &after.intent());
        let foreign = foreign();
        for state in &kernel.history {
            foreign.assert_untouched(state);
        }
        assert_programmed(&damaged, &kernel);
        assert_kept(&damaged, &kernel, &after.intent());
        if !damage.iter().any(Damage::is_of_a_device) && owns_all_addresses(&after.intent()) {
            let fresh = ours(&converge(start(), &after.intent()));
            let missing: Vec<_> = fresh.difference(&ours(&kernel)).cloned().collect();
            prop_assert!(missing.is_empty(), "missing: {:?}", missing);
        }
    }

    #[test]
    fn an_agent_that_dies_leaks_nothing(
        before in spec(),
        after in spec(),
        first in 0..120_usize,
        second in 0..120_usize,
    ) {
        let kernel = die_after(start(), &before.intent(), first);
        let kernel = die_after(kernel, &after.intent(), second);
        let found = kernel.state.clone();
        let kernel = converge(kernel, &after.intent());
        check_history(&kernel);
        assert_programmed(&found, &kernel);
        if owns_all_addresses(&after.intent()) {
            let fresh = converge(start(), &after.intent());
            prop_assert_eq!(ours(&kernel), ours(&fresh));
        }
    }

    #[test]
    fn what_stays_is_never_interrupted(before in spec(), after in spec()) {
        let mut kernel = converge(start(), &before.intent());
        check_history(&kernel);
        kernel.restart();
        let settled = kernel.state.clone();
        let kernel = converge(kernel, &after.intent());
        check_history(&kernel);
        assert_steady(&settled, &kernel, &after.intent());
        assert_programmed(&settled, &kernel);
        assert_kept(&settled, &kernel, &after.intent());
    }
}

#[test]
fn dying_at_any_step_of_a_first_start_is_outlived() {
    let intent = intent();
    let whole = converge(start(), &intent);
    for step in 0..=whole.steps.len() {
        let kernel = converge(die_after(start(), &intent, step), &intent);
        assert_eq!(ours(&kernel), ours(&whole), "dead after {step} steps");
    }
}

#[test]
fn what_an_agent_left_that_died_at_any_step_one_that_wants_nothing_removes() {
    let (first, nothing) = (intent(), Spec::nothing().intent());
    let clean = converge(start(), &nothing);
    let steps = converge(start(), &first).steps.len();
    for step in 0..=steps {
        let kernel = converge(die_after(start(), &first, step), &nothing);
        assert_eq!(ours(&kernel), ours(&clean), "dead after {step} steps");
    }
}
