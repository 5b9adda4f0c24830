//! Single decisions: what a node gets next, and what it gets after a refusal.

use std::collections::BTreeSet;

use cloud::node::{Node, Reason, Step};
use cloud::object::subnet::Location;
use cloud::{Action, Kind};

use super::bed::{Bed, node};

fn prefixed(instance_type: &str) -> Node {
    let mut node = node("one", instance_type);
    node.rules.prefixes = true;
    node
}

fn reasons(bed: &Bed) -> Vec<Reason> {
    bed.next("one")
        .conditions
        .iter()
        .map(|it| it.reason)
        .collect()
}

fn kinds(bed: &Bed) -> Vec<Kind> {
    let blocks = bed.ec2.enis.values().flat_map(|eni| &eni.blocks);
    let kinds = blocks.map(|block| match (block.prefix_len(), block.addr().is_ipv4()) {
        (32, true) => Kind::Address,
        (_, true) => Kind::Prefix,
        _ => Kind::PrefixV6,
    });
    let mut kinds: Vec<Kind> = kinds.collect();
    kinds.sort_unstable();
    kinds
}

fn refuse(bed: &mut Bed, action: Action, code: &'static str, times: usize) {
    bed.ec2
        .refusals
        .insert(action, std::iter::repeat_n(code, times).collect());
}

#[test]
fn a_document_that_lacks_something_makes_no_calls() {
    type Cut = fn(&mut Node);
    let cuts: [(Cut, &str); 3] = [
        (|it| it.instance = None, "spec.instance-id is missing"),
        (
            |it| it.instance_type = None,
            "spec.eni.instance-type is missing",
        ),
        (
            |it| it.location = None,
            "spec.eni.vpc-id or availability-zone is missing",
        ),
    ];
    for (cut, expected) in cuts {
        let mut bed = Bed::with(node("one", "m5.large"));
        cut(bed.one());
        bed.run(70);
        let next = bed.next("one");
        assert!(
            next.conditions[0].to_string().contains(expected),
            "{next:?}"
        );
        assert_eq!(bed.ec2.calls, []);
    }
}

#[test]
fn an_unknown_type_and_an_ignored_node_make_no_calls() {
    let mut bed = Bed::with(node("one", "m5.large"));
    bed.one().instance_type = Some("x9.huge".to_owned());
    bed.run(70);
    assert_eq!(reasons(&bed), [Reason::UnknownType]);
    bed.one().instance_type = Some("m5.large".to_owned());
    bed.one().is_ignored = true;
    bed.run(70);
    assert_eq!(bed.next("one"), cloud::node::Next::default());
    assert_eq!(bed.ec2.calls, []);
}

#[test]
fn nothing_is_done_before_this_leader_has_read_the_enis() {
    let mut bed = Bed::with(node("one", "m5.large"));
    assert_eq!(reasons(&bed), [Reason::Listing]);
    bed.read(cloud::inventory::Scope::Loose);
    assert_eq!(reasons(&bed), [Reason::Listing]);
    bed.settle();
    bed.restart();
    bed.set_used(20);
    assert_eq!(bed.next("one").step, None);
    bed.settle();
    assert_eq!(bed.available("one"), 27, "all that three ENIs have");
}

#[test]
fn an_eni_is_filled_before_the_next_one_is_created() {
    let mut bed = Bed::with(node("one", "t2.xlarge"));
    bed.one().marks.min = 20;
    bed.settle();
    let taken: Vec<u32> = bed
        .ec2
        .enis
        .values()
        .map(|eni| eni.available(false))
        .collect();
    assert_eq!(taken, [14, 6]);
    assert_eq!(
        (bed.count(Action::Assign), bed.count(Action::Create)),
        (1, 1)
    );
}

#[test]
fn a_full_instance_is_a_state_and_makes_no_calls() {
    let mut bed = Bed::with(node("one", "m5.large"));
    bed.set_used(500);
    bed.settle();
    assert_eq!(bed.available("one"), 27);
    assert_eq!(reasons(&bed), [Reason::AtCapacity]);
    let calls = bed.ec2.calls.len();
    bed.run(3600);
    assert_eq!(bed.ec2.calls.len(), calls);
}

