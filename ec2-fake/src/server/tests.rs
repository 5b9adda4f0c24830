use std::io::{Read as _, Write as _};
use std::net::{SocketAddr, TcpStream};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use jiff::SignedDuration;
use tokio::net::TcpListener;

use super::{Fake, serve};
use crate::cloud::{Cloud, Effect};
use crate::fault::{Fault, FaultKind};
use crate::fixture::{create, creation, world};
use crate::settings::{Settings, Span};

/// A server, and the effects that it carried out.
struct Bed {
    fake: Fake,
    address: SocketAddr,
    effects: Arc<Mutex<Vec<Effect>>>,
}

impl Bed {
    async fn new(settings: Settings) -> Self {
        let world = crate::world::World {
            settings,
            ..world()
        };
        let cloud = Cloud::build(&world, jiff::Timestamp::now()).unwrap();
        let effects = Arc::new(Mutex::new(Vec::new()));
        let seen = Arc::clone(&effects);
        let fake = Fake::new(cloud, Box::new(move |_, it| seen.lock().unwrap().push(it)));
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        tokio::spawn(serve(listener, fake.clone()));
        Self {
            fake,
            address,
            effects,
        }
    }

    /// All that the server sends for a call, the head included.
    async fn call(&self, form: &str) -> String {
        let request = format!(
            "POST / HTTP/1.1\r\nhost: fake\r\nconnection: close\r\ncontent-length: {}\r\n\r\n{form}",
            form.len()
        );
        self.send(request).await
    }

