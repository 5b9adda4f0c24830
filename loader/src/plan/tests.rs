use std::net::IpAddr;

use api::ids::EniNumber;
use api::types::{OwnedObject, Readiness};
use datapath_common::abi::DestinationClass;
use datapath_common::counter::Program;
use ipam::Family;

use super::*;
use crate::constants;
use crate::kernel::fixture::{ETH0, host, id, intent, plug, pod_link};
use crate::kernel::{Action, Hook, MapEntry, NextHop, Rule, Selector, SysctlScope};
use crate::observation::ownership::is_fence;

fn host_with_pods() -> Observed {
    let mut observed = host();
    for (ifindex, name) in [(100, "a"), (101, "b"), (102, "c")] {
        plug(&mut observed, pod_link(ifindex, name));
    }
    observed
}

fn first(plan: &Plan, what: &str, is: impl Fn(&StepKind) -> bool) -> usize {
    let found = plan.steps.iter().position(|p| is(&p.step.kind));
    found.unwrap_or_else(|| panic!("no step {what}"))
}

fn last(plan: &Plan, what: &str, is: impl Fn(&StepKind) -> bool) -> usize {
    let found = plan.steps.iter().rposition(|p| is(&p.step.kind));
    found.unwrap_or_else(|| panic!("no step {what}"))
}

#[test]
fn additions_come_in_the_order_in_which_they_rest_on_each_other() {
    use StepKind::{AddAddress, AddRoute, AddRule, Attach, PutMapEntry, SetSysctl, SetUp};
    let plan = plan(&intent(), &host_with_pods());
    let priority = |priority| move |s: &StepKind| matches!(s, AddRule(r) if r.priority == priority);
    let fence = |s: &StepKind| matches!(s, AddRoute(r) if is_fence(r));
    let via = |s: &StepKind| matches!(s, AddRoute(r) if matches!(r.next_hop, NextHop::Gateway(..)));
    let gateway = |s: &StepKind| matches!(s, AddRoute(r) if r.table != constants::TABLE_PODS && matches!(r.next_hop, NextHop::Device(_)));
    let pod_route = |s: &StepKind| matches!(s, AddRoute(r) if r.table == constants::TABLE_PODS && matches!(r.next_hop, NextHop::Device(_)));
    let block_route = |s: &StepKind| matches!(s, AddRoute(r) if r.table == constants::TABLE_PODS && r.next_hop == NextHop::Unreachable);
    let accept_ra = |s: &StepKind| matches!(s, SetSysctl(s, "2") if s.name == "accept_ra" && s.scope == SysctlScope::Device(ETH0));
    let forwarding = |s: &StepKind| matches!(s, SetSysctl(s, _) if s.family == Family::V6 && s.name == "forwarding");
    let own = |s: &StepKind| matches!(s, AddRule(r) if matches!(r.selector, Selector::Source(_)));
    let entry = |s: &StepKind| matches!(s, PutMapEntry(MapEntry::Address(_, e)) if e.is_endpoint());
    let host_entry =
        |s: &StepKind| matches!(s, PutMapEntry(MapEntry::Address(_, e)) if e.is_host());
    let eni = |s: &StepKind| matches!(s, PutMapEntry(MapEntry::Eni(..)));
    let block = |s: &StepKind| matches!(s, PutMapEntry(MapEntry::Destination(_, c)) if c.contains(DestinationClass::BLOCK));
    let other = |s: &StepKind| matches!(s, PutMapEntry(MapEntry::Destination(_, c)) if !c.contains(DestinationClass::BLOCK));

    assert!(last(&plan, "accept_ra", accept_ra) < first(&plan, "forwarding", forwarding));
    assert!(last(&plan, "up", |s| matches!(s, SetUp(_))) < first(&plan, "gateway", gateway));
    assert!(last(&plan, "fence", fence) < first(&plan, "rule 111", priority(111)));
    assert!(last(&plan, "gateway", gateway) < first(&plan, "default", via));
    let address = |s: &StepKind| matches!(s, AddAddress(_));
    assert!(last(&plan, "address", address) < first(&plan, "default", via));
    assert!(last(&plan, "default", via) < first(&plan, "ENI", eni));
    assert!(last(&plan, "pod route", pod_route) < first(&plan, "block route", block_route));
    assert!(last(&plan, "rule 112", priority(112)) < first(&plan, "rule 111", priority(111)));
    assert!(last(&plan, "rule 111", priority(111)) < first(&plan, "rule 110", priority(110)));
    assert!(last(&plan, "own rule", own) < first(&plan, "address", address));
    assert!(last(&plan, "rule 111", priority(111)) < first(&plan, "ENI", eni));
    assert!(last(&plan, "ENI", eni) < first(&plan, "endpoint", entry));
    assert!(last(&plan, "host", host_entry) < first(&plan, "endpoint", entry));
    assert!(last(&plan, "service", other) < first(&plan, "endpoint", entry));
    assert!(last(&plan, "program", |s| matches!(s, Attach(_))) < first(&plan, "endpoint", entry));
    assert!(last(&plan, "endpoint", entry) < first(&plan, "block", block));
}