#[test]
fn an_instance_that_takes_fewer_enis_than_its_type_says_gets_one_eni_too_many_once_an_hour() {
    let mut bed = Bed::with(node("one", "m5.large"));
    let limits = bed.ec2.instances.values_mut().next().unwrap();
    limits.limits.adapters = 1;
    bed.set_used(15);
    bed.run(3000);
    assert_eq!(
        (bed.count(Action::Create), bed.count(Action::Delete)),
        (1, 1)
    );
    assert_eq!(reasons(&bed), [Reason::AtCapacity]);
    assert!(bed.loose().is_empty());
    bed.run(1200);
    assert_eq!(bed.count(Action::Create), 2);
}

#[test]
fn an_eni_that_takes_fewer_addresses_is_left_alone_and_the_next_one_is_made() {
    let mut bed = Bed::with(node("one", "m5.large"));
    refuse(&mut bed, Action::Assign, "PrivateIpAddressLimitExceeded", 1);
    bed.settle();
    assert_eq!((bed.available("one"), bed.enis("one")), (8, 2));
    assert_eq!(bed.count(Action::Assign), 1);
}

/// A call of an earlier leader had taken the room, and no read had shown that.
#[test]
fn a_limit_that_was_learned_from_an_old_read_goes_with_the_next_one() {
    let mut bed = Bed::with(node("one", "m5.large"));
    refuse(&mut bed, Action::Assign, "PrivateIpAddressLimitExceeded", 1);
    bed.settle();
    assert_eq!((bed.available("one"), bed.enis("one")), (8, 2));
    let is_primary = |eni: &&mut cloud::Eni| {
        let attachment = eni.attachment.as_ref();
        attachment.is_some_and(|it| it.index == 0)
    };
    let primary = bed.ec2.enis.values_mut().find(is_primary);
    let hidden = "10.0.99.1/32".parse().unwrap();
    primary.unwrap().blocks.insert(hidden);
    bed.run(100);
    bed.set_used(19);
    bed.settle();
    assert_eq!((bed.available("one"), bed.enis("one")), (27, 3));
}

#[test]
fn an_instance_that_is_gone_gets_nothing_and_leaves_nothing() {
    let mut bed = Bed::with(node("one", "m5.large"));
    bed.one().rules.first_index = 1;
    bed.run(1);
    bed.ec2.terminate("i-one");
    bed.run(3600);
    assert_eq!(bed.count(Action::Create), 1);
    assert_eq!(reasons(&bed), [Reason::InstanceGone]);
    assert!(bed.ec2.enis.is_empty(), "{:?}", bed.ec2.enis);
}

#[test]
fn an_instance_that_stands_still_gets_its_eni_within_a_minute_after() {
    let mut bed = Bed::with(node("one", "m5.large"));
    bed.one().rules.first_index = 1;
    bed.ec2.instances.values_mut().next().unwrap().is_running = false;
    bed.run(300);
    assert_eq!(reasons(&bed), [Reason::NotRunning]);
    bed.ec2.instances.values_mut().next().unwrap().is_running = true;
    bed.run(62);
    assert_eq!((bed.available("one"), bed.count(Action::Create)), (8, 1));
}

#[test]
fn an_eni_that_cannot_be_marked_is_never_deleted() {
    for code in ["RequestLimitExceeded", "IncorrectState", "InternalError"] {
        let mut bed = Bed::with(node("one", "m5.large"));
        bed.one().rules.first_index = 1;
        refuse(&mut bed, Action::Modify, code, 4);
        bed.run(120);
        assert_eq!(bed.count(Action::Delete), 0, "{code}");
        let marked = bed
            .ec2
            .enis
            .values()
            .filter_map(|eni| eni.attachment.as_ref());
        assert!(marked.clone().all(|it| it.delete_on_termination), "{code}");
        assert_eq!(marked.count(), 2);
    }
}

