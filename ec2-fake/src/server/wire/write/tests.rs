//! Every name of an answer is in the model.

use super::element::{Content, Element};
use super::{MODEL, answer, failure};
use crate::call::{Assign, Associate, Call, Describe, Modify, What};
use crate::cloud::Cloud;
use crate::error::Failure;
use crate::family::Family;
use crate::fixture::{attachment, call, cloud, create, creation, prefixes, world};
use crate::server::wire::model::Shape;
use crate::space::Ask;
use crate::{Answer, Change};

/// The answer of a call, after its names were looked up in the model.
fn shown(cloud: &mut Cloud, request: &Call) -> Element {
    let outcome = call(cloud, request.clone()).unwrap();
    let shown = answer(cloud, request, &outcome, "request-1");
    let action = &MODEL.actions[request.action()];
    let of_wire = ["requestId", "return"];
    for element in children(&shown) {
        if !of_wire.contains(&element.name.as_str()) {
            let Some(shape) = &action.answer else {
                panic!("{} has no answer, {element:?}", request.action());
            };
            check_member(shape, element, request.action());
        }
    }
    shown
}

fn children(element: &Element) -> &[Element] {
    match &element.content {
        Content::Elements(elements) => elements,
        Content::Text(_) => &[],
    }
}

fn check_member(shape: &str, element: &Element, path: &str) {
    let path = format!("{path}/{}", element.name);
    let inner = match &MODEL.shapes[shape] {
        Shape::List(name, inner) => (name == &element.name).then_some(inner),
        Shape::Structure(members) => members.get(&element.name),
    };
    let Some(inner) = inner else {
        panic!("{path} is not in the model's {shape}");
    };
    match &element.content {
        Content::Text(text) => check_scalar(inner, text, &path),
        Content::Elements(elements) => {
            for element in elements {
                check_member(inner, element, &path);
            }
        }
    }
}

fn check_scalar(kind: &str, text: &str, path: &str) {
    let fits = match kind {
        "string" => true,
        "integer" => text.parse::<i32>().is_ok(),
        "long" => text.parse::<i64>().is_ok(),
        "boolean" => ["true", "false"].contains(&text),
        "timestamp" => text.ends_with('Z') && text.parse::<jiff::Timestamp>().is_ok(),
        _ => false,
    };
    assert!(fits, "{path}: {text:?} is no {kind}");
}

fn listing(what: What, ids: &[&str]) -> Call {
    Call::Describe(Describe {
        what,
        ids: ids.iter().map(|id| (*id).to_owned()).collect(),
        filters: Vec::new(),
        max: None,
        next: None,
    })
}

fn text(element: &Element) -> String {
    String::from_utf8(element.print().unwrap()).unwrap()
}

/// A cloud with an interface of everything, attached, and its id.
fn busy() -> (Cloud, String) {
    let mut world = world();
    let table = serde_json::json!({
        "id": "rtb-1", "vpc": "vpc-1", "main": true, "subnets": ["subnet-a"],
        "routes": {"0.0.0.0/0": "nat-1", "::/0": "eigw-1", "10.0.0.0/16": "local"},
        "tags": {"a": "<b> & \"c\""}
    });
    world
        .route_tables
        .push(serde_json::from_value(table).unwrap());
    let mut cloud = Cloud::build(&world, crate::fixture::NOW).unwrap();
    let eni = create(
        &mut cloud,
        crate::Create {
            ipv4: prefixes(1),
            ipv6: Ask {
                count: 1,
                ..Ask::default()
            },
            tags: [("a".to_owned(), String::new())].into(),
            ..creation()
        },
    );
    call(&mut cloud, attachment(&eni, "i-1", 1)).unwrap();
    cloud.advance(crate::fixture::NOW);
    let associate = Associate {
        allocation: "eipalloc-1".to_owned(),
        instance: None,
        eni: Some(eni.clone()),
        private: None,
        reassociate: false,
    };
    call(&mut cloud, Call::Associate(associate)).unwrap();
    (cloud, eni)
}