#[test]
fn an_endpoints_device_comes_up_behind_its_program_and_its_entries() {
    use StepKind::{AddNeighbour, AddRoute, Attach, PutMapEntry, SetMtu, SetSysctl, SetUp};
    let mut observed = host_with_pods();
    for ifindex in 100..103 {
        let link = observed.links.get_mut(&ifindex).unwrap();
        (link.up, link.mtu) = (false, 1500);
    }
    let plan = plan(&intent(), &observed);
    let up = |s: &StepKind| matches!(s, SetUp(100..103));
    let program = |s: &StepKind| matches!(s, Attach(hook) if hook.ifindex >= 100);
    let entry = |s: &StepKind| matches!(s, PutMapEntry(MapEntry::Address(_, e)) if e.is_endpoint());
    let mtu = |s: &StepKind| matches!(s, SetMtu { ifindex, .. } if *ifindex >= 100);
    let sysctl = |s: &StepKind| matches!(s, SetSysctl(s, _) if matches!(s.scope, SysctlScope::Device(i) if i >= 100));
    let neighbour = |s: &StepKind| matches!(s, AddNeighbour(_));
    let route = |s: &StepKind| matches!(s, AddRoute(r) if r.table == constants::TABLE_PODS && matches!(r.next_hop, NextHop::Device(_)));
    let blocks = |s: &StepKind| matches!(s, AddRoute(r) if r.table == constants::TABLE_PODS && r.next_hop == NextHop::Unreachable);
    let eni = |s: &StepKind| matches!(s, SetUp(i) if *i == ETH0 + 1);
    let gateway = |s: &StepKind| matches!(s, AddRoute(r) if r.table == 11 && matches!(r.next_hop, NextHop::Device(_)));
    for (what, step) in [
        ("program", &program as &dyn Fn(&StepKind) -> bool),
        ("entry", &entry),
        ("MTU", &mtu),
        ("sysctl", &sysctl),
        ("neighbour", &neighbour),
        ("block's route", &blocks),
    ] {
        assert!(last(&plan, what, step) < first(&plan, "up", up), "{what}");
    }
    assert_eq!(plan.steps.iter().filter(|p| up(&p.step.kind)).count(), 3);
    assert!(last(&plan, "up", up) < first(&plan, "route", route));
    assert!(last(&plan, "ENI up", eni) < first(&plan, "gateway", gateway));
    let created = |p: &Planned| matches!(p.step.kind, StepKind::CreateEndpointDevice(_));
    assert!(!plan.steps.iter().any(created));
}

#[test]
fn removals_come_last_and_in_the_opposite_order() {
    use StepKind::{DeleteAddress, DeleteDevice, DeleteMapEntry, DeleteRoute, DeleteRule, Detach};
    let mut observed = host_with_pods();
    // All objects of a settled node that the order can distinguish.
    for object in plan(&intent(), &observed).objects {
        match object {
            Object::Route(route) => drop(observed.routes.insert(route)),
            Object::Rule(rule) => drop(observed.rules.insert(rule)),
            Object::Address(address) => drop(observed.addresses.insert(address)),
            Object::MapEntry(entry) => drop(observed.maps.insert(entry.key(), entry)),
            Object::Attachment(hook) => {
                observed.attachments.insert(hook, Attachment::Current);
            }
            Object::Neighbour(neighbour) => drop(observed.neighbours.insert(neighbour)),
            Object::Sysctl(..)
            | Object::ReservedPorts(_)
            | Object::Mtu { .. }
            | Object::Up(_)
            | Object::Device(_) => {}
        }
    }
    let mut intent = intent();
    intent.endpoints.clear();
    intent.node.enis.remove(&EniNumber(1));
    let plan = plan(&intent, &observed);
    let added = plan.steps.iter().rposition(|p| p.adds).unwrap_or(0);
    let removed = plan.steps.iter().position(|p| !p.adds).unwrap();
    assert!(added < removed);

    let entry = |s: &StepKind| {
        let address = IpAddr::from([10, 0, 1, 65]);
        *s == DeleteMapEntry(crate::kernel::MapKey::Address(address))
    };
    let address = |s: &StepKind| matches!(s, DeleteAddress(_));
    let fence = |s: &StepKind| matches!(s, DeleteRoute(r) if is_fence(r));
    let via =
        |s: &StepKind| matches!(s, DeleteRoute(r) if matches!(r.next_hop, NextHop::Gateway(..)));
    let rule = |s: &StepKind| matches!(s, DeleteRule(_));
    let device = |s: &StepKind| matches!(s, DeleteDevice(_));
    let from_endpoint = |s: &StepKind| matches!(s, Detach(Hook { program, .. }) if *program == Program::FromEndpoint);
    let eni = |s: &StepKind| *s == DeleteMapEntry(crate::kernel::MapKey::Eni(EniNumber(1)));
    assert!(last(&plan, "endpoint entry", entry) < first(&plan, "ENI", eni));
    assert!(last(&plan, "ENI", eni) < first(&plan, "address", address));
    assert!(last(&plan, "default", via) < first(&plan, "address", address));
    assert!(last(&plan, "default", via) < first(&plan, "rule", rule));
    assert!(last(&plan, "rule", rule) < first(&plan, "fence", fence));
    assert!(last(&plan, "fence", fence) < first(&plan, "device", device));
    assert!(last(&plan, "device", device) < first(&plan, "from_endpoint", from_endpoint));
}

