//! The client of the instance's metadata service.

use std::net::{SocketAddr, TcpListener};
use std::time::{Duration, Instant};

use sources::instance::{ask, cards};
use testkit::kubernetes::MetadataService;

const ANYWHERE: SocketAddr =
    SocketAddr::new(std::net::IpAddr::V4(std::net::Ipv4Addr::LOCALHOST), 0);

#[tokio::test]
async fn it_tells_what_the_instance_is_with_one_token() {
    let service = MetadataService::start(ANYWHERE).unwrap();
    let instance = ask(service.address()).await.unwrap();
    assert_eq!(instance.id, "i-0fab000000000001");
    assert_eq!(instance.kind, "m5.large");
    assert_eq!(instance.vpc_id, "vpc-0fab0000000000001");
    assert_eq!(instance.subnet_id, "subnet-0fab0000000000000");
    assert_eq!(instance.availability_zone, "eu-west-1a");
    assert_eq!(service.tokens(), 1);
    assert_eq!(service.requests(), 7);
}

#[tokio::test]
async fn each_eni_has_its_network_card() {
    let service = MetadataService::start(ANYWHERE).unwrap();
    let macs = [
        "0a:00:00:00:00:10",
        "0a:00:00:00:00:11",
        "0a:00:00:00:00:12",
    ];
    let path = |mac: &str| format!("network/interfaces/macs/{mac}");
    service.set(
        &path(""),
        Some(&macs.map(|mac| format!("{mac}/")).join("\n")),
    );
    service.set(&path(&format!("{}/network-card", macs[1])), Some("0"));
    service.set(&path(&format!("{}/network-card", macs[2])), Some("1"));
    let reported = cards(service.address()).await.unwrap();
    let expected = macs
        .map(|mac| mac.parse().unwrap())
        .into_iter()
        .zip([0, 0, 1]);
    assert_eq!(reported, expected.collect());
    service.set(&path(&format!("{}/network-card", macs[1])), Some("first"));
    let error = cards(service.address()).await.unwrap_err().to_string();
    assert!(
        error.ends_with("allowed: the index of a network card"),
        "{error}"
    );
    service.set(&path(""), Some("<html>"));
    let error = cards(service.address()).await.unwrap_err().to_string();
    assert!(error.contains("\"<html>\" is refused"), "{error}");
}

#[tokio::test]
async fn a_token_that_is_good_no_more_is_replaced() {
    let service = MetadataService::start(ANYWHERE).unwrap();
    // Each answer takes a while, so that the token goes in between.
    service.be_slow(Duration::from_millis(100));
    let asking = tokio::spawn(ask(service.address()));
    let given = async {
        while service.requests() < 3 {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    tokio::time::timeout(Duration::from_secs(10), given)
        .await
        .unwrap();
    service.expire();
    asking.await.unwrap().unwrap();
    assert_eq!(service.tokens(), 2);
}

#[tokio::test]
async fn what_is_out_of_order_for_a_moment_is_asked_again() {
    let service = MetadataService::start(ANYWHERE).unwrap();
    service.fail(3);
    ask(service.address()).await.unwrap();
    service.fail(usize::MAX);
    let began = Instant::now();
    let error = ask(service.address()).await.unwrap_err().to_string();
    assert_eq!(error, "/latest/api/token: answered 503 Service Unavailable");
    // Four waits, each twice the one before.
    assert!(began.elapsed() >= Duration::from_millis(1500));
}

#[tokio::test]
async fn what_it_does_not_have_is_named_and_not_asked_again() {
    let service = MetadataService::start(ANYWHERE).unwrap();
    service.set("instance-type", None);
    let error = ask(service.address()).await.unwrap_err().to_string();
    assert_eq!(
        error,
        "/latest/meta-data/instance-type: answered 404 Not Found"
    );
    assert_eq!(service.requests(), 4);
    service.set("mac", Some("../../latest/user-data"));
    let error = ask(service.address()).await.unwrap_err().to_string();
    assert!(
        error.starts_with(
            "/latest/meta-data/mac: \"../../latest/user-data\" is refused; allowed: a MAC"
        ),
        "{error}"
    );
    service.set("mac", Some(&"0".repeat(4096)));
    let error = ask(service.address()).await.unwrap_err().to_string();
    assert!(error.contains("length limit exceeded"), "{error}");
}

#[tokio::test]
async fn who_is_slow_or_not_there_is_not_waited_for() {
    let service = MetadataService::start(ANYWHERE).unwrap();
    service.be_slow(Duration::from_mins(1));
    let began = Instant::now();
    let error = ask(service.address()).await.unwrap_err().to_string();
    assert_eq!(error, "not all was answered within 5s");
    assert!(began.elapsed() < Duration::from_secs(10));
    let address = {
        let listener = TcpListener::bind(ANYWHERE).unwrap();
        listener.local_addr().unwrap()
    };
    let error = ask(address).await.unwrap_err().to_string();
    assert!(
        error.starts_with("/latest/api/token: no answer: Connection refused"),
        "{error}"
    );
}
