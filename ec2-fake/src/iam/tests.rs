use super::Policy;
use crate::call::{Assign, Associate, Call, Change, Create, Describe, Modify, Request, What};
use crate::cloud::Cloud;
use crate::family::Family;
use crate::fixture::{NOW, attachment, creation, prefixes, world};
use crate::world::{Principal, Tags};

const SHIPPED: &str = include_str!("../../../deploy/iam/policy.json");
const STATIC_IP: &str = include_str!("../../../deploy/iam/static-ip.json");
const CLUSTER: &str = "ipam.towpath.dev/cluster";

fn shipped() -> Policy {
    of_vpc("vpc-1")
}

fn of_vpc(vpc: &str) -> Policy {
    let variables = [
        ("PARTITION", "aws"),
        ("CLUSTER_NAME", "blue"),
        ("VPC_ID", vpc),
    ];
    Policy::from_template(SHIPPED, &variables).unwrap()
}

fn tags(cluster: &str) -> Tags {
    Tags::from([(CLUSTER.to_owned(), cluster.to_owned())])
}

fn cloud(policy: Policy, partition: &str) -> Cloud {
    let mut world = world();
    partition.clone_into(&mut world.settings.partition);
    for (key, policy, expired) in [
        ("OPERATOR", Some(policy), false),
        ("ADMIN", None, false),
        ("OLD", None, true),
    ] {
        let principal = Principal {
            secret: "secret".to_owned(),
            policy,
            expired,
        };
        world.principals.insert(key.to_owned(), principal);
    }
    Cloud::build(&world, NOW).unwrap()
}

/// The calls of the operator, each with the interfaces that it needs.
fn calls(cloud: &mut Cloud) -> Vec<Call> {
    let create = Create {
        groups: vec!["sg-2".to_owned()],
        tags: tags("blue"),
        ..creation()
    };
    let before: Vec<_> = cloud.interfaces().map(|eni| eni.id.clone()).collect();
    perform(cloud, "ADMIN", Call::Create(Box::new(create.clone()))).unwrap();
    perform(cloud, "ADMIN", Call::Create(Box::new(create.clone()))).unwrap();
    let made: Vec<_> = cloud.interfaces().map(|eni| eni.id.clone()).collect();
    let mut made = made.into_iter().filter(|id| !before.contains(id));
    let (one, two) = (made.next().unwrap(), made.next().unwrap());
    perform(cloud, "ADMIN", attachment(&one, "i-1", 1)).unwrap();
    let attached = cloud.interface(&one).unwrap().attachment.clone().unwrap();
    let assign = |family| Assign {
        family,
        eni: one.clone(),
        ask: prefixes(1),
        reassign: false,
    };
    let describe = |what: What| {
        Call::Describe(Describe {
            what,
            ids: Vec::new(),
            filters: Vec::new(),
            max: None,
            next: None,
        })
    };
    let reads = [
        What::Instances,
        What::InstanceTypes,
        What::Interfaces,
        What::RouteTables,
        What::Groups,
        What::Subnets,
        What::Vpcs,
    ];
    let mut all: Vec<Call> = reads.into_iter().map(describe).collect();
    all.extend([
        Call::Create(Box::new(create)),
        attachment(&two, "i-1", 2),
        Call::Detach(attached.id),
        Call::Delete(two.clone()),
        Call::Modify(Modify {
            eni: one.clone(),
            change: Change::Groups(vec!["sg-1".to_owned()]),
        }),
        Call::Assign(assign(Family::V4)),
        Call::Unassign(assign(Family::V4)),
        Call::Assign(assign(Family::V6)),
    ]);
    all
}

fn perform(cloud: &mut Cloud, caller: &str, call: Call) -> crate::Result<crate::Answer> {
    let request = Request {
        call,
        dry_run: false,
    };
    cloud.call(NOW, caller, &request).outcome
}

/// The action of a call, and the code of its trial.
fn trial(call: Call, cloud: &mut Cloud) -> (&'static str, String) {
    let action = call.action();
    let request = Request {
        call,
        dry_run: true,
    };
    let failure = cloud.call(NOW, "OPERATOR", &request).outcome.unwrap_err();
    (action, failure.code)
}

