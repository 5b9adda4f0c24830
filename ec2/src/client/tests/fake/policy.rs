//! The calls of the client, beside the policies that are shipped.

use std::collections::BTreeSet;

use cloud::Action;

use super::*;

const SHIPPED: &str = include_str!("../../../../../deploy/iam/policy.json");
const STATIC_IP: &str = include_str!("../../../../../deploy/iam/static-ip.json");
/// EC2 asks for the right to tag where a creation has tags.
const TAGS: &str = "CreateTags";

/// The actions of EC2 that a policy allows.
fn granted(policy: &str) -> BTreeSet<String> {
    let policy: Value = serde_json::from_str(policy).unwrap();
    let statements = policy["Statement"].as_array().unwrap().iter();
    let actions = statements.flat_map(|it| match &it["Action"] {
        Value::Array(actions) => actions.clone(),
        action => vec![action.clone()],
    });
    let name = |action: Value| {
        let action = action.as_str().unwrap();
        action.strip_prefix("ec2:").unwrap().to_owned()
    };
    actions.map(name).collect()
}

/// A step of each kind. The objects need not be there.
fn steps() -> Vec<Step> {
    let eni = EniId::from("eni-00000000000000099");
    let attached = "eni-attach-1";
    vec![
        Step::Create(Box::new(creation())),
        attachment(&eni, "i-1", 1),
        assignment(&eni, Kind::Address, 1),
        assignment(&eni, Kind::PrefixV6, 1),
        Step::Mark {
            eni: eni.clone(),
            attachment: attached.into(),
        },
        Step::Group {
            eni: eni.clone(),
            groups: ["sg-1".into()].into(),
        },
        Step::Unassign {
            eni: eni.clone(),
            blocks: ["10.0.0.9/32".parse().unwrap()].into(),
        },
        Step::Detach {
            eni: eni.clone(),
            attachment: attached.into(),
        },
        Step::Delete { eni: eni.clone() },
        Step::Associate {
            eni,
            allocation: "eipalloc-1".into(),
            address: "198.51.100.1".parse().unwrap(),
        },
    ]
}

#[tokio::test]
async fn the_policies_grant_every_call_of_the_client_and_no_other() {
    let bed = Bed::new(document()).await;
    let client = bed.client(LIMIT);
    let steps = steps();
    let sent: BTreeSet<Action> = steps.iter().map(Step::action).collect();
    let changes = Action::ALL.into_iter();
    let changes = changes.filter(|it| !it.is_read());
    assert_eq!(sent, changes.collect(), "a step of each action");
    for step in &steps {
        client.step(step).await;
    }
    for what in [
        What::Enis(Scope::All),
        What::Instances(["i-1".into()].into()),
        What::Subnets,
        What::RouteTables,
        What::Groups,
        What::Vpcs,
        What::Types(["m5.large".to_owned()].into()),
        What::Addresses,
    ] {
        read(&client, what).await;
    }
    let called = bed.fake.peek(|cloud| {
        let actions = cloud.log().map(|it| it.action.to_owned());
        actions.collect::<BTreeSet<_>>()
    });
    let mut shipped = granted(SHIPPED);
    let of_static_ips = granted(STATIC_IP);
    assert!(shipped.is_disjoint(&of_static_ips), "{of_static_ips:?}");
    assert!(shipped.remove(TAGS));
    assert_eq!(&called - &of_static_ips, shipped);
    assert!(of_static_ips.is_subset(&called), "{called:?}");
}
