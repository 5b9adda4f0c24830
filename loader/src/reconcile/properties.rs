//! Properties of the reconciler on the model kernel: whatever the start, the intent before, the
//! damage and the moment at which the agent dies, it gets there, leaks nothing and touches nothing
//! of others.

use std::collections::BTreeSet;
use std::time::Instant;

use datapath_common::counter::Program;
use datapath_common::mark::MarkLayout;
use ipnet::IpNet;
use proptest::prelude::*;
use proptest::sample::Index;

use super::model::ModelKernel;
use super::tests::block_on;
use super::{Pass, Reconciler};
use crate::fixture::{BRIDGE, ETH0, address, endpoint, eni, host, intent, link, mac};
use crate::intent::{Family, Intent};
use crate::kernel::{
    Action, Attachment, Hook, MapEntry, MapKey, Neighbour, NextHop, Observed, Route, Rule, Selector,
};
use crate::numbers;
use crate::object::Object;
use crate::plan::plan;
use crate::recognise::{is_fence, recognise};
use crate::types::EniNumber;

/// Passes in which a live kernel has to be where it should be.
const PASSES: usize = 2;

/// Addresses that pods may have: some shared by choices of several pods, one that is an ENI's
/// own, one that no ENI owns.
const ADDRESSES: [&str; 7] = [
    "10.0.0.20",
    "10.0.1.65",
    "2001:db8:0:1:a::65",
    "10.0.2.66",
    "10.0.1.66",
    "10.0.1.10",
    "10.9.9.9",
];

#[derive(Clone, Debug)]
struct Spec {
    enis: [EniSpec; 3],
    pods: [Option<(usize, usize)>; 4],
    other_mark: bool,
    service: bool,
    /// ENI 1's prefix is ENI 2's.
    moved: bool,
    node_address: bool,
}

#[derive(Clone, Copy, Debug)]
struct EniSpec {
    listed: bool,
    excluded: bool,
    use_primary_address: bool,
}

fn eni_spec() -> impl Strategy<Value = EniSpec> {
    let often = prop::bool::weighted(0.8);
    let seldom = || prop::bool::weighted(0.15);
    (often, seldom(), seldom()).prop_map(|(listed, excluded, use_primary_address)| EniSpec {
        listed,
        excluded,
        use_primary_address,
    })
}

fn spec() -> impl Strategy<Value = Spec> {
    let pod = prop::option::weighted(0.7, (0..ADDRESSES.len(), 0..ADDRESSES.len()));
    (
        [eni_spec(), eni_spec(), eni_spec()],
        [pod.clone(), pod.clone(), pod.clone(), pod],
        any::<[bool; 4]>(),
    )
        .prop_map(|(enis, pods, [mark, service, moved, node_address])| Spec {
            enis,
            pods,
            other_mark: mark,
            service,
            moved,
            node_address,
        })
}

impl Spec {
    fn intent(&self) -> Intent {
        let mut intent = intent();
        intent.node.enis.clear();
        for (number, spec) in (0..).zip(self.enis) {
            if !spec.listed {
                continue;
            }
            let mut eni = eni(number);
            eni.excluded = spec.excluded.then(|| "exclude-interface-tags".to_owned());
            eni.use_primary_address = spec.use_primary_address;
            if spec.use_primary_address {
                eni.blocks
                    .insert(IpNet::from(std::net::IpAddr::from(eni.primary_address)));
            }
            intent.node.enis.insert(EniNumber(number), eni);
        }
        let prefix: IpNet = "10.0.1.64/28".parse().unwrap();
        if self.moved
            && let Some(eni) = intent.node.enis.get_mut(&EniNumber(1))
        {
            eni.blocks.remove(&prefix);
            if let Some(eni) = intent.node.enis.get_mut(&EniNumber(2)) {
                eni.blocks.insert(prefix);
            }
        }
        let names = ["a", "b", "c", "d"];
        let pods = names.into_iter().zip(self.pods);
        intent.endpoints = pods
            .filter_map(|(name, pod)| {
                let (one, other) = pod?;
                let pod = endpoint(name, &[ADDRESSES[one], ADDRESSES[other]]);
                Some((pod.id(), pod))
            })
            .collect();
        if self.other_mark {
            intent.settings.mark = MarkLayout::new(0x00ff_0000).unwrap();
        }
        if !self.service {
            intent.settings.services.clear();
        }
        if !self.node_address {
            intent.node.addresses.clear();
            intent.settings.primary_device = Some("eth0".into());
        }
        intent
    }
}

/// Something that befalls the kernel; the index picks among what there is.
#[derive(Clone, Debug)]
enum Damage {
    Remove(Index),
    Corrupt(Index),
    Attachment(Index, Attachment),
    Down(Index),
    Unplug(Index),
    Mtu(Index, u32),
}

