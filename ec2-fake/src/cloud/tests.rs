use jiff::SignedDuration;
use proptest::prelude::*;

use super::{AttachState, Cloud, Effect, InstanceState};
use crate::answer::{Answer, Item, Page};
use crate::call::{
    Assign, Associate, Call, Change, Create, Describe, Filter, Modify, Request, What,
};
use crate::family::Family;
use crate::fault::{Delivery, Fault, FaultKind};
use crate::fixture::{
    NOW, at, attachment, call, call_at, cloud, code, create, creation, prefixes, world,
};
use crate::settings::Span;
use crate::space::Ask;

fn describe(what: What, ids: &[&str], filters: &[(&str, &str)]) -> Describe {
    let filter = |(name, value): &(&str, &str)| Filter {
        name: (*name).to_owned(),
        values: vec![(*value).to_owned()],
    };
    Describe {
        what,
        ids: ids.iter().map(|id| (*id).to_owned()).collect(),
        filters: filters.iter().map(filter).collect(),
        max: None,
        next: None,
    }
}

fn page(cloud: &mut Cloud, describe: Describe) -> Page {
    match call(cloud, Call::Describe(describe)).unwrap() {
        Answer::Page(page) => page,
        other => panic!("{other:?}"),
    }
}

fn assign(eni: &str, family: Family, ask: Ask) -> Assign {
    Assign {
        family,
        eni: eni.to_owned(),
        ask,
        reassign: false,
    }
}

fn addresses(list: &[&str]) -> Ask {
    Ask {
        addresses: list.iter().map(|text| text.parse().unwrap()).collect(),
        ..Ask::default()
    }
}

#[test]
fn an_interface_lives_and_its_effects_come_in_order() {
    let mut cloud = cloud();
    let eni = create(&mut cloud, creation());
    let Answer::Attached { attachment: id, .. } =
        call(&mut cloud, attachment(&eni, "i-1", 1)).unwrap()
    else {
        panic!("no attachment");
    };
    assert_eq!(
        code(call(&mut cloud, Call::Delete(eni.clone()))),
        "InvalidParameterValue"
    );
    cloud.advance(NOW);
    let state = cloud
        .interface(&eni)
        .unwrap()
        .attachment
        .clone()
        .unwrap()
        .state;
    assert_eq!(state, AttachState::Attached);
    call(&mut cloud, Call::Detach(id.clone())).unwrap();
    assert_eq!(
        code(call(&mut cloud, Call::Detach("eni-attach-0".to_owned()))),
        "InvalidAttachmentID.NotFound"
    );
    cloud.advance(NOW);
    assert_eq!(cloud.interface(&eni).unwrap().status(), "available");
    call(&mut cloud, Call::Delete(eni.clone())).unwrap();
    assert_eq!(
        code(call(&mut cloud, Call::Delete(eni.clone()))),
        "InvalidNetworkInterfaceID.NotFound"
    );
    let instance = "i-1".to_owned();
    assert_eq!(
        cloud.take_effects(),
        [
            Effect::Attached {
                eni: eni.clone(),
                instance: instance.clone()
            },
            Effect::Detached { eni, instance },
        ]
    );
}

#[test]
fn attach_and_detach_take_their_time() {
    let mut world = world();
    world.settings.attach = Span::new(1_000, 1_000);
    world.settings.attached = Span::new(500, 500);
    world.settings.detach = Span::new(2_000, 2_000);
    let mut cloud = Cloud::build(&world, NOW).unwrap();
    let eni = create(&mut cloud, creation());
    let Answer::Attached { attachment: id, .. } =
        call(&mut cloud, attachment(&eni, "i-1", 1)).unwrap()
    else {
        panic!("no attachment");
    };
    let state = |cloud: &Cloud| {
        let found = cloud.interface(&eni).unwrap().attachment.clone();
        found.map(|attachment| attachment.state)
    };
    assert_eq!(state(&cloud), Some(AttachState::Attaching));
    assert_eq!(cloud.next_due(), Some(at(1)));
    cloud.advance(at(1));
    assert_eq!(cloud.take_effects().len(), 1);
    assert_eq!(state(&cloud), Some(AttachState::Attaching));
    cloud.advance(at(2));
    assert_eq!(state(&cloud), Some(AttachState::Attached));
    call_at(&mut cloud, at(2), Call::Detach(id.clone()))
        .outcome
        .unwrap();
    assert_eq!(cloud.take_effects().len(), 1);
    assert_eq!(state(&cloud), Some(AttachState::Detaching));
    let again = call_at(&mut cloud, at(2), Call::Detach(id));
    assert_eq!(code(again.outcome), "IncorrectState");
    cloud.advance(at(4));
    assert_eq!(state(&cloud), None);
}

