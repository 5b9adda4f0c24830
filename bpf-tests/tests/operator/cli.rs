//! Every verb of the command line, for people and for programs.

use anyhow::{Context as _, Result, anyhow};
use ec2_fake::{Ask, Call, Create, Request};
use serde_json::{Value, json};
use testkit::cloud::{Operator, policy};
use testkit::fabric::eventually::check;

use super::bed::{Bed, instance_id, world};

/// Calls a verb for people and for programs, and returns the JSON. Both end with this code.
fn call(operator: &Operator, verb: &str, code: i32) -> Result<Value> {
    let table = operator.call(verb)?;
    check(table.code == Some(code), || format!("{verb}: {table:?}"))?;
    check(table.error.is_empty(), || format!("{verb}: {table:?}"))?;
    let header = table.output.lines().next().unwrap_or_default();
    let is_header = !header.is_empty() && header == header.to_uppercase();
    check(is_header, || format!("{verb}: {table:?}"))?;
    let document = operator.call(&format!("{verb} -o json"))?;
    check(document.code == Some(code), || {
        format!("{verb}: {document:?}")
    })?;
    serde_json::from_str(&document.output).with_context(|| format!("{verb}: {document:?}"))
}

/// An ENI of a cluster that nothing holds.
fn leave_eni(bed: &Bed, cluster: &str) -> Result<()> {
    let tags = [("ipam.towpath.dev/cluster".to_owned(), cluster.to_owned())];
    let create = Create {
        subnet: "subnet-2".to_owned(),
        description: "left".to_owned(),
        ipv4: Ask::default(),
        tags: tags.into(),
        ..Create::default()
    };
    let request = Request {
        call: Call::Create(Box::new(create)),
        dry_run: false,
    };
    let made = bed
        .cloud
        .with(|cloud, now| cloud.call(now, "any", &request).outcome);
    made.map(drop)
        .map_err(|error| anyhow!("create an ENI: {error:?}"))
}

#[test]
fn every_verb_about_a_running_operator_answers_people_and_programs() {
    let bed = Bed::create(1).unwrap();
    let operator = bed.start(0, &json!({})).unwrap();
    bed.add_node(0, 20).unwrap();
    bed.node_has(0, 20).unwrap();
    let cases = [
        ("nodes", "/0/name", json!("node-0")),
        ("why node-0", "/node/instance", json!(instance_id(0))),
        ("subnets", "/0/id", json!("subnet-1")),
        ("pools", "/0/name", json!("default")),
        ("budget", "/0/throttled", json!(0)),
        ("leaks", "", json!([])),
        (
            "max-pods --instance-type m5.large",
            "/0/addresses",
            json!(27),
        ),
        ("check", "/0/state", json!("allowed")),
        ("cleanup --cluster green --list", "", json!([])),
        ("config show", "/0/value", json!("blue")),
    ];
    for (verb, pointer, expected) in cases {
        let shown = call(&operator, verb, 0).unwrap();
        assert_eq!(shown.pointer(pointer), Some(&expected), "{verb}: {shown:#}");
    }
    let checked = call(&operator, "check", 0).unwrap();
    let of_call = |name: &str| {
        let mut all = checked.as_array().unwrap().iter();
        let found = all.find(|it| it["call"] == name).unwrap();
        found["state"].as_str().unwrap().to_owned()
    };
    assert_eq!(of_call("CreateNetworkInterface"), "allowed", "{checked:#}");
    assert_eq!(
        of_call("AssignPrivateIpAddresses"),
        "untried",
        "{checked:#}"
    );
    // Those of the cluster itself are in use.
    let remnants = call(&operator, "cleanup --cluster blue --list", 4).unwrap();
    let fates = remnants.as_array().unwrap().iter();
    assert!(fates.clone().count() > 0 && fates.clone().all(|it| it["fate"]["state"] == "inUse"));
    assert!(operator.stop().unwrap());
    bed.finish().unwrap();
}

#[test]
fn failures_have_a_cause_on_one_line_and_their_exit_code() {
    let bed = Bed::create(1).unwrap();
    let leader = bed.start(0, &json!({})).unwrap();
    bed.add_node(0, 8).unwrap();
    bed.node_has(0, 8).unwrap();
    let follower = bed.start(1, &json!({})).unwrap();
    follower
        .log_has(&["no other operator serves ENIs"])
        .unwrap();
    let cases = [
        (
            &leader,
            "why node-9",
            1,
            "there is no CiliumNode \"node-9\"",
        ),
        (&follower, "nodes", 1, "another operator leads"),
        (
            &leader,
            "nodes --address 127.0.0.1:9",
            3,
            "no operator answers at 127.0.0.1:9",
        ),
        (&leader, "max-pods --instance-type m5.tiny", 1, "m5.tiny"),
        (&leader, "cleanup --cluster b*", 1, "--cluster"),
    ];
    for (operator, verb, code, cause) in cases {
        for format in ["table", "json"] {
            let ended = operator.call(&format!("{verb} -o {format}")).unwrap();
            assert_eq!(
                (ended.code, ended.output.as_str()),
                (Some(code), ""),
                "{verb}: {ended:?}"
            );
            assert_eq!(ended.error.lines().count(), 1, "{verb}: {ended:?}");
            assert!(ended.error.contains(cause), "{verb}: {ended:?}");
        }
    }
    let ended = leader.call("nodes -o yaml").unwrap();
    assert_eq!(ended.code, Some(2), "{ended:?}");
    bed.finish().unwrap();
}

#[test]
fn a_cleanup_deletes_what_a_cluster_left_and_a_check_names_what_is_denied() {
    let mut world = world(1);
    world["settings"] = json!({"lag_listing": [0, 0], "lag_by_id": [0, 0], "unknown": [0, 0]});
    let mut policy = policy("vpc-1").unwrap();
    let statements = policy["Statement"].as_array_mut().unwrap();
    statements.retain(|it| it["Sid"] != "CreateInSubnetAndGroups");
    world["principals"] = json!({
        "any": {"secret": "any"}, "limited": {"secret": "any", "policy": policy}
    });
    let bed = Bed::of_world(world).unwrap();
    let operator = bed.start(0, &json!({})).unwrap();
    leave_eni(&bed, "green").unwrap();
    let fate = |verb: &str, code| {
        let shown = call(&operator, verb, code).unwrap();
        shown[0]["fate"]["state"].as_str().map(str::to_owned)
    };
    let listed = fate("cleanup --cluster green --list", 4);
    assert_eq!(listed.as_deref(), Some("deletable"));
    let deleted = operator.call("cleanup --cluster green -o json").unwrap();
    assert_eq!(deleted.code, Some(0), "{deleted:?}");
    let shown: Value = serde_json::from_str(&deleted.output).unwrap();
    assert_eq!(shown[0]["fate"]["state"], "deleted", "{shown:#}");
    assert_eq!(fate("cleanup --cluster green", 0), None);
    let denied = operator.call_as("limited", "check -o json").unwrap();
    assert_eq!(denied.code, Some(4), "{denied:?}");
    let shown: Value = serde_json::from_str(&denied.output).unwrap();
    let refused = shown.as_array().unwrap().iter();
    let refused: Vec<_> = refused.filter(|it| it["state"] == "refused").collect();
    assert_eq!(refused.len(), 1, "{shown:#}");
    assert_eq!(refused[0]["call"], "CreateNetworkInterface");
    bed.finish().unwrap();
}
