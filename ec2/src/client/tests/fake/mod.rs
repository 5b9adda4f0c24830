//! The client against the fake of EC2: calls and answers of both are Amazon's own.

use std::net::SocketAddr;
use std::time::Duration;

use cloud::call::query::{Items, Query, What};
use cloud::inventory::Scope;
use cloud::node::{Blocks, Create, Outcome, Step};
use cloud::{Class, Eni, EniId, InstanceState, Kind, Tags};
use ec2_fake::server::{Fake, serve};
use ec2_fake::world::World;
use ec2_fake::{Cloud, Fault, FaultKind, Settings};
use jiff::Timestamp;
use serde_json::{Value, json};
use tokio::net::TcpListener;

use super::client;
use crate::{Client, Ec2 as _, Verdict};

mod policy;
mod refusals;
mod releases;

const LIMIT: Duration = Duration::from_secs(10);

/// A fake whose only caller is the one of [`client`].
struct Bed {
    fake: Fake,
    address: SocketAddr,
}

fn document() -> Value {
    json!({
        "vpcs": [{"id": "vpc-1", "cidrs": ["10.0.0.0/16", "100.64.0.0/16", "2001:db8::/56"]}],
        "subnets": [
            {"id": "subnet-a", "vpc": "vpc-1", "zone": "eu-central-1a", "ipv4": "10.0.0.0/24",
             "ipv6": "2001:db8::/64", "tags": {"role": "pods"}},
            {"id": "subnet-b", "vpc": "vpc-1", "zone": "eu-central-1b", "ipv4": "10.0.1.0/28"}
        ],
        "route_tables": [
            {"id": "rtb-1", "vpc": "vpc-1", "main": true, "subnets": ["subnet-a"],
             "routes": {"0.0.0.0/0": "igw-1"}}
        ],
        "groups": [
            {"id": "sg-1", "vpc": "vpc-1", "name": "default"},
            {"id": "sg-2", "vpc": "vpc-1", "name": "other", "tags": {"role": "pods"}}
        ],
        "instances": [
            {"id": "i-1", "type": "m5.large", "subnet": "subnet-a", "groups": ["sg-1"]},
            {"id": "i-2", "type": "m5.large", "subnet": "subnet-a", "interface_limit": 1},
            {"id": "i-3", "type": "m5.large", "subnet": "subnet-b"}
        ],
        "addresses": [
            {"id": "eipalloc-1", "ip": "198.51.100.1", "tags": {"role": "egress"}},
            {"id": "eipalloc-2", "ip": "198.51.100.2"}
        ],
        "principals": {"AKIDTEST": {"secret": "secret"}}
    })
}

impl Bed {
    async fn new(document: Value) -> Self {
        let mut world: World = serde_json::from_value(document).unwrap();
        let quota = world.settings.interface_quota;
        let rates = std::mem::take(&mut world.settings.rates);
        world.settings = Settings {
            interface_quota: quota,
            throttle: !rates.is_empty(),
            rates,
            ..Settings::immediate()
        };
        let cloud = Cloud::build(&world, Timestamp::now()).unwrap();
        let fake = Fake::new(cloud, Box::new(|_, _| ()));
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        tokio::spawn(serve(listener, fake.clone()));
        Self { fake, address }
    }

    fn client(&self, limit: Duration) -> Client {
        client(&format!("http://{}", self.address), limit)
    }

    fn interfaces(&self) -> usize {
        self.fake.peek(|cloud| cloud.interfaces().count())
    }

    fn inject(&self, action: &str, kind: FaultKind) {
        let fault = Fault {
            action: action.to_owned(),
            names: None,
            skip: 0,
            count: 1,
            kind,
        };
        self.fake.with(|cloud, _| cloud.inject(fault));
    }
}

/// Reads all pages.
async fn read(client: &Client, what: What) -> Items {
    let mut all = what.items();
    let mut query = Query {
        what,
        vpcs: ["vpc-1".into()].into(),
        page: None,
    };
    loop {
        let page = client.read(&query).await.unwrap();
        assert!(all.extend(page.items));
        query.page = page.next;
        if query.page.is_none() {
            return all;
        }
    }
}

async fn eni(client: &Client, id: &EniId) -> Eni {
    let what = What::Enis(Scope::Ids([id.clone()].into()));
    match read(client, what).await {
        Items::Enis(mut enis) if enis.len() == 1 => enis.remove(0),
        other => panic!("{other:?}"),
    }
}

fn creation() -> Create {
    Create {
        instance: "i-1".into(),
        subnet: "subnet-a".into(),
        groups: ["sg-1".into()].into(),
        description: "towpath".to_owned(),
        ipv4: None,
        ipv6_prefix: false,
        tags: Tags::from([("ipam.towpath.dev/cluster".to_owned(), "blue".to_owned())]),
        token: "token-1".to_owned(),
    }
}