#[test]
fn attach_refuses_what_cannot_be() {
    let mut cloud = cloud();
    let one = create(&mut cloud, creation());
    let two = create(&mut cloud, creation());
    let three = create(&mut cloud, creation());
    let codes = |cloud: &mut Cloud, eni: &str, instance: &str, index| {
        code(call(cloud, attachment(eni, instance, index)))
    };
    assert_eq!(
        codes(&mut cloud, &one, "i-9", 1),
        "InvalidInstanceID.NotFound"
    );
    assert_eq!(
        codes(&mut cloud, &one, "i-3", 1),
        "InvalidParameterCombination"
    );
    assert_eq!(codes(&mut cloud, &one, "i-1", 0), "InvalidParameterValue");
    call(&mut cloud, attachment(&one, "i-1", 1)).unwrap();
    assert_eq!(codes(&mut cloud, &one, "i-1", 2), "InvalidParameterValue");
    call(&mut cloud, attachment(&two, "i-1", 2)).unwrap();
    assert_eq!(
        codes(&mut cloud, &three, "i-1", 3),
        "AttachmentLimitExceeded"
    );
    cloud.terminate("i-2", NOW).unwrap();
    assert_eq!(codes(&mut cloud, &three, "i-2", 1), "IncorrectState");
    let primary = cloud.primary_of("i-1").unwrap();
    let id = cloud
        .interface(&primary)
        .unwrap()
        .attachment
        .clone()
        .unwrap()
        .id;
    assert_eq!(
        code(call(&mut cloud, Call::Detach(id))),
        "OperationNotPermitted"
    );
}

#[test]
fn slots_are_limited_by_type_and_xen_has_no_prefixes() {
    let mut cloud = cloud();
    let eni = create(&mut cloud, creation());
    call(&mut cloud, attachment(&eni, "i-1", 1)).unwrap();
    let many = assign(&eni, Family::V4, prefixes(9));
    call(&mut cloud, Call::Assign(many)).unwrap();
    let more = assign(&eni, Family::V4, prefixes(1));
    assert_eq!(
        code(call(&mut cloud, Call::Assign(more))),
        "PrivateIpAddressLimitExceeded"
    );
    let xen = cloud.primary_of("i-2").unwrap();
    let one = assign(&xen, Family::V4, prefixes(1));
    assert_eq!(
        code(call(&mut cloud, Call::Assign(one))),
        "InvalidParameterValue"
    );
    let empty = assign(&eni, Family::V4, Ask::default());
    assert_eq!(
        code(call(&mut cloud, Call::Assign(empty))),
        "MissingParameter"
    );
}

#[test]
fn addresses_have_one_owner_and_move_only_when_allowed() {
    let mut cloud = cloud();
    let one = create(&mut cloud, creation());
    let two = create(&mut cloud, creation());
    let ask = addresses(&["10.0.0.77"]);
    call(
        &mut cloud,
        Call::Assign(assign(&one, Family::V4, ask.clone())),
    )
    .unwrap();
    let mut again = assign(&two, Family::V4, ask.clone());
    assert_eq!(
        code(call(&mut cloud, Call::Assign(again.clone()))),
        "InvalidIPAddress.InUse"
    );
    again.reassign = true;
    call(&mut cloud, Call::Assign(again)).unwrap();
    assert!(cloud.interface(&one).unwrap().addresses.blocks.is_empty());
    let gone = assign(&one, Family::V4, ask);
    assert_eq!(
        code(call(&mut cloud, Call::Unassign(gone))),
        "InvalidParameterValue"
    );
    let primary = cloud
        .interface(&one)
        .unwrap()
        .addresses
        .primary
        .unwrap()
        .to_string();
    let of_primary = assign(&one, Family::V4, addresses(&[&primary]));
    assert_eq!(
        code(call(&mut cloud, Call::Unassign(of_primary))),
        "InvalidParameterValue"
    );
    let wrong = assign(&one, Family::V6, addresses(&["10.0.0.78"]));
    assert_eq!(
        code(call(&mut cloud, Call::Assign(wrong))),
        "InvalidParameterValue"
    );
}