    async fn send(&self, request: String) -> String {
        let address = self.address;
        let exchange = move || {
            let mut stream = TcpStream::connect(address).unwrap();
            stream
                .set_read_timeout(Some(Duration::from_secs(10)))
                .unwrap();
            stream.write_all(request.as_bytes()).unwrap();
            let mut answer = Vec::new();
            // A connection that the server breaks may end in a reset.
            drop(stream.read_to_end(&mut answer));
            String::from_utf8(answer).unwrap()
        };
        tokio::task::spawn_blocking(exchange).await.unwrap()
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

    fn interfaces(&self) -> usize {
        self.fake.with(|cloud, _| cloud.interfaces().count())
    }
}

const CREATE: &str = "Action=CreateNetworkInterface&Version=2016-11-15&SubnetId=subnet-a";
const VPCS: &str = "Action=DescribeVpcs&Version=2016-11-15";

#[tokio::test]
async fn calls_by_both_methods_are_answered_and_logged() {
    let bed = Bed::new(Settings::immediate()).await;
    let posted = bed.call(VPCS).await;
    assert!(posted.starts_with("HTTP/1.1 200 OK\r\n"), "{posted}");
    assert!(
        posted.contains("content-type: text/xml;charset=UTF-8"),
        "{posted}"
    );
    assert!(
        posted.ends_with("</vpcSet></DescribeVpcsResponse>"),
        "{posted}"
    );
    let got = format!("GET /?{VPCS} HTTP/1.1\r\nhost: fake\r\nconnection: close\r\n\r\n");
    let got = bed.send(got).await;
    assert!(got.ends_with("</vpcSet></DescribeVpcsResponse>"), "{got}");
    let put = bed.send("PUT / HTTP/1.1\r\nhost: fake\r\nconnection: close\r\n\r\n".to_owned());
    assert!(put.await.contains("<Code>UnsupportedOperation</Code>"));
    let refused = bed
        .call(
            "Action=DeleteNetworkInterface&Version=2016-11-15\
                            &NetworkInterfaceId=eni-9",
        )
        .await;
    assert!(refused.starts_with("HTTP/1.1 400 "), "{refused}");
    let log = bed.fake.with(|cloud, _| {
        let log = cloud.log().map(|it| (it.action, it.error.clone()));
        log.collect::<Vec<_>>()
    });
    let error = Some("InvalidNetworkInterfaceID.NotFound".to_owned());
    let expected = [
        ("DescribeVpcs", None),
        ("DescribeVpcs", None),
        ("DeleteNetworkInterface", error),
    ];
    assert_eq!(log, expected);
    let refusals = bed.fake.refusals();
    assert!(
        refusals
            .iter()
            .map(|it| it.code.as_str())
            .eq(["UnsupportedOperation"])
    );
}

#[tokio::test]
async fn a_fault_comes_before_or_after_the_effect() {
    let bed = Bed::new(Settings::immediate()).await;
    let cases = [
        (FaultKind::Refused("InternalError".to_owned()), 0),
        (FaultKind::Unheard, 0),
        (FaultKind::AnswerLost, 1),
        (FaultKind::Cut, 1),
        (FaultKind::Garbage, 1),
        (FaultKind::Late(1), 1),
        (FaultKind::Twice, 2),
    ];
    for (kind, more) in cases {
        let before = bed.interfaces();
        bed.inject("CreateNetworkInterface", kind.clone());
        let answer = bed.call(CREATE).await;
        assert_eq!(bed.interfaces() - before, more, "{kind:?}");
        let whole = answer.ends_with("</CreateNetworkInterfaceResponse>");
        match kind {
            FaultKind::Refused(_) => {
                assert!(answer.starts_with("HTTP/1.1 500 "), "{answer}");
                assert!(answer.contains("<Code>InternalError</Code>"), "{answer}");
            }
            FaultKind::Unheard | FaultKind::AnswerLost => assert_eq!(answer, ""),
            FaultKind::Cut => {
                assert!(
                    answer.contains("<CreateNetworkInterfaceResponse "),
                    "{answer}"
                );
                assert!(!whole, "{answer}");
            }
            FaultKind::Garbage => assert!(answer.ends_with("</html>"), "{answer}"),
            FaultKind::Late(_) | FaultKind::Twice => assert!(whole, "{answer}"),
        }
    }
}

#[tokio::test]
async fn an_answer_that_is_late_comes_after_its_time() {
    let bed = Bed::new(Settings::immediate()).await;
    bed.inject("DescribeVpcs", FaultKind::Late(200));
    let started = std::time::Instant::now();
    assert!(bed.call(VPCS).await.ends_with("</DescribeVpcsResponse>"));
    assert!(started.elapsed() >= Duration::from_millis(200));
}

#[tokio::test]
async fn effects_are_carried_out_before_the_answer_and_when_they_are_due() {
    let settings = Settings {
        attach: Span::new(3_600_000, 3_600_000),
        detach: Span::new(50, 50),
        ..Settings::immediate()
    };
    let bed = Bed::new(settings).await;
    let eni = bed.fake.with(|cloud, _| create(cloud, creation()));
    let call = |rest: &str| format!("Action={rest}&Version=2016-11-15&NetworkInterfaceId={eni}");
    bed.call(&call(
        "AssignPrivateIpAddresses&SecondaryPrivateIpAddressCount=1",
    ))
    .await;
    assert!(matches!(
        bed.effects.lock().unwrap()[..],
        [Effect::Assigned { .. }]
    ));
    let attached = bed
        .call(&call("AttachNetworkInterface&InstanceId=i-1&DeviceIndex=1"))
        .await;
    assert!(
        attached.contains("<networkCardIndex>0</networkCardIndex>"),
        "{attached}"
    );
    assert_eq!(bed.effects.lock().unwrap().len(), 1);
    bed.fake.skip(SignedDuration::from_hours(1));
    assert!(matches!(
        bed.effects.lock().unwrap()[1..],
        [Effect::Attached { .. }]
    ));
    let attachment = bed.fake.with(|cloud, _| {
        let attachment = cloud.interface(&eni).unwrap().attachment.clone();
        attachment.unwrap().id
    });
    bed.call(&format!(
        "Action=DetachNetworkInterface&Version=2016-11-15&AttachmentId={attachment}"
    ))
    .await;
    let limit = std::time::Instant::now() + Duration::from_secs(10);
    let is_free = || {
        // Nothing but the server's own clock may have moved it: no call is made here.
        let state = bed
            .fake
            .peek(|cloud| cloud.interface(&eni).unwrap().attachment.is_none());
        state || std::time::Instant::now() > limit
    };
    while !is_free() {
        tokio::task::yield_now().await;
    }
    assert!(
        bed.fake
            .peek(|cloud| cloud.interface(&eni).unwrap().attachment.is_none())
    );
}

#[tokio::test]
async fn a_body_that_is_too_long_is_refused() {
    let bed = Bed::new(Settings::immediate()).await;
    let answer = bed.call(&"a".repeat((1 << 20) + 1)).await;
    assert!(
        answer.contains("<Code>MalformedQueryString</Code>"),
        "{answer}"
    );
}