fn assignment(eni: &EniId, kind: Kind, count: u32) -> Step {
    Step::Assign {
        eni: eni.clone(),
        subnet: "subnet-a".into(),
        blocks: Blocks { kind, count },
    }
}

fn attachment(eni: &EniId, instance: &str, index: u16) -> Step {
    Step::Attach {
        eni: eni.clone(),
        instance: instance.into(),
        index,
    }
}

async fn created(client: &Client, create: Create) -> Eni {
    match client.step(&Step::Create(Box::new(create))).await {
        Outcome::Created(eni) => *eni,
        other => panic!("{other:?}"),
    }
}

/// A creation with a token of its own.
fn numbered(number: usize) -> Create {
    Create {
        token: format!("token-{number}"),
        ..creation()
    }
}

/// Asserts that EC2 refuses a step, and the class of the refusal.
async fn refused(client: &Client, step: Step, class: Class) {
    match client.step(&step).await {
        Outcome::Failed(failure) => assert_eq!(failure.class, class, "{failure}"),
        other => panic!("{step:?}: expected {class:?}, found {other:?}"),
    }
}

#[tokio::test]
async fn every_listing_is_read() {
    let bed = Bed::new(document()).await;
    let client = bed.client(LIMIT);
    let Items::Vpcs(vpcs) = read(&client, What::Vpcs).await else {
        panic!("no VPCs");
    };
    assert_eq!(vpcs[0].primary, "10.0.0.0/16".parse().unwrap());
    let others = ["100.64.0.0/16", "2001:db8::/56"].map(|it| it.parse().unwrap());
    assert_eq!(vpcs[0].others, others.into());
    let Items::Subnets(subnets) = read(&client, What::Subnets).await else {
        panic!("no subnets");
    };
    let free: Vec<_> = subnets.iter().map(|it| it.free).collect();
    assert_eq!(free, [256 - 5 - 2, 16 - 5 - 1]);
    assert_eq!(subnets[0].ipv6, Some("2001:db8::/64".parse().unwrap()));
    let Items::RouteTables(tables) = read(&client, What::RouteTables).await else {
        panic!("no route tables");
    };
    assert!(tables[0].is_main);
    assert_eq!(tables[0].subnets, ["subnet-a".into()].into());
    let Items::Groups(groups) = read(&client, What::Groups).await else {
        panic!("no groups");
    };
    assert_eq!(groups[1].tags["role"], "pods");
    let ids = ["i-1".into(), "i-9".into()].into();
    let Items::Instances(instances) = read(&client, What::Instances(ids)).await else {
        panic!("no instances");
    };
    assert_eq!(instances.len(), 1);
    assert_eq!(instances[0].state, InstanceState::Running);
    assert_eq!(instances[0].zone, "eu-central-1a");
    let names = ["c6in.32xlarge".to_owned(), "m5.metal".to_owned()].into();
    let Items::Types(types) = read(&client, What::Types(names)).await else {
        panic!("no types");
    };
    assert_eq!(
        (types[0].enis, &types[0].cards),
        (16, &[(0, 8), (1, 8)].into())
    );
    assert!(types[1].bare_metal);
    let of_instance = Scope::Instances(["i-3".into()].into());
    let Items::Enis(enis) = read(&client, What::Enis(of_instance)).await else {
        panic!("no ENIs");
    };
    let attachment = enis[0].attachment.as_ref().unwrap();
    assert_eq!(
        (attachment.index, attachment.delete_on_termination),
        (0, true)
    );
    assert!(bed.fake.refusals().is_empty(), "{:?}", bed.fake.refusals());
}

#[tokio::test]
async fn listings_are_read_in_pages() {
    let bed = Bed::new(document()).await;
    let client = bed.client(LIMIT);
    let create = ec2_fake::Create {
        subnet: "subnet-a".to_owned(),
        ..ec2_fake::Create::default()
    };
    let request = ec2_fake::Request {
        call: ec2_fake::Call::Create(Box::new(create)),
        dry_run: false,
    };
    for _ in 0..200 {
        let made = bed
            .fake
            .with(|cloud, now| cloud.call(now, "AKIDTEST", &request));
        made.outcome.unwrap();
    }
    let small = Client::new(
        client.config.clone(),
        &crate::Settings {
            page: 50,
            limit: LIMIT,
            ..crate::Settings::default()
        },
    );
    let Items::Enis(loose) = read(&small, What::Enis(Scope::Loose)).await else {
        panic!("no ENIs");
    };
    assert_eq!(loose.len(), 200);
    let pages = bed.fake.peek(|cloud| {
        let log = cloud.log();
        log.filter(|it| it.action == "DescribeNetworkInterfaces")
            .count()
    });
    assert_eq!(pages, 4);
}