#[test]
fn a_member_of_a_prefix_is_no_address_to_unassign() {
    let mut cloud = cloud();
    let eni = create(
        &mut cloud,
        Create {
            ipv4: prefixes(1),
            ..creation()
        },
    );
    let prefix = *cloud
        .interface(&eni)
        .unwrap()
        .addresses
        .blocks
        .first()
        .unwrap();
    let member = assign(&eni, Family::V4, addresses(&[&prefix.addr().to_string()]));
    assert_eq!(
        code(call(&mut cloud, Call::Unassign(member))),
        "InvalidParameterValue"
    );
    let whole = Ask {
        prefixes: vec![prefix],
        ..Ask::default()
    };
    call(&mut cloud, Call::Unassign(assign(&eni, Family::V4, whole))).unwrap();
}

/// Creations that are refused, and the code of each refusal.
fn impossible_creations() -> Vec<(Create, &'static str)> {
    let but = |change: &dyn Fn(&mut Create)| {
        let mut create = creation();
        change(&mut create);
        create
    };
    let asking = |count, prefix_count| Ask {
        count,
        prefix_count,
        ..Ask::default()
    };
    vec![
        (
            but(&|it| it.subnet = "subnet-9".into()),
            "InvalidSubnetID.NotFound",
        ),
        (
            but(&|it| it.groups = vec!["sg-8".into()]),
            "InvalidGroup.NotFound",
        ),
        (
            but(&|it| it.groups = vec!["sg-9".into()]),
            "InvalidParameter",
        ),
        (
            but(&|it| it.ipv4 = asking(1, 1)),
            "InvalidParameterCombination",
        ),
        (but(&|it| it.ipv4 = prefixes(16)), "InsufficientCidrBlocks"),
        (
            but(&|it| it.ipv4 = asking(255, 0)),
            "InsufficientFreeAddressesInSubnet",
        ),
        (
            but(&|it| {
                it.subnet = "subnet-b".into();
                it.ipv6 = prefixes(1);
            }),
            "InvalidParameterValue",
        ),
        (
            but(&|it| it.token = Some("x".repeat(65))),
            "InvalidParameterValue",
        ),
    ]
}

#[test]
fn creation_refuses_what_cannot_be() {
    let mut cloud = cloud();
    let before = cloud.interfaces().count();
    for (case, expected) in impossible_creations() {
        let outcome = call(&mut cloud, Call::Create(Box::new(case.clone())));
        assert_eq!(code(outcome), expected, "{case:?}");
    }
    assert_eq!(cloud.interfaces().count(), before);
}

#[test]
fn a_client_token_makes_one_interface() {
    let mut cloud = cloud();
    let with_token = Create {
        token: Some("t".to_owned()),
        ..creation()
    };
    let one = create(&mut cloud, with_token.clone());
    assert_eq!(create(&mut cloud, with_token.clone()), one);
    let other = Create {
        description: "x".to_owned(),
        ..with_token.clone()
    };
    let outcome = call(&mut cloud, Call::Create(Box::new(other)));
    assert_eq!(code(outcome), "IdempotentParameterMismatch");
    let later = NOW + SignedDuration::from_hours(25);
    let reply = call_at(&mut cloud, later, Call::Create(Box::new(with_token)));
    assert!(matches!(reply.outcome.unwrap(), Answer::Created { eni, .. } if eni.id != one));
}

#[test]
fn termination_deletes_marked_interfaces_and_frees_the_others() {
    let mut cloud = cloud();
    let marked = create(&mut cloud, creation());
    let loose = create(&mut cloud, creation());
    for (eni, index) in [(&marked, 1), (&loose, 2)] {
        call(&mut cloud, attachment(eni, "i-1", index)).unwrap();
    }
    let id = cloud
        .interface(&marked)
        .unwrap()
        .attachment
        .clone()
        .unwrap()
        .id;
    let change = Change::DeleteOnTermination {
        attachment: id,
        value: true,
    };
    let modify = Modify {
        eni: marked.clone(),
        change,
    };
    call(&mut cloud, Call::Modify(modify)).unwrap();
    cloud.terminate("i-1", NOW).unwrap();
    cloud.advance(NOW);
    cloud.check().unwrap();
    assert!(cloud.interface(&marked).is_none());
    assert_eq!(cloud.interface(&loose).unwrap().status(), "available");
    assert_eq!(
        cloud.instance("i-1").unwrap().state,
        InstanceState::Terminated
    );
}

