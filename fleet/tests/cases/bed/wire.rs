//! Calls and answers between the types of `cloud` and those of the fake.

use std::collections::BTreeSet;

use cloud::call::query::{Items, Page, Query, What};
use cloud::elastic::{Association, Elastic};
use cloud::groups::Group;
use cloud::inventory::Scope;
use cloud::node::{Blocks, Outcome, Step};
use cloud::object::subnet::{RouteTable, Subnet};
use cloud::{
    Action, AttachState, Attachment, Eni, EniId, Failure, GroupId, Instance, InstanceState,
    InterfaceKind, Kind, Placement, SubnetId, TypeInfo, Vpc,
};
use ec2_fake::{
    Answer, Ask, Assign, Associate, Attach, Call, Change, Create, Describe, Family, Filter, Item,
    Modify,
};
use ipnet::IpNet;

fn ask(blocks: Option<Blocks>) -> Ask {
    let mut ask = Ask::default();
    if let Some(Blocks { kind, count }) = blocks {
        let count = usize::try_from(count).unwrap();
        match kind {
            Kind::Address => ask.count = count,
            Kind::Prefix | Kind::PrefixV6 => ask.prefix_count = count,
        }
    }
    ask
}

pub(crate) fn call(step: &Step) -> Call {
    match step {
        Step::Create(create) => Call::Create(Box::new(Create {
            subnet: create.subnet.to_string(),
            groups: create.groups.iter().map(ToString::to_string).collect(),
            description: create.description.clone(),
            ipv4: ask(create.ipv4),
            ipv6: Ask {
                prefix_count: usize::from(create.ipv6_prefix),
                ..Ask::default()
            },
            token: Some(create.token.clone()),
            tags: create.tags.clone(),
            ..Create::default()
        })),
        Step::Attach {
            eni,
            instance,
            index,
        } => Call::Attach(Attach {
            eni: eni.to_string(),
            instance: instance.to_string(),
            index: *index,
            card: 0,
        }),
        Step::Assign { eni, blocks, .. } => Call::Assign(Assign {
            family: match blocks.kind {
                Kind::PrefixV6 => Family::V6,
                Kind::Address | Kind::Prefix => Family::V4,
            },
            eni: eni.to_string(),
            ask: ask(Some(*blocks)),
            reassign: false,
        }),
        Step::Mark { eni, attachment } => Call::Modify(Modify {
            eni: eni.to_string(),
            change: Change::DeleteOnTermination {
                attachment: attachment.to_string(),
                value: true,
            },
        }),
        Step::Group { eni, groups } => Call::Modify(Modify {
            eni: eni.to_string(),
            change: Change::Groups(groups.iter().map(ToString::to_string).collect()),
        }),
        Step::Unassign { eni, blocks } => unassign(eni, blocks),
        Step::Detach { attachment, .. } => Call::Detach(attachment.to_string()),
        Step::Delete { eni } => Call::Delete(eni.to_string()),
        Step::Associate {
            eni, allocation, ..
        } => Call::Associate(Associate {
            allocation: allocation.to_string(),
            instance: None,
            eni: Some(eni.to_string()),
            private: None,
            reassociate: false,
        }),
    }
}

fn unassign(eni: &EniId, blocks: &BTreeSet<IpNet>) -> Call {
    let is_single = |block: &&IpNet| block.prefix_len() == block.max_prefix_len();
    let (single, prefixes): (Vec<&IpNet>, Vec<&IpNet>) = blocks.iter().partition(is_single);
    Call::Unassign(Assign {
        family: Family::V4,
        eni: eni.to_string(),
        ask: Ask {
            addresses: single.into_iter().map(IpNet::addr).collect(),
            prefixes: prefixes.into_iter().copied().collect(),
            ..Ask::default()
        },
        reassign: false,
    })
}

pub(crate) fn failure(action: Action, failure: &ec2_fake::Failure) -> Failure {
    Failure::answered(action, failure.status(), &failure.code, &failure.message)
}

