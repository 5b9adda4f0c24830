//! Bad documents while the agent runs: the last good state is kept, and the status reports the
//! fault. A bad entry affects only itself.

use serde_json::{Value, json};
use testkit::fabric::eventually::check;
use testkit::fabric::state::difference;
use testkit::fabric::{Fabric, Spec};

use crate::support::{CHANGE, End, PEER, carry_all, get, nothing_differs, within};

/// A spoiled field of an ENI's entry, and the text that must name it.
fn spoiled_entries() -> Vec<(&'static str, Value, &'static [&'static str])> {
    vec![
        // First, after a good document: other entries have the same error text.
        ("mac", Value::Null, &["mac"]),
        ("mac", json!("06:7e:00:00:00"), &["mac", "06:7e:00:00:00"]),
        (
            "mac",
            json!("01:00:5e:00:00:01"),
            &["mac", "01:00:5e:00:00:01"],
        ),
        (
            "mac",
            json!("06:7e:00:00:00:00"),
            &["mac", "06:7e:00:00:00:00"],
        ),
        ("number", json!(0), &["number", "0"]),
        ("number", json!(-1), &["number", "-1"]),
        ("number", json!("one"), &["number", "one"]),
        ("ip", json!("10.0.1"), &["ip", "10.0.1"]),
        ("ip", json!("10.0.9.10"), &["ip", "10.0.9.10"]),
        (
            "subnet",
            json!({"cidr": "10.0.1.0/33"}),
            &["subnet.cidr", "10.0.1.0/33"],
        ),
        (
            "subnet",
            json!({"cidr": "10.0.1.7/24"}),
            &["subnet.cidr", "10.0.1.7/24"],
        ),
        (
            "vpc",
            json!({"primary-cidr": "ten"}),
            &["vpc.primary-cidr", "ten"],
        ),
        (
            "addresses",
            json!(["10.0.1.300"]),
            &["addresses", "10.0.1.300"],
        ),
        (
            "addresses",
            json!(["10.0.0.20"]),
            &["addresses", "10.0.0.20"],
        ),
        ("addresses", json!("10.0.1.21"), &["addresses", "10.0.1.21"]),
        // The next ENI in the subnet has addresses of it.
        (
            "prefixes",
            json!(["10.0.1.16/28"]),
            &["prefixes", "10.0.1.16/28"],
        ),
        (
            "prefixes",
            json!(["10.0.7.0/28"]),
            &["prefixes", "10.0.7.0/28"],
        ),
        (
            "prefixes",
            json!(["10.0.1.64/29"]),
            &["prefixes", "10.0.1.64/29"],
        ),
        (
            "ipv6-prefixes",
            json!(["2600::/64"]),
            &["ipv6-prefixes", "2600::/64"],
        ),
    ]
}

/// Expects that the document's error contains all of this, and that the state does not change.
fn refused(fabric: &Fabric, generation: u64, what: &str, names: &[&str]) -> Result<(), String> {
    let reported = testkit::fabric::eventually::eventually(CHANGE, what, || {
        let status = fabric.agent.ask("GET", "/v1/status", None)?;
        let document = &status["document"];
        let error = document["error"].as_str().unwrap_or_default();
        check(
            names.iter().all(|name| error.contains(name)) && !error.is_empty(),
            || format!("{what}: the error must name {names:?}: {document}"),
        )?;
        check(document["generation"] == generation, || {
            document.to_string()
        })?;
        check(status["health"]["state"] == "degraded", || {
            status["health"].to_string()
        })
    });
    reported.map(drop).map_err(|error| format!("{error:#}"))
}

#[test]
fn a_bad_document_leaves_the_last_good_state() {
    let spec = Spec {
        enis: 3,
        shared_subnet: true,
        ..Spec::default()
    };
    let mut fabric = Fabric::ready(&spec).unwrap();
    let pods = [fabric.add_pod(0, 0).unwrap(), fabric.add_pod(1, 0).unwrap()];
    let good = fabric.document();
    let whole = fabric.state().unwrap();
    let mut generation = get(&fabric, "/v1/status")["document"]["generation"]
        .as_u64()
        .unwrap();
    let mut failures = Vec::new();

    let text = serde_json::to_string(&good).unwrap();
    let texts = [
        ("empty", String::new()),
        ("cut short", text[..text.len() / 2].to_owned()),
        ("not a document", "[1, 2]".to_owned()),
        (
            "another kind",
            r#"{"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "x"}}"#.to_owned(),
        ),
        ("binary", "\u{0}\u{1}\u{2}".to_owned()),
    ];
    for (what, text) in texts {
        fabric.agent.write_document_text(&text).unwrap();
        failures.extend(refused(&fabric, generation, what, &[]).err());
        fabric.agent.write_document(&good).unwrap();
        generation = accepted(&fabric, generation);
    }
    assert!(failures.is_empty(), "{}", failures.join("\n"));
    std::fs::remove_file(fabric.agent.document_path()).unwrap();
    refused(&fabric, generation, "removed", &[]).unwrap();

    assert_eq!(difference(&whole, &fabric.state().unwrap()), "");
    for (pod, eni) in pods.iter().zip([0, 1]) {
        carry_all(&fabric, End::Pod(pod), PEER, &[eni]);
    }
    fabric.agent.write_document(&good).unwrap();
    accepted(&fabric, generation);
    within(CHANGE, "all is well", || nothing_differs(&fabric));
    fabric.finish().unwrap();
}

/// Expects that the status of ENI 2 contains all of this, and that the other ENIs are ready.
fn named(fabric: &Fabric, id: &str, what: &str, names: &[&str]) -> Result<(), String> {
    let reported = testkit::fabric::eventually::eventually(CHANGE, what, || {
        let status = fabric.agent.ask("GET", "/v1/status", None)?;
        let document = &status["document"];
        check(document["error"].is_null(), || document.to_string())?;
        let enis = status["enis"].as_array().into_iter().flatten();
        let (spoiled, others): (Vec<_>, Vec<_>) = enis.partition(|eni| eni["id"] == id);
        for eni in others {
            check(eni["readiness"]["state"] == "ready", || eni.to_string())?;
        }
        let reasons = spoiled
            .iter()
            .map(|eni| eni["readiness"]["reason"].to_string());
        let text = format!("{} {}", document["refused"], reasons.collect::<String>());
        check(names.iter().all(|name| text.contains(name)), || {
            format!("{what}: {names:?} must be named: {text}")
        })
    });
    reported.map(drop).map_err(|error| format!("{error:#}"))
}

/// The setup of a running pod outlives a bad entry of its ENI, and the pods of other ENIs are added
/// all the time.
#[test]
fn a_bad_entry_costs_nothing_but_itself() {
    let spec = Spec {
        enis: 3,
        shared_subnet: true,
        ..Spec::default()
    };
    let mut fabric = Fabric::ready(&spec).unwrap();
    let pods = [fabric.add_pod(1, 0).unwrap(), fabric.add_pod(2, 0).unwrap()];
    let good = fabric.document();
    let id = fabric.eni(2).unwrap().id();
    let mut failures = Vec::new();
    for (field, value, names) in spoiled_entries() {
        let mut document = good.clone();
        document["status"]["eni"]["enis"][&id][field] = value.clone();
        fabric.agent.write_document(&document).unwrap();
        let what = format!("{field} = {value}");
        failures.extend(named(&fabric, &id, &what, names).err());
    }
    assert!(failures.is_empty(), "{}", failures.join("\n"));
    for (pod, eni) in pods.iter().zip([1, 2]) {
        carry_all(&fabric, End::Pod(pod), PEER, &[eni]);
    }
    let late = fabric.add_pod(1, 1).unwrap();
    carry_all(&fabric, End::Pod(&late), PEER, &[1]);
    fabric.agent.write_document(&good).unwrap();
    within(CHANGE, "all is well", || nothing_differs(&fabric));
    fabric.finish().unwrap();
}

/// Bad entries of an instance with several network cards, and of a careless operator, for a
/// document of two good ENIs.
fn bad_neighbours() -> Vec<Value> {
    let vpc = json!({"id": "v", "primary-cidr": "10.0.0.0/16"});
    let subnet = json!({"id": "s", "cidr": "10.0.2.0/24"});
    vec![
        json!({"ip": "10.0.2.10", "mac": "0a:00:00:00:00:12", "number": 1, "subnet": subnet, "vpc": vpc}),
        json!({"ip": "10.0.2.10", "mac": "0a:00:00:00:00:12", "number": 0, "subnet": subnet, "vpc": vpc}),
        json!({"ip": "10.0.2.10", "mac": "", "number": 2, "subnet": subnet, "vpc": vpc}),
        json!({"ip": "", "mac": "0a:00:00:00:00:12", "number": 2, "subnet": subnet, "vpc": vpc}),
        json!({"ip": "10.0.2.10", "mac": "0a:00:00:00:00:12", "number": 2, "subnet": {}, "vpc": vpc}),
        json!({"ip": "10.0.2.10", "mac": "0a:00:00:00:00:12", "number": 2, "subnet": subnet, "vpc": {}}),
        json!({"number": "x", "addresses": {}}),
        Value::Null,
    ]
}

/// An agent that starts with such a document serves its good ENIs from the beginning.
#[test]
fn an_agent_starts_with_a_bad_entry() {
    let mut fabric = Fabric::create(&Spec::default()).unwrap();
    let mut document = fabric.document();
    for (i, entry) in bad_neighbours().into_iter().enumerate() {
        document["status"]["eni"]["enis"][format!("eni-bad{i}")] = entry;
    }
    fabric.agent.write_document(&document).unwrap();
    fabric.agent.start(&fabric.node, &[]).unwrap();
    within(CHANGE, "the good ENIs are ready", || {
        let status = fabric.agent.ask("GET", "/v1/status", None)?;
        let enis = status["enis"].as_array().into_iter().flatten();
        let ready = enis.filter(|eni| eni["readiness"]["state"] == "ready");
        check(ready.count() == 2, || status["enis"].to_string())?;
        check(status["health"]["state"] == "degraded", || {
            status["health"].to_string()
        })
    });
    let pods = [fabric.add_pod(0, 0).unwrap(), fabric.add_pod(1, 0).unwrap()];
    for (pod, eni) in pods.iter().zip([0, 1]) {
        carry_all(&fabric, End::Pod(pod), PEER, &[eni]);
    }
    fabric.finish().unwrap();
}

/// Waits until a good document was read, and returns the new generation.
#[track_caller]
fn accepted(fabric: &Fabric, generation: u64) -> u64 {
    within(CHANGE, "the good document is taken", || {
        let status = fabric.agent.ask("GET", "/v1/status", None)?;
        let document = &status["document"];
        check(document["error"].is_null(), || document.to_string())?;
        let new = document["generation"].as_u64().unwrap_or_default();
        check(new >= generation, || document.to_string())?;
        Ok(new)
    })
}

#[test]
fn an_agent_waits_for_its_first_good_document() {
    let mut fabric = Fabric::create(&Spec::default()).unwrap();
    fabric.agent.write_document_text("{").unwrap();
    fabric.agent.start(&fabric.node, &[]).unwrap();
    within(CHANGE, "the agent says what is wrong", || {
        let status = fabric.agent.ask("GET", "/v1/status", None)?;
        check(status["health"]["state"] == "not-ready", || {
            status["health"].to_string()
        })?;
        check(status["document"]["error"].is_string(), || {
            status["document"].to_string()
        })
    });
    fabric.publish().unwrap();
    fabric.wait_until_ready().unwrap();
    let pod = fabric.add_pod(1, 0).unwrap();
    carry_all(&fabric, End::Pod(&pod), PEER, &[1]);
    fabric.finish().unwrap();
}

#[test]
fn an_absurd_mtu_is_refused_by_its_name() {
    let fabric = Fabric::create(&Spec::default()).unwrap();
    for mtu in ["-1", "0", "68", "1279", "9002", "4294967296", "big"] {
        let path = fabric.agent.config_path().with_file_name("bad.yaml");
        std::fs::write(&path, format!("endpoint:\n  mtu: {mtu}\n")).unwrap();
        let path = path.display().to_string();
        let answer = fabric
            .agent
            .cli(&fabric.node, &["config", "check", &path])
            .unwrap();
        let said =
            String::from_utf8_lossy(&answer.stderr) + String::from_utf8_lossy(&answer.stdout);
        assert!(!answer.status.success(), "{mtu} was accepted");
        assert!(
            said.contains("endpoint.mtu") && said.contains(mtu),
            "{said}"
        );
    }
    fabric.finish().unwrap();
}