#[test]
fn reads_may_be_old_and_new_interfaces_unknown() {
    let mut world = world();
    world.settings.lag_listing = Span::new(30_000, 30_000);
    world.settings.lag_by_id = Span::new(2_000, 2_000);
    world.settings.unknown = Span::new(20_000, 20_000);
    let mut cloud = Cloud::build(&world, at(-100)).unwrap();
    let eni = create(&mut cloud, creation());
    assert_eq!(cloud.interface(&eni).unwrap().status(), "pending");
    let attach = call_at(&mut cloud, at(19), attachment(&eni, "i-1", 1));
    assert_eq!(code(attach.outcome), "InvalidNetworkInterfaceID.NotFound");
    let listed = |cloud: &mut Cloud, now, ids: &[&str]| {
        let describe = describe(What::Interfaces, ids, &[("network-interface-id", &eni)]);
        call_at(cloud, now, Call::Describe(describe)).outcome
    };
    let count = |outcome: crate::Result<Answer>| match outcome.unwrap() {
        Answer::Page(page) => page.items.len(),
        other => panic!("{other:?}"),
    };
    let by_id = listed(&mut cloud, at(19), &[&eni]);
    assert_eq!(code(by_id), "InvalidNetworkInterfaceID.NotFound");
    assert_eq!(count(listed(&mut cloud, at(20), &[&eni])), 1);
    assert_eq!(cloud.interface(&eni).unwrap().status(), "available");
    assert_eq!(count(listed(&mut cloud, at(29), &[])), 0);
    assert_eq!(count(listed(&mut cloud, at(30), &[])), 1);
    call_at(&mut cloud, at(31), Call::Delete(eni.clone()))
        .outcome
        .unwrap();
    assert_eq!(count(listed(&mut cloud, at(60), &[])), 1);
    assert_eq!(count(listed(&mut cloud, at(61), &[])), 0);
}

#[test]
fn listings_have_pages_and_refuse_ids_with_a_page_size() {
    let mut cloud = cloud();
    for _ in 0..9 {
        create(&mut cloud, creation());
    }
    let mut request = Describe {
        max: Some(5),
        ..describe(What::Interfaces, &[], &[])
    };
    let mut ids = Vec::new();
    loop {
        let page = page(&mut cloud, request.clone());
        ids.extend(page.items.iter().map(super::filter::id_of));
        request.next = page.next;
        if request.next.is_none() {
            break;
        }
    }
    let all: Vec<_> = cloud.interfaces().map(|eni| eni.id.clone()).collect();
    assert_eq!(ids, all);
    let refused = |cloud: &mut Cloud, describe| code(call(cloud, Call::Describe(describe)));
    let both = Describe {
        max: Some(5),
        ..describe(What::Instances, &["i-1"], &[])
    };
    assert_eq!(refused(&mut cloud, both), "InvalidParameterCombination");
    let small = Describe {
        max: Some(4),
        ..describe(What::Subnets, &[], &[])
    };
    assert_eq!(refused(&mut cloud, small), "InvalidParameterValue");
    let token = Describe {
        next: Some("x".into()),
        max: Some(5),
        ..describe(What::Subnets, &[], &[])
    };
    assert_eq!(refused(&mut cloud, token), "InvalidParameterValue");
    let filter = describe(What::Subnets, &[], &[("colour", "red")]);
    assert_eq!(refused(&mut cloud, filter), "InvalidParameterValue");
    let unknown = describe(What::Instances, &["i-77"], &[]);
    assert_eq!(refused(&mut cloud, unknown), "InvalidInstanceID.NotFound");
    let crooked = describe(What::Instances, &["77"], &[]);
    assert_eq!(refused(&mut cloud, crooked), "InvalidInstanceID.Malformed");
}

#[test]
fn every_filter_of_a_listing_has_values() {
    let mut cloud = cloud();
    for what in [
        What::Addresses,
        What::Instances,
        What::InstanceTypes,
        What::Interfaces,
        What::Groups,
        What::Subnets,
        What::Vpcs,
    ] {
        let items = page(&mut cloud, describe(what, &[], &[])).items;
        let item = items.first().unwrap();
        for name in super::filter::names(what) {
            assert!(
                super::filter::values(item, name).is_some(),
                "{what:?} {name}"
            );
        }
    }
    let tagged = page(
        &mut cloud,
        describe(What::Subnets, &[], &[("tag:role", "p*s")]),
    );
    assert_eq!(tagged.items.len(), 1);
    let groups = page(&mut cloud, describe(What::GroupsForVpc, &["vpc-2"], &[]));
    assert!(matches!(groups.items.as_slice(), [Item::Group(group)] if group.id == "sg-9"));
}