pub(crate) fn outcome(step: &Step, answer: ec2_fake::Result<Answer>) -> Outcome {
    match answer {
        Err(error) => Outcome::Failed(failure(step.action(), &error)),
        Ok(Answer::Created { eni: it, .. }) => Outcome::Created(Box::new(eni(&it))),
        Ok(Answer::Attached { attachment, .. }) => Outcome::Attached(attachment.as_str().into()),
        Ok(Answer::Assigned { blocks, .. }) => Outcome::Assigned(blocks.into_iter().collect()),
        Ok(_) => Outcome::Done,
    }
}

pub(crate) fn eni(it: &ec2_fake::Eni) -> Eni {
    let mut mac = [0; 6];
    for (byte, text) in mac.iter_mut().zip(it.mac.split(':')) {
        *byte = u8::from_str_radix(text, 16).unwrap();
    }
    let addresses = &it.addresses;
    Eni {
        id: it.id.as_str().into(),
        placement: Placement {
            vpc: it.placement.vpc.as_str().into(),
            subnet: it.placement.subnet.as_str().into(),
            zone: it.placement.zone.clone(),
        },
        mac,
        kind: InterfaceKind::parse(&it.kind),
        description: it.description.clone(),
        own: addresses.primary,
        public: addresses
            .primary
            .and_then(|own| addresses.public.get(&own))
            .map(|it| it.ip),
        blocks: addresses.blocks.clone(),
        groups: it
            .groups
            .iter()
            .map(|id| GroupId::from(id.as_str()))
            .collect(),
        tags: it.tags.clone(),
        is_pending: it.is_pending,
        attachment: it.attachment.as_ref().map(|at| Attachment {
            id: at.id.as_str().into(),
            instance: Some(at.instance.as_str().into()),
            index: at.index,
            card: at.card,
            state: match at.state {
                ec2_fake::AttachState::Attaching => AttachState::Attaching,
                ec2_fake::AttachState::Attached => AttachState::Attached,
                ec2_fake::AttachState::Detaching => AttachState::Detaching,
            },
            delete_on_termination: at.delete_on_termination,
        }),
    }
}

fn filter<T: ToString>(name: &str, values: impl IntoIterator<Item = T>) -> Filter {
    Filter {
        name: name.to_owned(),
        values: values.into_iter().map(|it| it.to_string()).collect(),
    }
}

pub(crate) fn describe(query: &Query, cluster: &str) -> Call {
    let vpcs = (!query.vpcs.is_empty()).then(|| filter("vpc-id", &query.vpcs));
    let (what, filters, max) = match &query.what {
        What::Enis(Scope::All) => (ec2_fake::What::Interfaces, vec![], 500),
        What::Enis(Scope::Loose) => {
            let tag = filter(&format!("tag:{}", cloud::object::tags::CLUSTER), [cluster]);
            let filters = vec![filter("status", ["available"]), tag];
            (ec2_fake::What::Interfaces, filters, 500)
        }
        What::Enis(Scope::Primaries) => {
            let filters = vec![filter("attachment.device-index", ["0"])];
            (ec2_fake::What::Interfaces, filters, 1_000)
        }
        What::Enis(Scope::Instances(ids)) => {
            let filters = vec![filter("attachment.instance-id", ids)];
            (ec2_fake::What::Interfaces, filters, 1_000)
        }
        What::Enis(Scope::Ids(ids)) => {
            let filters = vec![filter("network-interface-id", ids)];
            (ec2_fake::What::Interfaces, filters, 1_000)
        }
        What::Instances(ids) => {
            let filters = vec![filter("instance-id", ids)];
            (ec2_fake::What::Instances, filters, 1_000)
        }
        What::Subnets => (ec2_fake::What::Subnets, vec![], 1_000),
        What::RouteTables => (ec2_fake::What::RouteTables, vec![], 100),
        What::Groups => (ec2_fake::What::Groups, vec![], 1_000),
        What::Vpcs => (ec2_fake::What::Vpcs, vec![], 1_000),
        What::Types(names) => {
            let filters = vec![filter("instance-type", names)];
            (ec2_fake::What::InstanceTypes, filters, 100)
        }
        What::Addresses => (ec2_fake::What::Addresses, vec![], 0),
    };
    Call::Describe(Describe {
        what,
        ids: Vec::new(),
        filters: filters.into_iter().chain(vpcs).collect(),
        max: Some(max).filter(|it| *it > 0),
        next: query.page.clone(),
    })
}