#[test]
fn an_eni_that_may_outlive_its_instance_is_not_marked() {
    let mut bed = Bed::with(node("one", "m5.large"));
    bed.one().rules.first_index = 1;
    bed.one().rules.delete_on_termination = false;
    bed.settle();
    assert_eq!(bed.count(Action::Modify), 0);
}

#[test]
fn prefixes_come_from_a_sibling_before_any_single_address() {
    let mut bed = Bed::with(prefixed("m5.large"));
    bed.ec2.add_subnet("sibling", 2);
    bed.ec2.room.fragmented = ["own".into()].into();
    bed.settle();
    assert_eq!(kinds(&bed), [Kind::Prefix]);
    assert!(
        bed.ec2
            .enis
            .values()
            .any(|eni| eni.placement.subnet.as_str() == "sibling")
    );
}

#[test]
fn a_fragmented_subnet_gives_prefixes_again_once_it_has_healed() {
    let mut bed = Bed::with(prefixed("m5.large"));
    bed.ec2.room.fragmented = ["own".into()].into();
    bed.settle();
    assert_eq!(kinds(&bed), [Kind::Address; 8]);
    bed.ec2.room.fragmented = BTreeSet::new();
    bed.run(15 * 60);
    bed.set_used(8);
    bed.settle();
    let mut expected = vec![Kind::Address; 8];
    expected.push(Kind::Prefix);
    assert_eq!(kinds(&bed), expected);
}

#[test]
fn a_bound_is_never_passed_by_a_part_of_a_prefix() {
    let mut bed = Bed::with(prefixed("m5.large"));
    (bed.one().marks.max, bed.one().marks.min) = (20, 20);
    bed.settle();
    assert_eq!(bed.available("one"), 16);
    assert_eq!(reasons(&bed), [Reason::AtMaxAllocate]);
    bed.one().marks.max = 0;
    bed.settle();
    assert_eq!(bed.available("one"), 32);
}

#[test]
fn a_bound_below_a_prefix_leaves_single_addresses() {
    let mut bed = Bed::with(prefixed("m5.large"));
    bed.one().marks.max = 5;
    bed.settle();
    assert_eq!(kinds(&bed), [Kind::Address; 5]);
}

#[test]
fn old_hypervisors_get_single_addresses() {
    let mut bed = Bed::with(prefixed("m3.large"));
    bed.settle();
    assert_eq!(kinds(&bed), [Kind::Address; 8]);
}

#[test]
fn waiting_pods_are_brought_in_the_same_call() {
    let mut bed = Bed::with(node("one", "m5.4xlarge"));
    bed.one().pending = 20;
    bed.settle();
    assert_eq!((bed.available("one"), bed.count(Action::Assign)), (20, 1));
}

#[test]
fn the_own_address_of_other_enis_than_the_primary_counts_if_pods_may_have_it() {
    let mut bed = Bed::with(node("one", "m5.large"));
    bed.one().rules.first_index = 1;
    bed.one().rules.use_primary = true;
    bed.one().marks.min = 10;
    bed.settle();
    let counted = bed.ec2.enis.values().skip(1);
    assert_eq!(counted.map(|eni| eni.available(true)).sum::<u32>(), 10);
}

#[test]
fn a_denied_call_is_named_and_made_once_in_five_minutes() {
    for (code, reason) in [
        ("UnauthorizedOperation", Reason::Denied),
        ("NetworkInterfaceLimitExceeded", Reason::QuotaExceeded),
    ] {
        let mut bed = Bed::with(node("one", "m5.large"));
        bed.one().rules.first_index = 1;
        refuse(&mut bed, Action::Create, code, 3);
        bed.run(290);
        assert_eq!(bed.count(Action::Create), 1);
        let next = bed.next("one");
        assert_eq!(next.conditions[0].reason, reason);
        assert!(next.conditions[0].detail.contains(code), "{next:?}");
        bed.run(900);
        assert_eq!(bed.available("one"), 8);
    }
}

#[test]
fn a_wrong_call_is_made_less_and_less() {
    let mut bed = Bed::with(node("one", "m5.large"));
    refuse(
        &mut bed,
        Action::Assign,
        "InvalidParameterCombination",
        1000,
    );
    bed.run(3600);
    assert_eq!(
        bed.count(Action::Assign),
        6,
        "after 1, 2, 4, 8 and 16 minutes"
    );
    assert_eq!(reasons(&bed), [Reason::Refused]);
}