#[tokio::test]
async fn every_step_is_made_and_read_back() {
    let bed = Bed::new(document()).await;
    let client = bed.client(LIMIT);
    let create = Create {
        ipv4: Some(Blocks {
            kind: Kind::Prefix,
            count: 2,
        }),
        ipv6_prefix: true,
        ..creation()
    };
    let made = created(&client, create.clone()).await;
    assert_eq!(made.blocks.len(), 3);
    assert_eq!(made.tags["ipam.towpath.dev/cluster"], "blue");
    assert_eq!(created(&client, create).await.id, made.id);
    let attached = client.step(&attachment(&made.id, "i-1", 1)).await;
    let Outcome::Attached(attachment) = attached else {
        panic!("{attached:?}");
    };
    let mark = Step::Mark {
        eni: made.id.clone(),
        attachment: attachment.clone(),
    };
    assert!(matches!(client.step(&mark).await, Outcome::Done));
    let group = Step::Group {
        eni: made.id.clone(),
        groups: ["sg-2".into()].into(),
    };
    assert!(matches!(client.step(&group).await, Outcome::Done));
    for (kind, count) in [(Kind::Address, 2), (Kind::Prefix, 1), (Kind::PrefixV6, 1)] {
        let assigned = client.step(&assignment(&made.id, kind, count)).await;
        let Outcome::Assigned(blocks) = assigned else {
            panic!("{assigned:?}");
        };
        let shown = eni(&client, &made.id).await;
        assert!(blocks.is_subset(&shown.blocks), "{blocks:?} {shown:?}");
    }
    let shown = eni(&client, &made.id).await;
    assert_eq!(shown.groups, ["sg-2".into()].into());
    let found = shown.attachment.unwrap();
    assert_eq!((found.id, found.index, found.card), (attachment, 1, 0));
    assert!(found.delete_on_termination);
    let loose = created(&client, numbered(2)).await;
    let delete = Step::Delete { eni: loose.id };
    assert!(matches!(client.step(&delete).await, Outcome::Done));
    refused(&client, delete, Class::NotFound).await;
    assert!(bed.fake.refusals().is_empty(), "{:?}", bed.fake.refusals());
}

#[tokio::test]
async fn an_elastic_address_is_associated_once_and_shown_by_both_reads() {
    let bed = Bed::new(document()).await;
    let client = bed.client(LIMIT);
    let Items::Addresses(addresses) = read(&client, What::Addresses).await else {
        panic!("no addresses");
    };
    assert_eq!(addresses[0].tags["role"], "egress");
    assert!(addresses.iter().all(|it| it.association.is_none()));
    let primary = |instance: &str| {
        let primary = bed.fake.peek(|cloud| cloud.primary_of(instance));
        EniId::from(primary.unwrap().as_str())
    };
    let associate = |eni: &EniId, number: usize| Step::Associate {
        eni: eni.clone(),
        allocation: addresses[number].id.clone(),
        address: addresses[number].address,
    };
    let (one, two) = (primary("i-1"), primary("i-2"));
    let trial = client.try_step(&associate(&one, 0)).await;
    assert_eq!(trial, Verdict::Allowed);
    // Of two equal calls the second one changes nothing.
    for _ in 0..2 {
        let outcome = client.step(&associate(&one, 0)).await;
        assert!(matches!(outcome, Outcome::Done), "{outcome:?}");
    }
    refused(&client, associate(&two, 0), Class::AddressTaken).await;
    refused(&client, associate(&one, 1), Class::AddressTaken).await;
    assert_eq!(eni(&client, &one).await.public, Some(addresses[0].address));
    let Items::Addresses(shown) = read(&client, What::Addresses).await else {
        panic!("no addresses");
    };
    let association = shown[0].association.as_ref().unwrap();
    assert_eq!(association.eni.as_ref(), Some(&one));
    assert!(shown[1].association.is_none());
    assert!(bed.fake.refusals().is_empty(), "{:?}", bed.fake.refusals());
}

#[tokio::test]
async fn an_answer_that_is_lost_leaves_the_effect_unknown() {
    let bed = Bed::new(document()).await;
    let client = bed.client(Duration::from_millis(1_500));
    let kinds = [
        (FaultKind::Refused("InternalError".to_owned()), 0),
        (FaultKind::Unheard, 0),
        (FaultKind::AnswerLost, 1),
        (FaultKind::Cut, 1),
        (FaultKind::Garbage, 1),
        (FaultKind::Late(60_000), 1),
    ];
    for (number, (kind, more)) in kinds.into_iter().enumerate() {
        let before = bed.interfaces();
        bed.inject("CreateNetworkInterface", kind.clone());
        let create = Step::Create(Box::new(numbered(10 + number)));
        refused(&client, create, Class::Unanswered).await;
        assert_eq!(bed.interfaces() - before, more, "{kind:?}");
    }
    bed.inject("CreateNetworkInterface", FaultKind::Twice);
    let before = bed.interfaces();
    created(&client, numbered(20)).await;
    assert_eq!(bed.interfaces() - before, 1, "the token makes it one");
}