/// The codes of trials of all calls.
fn trials(cloud: &mut Cloud) -> Vec<(&'static str, String)> {
    let calls = calls(cloud);
    calls.into_iter().map(|call| trial(call, cloud)).collect()
}

#[test]
fn the_shipped_policy_allows_every_call_of_the_operator() {
    for (action, code) in trials(&mut cloud(shipped(), "aws")) {
        assert_eq!(code, "DryRunOperation", "{action}");
    }
}

#[test]
fn each_action_of_the_shipped_policy_is_needed() {
    let policy = shipped();
    let actions: Vec<String> = policy.actions().map(str::to_owned).collect();
    for action in actions {
        let trials = trials(&mut cloud(policy.without_action(&action), "aws"));
        let denied = trials
            .iter()
            .filter(|(_, code)| code == "UnauthorizedOperation");
        assert_eq!(denied.count(), 1, "{action}");
    }
}

#[test]
fn each_statement_of_the_shipped_policy_is_needed() {
    let policy = shipped();
    for sid in policy.sids() {
        let trials = trials(&mut cloud(policy.without(sid), "aws"));
        assert!(
            trials
                .iter()
                .any(|(_, code)| code == "UnauthorizedOperation"),
            "{sid}"
        );
    }
}

/// The kinds of resources that a call is judged on, in order.
fn kinds(cloud: &Cloud, call: &Call) -> Vec<String> {
    let questions = cloud.questions(call).into_iter();
    let kind = |resource: String| {
        let last = resource.rsplit(':').next().unwrap_or_default().to_owned();
        last.split('/').next().unwrap_or_default().to_owned()
    };
    questions.map(|question| kind(question.resource)).collect()
}

#[test]
fn a_call_is_judged_on_every_resource_that_aws_names() {
    let mut cloud = cloud(shipped(), "aws");
    for call in calls(&mut cloud) {
        let expected: &[&str] = match &call {
            Call::Describe(_) => &["*"],
            Call::Create(_) => &[
                "network-interface",
                "subnet",
                "security-group",
                "network-interface",
            ],
            Call::Attach(_) | Call::Detach(_) => &["network-interface", "instance"],
            Call::Modify(_) => &["network-interface", "security-group"],
            _ => &["network-interface"],
        };
        assert_eq!(kinds(&cloud, &call), expected, "{}", call.action());
    }
}

#[test]
fn other_partitions_have_other_arns() {
    let trials = trials(&mut cloud(shipped(), "aws-cn"));
    let (_, code) = trials.last().unwrap();
    assert_eq!(code, "UnauthorizedOperation");
}

#[test]
fn interfaces_of_another_cluster_are_out_of_reach() {
    let mut cloud = cloud(shipped(), "aws");
    for tags in [tags("green"), Tags::new()] {
        let create = Create { tags, ..creation() };
        let outcome = perform(&mut cloud, "OPERATOR", Call::Create(Box::new(create)));
        assert_eq!(outcome.unwrap_err().code, "UnauthorizedOperation");
    }
    let primary = cloud.primary_of("i-1").unwrap();
    let failure = perform(&mut cloud, "OPERATOR", Call::Delete(primary)).unwrap_err();
    assert_eq!(
        (failure.code.as_str(), failure.status()),
        ("UnauthorizedOperation", 403)
    );
    assert!(
        failure.message.contains("ec2:DeleteNetworkInterface"),
        "{failure}"
    );
}

#[test]
fn primary_interfaces_of_the_vpc_alone_get_addresses() {
    for (vpc, is_allowed) in [("vpc-1", true), ("vpc-2", false)] {
        let mut cloud = cloud(of_vpc(vpc), "aws");
        let call = Call::Assign(Assign {
            family: Family::V4,
            eni: cloud.primary_of("i-1").unwrap(),
            ask: prefixes(1),
            reassign: false,
        });
        assert_eq!(
            perform(&mut cloud, "OPERATOR", call).is_ok(),
            is_allowed,
            "{vpc}"
        );
    }
}

