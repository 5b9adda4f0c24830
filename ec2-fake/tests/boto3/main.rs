//! The fake, driven by boto3: Amazon's own client is the judge of its protocol.

#![expect(clippy::unwrap_used, reason = "a test fails by a panic")]

use std::path::PathBuf;
use std::process::Command;

use ec2_fake::server::{Fake, serve};
use ec2_fake::world::World;
use ec2_fake::{Cloud, Fault, FaultKind, Settings, Span};
use jiff::Timestamp;
use serde_json::json;
use tokio::net::TcpListener;

/// Names the virtual environment that has boto3.
const VARIABLE: &str = "TOWPATH_BOTO3";

fn world() -> World {
    let document = json!({
        "vpcs": [
            {"id": "vpc-1", "cidrs": ["10.0.0.0/16", "100.64.0.0/16", "2001:db8::/56"]},
            {"id": "vpc-2", "cidrs": ["10.1.0.0/16"]}
        ],
        "subnets": [
            {"id": "subnet-a", "vpc": "vpc-1", "zone": "eu-central-1a", "ipv4": "10.0.0.0/24",
             "ipv6": "2001:db8::/64",
             "tags": {"role": "pods", "empty": "", "text": "<a> & \"b\""}},
            {"id": "subnet-b", "vpc": "vpc-1", "zone": "eu-central-1b", "ipv4": "10.0.1.0/28"},
            {"id": "subnet-6", "vpc": "vpc-1", "zone": "eu-central-1b", "ipv6": "2001:db8:0:1::/64"}
        ],
        "route_tables": [
            {"id": "rtb-1", "vpc": "vpc-1", "main": true, "subnets": ["subnet-a"],
             "routes": {"10.0.0.0/16": "local", "0.0.0.0/0": "nat-1", "::/0": "eigw-1"}}
        ],
        "groups": [
            {"id": "sg-1", "vpc": "vpc-1", "name": "default",
             "tags": {"kubernetes.io/cluster/c": "owned"}},
            {"id": "sg-2", "vpc": "vpc-1", "name": "other"},
            {"id": "sg-9", "vpc": "vpc-2", "name": "default"}
        ],
        "instances": [
            {"id": "i-1", "type": "m5.large", "subnet": "subnet-a", "groups": ["sg-1"]},
            {"id": "i-2", "type": "m5.large", "subnet": "subnet-a"},
            {"id": "i-3", "type": "m5.large", "subnet": "subnet-b"},
            {"id": "i-4", "type": "m5.large", "subnet": "subnet-6"},
            {"id": "i-5", "type": "m5.large", "subnet": "subnet-a", "interface_limit": 1}
        ],
        "addresses": [{"id": "eipalloc-1", "ip": "198.51.100.1"}],
        "principals": {
            "OPERATOR": {"secret": "secret"},
            "EXPIRED": {"secret": "secret", "expired": true},
            "NOBODY": {"secret": "secret", "policy": {"Version": "2012-10-17", "Statement": []}}
        }
    });
    World {
        settings: Settings::immediate(),
        ..serde_json::from_value(document).unwrap()
    }
}

/// Runs a case of `drive.py` against a server of a world, and returns the fake.
fn drive(case: &str, world: &World) -> Fake {
    let folder = std::env::var_os(VARIABLE).map(PathBuf::from);
    let folder = folder.unwrap_or_else(|| panic!("set {VARIABLE}, or: cargo xtask test cloud"));
    let mut cloud = Cloud::build(world, Timestamp::now()).unwrap();
    cloud.terminate("i-4", Timestamp::now()).unwrap();
    let fake = Fake::new(cloud, Box::new(|_, _| ()));
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .unwrap();
    let listener = runtime.block_on(TcpListener::bind("127.0.0.1:0")).unwrap();
    let address = listener.local_addr().unwrap();
    let shared = fake.clone();
    std::thread::spawn(move || {
        let served = runtime.block_on(serve(listener, shared));
        served.map(|never| match never {}).unwrap();
    });
    let output = Command::new(folder.join("bin/python"))
        .arg(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/boto3/drive.py"))
        .args([case, &format!("http://{address}")])
        .output()
        .unwrap_or_else(|error| panic!("{}: {error}", folder.display()));
    let stderr = String::from_utf8_lossy(&output.stderr);
    assert!(
        output.status.success(),
        "{case}: {}\n{stderr}",
        output.status
    );
    fake.peek(|cloud| cloud.check().unwrap());
    fake
}

#[test]
fn every_listing_is_read() {
    drive("listings", &world());
}

#[test]
fn every_change_is_made_and_read_back() {
    drive("changes", &world());
}

#[test]
fn listings_are_read_in_pages() {
    drive("pages", &world());
}

#[test]
fn every_action_is_tried_by_callers_with_and_without_rights() {
    let fake = drive("trials", &world());
    let mut judged: Vec<_> = fake.peek(|cloud| {
        let denied = cloud.log().filter(|it| it.caller == "NOBODY");
        denied.map(|it| it.action).collect()
    });
    judged.sort_unstable();
    assert_eq!(judged.len(), 22, "{judged:?}");
    judged.dedup();
    assert_eq!(judged.len(), 22, "{judged:?}");
}

#[test]
fn callers_are_known_by_their_signatures() {
    drive("callers", &world());
}

#[test]
fn every_error_has_its_code() {
    drive("errors", &world());
}

#[test]
fn limits_of_the_account_and_of_calls_are_kept() {
    let settings = json!({
        "interface_quota": 1,
        "rates": {"DescribeVpcs": {"burst": 2.0, "refill": 0.0}}
    });
    let world = World {
        settings: serde_json::from_value(settings).unwrap(),
        ..world()
    };
    drive("limits", &world);
}

#[test]
fn answers_are_lost_late_and_broken() {
    let kinds = [
        FaultKind::Refused("InternalError".to_owned()),
        FaultKind::Unheard,
        FaultKind::AnswerLost,
        FaultKind::Cut,
        FaultKind::Garbage,
        FaultKind::Late(3_000),
        FaultKind::Twice,
    ];
    let fault = |kind| Fault {
        action: "CreateNetworkInterface".to_owned(),
        names: None,
        skip: 0,
        count: 1,
        kind,
    };
    let world = World {
        faults: kinds.map(fault).into(),
        ..world()
    };
    drive("faults", &world);
}

#[test]
fn states_and_lag_are_seen() {
    let settings = Settings {
        unknown: Span::new(2_000, 2_000),
        attach: Span::new(600_000, 600_000),
        ..Settings::immediate()
    };
    let world = World {
        settings,
        ..world()
    };
    drive("delays", &world);
}