#[test]
fn a_route_that_differs_is_replaced_and_not_removed() {
    let mut observed = host_with_pods();
    let wanted = plan(&intent(), &observed).objects;
    let route = wanted.iter().find_map(|object| match object {
        Object::Route(r) if r.destination == "10.0.0.20/32".parse().unwrap() => Some(*r),
        _ => None,
    });
    let mut wrong = route.unwrap();
    wrong.next_hop = NextHop::Device(101);
    observed.routes.insert(wrong);
    let steps = plan(&intent(), &observed).steps;
    let kinds: Vec<_> = steps.iter().map(|p| &p.step.kind).collect();
    assert!(kinds.contains(&&StepKind::AddRoute(route.unwrap())));
    assert!(!kinds.contains(&&StepKind::DeleteRoute(wrong)));
}

#[test]
fn a_rule_may_carry_any_protocol_and_another_masks_skip_goes_first() {
    let rule = |priority, selector, action, protocol| Rule {
        family: Family::V4,
        priority,
        selector,
        action,
        protocol,
    };
    let nop = rule(112, Selector::All, Action::Nop, 4);
    let mask = 0x003f_0000;
    let skip = rule(110, Selector::Mark { value: 0, mask }, Action::Goto(112), 2);
    let mut observed = host();
    observed.rules.extend([nop, skip]);
    let plan = plan(&intent(), &observed);
    let nop_v4 = |s: &StepKind| match s {
        StepKind::AddRule(r) | StepKind::DeleteRule(r) => {
            r.family == Family::V4 && r.action == Action::Nop
        }
        _ => false,
    };
    assert!(!plan.steps.iter().any(|p| nop_v4(&p.step.kind)));
    assert_eq!(plan.steps[0].step.kind, StepKind::DeleteRule(skip));
}

/// Packets of one mask must not meet the other's skip rule.
#[test]
fn a_skip_rule_comes_after_every_program_marks_by_its_mask() {
    let mut observed = host_with_pods();
    for object in plan(&intent(), &observed).objects {
        if let Object::Attachment(hook) = object {
            observed.attachments.insert(hook, Attachment::Stale);
        }
    }
    let plan = plan(&intent(), &observed);
    let skip =
        |s: &StepKind| matches!(s, StepKind::AddRule(r) if r.priority == constants::RULE_SKIP);
    let attach = |s: &StepKind| matches!(s, StepKind::Attach(_));
    assert!(last(&plan, "program", attach) < first(&plan, "skip", skip));
    let pods =
        |s: &StepKind| matches!(s, StepKind::Attach(h) if h.program == Program::FromEndpoint);
    let enis = |s: &StepKind| attach(s) && !pods(s);
    assert!(last(&plan, "ENI's program", enis) < first(&plan, "pod's program", pods));
}

#[test]
fn the_view_shows_what_there_is_beside_what_should_be() {
    let mut observed = host_with_pods();
    plug(&mut observed, pod_link(103, "gone"));
    let view = plan(&intent(), &observed).view;
    let state = |text: &str| {
        let found = view.objects.list().into_iter().find(|o| o.object == text);
        found.map(|o| (o.scope.clone(), o.state))
    };
    assert_eq!(
        state("20: from all lookup 220"),
        Some(("node".into(), ObjectState::Missing))
    );
    assert_eq!(
        state("link eth1 mtu 9001"),
        Some(("eni 1".into(), ObjectState::Missing))
    );
    let gone = id("gone");
    assert_eq!(
        state(&format!("link {} type veth", gone.device())),
        Some((format!("endpoint {gone}"), ObjectState::Unexpected))
    );
    let device = format!("link {} type veth", id("a").device());
    assert_eq!(state(&device).unwrap().1, ObjectState::Present);
    assert_eq!(
        view.enis[&EniNumber(1)].readiness,
        Readiness::not_ready("missing: net.ipv4.conf.eth1.arp_announce = 2")
    );
    assert_eq!(view.enis[&EniNumber(1)].addresses, 1);
    assert_eq!(view.enis[&EniNumber(1)].prefixes, 2);

    let text = serde_json::to_string(&view).unwrap();
    let mut back: View = serde_json::from_str(&text).unwrap();
    // The objects go by themselves, in words.
    back.objects = view.objects.clone();
    assert_eq!(back, view);
    let objects = view.objects.list();
    let text = serde_json::to_string(&objects).unwrap();
    let back: Vec<OwnedObject> = serde_json::from_str(&text).unwrap();
    assert_eq!(back, objects);
}