/// The codes of trials of both calls for static IPs.
fn static_ip_trials(policy: Policy) -> Vec<(&'static str, String)> {
    let mut cloud = cloud(policy, "aws");
    let associate = Call::Associate(Associate {
        allocation: "eipalloc-1".to_owned(),
        instance: None,
        eni: cloud.primary_of("i-1"),
        private: None,
        reassociate: false,
    });
    let describe = Call::Describe(Describe {
        what: What::Addresses,
        ids: Vec::new(),
        filters: Vec::new(),
        max: None,
        next: None,
    });
    [describe, associate]
        .map(|call| trial(call, &mut cloud))
        .into()
}

#[test]
fn static_ips_need_a_policy_of_their_own_and_all_of_it() {
    let of_vpc = |vpc| {
        let variables = [("PARTITION", "aws"), ("VPC_ID", vpc)];
        Policy::from_template(STATIC_IP, &variables).unwrap()
    };
    let denied = |policy| {
        let trials = static_ip_trials(policy).into_iter();
        let denied = trials.filter(|(_, code)| code == "UnauthorizedOperation");
        denied.map(|(action, _)| action).collect::<Vec<_>>()
    };
    let policy = of_vpc("vpc-1");
    assert_eq!(denied(policy.clone()), [""; 0]);
    assert_eq!(denied(shipped()), ["DescribeAddresses", "AssociateAddress"]);
    assert_eq!(denied(of_vpc("vpc-2")), ["AssociateAddress"]);
    for (sid, action) in [
        ("ReadAddresses", "DescribeAddresses"),
        ("AssociateAddress", "AssociateAddress"),
        ("AssociateInVpc", "AssociateAddress"),
    ] {
        assert_eq!(denied(policy.without(sid)), [action], "{sid}");
    }
}

#[test]
fn tags_of_an_existing_interface_cannot_be_set() {
    let mut cloud = cloud(shipped(), "aws");
    let primary = cloud.primary_of("i-1").unwrap();
    let call = Call::Tag {
        resources: vec![primary],
        tags: tags("blue"),
    };
    let failure = perform(&mut cloud, "OPERATOR", call).unwrap_err();
    assert_eq!(failure.code, "UnauthorizedOperation");
}

#[test]
fn the_interface_of_a_creation_has_no_vpc_to_judge_by() {
    let text = r#"{"Version": "2012-10-17", "Statement": [{"Effect": "Allow", "Action": "ec2:*",
        "Resource": "*", "Condition": {"ArnEquals": {"ec2:Vpc": "arn:aws:ec2:*:*:vpc/vpc-1"}}}]}"#;
    let policy = Policy::from_template(text, &[]).unwrap();
    let mut cloud = cloud(policy, "aws");
    let create = Call::Create(Box::new(creation()));
    let failure = perform(&mut cloud, "OPERATOR", create).unwrap_err();
    assert!(
        failure.message.ends_with("network-interface/*"),
        "{failure}"
    );
}

#[test]
fn unknown_and_expired_callers_are_refused() {
    let mut cloud = cloud(shipped(), "aws");
    for (caller, code) in [("NOBODY", "AuthFailure"), ("OLD", "RequestExpired")] {
        let create = Call::Create(Box::new(creation()));
        let failure = perform(&mut cloud, caller, create).unwrap_err();
        assert_eq!(failure.code, code);
    }
}

#[test]
fn a_template_without_a_value_and_an_unknown_operator_are_errors() {
    let error = Policy::from_template(SHIPPED, &[("PARTITION", "aws")]).unwrap_err();
    assert_eq!(
        error.to_string(),
        "policy: no value for the variable CLUSTER_NAME"
    );
    let unknown = SHIPPED.replace("StringEquals", "StringResembles");
    let variables = [
        ("PARTITION", "aws"),
        ("CLUSTER_NAME", "blue"),
        ("VPC_ID", "vpc-1"),
    ];
    Policy::from_template(&unknown, &variables).unwrap_err();
}
