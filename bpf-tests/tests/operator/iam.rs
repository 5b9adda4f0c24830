//! The operator with exactly the rights of `deploy/iam/policy.json` in EC2.

use anyhow::{Context as _, Result};
use serde_json::{Value, json};
use testkit::cloud::policy;
use testkit::fabric::eventually::{check, eventually};

use super::bed::{Bed, NODES, SOON, node_name, world};

/// The statements of the policy, each with the call that lacks it first. Each operator goes on where
/// the one before was refused, so those of creations come first.
const CASES: [(&str, &str); 8] = [
    ("Read", "Describe"),
    ("AssignInVpc", "AssignPrivateIpAddresses"),
    ("TagAtCreation", "CreateNetworkInterface"),
    ("CreateTaggedInterface", "CreateNetworkInterface"),
    ("CreateInSubnetAndGroups", "CreateNetworkInterface"),
    ("AttachToInstance", "AttachNetworkInterface"),
    ("ChangeOwnInterface", "AttachNetworkInterface"),
    ("SetGroups", "ModifyNetworkInterfaceAttribute"),
];

/// The shipped policy less a statement.
fn without(sid: &str) -> Result<Value> {
    let mut policy = policy("vpc-1")?;
    let statements = policy["Statement"].as_array_mut();
    let statements = statements.context("a policy has statements")?;
    let before = statements.len();
    check(before == CASES.len(), || format!("{before} statements"))?;
    statements.retain(|it| it["Sid"] != sid);
    check(statements.len() + 1 == before, || {
        format!("there is no statement {sid}")
    })?;
    Ok(policy)
}

#[test]
fn the_shipped_policy_is_enough_and_each_statement_that_is_taken_away_is_named_by_its_call() {
    let mut world = world(1);
    let group = json!({"id": "sg-2", "vpc": "vpc-1", "name": "pods"});
    world["groups"].as_array_mut().unwrap().push(group);
    let shipped = policy("vpc-1").unwrap();
    world["principals"] = json!({"any": {"secret": "any", "policy": shipped}});
    for (sid, _) in CASES {
        let policy = without(sid).unwrap();
        world["principals"][sid] = json!({"secret": "any", "policy": policy});
    }
    let bed = Bed::of_world(world).unwrap();
    // More than the primary ENI gives.
    bed.add_node(0, 20).unwrap();
    // Each needs an operator of its own: a refused call is not made again for minutes.
    for (number, (sid, call)) in (0..).zip(CASES) {
        if sid == "SetGroups" {
            let groups = json!({"spec": {"eni": {"security-groups": ["sg-2"]}}});
            let path = format!("{NODES}/{}", node_name(0));
            let admin = bed.plane.server.admin();
            admin.merge(&path, &groups).unwrap().expect(200).unwrap();
        }
        let operator = bed.start_as(sid, number, &json!({})).unwrap();
        let look = || {
            let why = operator.ask("why node-0")?;
            check(
                why.contains("UnauthorizedOperation") && why.contains(call),
                || format!("without {sid}: {why}"),
            )
        };
        let shown = eventually(SOON, "the refused call is named", look);
        shown
            .inspect_err(|_| println!("{}", operator.log()))
            .unwrap();
        operator.kill().unwrap();
        bed.free_lease().unwrap();
    }
    let operator = bed.start(20, &json!({})).unwrap();
    bed.node_has(0, 20).unwrap();
    let look = || {
        let why = operator.ask("why node-0")?;
        check(!why.contains("obstacle: "), || why)
    };
    eventually(SOON, "nothing is refused", look).unwrap();
    assert!(operator.stop().unwrap());
    bed.finish().unwrap();
}