pub(crate) fn page(query: &Query, page: ec2_fake::Page) -> Page {
    let mut items = query.what.items();
    for item in page.items {
        assert!(items.extend(one(item)));
    }
    Page {
        items,
        next: page.next,
    }
}

fn one(item: Item) -> Items {
    match item {
        Item::Interface(it) => Items::Enis(vec![eni(&it)]),
        Item::Instance(it, _) => Items::Instances(vec![Instance {
            id: it.id.as_str().into(),
            kind: it.kind.clone(),
            state: InstanceState::parse(it.state.wire().1),
            vpc: Some(it.vpc.as_str().into()),
            subnet: Some(it.subnet.as_str().into()),
            zone: it.zone.clone(),
            tags: it.tags.clone(),
        }]),
        Item::Subnet(it, free) => Items::Subnets(vec![subnet(it, free)]),
        Item::RouteTable(it) => Items::RouteTables(vec![RouteTable {
            id: it.id.as_str().into(),
            vpc: it.vpc.as_str().into(),
            is_main: it.main,
            subnets: it
                .subnets
                .iter()
                .map(|id| SubnetId::from(id.as_str()))
                .collect(),
        }]),
        Item::Group(it) => Items::Groups(vec![Group {
            id: it.id.as_str().into(),
            vpc: it.vpc.as_str().into(),
            tags: it.tags,
        }]),
        Item::Vpc(it) => {
            let (first, rest) = it.cidrs.split_first().unwrap();
            Items::Vpcs(vec![Vpc {
                id: it.id.as_str().into(),
                primary: *first,
                others: rest.iter().copied().collect::<BTreeSet<IpNet>>(),
            }])
        }
        Item::Type(it) => Items::Types(vec![TypeInfo {
            name: it.name.to_owned(),
            enis: it.all_interfaces(),
            cards: (0..it.cards).map(|card| (card, it.interfaces)).collect(),
            ipv4_per_eni: u16::try_from(it.ipv4).unwrap(),
            ipv6_per_eni: u16::try_from(it.ipv6).unwrap(),
            hypervisor: it.hypervisor.unwrap_or_default().to_owned(),
            bare_metal: it.hypervisor.is_none(),
        }]),
        Item::Address(it, _) => Items::Addresses(vec![Elastic {
            id: it.id.as_str().into(),
            address: it.ip,
            association: it.association.map(|(_, eni, private)| Association {
                eni: Some(eni.as_str().into()),
                private: Some(private),
            }),
            tags: it.tags,
        }]),
        Item::Tag { .. } => panic!("nobody reads {item:?}"),
    }
}

fn subnet(it: ec2_fake::world::Subnet, free: u128) -> Subnet {
    Subnet {
        id: it.id.as_str().into(),
        vpc: it.vpc.as_str().into(),
        zone: it.zone,
        ipv4: it.ipv4.and_then(|net| match net {
            IpNet::V4(net) => Some(net),
            IpNet::V6(_) => None,
        }),
        ipv6: it.ipv6.and_then(|net| match net {
            IpNet::V4(_) => None,
            IpNet::V6(net) => Some(net),
        }),
        free: u32::try_from(free).unwrap_or(u32::MAX),
        tags: it.tags,
        route_table: None,
    }
}
