//! Repairs under translated flows and flows from the outside: neither notices.

use std::time::Duration;

use ipam::Family;
use serde_json::json;
use testkit::fabric::eventually::check;
use testkit::fabric::traffic::{Asker, Echo, Session};

use crate::masq::{internet, internet_scene, snat};
use crate::support::within;

/// A pod's host-side device that is made again has another index; the pod is the same.
#[test]
fn connections_outlive_a_host_side_device_that_is_made_anew() {
    let (mut fabric, [_, pod]) = internet_scene(json!({}));
    let addresses = Family::ALL.map(|family| pod.address(family).into());
    fabric.allow_untranslated(&addresses).unwrap();
    let mut sessions = Vec::new();
    let mut askers = Vec::new();
    for family in Family::ALL {
        let (inside, outside) = (pod.at(family), internet(&fabric, family));
        let server = Echo::telling(outside, 0).unwrap();
        for port in [50_300, 33_300] {
            let session = Session::open(inside, port, server.address()).unwrap();
            assert_eq!(session.seen().ip(), snat(&fabric, 1, family));
            sessions.push(session);
        }
        let asker = Asker::open(inside, 0, server.address()).unwrap();
        let seen = asker.ask(7).unwrap();
        let served = Echo::telling(inside, 0).unwrap();
        let session = Session::open(outside, 0, served.address()).unwrap();
        assert_eq!(session.seen().ip(), outside.address);
        sessions.push(session);
        askers.push((asker, seen, server, served));
    }
    let device = pod.host_device();
    let index = || -> anyhow::Result<u64> {
        let links = fabric.node.ip_json(&format!("link show dev {device}"))?;
        Ok(links[0]["ifindex"].as_u64().unwrap_or_default())
    };
    let before = index().unwrap();
    fabric.node.ip(&format!("link del {device}")).unwrap();
    within(Duration::from_secs(2), "another device is there", || {
        check(index()? != before, || "the same".to_owned())
    });
    for session in &mut sessions {
        session.exchange().unwrap();
    }
    for (asker, seen, ..) in &askers {
        within(
            Duration::from_secs(2),
            "datagrams have their port still",
            || {
                let now = asker.ask(7)?;
                check(now == *seen, || format!("{now}, not {seen}"))
            },
        );
    }
    fabric.finish().unwrap();
}
