//! Refusals, answers that cannot be read, and calls without an answer.

use std::collections::BTreeSet;
use std::time::Duration;

use cloud::call::query::{Query, What};
use cloud::inventory::Scope;
use cloud::node::{Outcome, Step};
use cloud::{Class, Failure};

use super::played::{Played, Reply};
use super::values::ATTACHED;
use crate::Ec2 as _;

fn delete() -> Step {
    Step::Delete {
        eni: "eni-1".into(),
    }
}

async fn refused(reply: Reply) -> Failure {
    let played = Played::new(vec![reply]).await;
    match played.hasty(Duration::from_secs(1)).step(&delete()).await {
        Outcome::Failed(failure) => {
            assert_eq!(played.requests().len(), 1, "a call is sent once");
            failure
        }
        other => panic!("{other:?}"),
    }
}

async fn unread(content: &str) -> Failure {
    let reply = Reply::ok("DescribeNetworkInterfaces", content);
    let played = Played::new(vec![reply]).await;
    let query = Query {
        what: What::Enis(Scope::All),
        vpcs: BTreeSet::new(),
        page: None,
    };
    played.client().read(&query).await.unwrap_err()
}

#[tokio::test]
async fn codes_have_their_class_and_the_message_has_call_code_and_request() {
    let cases = [
        (400, "InvalidNetworkInterfaceID.NotFound", Class::NotFound),
        (400, "UnauthorizedOperation", Class::Denied),
        (503, "RequestLimitExceeded", Class::Throttled),
        (401, "AuthFailure", Class::Credentials),
        (500, "InternalError", Class::Unanswered),
        (400, "InvalidParameterCombination", Class::Invalid),
    ];
    for (status, code, class) in cases {
        let failure = refused(Reply::error(status, code, "because")).await;
        assert_eq!((failure.class, failure.code.as_str()), (class, code));
        let expected = format!(
            "DeleteNetworkInterface: {code}: because (request ea966190-f9aa-478e-9ede-example)"
        );
        assert_eq!(failure.to_string(), expected);
    }
}

#[tokio::test]
async fn a_read_is_named_by_its_call() {
    let reply = Reply::error(403, "UnauthorizedOperation", "no");
    let played = Played::new(vec![reply]).await;
    let query = Query {
        what: What::Subnets,
        vpcs: BTreeSet::new(),
        page: None,
    };
    let failure = played.client().read(&query).await.unwrap_err();
    let expected = "DescribeSubnets: UnauthorizedOperation: no (request ";
    assert!(failure.to_string().starts_with(expected), "{failure}");
    let counts = played.client().meter().counts();
    assert!(counts.is_empty(), "each client counts its own calls");
}

#[tokio::test]
async fn statuses_without_a_code() {
    let busy = refused(Reply::Body(503, "<html>busy</html>".to_owned())).await;
    assert_eq!(busy.class, Class::Throttled, "{busy}");
    let gateway = refused(Reply::Body(502, "<html>bad gateway</html>".to_owned())).await;
    assert_eq!(gateway.class, Class::Unanswered, "{gateway}");
    assert!(gateway.message.contains("502"), "{gateway}");
    let empty = refused(Reply::Body(504, String::new())).await;
    assert_eq!(empty.class, Class::Unanswered, "{empty}");
}

#[tokio::test]
async fn the_effect_of_a_call_without_an_answer_is_unknown() {
    let done = "<return>true</return>";
    let Reply::Body(_, body) = Reply::ok("DeleteNetworkInterface", done) else {
        unreachable!("an answer has a body");
    };
    for reply in [Reply::Silence, Reply::Close, Reply::Cut(body)] {
        let failure = refused(reply.clone()).await;
        assert_eq!(failure.class, Class::Unanswered, "{reply:?}: {failure}");
        assert_eq!(failure.code, "");
    }
    let late = refused(Reply::Silence).await;
    assert_eq!(
        late.to_string(),
        "DeleteNetworkInterface: no answer: no reply within 1s"
    );
}

#[tokio::test]
async fn an_endpoint_that_is_not_there_is_named() {
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let endpoint = format!("http://{}", listener.local_addr().unwrap());
    drop(listener);
    let client = super::client(&endpoint, Duration::from_secs(5));
    let Outcome::Failed(failure) = client.step(&delete()).await else {
        panic!("expected a failure");
    };
    assert_eq!(failure.class, Class::Unanswered);
    assert!(failure.message.contains("refused"), "{failure}");
}

#[tokio::test]
async fn xml_that_is_cut_or_of_another_shape_fails_the_whole_page() {
    let whole = format!("<networkInterfaceSet>{ATTACHED}</networkInterfaceSet>");
    let cut = unread(&whole[..whole.len() / 2]).await;
    assert_eq!(cut.class, Class::Unanswered, "{cut}");
    let faults = [
        ("<vpcId>vpc-1</vpcId>", "", "eni-2: vpcId"),
        ("02:74:B0", "02:74", "eni-2: macAddress: \"02:74:8B:AC:20\""),
        ("02:74:B0", "02:74:+0", "eni-2: macAddress"),
        (
            ">10.0.0.7<",
            ">10.0.0<",
            "eni-2: privateIpAddressesSet: \"10.0.0\"",
        ),
        (
            "<deviceIndex>1<",
            "<deviceIndex>-1<",
            "eni-2: attachment.deviceIndex",
        ),
        ("eni-attach-2", "", "eni-2: attachment.attachmentId"),
        (">eni-2<", "><", "network interface: networkInterfaceId"),
    ];
    for (found, with, named) in faults {
        let failure = unread(&whole.replace(found, with)).await;
        assert_eq!(failure.class, Class::Unanswered, "{failure}");
        assert!(failure.message.contains(named), "{named}: {failure}");
    }
}

#[tokio::test]
async fn answers_without_xml_are_unread() {
    let played = Played::new(vec![Reply::Body(200, "not XML".to_owned())]).await;
    let query = Query {
        what: What::Vpcs,
        vpcs: BTreeSet::new(),
        page: None,
    };
    let failure = played.client().read(&query).await.unwrap_err();
    assert_eq!(failure.class, Class::Unanswered, "{failure}");
    let expected = "DescribeVpcs: no answer: ";
    assert!(failure.to_string().starts_with(expected), "{failure}");
}

#[tokio::test]
async fn calls_are_counted_by_outcome() {
    let played = Played::new(vec![
        Reply::error(503, "RequestLimitExceeded", "slow down"),
        Reply::ok("DeleteNetworkInterface", "<return>true</return>"),
    ])
    .await;
    let client = played.client();
    for _ in 0..3 {
        client.step(&delete()).await;
    }
    let counts = client.meter().counts();
    let shown: Vec<_> = counts
        .iter()
        .map(|it| (it.call, it.outcome.as_str(), it.calls))
        .collect();
    let call = "DeleteNetworkInterface";
    let expected = ["RequestLimitExceeded", "ok", "unanswered"];
    assert_eq!(shown, expected.map(|outcome| (call, outcome, 1)));
}