#[test]
fn faults_come_before_and_after_the_effect() {
    let inject = |cloud: &mut Cloud, kind| {
        cloud.inject(Fault {
            action: "CreateNetworkInterface".to_owned(),
            names: None,
            skip: 0,
            count: 1,
            kind,
        });
        let before = cloud.interfaces().count();
        let reply = call_at(cloud, NOW, Call::Create(Box::new(creation())));
        (cloud.interfaces().count() - before, reply)
    };
    let mut cloud = cloud();
    let (made, reply) = inject(&mut cloud, FaultKind::Refused("InternalError".to_owned()));
    assert_eq!((made, code(reply.outcome)), (0, "InternalError".to_owned()));
    let (made, reply) = inject(&mut cloud, FaultKind::Unheard);
    assert_eq!((made, reply.delivery), (0, Delivery::Lost));
    let (made, reply) = inject(&mut cloud, FaultKind::AnswerLost);
    assert_eq!((made, reply.delivery), (1, Delivery::Lost));
    let (made, _) = inject(&mut cloud, FaultKind::Twice);
    assert_eq!(made, 2);
    let (made, reply) = inject(&mut cloud, FaultKind::Cut);
    assert_eq!((made, reply.delivery), (1, Delivery::Cut));
    assert_eq!(cloud.log().count(), 5);
}

#[test]
fn a_trial_changes_nothing_and_a_budget_ends() {
    let mut world = world();
    world.settings.throttle = true;
    let mut cloud = Cloud::build(&world, NOW).unwrap();
    let before = cloud.interfaces().count();
    let request = Request {
        call: Call::Create(Box::new(creation())),
        dry_run: true,
    };
    for _ in 0..100 {
        let outcome = cloud.call(NOW, "test", &request).outcome;
        assert_eq!(code(outcome), "DryRunOperation");
    }
    let failure = cloud.call(NOW, "test", &request).outcome.unwrap_err();
    assert_eq!(
        (failure.code.as_str(), failure.status()),
        ("RequestLimitExceeded", 503)
    );
    assert_eq!(cloud.interfaces().count(), before);
}

#[test]
fn an_elastic_address_has_one_place() {
    let mut cloud = cloud();
    let associate = |instance: &str, reassociate| {
        Call::Associate(Associate {
            allocation: "eipalloc-1".to_owned(),
            instance: Some(instance.to_owned()),
            eni: None,
            private: None,
            reassociate,
        })
    };
    call(&mut cloud, associate("i-1", false)).unwrap();
    let taken = call(&mut cloud, associate("i-3", false));
    assert_eq!(code(taken), "Resource.AlreadyAssociated");
    let Answer::Associated(id) = call(&mut cloud, associate("i-3", true)).unwrap() else {
        panic!("no association");
    };
    let holders = cloud
        .interfaces()
        .filter(|eni| !eni.addresses.public.is_empty());
    assert_eq!(holders.count(), 1);
    call(&mut cloud, Call::Disassociate(id.clone())).unwrap();
    let again = call(&mut cloud, Call::Disassociate(id));
    assert_eq!(code(again), "InvalidAssociationID.NotFound");
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]
    /// Whatever is called, the state stays sound.
    #[test]
    fn the_state_stays_sound(steps in prop::collection::vec((0_u8..8, 0_usize..6, 1_usize..4), 1..80)) {
        let mut cloud = cloud();
        for (kind, which, count) in steps {
            let enis: Vec<String> = cloud.interfaces().map(|eni| eni.id.clone()).collect();
            let eni = enis.get(which).cloned().unwrap_or_default();
            let of = cloud.interface(&eni).cloned();
            let step = match kind {
                0 => Call::Create(Box::new(Create { ipv4: prefixes(count), ..creation() })),
                1 => attachment(&eni, "i-1", u16::try_from(count).unwrap()),
                2 => Call::Delete(eni),
                3 => Call::Assign(assign(&eni, Family::V4, prefixes(count))),
                4 => Call::Assign(assign(&eni, Family::V4, Ask { count, ..Ask::default() })),
                5 => Call::Assign(assign(&eni, Family::V6, prefixes(1))),
                6 => {
                    let blocks = of.map(|eni| eni.addresses.blocks.clone()).unwrap_or_default();
                    let nets = blocks.into_iter().filter(|net| net.prefix_len() == 28);
                    let ask = Ask { prefixes: nets.take(count).collect(), ..Ask::default() };
                    Call::Unassign(assign(&eni, Family::V4, ask))
                }
                _ => {
                    let attachment = of.and_then(|eni| eni.attachment.clone());
                    Call::Detach(attachment.map_or_else(String::new, |found| found.id))
                }
            };
            let reply = call_at(&mut cloud, NOW, step);
            prop_assert_eq!(reply.delivery, Delivery::Whole);
            prop_assert_eq!(cloud.check(), Ok(()));
        }
    }
}
