//! A small cloud for unit tests.

use jiff::{SignedDuration, Timestamp};
use serde_json::json;

use crate::call::{Call, Create, Request};
use crate::cloud::{Cloud, Reply};
use crate::settings::Settings;
use crate::space::Ask;
use crate::world::World;
use crate::{Answer, Attach};

pub(crate) const NOW: Timestamp = Timestamp::UNIX_EPOCH;

/// Two zones, two subnets, a group for each purpose, instances of three types.
pub(crate) fn world() -> World {
    let document = json!({
        "vpcs": [{"id": "vpc-1", "cidrs": ["10.0.0.0/16"]}, {"id": "vpc-2", "cidrs": ["10.1.0.0/16"]}],
        "subnets": [
            {"id": "subnet-a", "vpc": "vpc-1", "zone": "a", "ipv4": "10.0.0.0/24",
             "ipv6": "2001:db8::/64", "tags": {"role": "pods"}},
            {"id": "subnet-b", "vpc": "vpc-1", "zone": "b", "ipv4": "10.0.1.0/26"}
        ],
        "groups": [
            {"id": "sg-1", "vpc": "vpc-1", "name": "default"},
            {"id": "sg-2", "vpc": "vpc-1", "name": "other"},
            {"id": "sg-9", "vpc": "vpc-2", "name": "default"}
        ],
        "instances": [
            {"id": "i-1", "type": "m5.large", "subnet": "subnet-a", "groups": ["sg-1"]},
            {"id": "i-2", "type": "m4.large", "subnet": "subnet-a"},
            {"id": "i-3", "type": "m5.large", "subnet": "subnet-b"}
        ],
        "addresses": [{"id": "eipalloc-1", "ip": "198.51.100.1"}]
    });
    let world: World = serde_json::from_value(document).unwrap();
    World {
        settings: Settings::immediate(),
        ..world
    }
}

pub(crate) fn cloud() -> Cloud {
    Cloud::build(&world(), NOW).unwrap()
}

pub(crate) fn at(seconds: i64) -> Timestamp {
    NOW + SignedDuration::from_secs(seconds)
}

pub(crate) fn call_at(cloud: &mut Cloud, now: Timestamp, call: Call) -> Reply {
    let request = Request {
        call,
        dry_run: false,
    };
    cloud.call(now, "test", &request)
}

/// The answer of a call; the cloud is checked after it.
pub(crate) fn call(cloud: &mut Cloud, call: Call) -> crate::Result<Answer> {
    let outcome = call_at(cloud, NOW, call).outcome;
    cloud.check().unwrap();
    outcome
}

pub(crate) fn code(outcome: crate::Result<Answer>) -> String {
    outcome.unwrap_err().code
}

pub(crate) fn creation() -> Create {
    Create {
        subnet: "subnet-a".to_owned(),
        ..Create::default()
    }
}

pub(crate) fn prefixes(prefix_count: usize) -> Ask {
    Ask {
        prefix_count,
        ..Ask::default()
    }
}

/// A new interface's id.
pub(crate) fn create(cloud: &mut Cloud, create: Create) -> String {
    match call(cloud, Call::Create(Box::new(create))).unwrap() {
        Answer::Created { eni, .. } => eni.id.clone(),
        other => panic!("{other:?}"),
    }
}

pub(crate) fn attachment(eni: &str, instance: &str, index: u16) -> Call {
    Call::Attach(Attach {
        eni: eni.to_owned(),
        instance: instance.to_owned(),
        index,
        card: 0,
    })
}