fn damage() -> impl Strategy<Value = Damage> {
    let attachment = prop::sample::select(vec![Attachment::Stale, Attachment::Dead]);
    prop_oneof![
        4 => any::<Index>().prop_map(Damage::Remove),
        2 => any::<Index>().prop_map(Damage::Corrupt),
        2 => (any::<Index>(), attachment).prop_map(|(i, a)| Damage::Attachment(i, a)),
        1 => any::<Index>().prop_map(Damage::Down),
        1 => any::<Index>().prop_map(Damage::Unplug),
        1 => (any::<Index>(), 1000..10_000_u32).prop_map(|(i, mtu)| Damage::Mtu(i, mtu)),
    ]
}

fn befall(kernel: &mut ModelKernel, damage: &Damage) {
    let owned = recognise(&kernel.state, 2);
    let owned: Vec<Object> = owned.iter().map(|owned| owned.object()).collect();
    let links: Vec<u32> = kernel.state.links.keys().copied().collect();
    // The loopback and the foreign devices are not what is tested here.
    let ours = |index: &Index| {
        Some(*index.get(&links)).filter(|i| (ETH0..BRIDGE).contains(i) || *i >= 100)
    };
    match damage {
        Damage::Remove(index) if !owned.is_empty() => match *index.get(&owned) {
            Object::Address(a) => drop(kernel.state.addresses.remove(&a)),
            Object::Route(r) => drop(kernel.state.routes.remove(&r)),
            Object::Rule(r) => drop(kernel.state.rules.remove(&r)),
            Object::Neighbour(n) => drop(kernel.state.neighbours.remove(&n)),
            Object::MapEntry(e) => drop(kernel.state.maps.remove(&e.key())),
            Object::Attachment(h) => drop(kernel.state.attachments.remove(&h)),
            Object::Sysctl(..) | Object::Mtu { .. } | Object::Up(_) | Object::Device(_) => {}
        },
        Damage::Corrupt(index) if !owned.is_empty() => corrupt(kernel, *index.get(&owned)),
        Damage::Attachment(index, to) if !kernel.state.attachments.is_empty() => {
            let mut all: Vec<&mut Attachment> = kernel.state.attachments.values_mut().collect();
            let picked = index.index(all.len());
            *all[picked] = *to;
        }
        Damage::Down(index) => {
            if let Some(ifindex) = ours(index) {
                kernel.set_down(ifindex);
            }
        }
        Damage::Unplug(index) => {
            if let Some(ifindex) = ours(index) {
                kernel.unplug(ifindex);
            }
        }
        Damage::Mtu(index, mtu) => {
            if let Some(link) = ours(index).and_then(|i| kernel.state.links.get_mut(&i)) {
                link.mtu = *mtu;
            }
        }
        Damage::Remove(_) | Damage::Corrupt(_) | Damage::Attachment(..) => {}
    }
}

/// Gives an object another value under the same key.
fn corrupt(kernel: &mut ModelKernel, object: Object) {
    match object {
        Object::Route(route) => {
            kernel.state.routes.remove(&route);
            let next_hop = NextHop::Device(BRIDGE);
            kernel.state.routes.insert(Route { next_hop, ..route });
        }
        Object::Neighbour(neighbour) => {
            kernel.state.neighbours.remove(&neighbour);
            let mac = mac(99);
            kernel
                .state
                .neighbours
                .insert(Neighbour { mac, ..neighbour });
        }
        Object::MapEntry(MapEntry::Address(key, _)) => {
            let host = datapath_common::abi::AddressEntry::host();
            let entry = MapEntry::Address(key, host);
            kernel.state.maps.insert(entry.key(), entry);
        }
        Object::Rule(rule) => {
            kernel.state.rules.remove(&rule);
            kernel.state.rules.insert(Rule {
                protocol: 4,
                ..rule
            });
        }
        Object::MapEntry(_)
        | Object::Sysctl(..)
        | Object::Mtu { .. }
        | Object::Up(_)
        | Object::Device(_)
        | Object::Address(_)
        | Object::Attachment(_) => {}
    }
}

/// What is not ours, close to what is.
struct Foreign {
    rules: Vec<Rule>,
    routes: Vec<Route>,
    neighbours: Vec<Neighbour>,
}