#[test]
fn listings_have_names_of_the_model() {
    let (mut cloud, eni) = busy();
    for what in What::ALL {
        let ids: &[&str] = match what {
            What::GroupsForVpc => &["vpc-1"],
            _ => &[],
        };
        let shown = shown(&mut cloud, &listing(what, ids));
        let list = children(&shown)
            .iter()
            .find(|element| element.name.ends_with("Set"));
        let list = list.or_else(|| children(&shown).get(1)).unwrap();
        assert!(!children(list).is_empty(), "{what:?}");
    }
    let interfaces = text(&shown(&mut cloud, &listing(What::Interfaces, &[&eni])));
    for part in [
        "<publicIp>198.51.100.1</publicIp>",
        "<ipv4Prefix>10.0.0.16/28</ipv4Prefix>",
        "<groupName>default</groupName>",
        "<value></value>",
        "<status>attached</status>",
    ] {
        assert!(interfaces.contains(part), "{part}: {interfaces}");
    }
    let tables = text(&shown(&mut cloud, &listing(What::RouteTables, &[])));
    assert!(
        tables.contains("<natGatewayId>nat-1</natGatewayId>"),
        "{tables}"
    );
    assert!(tables.contains("&lt;b&gt; &amp; &quot;c&quot;"), "{tables}");
}

#[test]
fn changes_have_names_of_the_model() {
    let mut cloud = cloud();
    let created = shown(
        &mut cloud,
        &Call::Create(Box::new(crate::Create {
            token: Some("token-1".to_owned()),
            ..creation()
        })),
    );
    let text = text(&created);
    assert!(
        text.contains("<clientToken>token-1</clientToken>"),
        "{text}"
    );
    let (_, rest) = text.split_once("<networkInterfaceId>").unwrap();
    let eni = rest.split('<').next().unwrap().to_owned();
    let assign = |family, ask| Assign {
        family,
        eni: eni.clone(),
        ask,
        reassign: false,
    };
    for family in [Family::V4, Family::V6] {
        let one = Ask {
            count: 1,
            ..Ask::default()
        };
        for ask in [one, prefixes(1)] {
            let request = Call::Assign(assign(family, ask));
            let Ok(Answer::Assigned { blocks, .. }) = call(&mut cloud, request.clone()) else {
                panic!("{request:?}");
            };
            shown(&mut cloud, &request);
            let is_single = blocks[0].prefix_len() == blocks[0].max_prefix_len();
            let mut back = Ask::default();
            if is_single {
                back.addresses.push(blocks[0].addr());
            } else {
                back.prefixes.push(blocks[0]);
            }
            shown(&mut cloud, &Call::Unassign(assign(family, back)));
        }
    }
    shown(&mut cloud, &attachment(&eni, "i-1", 1));
    shown(
        &mut cloud,
        &Call::Modify(Modify {
            eni: eni.clone(),
            change: Change::SourceDestCheck(false),
        }),
    );
}

#[test]
fn an_answer_names_its_action_and_namespace() {
    let mut cloud = cloud();
    let shown = shown(&mut cloud, &listing(What::Vpcs, &["vpc-2"]));
    let start = "<?xml version=\"1.0\" encoding=\"UTF-8\"?>\
        <DescribeVpcsResponse xmlns=\"http://ec2.amazonaws.com/doc/2016-11-15/\">\
        <requestId>request-1</requestId><vpcSet><item><vpcId>vpc-2</vpcId>";
    assert!(text(&shown).starts_with(start), "{}", text(&shown));
}

#[test]
fn an_error_has_its_code_and_message() {
    let shown = failure(&Failure::new("IncorrectState", "a < b"), "request-1");
    let expected = "<?xml version=\"1.0\" encoding=\"UTF-8\"?><Response><Errors><Error>\
        <Code>IncorrectState</Code><Message>a &lt; b</Message></Error></Errors>\
        <RequestID>request-1</RequestID></Response>";
    assert_eq!(text(&shown), expected);
}

#[test]
fn an_instance_that_has_ended_is_in_no_network() {
    let mut cloud = cloud();
    cloud.terminate("i-1", crate::fixture::NOW).unwrap();
    cloud.advance(crate::fixture::NOW);
    let text = text(&shown(&mut cloud, &listing(What::Instances, &["i-1"])));
    assert!(text.contains("<name>terminated</name>"), "{text}");
    assert!(!text.contains("subnetId"), "{text}");
}