#[test]
fn a_throttled_call_is_no_failure_of_the_node() {
    let mut bed = Bed::with(node("one", "m5.large"));
    refuse(&mut bed, Action::Assign, "RequestLimitExceeded", 5);
    bed.run(10);
    assert_eq!((bed.available("one"), bed.count(Action::Assign)), (8, 6));
}

#[test]
fn a_fresh_eni_that_reads_do_not_show_is_attached_and_no_second_one_is_made() {
    let mut bed = Bed::with(node("one", "m5.large"));
    bed.one().rules.first_index = 1;
    bed.lag = 30;
    refuse(
        &mut bed,
        Action::Attach,
        "InvalidNetworkInterfaceID.NotFound",
        4,
    );
    bed.run(60);
    assert_eq!((bed.available("one"), bed.count(Action::Create)), (8, 1));
    assert_eq!(bed.count(Action::Attach), 5);
}

#[test]
fn a_taken_index_is_passed_over_at_most_five_times() {
    let mut bed = Bed::with(node("one", "m5.4xlarge"));
    bed.one().rules.first_index = 1;
    refuse(&mut bed, Action::Attach, "InvalidParameterValue", 2);
    bed.settle();
    let indices = bed
        .ec2
        .enis
        .values()
        .map(|eni| eni.attachment.as_ref().unwrap().index);
    assert_eq!(indices.collect::<Vec<_>>(), [0, 3]);
    let mut bed = Bed::with(node("one", "m5.4xlarge"));
    bed.one().rules.first_index = 1;
    refuse(&mut bed, Action::Attach, "InvalidParameterValue", 1000);
    bed.run(15);
    assert_eq!(bed.count(Action::Attach), 10, "five, a wait, five");
    bed.run(585);
    assert!(bed.count(Action::Attach) < 5 * 20);
    assert_eq!(bed.count(Action::Create), 1);
}

#[test]
fn an_eni_whose_indices_are_all_refused_is_kept() {
    let mut bed = Bed::with(node("one", "m5.large"));
    bed.one().rules.first_index = 1;
    refuse(&mut bed, Action::Attach, "InvalidParameterValue", 7);
    bed.run(60);
    assert_eq!(
        (bed.count(Action::Create), bed.count(Action::Delete)),
        (1, 0)
    );
    assert_eq!(bed.available("one"), 8);
}

#[test]
fn a_node_that_has_another_instance_now_starts_over() {
    let mut bed = Bed::with(node("one", "m5.large"));
    bed.one().rules.first_index = 1;
    bed.faults.planned = Some((0, super::bed::Fault::Unsent));
    bed.run(1);
    let mut replaced = node("two", "m5.large");
    replaced.rules.first_index = 1;
    bed.ec2.terminate("i-one");
    bed.add("one", replaced);
    bed.settle();
    assert_eq!((bed.available("one"), bed.count(Action::Create)), (8, 1));
    let owners = bed.ec2.enis.values().filter_map(|eni| eni.instance());
    assert!(owners.into_iter().all(|it| it.as_str() == "i-two"));
}

#[test]
fn an_eni_is_marked_only_after_its_agent_can_know_it() {
    let mut bed = Bed::with(node("one", "m5.large"));
    bed.one().rules.first_index = 1;
    bed.publishes = false;
    bed.settle();
    assert_eq!((bed.available("one"), bed.count(Action::Modify)), (8, 0));
    bed.publishes = true;
    bed.settle();
    assert_eq!(bed.count(Action::Modify), 1);
}

#[test]
fn an_eni_that_is_held_after_all_is_looked_at_by_id() {
    let mut bed = Bed::with(node("one", "m5.large"));
    bed.one().rules.first_index = 1;
    bed.settle();
    let eni = bed.ec2.enis.keys().last().unwrap().clone();
    let real = bed.ec2.enis[&eni].clone();
    bed.ec2.detach(&eni);
    bed.read(cloud::inventory::Scope::All);
    bed.ec2.enis.insert(eni.clone(), real);
    bed.one().marks.pre = 0;
    bed.run(2);
    assert_eq!(bed.count(Action::Delete), 1);
    assert!(bed.memory.inventory.get(&eni).unwrap().is_attached());
}