fn foreign() -> Foreign {
    let rule = |priority, selector, action| Rule {
        family: Family::V4,
        priority,
        selector,
        action,
        protocol: 2,
    };
    let mark = |value, mask| Selector::Mark { value, mask };
    let from = |net: &str| Selector::Source(net.parse().unwrap());
    let route = |table, destination: &str, next_hop, protocol| Route {
        table,
        destination: destination.parse().unwrap(),
        metric: 0,
        next_hop,
        source: None,
        protocol,
    };
    let bridge = NextHop::Device(BRIDGE);
    let gateway = NextHop::Gateway([172, 17, 0, 2].into(), BRIDGE);
    Foreign {
        rules: vec![
            rule(0, Selector::All, Action::Table(255)),
            rule(32766, Selector::All, Action::Table(254)),
            // Cilium's, for a pod and for its ENI.
            rule(20, Selector::Foreign, Action::Table(254)),
            rule(111, from("10.0.1.65/32"), Action::Table(11)),
            // The VPC CNI's.
            rule(1536, from("10.0.1.65/32"), Action::Table(2)),
            rule(111, mark(0x80, 0x80), Action::Table(12)),
            rule(110, mark(0, 0x80), Action::Goto(112)),
            rule(112, from("10.0.9.0/24"), Action::Table(12)),
            rule(112, from("10.0.9.9/32"), Action::Table(100)),
            rule(20, Selector::All, Action::Table(12)),
            rule(112, Selector::All, Action::Table(220)),
        ],
        routes: vec![
            route(12, "10.99.0.0/16", gateway, 2),
            route(12, "10.98.0.1/32", bridge, 4),
            route(40, "0.0.0.0/0", gateway, 2),
            route(220, "10.97.0.1/32", bridge, 2),
            route(220, "10.96.0.0/16", gateway, 2),
            route(220, "10.95.0.0/16", NextHop::Unreachable, 2),
        ],
        neighbours: vec![Neighbour {
            ifindex: BRIDGE,
            address: [172, 17, 0, 2].into(),
            mac: mac(77),
        }],
    }
}

impl Foreign {
    fn put_into(&self, state: &mut Observed) {
        state.rules.extend(&self.rules);
        state.routes.extend(&self.routes);
        state.neighbours.extend(&self.neighbours);
        state.addresses.insert(address(BRIDGE, "10.0.9.9/32"));
        let name = crate::fixture::id("nobody").device();
        state.links.insert(60, link(60, &name, mac(60)));
    }

    fn assert_untouched(&self, state: &Observed) {
        for rule in &self.rules {
            assert!(state.rules.contains(rule), "lost {rule:?}");
        }
        for route in &self.routes {
            assert!(state.routes.contains(route), "lost {route:?}");
        }
        for neighbour in &self.neighbours {
            assert!(state.neighbours.contains(neighbour));
        }
        let bridge = address(BRIDGE, "172.17.0.1/16");
        assert!(state.addresses.contains(&bridge));
        assert!(state.addresses.contains(&address(BRIDGE, "10.0.9.9/32")));
        assert!(state.links.contains_key(&60));
    }
}

fn start() -> ModelKernel {
    let mut state = host();
    foreign().put_into(&mut state);
    ModelKernel::new(state)
}

/// A fresh agent makes passes until one is clean; gives the kernel back.
fn converge(kernel: ModelKernel, intent: &Intent) -> ModelKernel {
    let mut reconciler = Reconciler::new(kernel, Instant::now);
    let mut last = Pass::default();
    for _ in 0..PASSES {
        last = block_on(reconciler.pass(intent));
        if last.is_clean() {
            let kernel = reconciler.into_kernel();
            let again = plan(intent, &kernel.state);
            assert_eq!(again.steps, [], "the second plan is empty");
            return kernel;
        }
    }
    panic!("not there after {PASSES} passes: {:?}", last.failures);
}

/// An agent works until it has carried out so many steps, then dies.
fn die_after(mut kernel: ModelKernel, intent: &Intent, steps: usize) -> ModelKernel {
    kernel.budget = Some(steps);
    let mut reconciler = Reconciler::new(kernel, Instant::now);
    block_on(reconciler.pass(intent));
    let mut kernel = reconciler.into_kernel();
    check_history(&kernel);
    kernel.restart();
    kernel
}

/// What holds after every single step of an agent on an undamaged kernel.
fn check_history(kernel: &ModelKernel) {
    let foreign = foreign();
    for state in &kernel.history {
        foreign.assert_untouched(state);
        assert_fenced(state);
        assert_guarded(state);
    }
}

/// No packet that is marked for an ENI falls through to the main table.
fn assert_fenced(state: &Observed) {
    for rule in state
        .rules
        .iter()
        .filter(|r| r.priority == numbers::RULE_ENI)
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

/// What is there before and after is there all the time.
fn assert_steady(before: &Observed, kernel: &ModelKernel) {
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
            .filter(|r| r.table == numbers::TABLE_PODS);
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
            assert!(now.contains(object), "{object:?} was gone for a while");
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Lasting {
    Endpoint(std::net::IpAddr, u32),
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

/// Few cases in the ordinary run; `PROPTEST_CASES` asks for more.
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
        let mut reconciler = Reconciler::new(kernel, Instant::now);
        block_on(reconciler.pass(&after.intent()));
        let mut kernel = reconciler.into_kernel();
        kernel.budget = None;
        let kernel = converge(kernel, &after.intent());
        let foreign = foreign();
        for state in &kernel.history {
            foreign.assert_untouched(state);
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
        let kernel = converge(kernel, &after.intent());
        check_history(&kernel);
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
        assert_steady(&settled, &kernel);
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
