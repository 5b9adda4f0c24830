//! The operator with exactly the rights of `deploy/iam/policy.json` in EC2.

use anyhow::{Context as _, Result};
use serde_json::json;
use testkit::cloud::policy;
use testkit::fabric::eventually::{check, eventually};

use super::bed::{Bed, SOON, world};

/// A cluster in a cloud whose only caller has the shipped policy, less a statement.
fn bed(without: Option<&str>) -> Result<Bed> {
    let mut policy = policy("vpc-1")?;
    let statements = policy["Statement"].as_array_mut();
    let statements = statements.context("a policy has statements")?;
    let before = statements.len();
    statements.retain(|it| without.is_none_or(|sid| it["Sid"] != sid));
    check(without.is_none() || statements.len() + 1 == before, || {
        format!("there is no statement {without:?}")
    })?;
    let mut world = world(1);
    world["principals"] = json!({"any": {"secret": "any", "policy": policy}});
    Bed::of_world(world)
}

#[test]
fn the_shipped_policy_is_enough() {
    let bed = bed(None).unwrap();
    let operator = bed.start(0, &json!({})).unwrap();
    bed.add_node(0, 20).unwrap();
    bed.node_has(0, 20).unwrap();
    drop(operator);
    bed.finish().unwrap();
}

#[test]
fn each_statement_that_is_taken_away_is_named_by_its_call() {
    let cases = [
        ("AssignInVpc", "AssignPrivateIpAddresses"),
        ("TagAtCreation", "CreateNetworkInterface"),
        ("AttachToInstance", "AttachNetworkInterface"),
        ("Read", "Describe"),
        ("CreateTaggedInterface", "CreateNetworkInterface"),
        ("CreateInSubnetAndGroups", "CreateNetworkInterface"),
        ("ChangeOwnInterface", "AttachNetworkInterface"),
    ];
    // Each needs a cluster of its own: a refused call is not made again for minutes.
    let is_full = std::env::var_os("TOWPATH_FULL").is_some();
    let number = if is_full { cases.len() } else { 3 };
    for (sid, call) in cases.into_iter().take(number) {
        let bed = bed(Some(sid)).unwrap();
        let operator = bed.start(0, &json!({})).unwrap();
        // More than the primary ENI gives.
        bed.add_node(0, 20).unwrap();
        let look = || {
            let why = operator.ask("why node-0")?;
            check(
                why.contains("UnauthorizedOperation") && why.contains(call),
                || format!("without {sid}: {why}"),
            )
        };
        eventually(SOON, "the refused call is named", look).unwrap();
    }
}