#[test]
fn a_token_that_another_call_used_leads_to_a_listing_and_a_new_token() {
    let mut bed = Bed::with(node("one", "m5.large"));
    bed.one().rules.first_index = 1;
    refuse(&mut bed, Action::Create, "IdempotentParameterMismatch", 1);
    bed.run(25);
    assert_eq!(
        (bed.count(Action::Create), reasons(&bed)),
        (1, vec![Reason::Listing])
    );
    bed.settle();
    assert_eq!((bed.available("one"), bed.count(Action::Create)), (8, 2));
}

/// Earlier leaders used them, and deleted the ENIs of them again.
#[test]
fn several_tokens_that_other_calls_used_lead_to_one_listing() {
    let mut bed = Bed::with(node("one", "m5.large"));
    bed.one().rules.first_index = 1;
    refuse(&mut bed, Action::Create, "IdempotentParameterMismatch", 3);
    bed.run(45);
    assert_eq!((bed.available("one"), bed.count(Action::Create)), (8, 4));
}

#[test]
fn full_subnets_and_subnets_that_match_nothing_are_named() {
    let mut bed = Bed::with(node("one", "m5.large"));
    bed.ec2.leave("own", 3);
    bed.settle();
    assert_eq!(bed.available("one"), 3);
    assert_eq!(reasons(&bed), [Reason::SubnetFull]);
    let mut bed = Bed::with(node("one", "m5.large"));
    bed.one().rules.first_index = 1;
    let tags = [("tier".to_owned(), "none".to_owned())].into();
    let location = bed.one().location.as_ref().unwrap().clone();
    bed.one().location = Some(Location { tags, ..location });
    bed.settle();
    assert_eq!(reasons(&bed), [Reason::NoSubnet]);
    assert_eq!(bed.ec2.calls, []);
}

#[test]
fn group_tags_that_match_nothing_create_nothing() {
    let mut bed = Bed::with(node("one", "m5.large"));
    bed.one().rules.first_index = 1;
    bed.one().groups.tags = [("tier".to_owned(), "none".to_owned())].into();
    bed.settle();
    assert_eq!(reasons(&bed), [Reason::NoSecurityGroup]);
    assert_eq!(bed.ec2.calls, []);
}

#[test]
fn changed_groups_reach_created_enis_and_no_other_ones() {
    let mut bed = Bed::with(node("one", "m5.large"));
    bed.set_used(15);
    bed.settle();
    bed.one().groups.ids = ["sg-2".into(), "sg-3".into()].into();
    bed.run(120);
    let groups: Vec<usize> = bed.ec2.enis.values().map(|eni| eni.groups.len()).collect();
    assert_eq!(groups, [1, 2, 2]);
}

#[test]
fn an_eni_that_was_detached_by_others_comes_back() {
    let mut bed = Bed::with(node("one", "m5.large"));
    bed.set_used(7);
    bed.settle();
    let eni = bed.ec2.enis.keys().last().unwrap().clone();
    bed.ec2.detach(&eni);
    bed.run(70);
    assert!(bed.ec2.enis[&eni].is_attached());
    assert_eq!((bed.available("one"), bed.count(Action::Create)), (15, 1));
}

#[test]
fn ipv6_is_one_prefix_and_its_lack_keeps_no_ipv4_away() {
    let mut bed = Bed::with(node("one", "m5.large"));
    bed.set_requested("one", 8, 0);
    let subnet = bed.ec2.subnets.values_mut().next().unwrap();
    subnet.ipv6 = "2001:db8::/64".parse().ok();
    bed.ec2.room.without_v6 = ["own".into()].into();
    bed.set_requested("one", 8, 24);
    bed.settle();
    assert_eq!(
        (bed.available("one"), bed.count(Action::AssignIpv6)),
        (8, 1)
    );
    assert_eq!(reasons(&bed), [Reason::SubnetFull]);
    bed.ec2.room.without_v6 = BTreeSet::new();
    bed.run(15 * 60);
    bed.settle();
    assert_eq!(kinds(&bed).last(), Some(&Kind::PrefixV6));
    bed.set_requested("one", 15, 500);
    bed.settle();
    assert_eq!(bed.count(Action::AssignIpv6), 2);
}

#[test]
fn a_new_eni_brings_the_ipv6_prefix_with_it_or_comes_without() {
    for full in [false, true] {
        let mut bed = Bed::with(prefixed("m5.large"));
        bed.one().rules.first_index = 1;
        bed.ec2.subnets.values_mut().next().unwrap().ipv6 = "2001:db8::/64".parse().ok();
        if full {
            bed.ec2.room.without_v6 = ["own".into()].into();
        }
        bed.set_requested("one", 8, 24);
        bed.settle();
        let expected: &[Kind] = if full {
            &[Kind::Prefix]
        } else {
            &[Kind::Prefix, Kind::PrefixV6]
        };
        assert_eq!(kinds(&bed), expected);
        assert_eq!(bed.count(Action::Create), 1 + usize::from(full));
        assert_eq!(bed.count(Action::AssignIpv6), 0);
    }
}

#[test]
fn a_subnet_with_ipv6_alone_gives_the_ipv6_prefix() {
    let mut bed = Bed::with(node("one", "m5.large"));
    bed.ec2.add_subnet("v6", 2);
    let subnet = bed.ec2.subnets.get_mut(&"v6".into()).unwrap();
    (subnet.ipv4, subnet.ipv6) = (None, "2001:db8::/64".parse().ok());
    bed.set_requested("one", 8, 24);
    bed.settle();
    let eni = bed
        .ec2
        .enis
        .values()
        .find(|eni| eni.placement.subnet.as_str() == "v6")
        .unwrap();
    assert_eq!(
        (eni.own, eni.blocks.len(), eni.is_attached()),
        (None, 1, true)
    );
    assert_eq!(bed.available("one"), 8);
}

#[test]
fn xen_instances_have_no_ipv6_prefix_and_say_so() {
    let mut bed = Bed::with(node("one", "m3.large"));
    bed.set_requested("one", 8, 24);
    bed.settle();
    assert_eq!(
        (bed.available("one"), reasons(&bed)),
        (8, vec![Reason::NoIpv6])
    );
}

#[test]
fn many_nodes_never_ask_a_nearly_full_subnet_for_more_than_it_has() {
    let mut bed = Bed::new();
    for n in 0..20 {
        bed.add(&n.to_string(), node(&n.to_string(), "m5.large"));
    }
    bed.run(300);
    let before = bed.count(Action::Assign) + bed.count(Action::Create);
    bed.ec2.add_subnet("other", 2);
    bed.ec2.leave("own", 10);
    for node in bed.nodes.values_mut() {
        node.demand.used = 9;
    }
    bed.run(300);
    let has: u32 = bed.nodes.keys().map(|name| bed.available(name)).sum();
    assert_eq!(has, 20 * 17);
    assert!(before <= 21, "{before}");
    let calls = bed.count(Action::Assign) + bed.count(Action::Create) - before;
    assert!(calls <= 45, "{calls}");
}

#[test]
fn creations_carry_tags_and_a_description() {
    let mut bed = Bed::with(node("one", "m5.large"));
    bed.one().rules.first_index = 1;
    bed.facts.eni_tags = [("team".to_owned(), "net".to_owned())].into();
    bed.read(cloud::inventory::Scope::All);
    let Some(Step::Create(create)) = bed.next("one").step else {
        panic!("no creation: {:?}", bed.next("one"));
    };
    assert_eq!(create.tags["ipam.towpath.dev/instance"], "i-one");
    assert_eq!(
        (create.tags.len(), create.tags["team"].as_str()),
        (6, "net")
    );
    assert_eq!(create.tags["ipam.towpath.dev/pool"], "default");
    assert_eq!(create.description, "Towpath (i-one)");
}
