//! Each step is the call that EC2 documents, and its answer is read.

use cloud::node::{Blocks, Create, Outcome, Step};
use cloud::{AttachmentId, Failure, Kind, Tags};

use super::played::{Form, Played, Reply};
use super::values::{CREATED, created};
use crate::{Ec2 as _, Verdict, check};

fn creation() -> Create {
    Create {
        instance: "i-1".into(),
        subnet: "subnet-1".into(),
        groups: ["sg-1".into(), "sg-2".into()].into(),
        description: "towpath".to_owned(),
        ipv4: Some(Blocks {
            kind: Kind::Prefix,
            count: 2,
        }),
        ipv6_prefix: true,
        tags: Tags::from([("ipam.towpath.dev/cluster".to_owned(), "blue".to_owned())]),
        token: "token-1".to_owned(),
    }
}

fn assignment(kind: Kind, count: u32) -> Step {
    Step::Assign {
        eni: "eni-1".into(),
        subnet: "subnet-1".into(),
        blocks: Blocks { kind, count },
    }
}

fn mark() -> Step {
    Step::Mark {
        eni: "eni-1".into(),
        attachment: "eni-attach-1".into(),
    }
}

/// Sends a step, and returns its outcome and the parameters of its only call.
async fn sent(step: Step, reply: Reply) -> (Outcome, Form) {
    let played = Played::new(vec![reply]).await;
    let outcome = played.client().step(&step).await;
    let mut requests = played.requests();
    assert_eq!(requests.len(), 1, "{requests:?}");
    (outcome, requests.remove(0))
}

/// Asserts that a call has exactly these parameters beside the version.
fn assert_form(form: &Form, expected: &[(&str, &str)]) {
    let shown: Vec<_> = form
        .iter()
        .filter(|(name, _)| *name != "Version")
        .map(|(name, value)| (name.as_str(), value.as_str()))
        .collect();
    let mut expected = expected.to_vec();
    expected.sort_unstable();
    assert_eq!(shown, expected);
}

fn failure(outcome: Outcome) -> Failure {
    match outcome {
        Outcome::Failed(failure) => failure,
        other => panic!("{other:?}"),
    }
}

#[tokio::test]
async fn a_creation_has_tags_token_and_addresses_in_one_call() {
    let step = Step::Create(Box::new(creation()));
    let (outcome, form) = sent(step, Reply::ok("CreateNetworkInterface", CREATED)).await;
    let Outcome::Created(eni) = outcome else {
        panic!("{outcome:?}");
    };
    assert_eq!(*eni, created());
    assert_form(
        &form,
        &[
            ("Action", "CreateNetworkInterface"),
            ("ClientToken", "token-1"),
            ("Description", "towpath"),
            ("DryRun", "false"),
            ("Ipv4PrefixCount", "2"),
            ("Ipv6PrefixCount", "1"),
            ("SecurityGroupId.1", "sg-1"),
            ("SecurityGroupId.2", "sg-2"),
            ("SubnetId", "subnet-1"),
            ("TagSpecification.1.ResourceType", "network-interface"),
            ("TagSpecification.1.Tag.1.Key", "ipam.towpath.dev/cluster"),
            ("TagSpecification.1.Tag.1.Value", "blue"),
        ],
    );
}

#[tokio::test]
async fn a_creation_with_single_addresses_counts_those_beside_its_own() {
    let step = Step::Create(Box::new(Create {
        ipv4: Some(Blocks {
            kind: Kind::Address,
            count: 7,
        }),
        ipv6_prefix: false,
        ..creation()
    }));
    let (_, form) = sent(step, Reply::ok("CreateNetworkInterface", CREATED)).await;
    assert_eq!(form["SecondaryPrivateIpAddressCount"], "7");
    assert!(!form.contains_key("Ipv4PrefixCount"), "{form:?}");
    assert!(!form.contains_key("Ipv6PrefixCount"), "{form:?}");
}

#[tokio::test]
async fn an_attachment_is_known_by_its_id() {
    let step = Step::Attach {
        eni: "eni-1".into(),
        instance: "i-1".into(),
        index: 2,
    };
    let content = "<attachmentId>eni-attach-1</attachmentId>";
    let (outcome, form) = sent(step, Reply::ok("AttachNetworkInterface", content)).await;
    let Outcome::Attached(id) = outcome else {
        panic!("{outcome:?}");
    };
    assert_eq!(id, AttachmentId::from("eni-attach-1"));
    assert_form(
        &form,
        &[
            ("Action", "AttachNetworkInterface"),
            ("DeviceIndex", "2"),
            ("DryRun", "false"),
            ("InstanceId", "i-1"),
            ("NetworkInterfaceId", "eni-1"),
        ],
    );
}

#[tokio::test]
async fn blocks_of_each_kind_are_assigned_by_number() {
    let cases = [
        (
            Kind::Address,
            "SecondaryPrivateIpAddressCount",
            "AssignPrivateIpAddresses",
            "<assignedPrivateIpAddressesSet><item>\
             <privateIpAddress>10.0.0.9</privateIpAddress></item>\
             </assignedPrivateIpAddressesSet>",
            "10.0.0.9/32",
        ),
        (
            Kind::Prefix,
            "Ipv4PrefixCount",
            "AssignPrivateIpAddresses",
            "<assignedIpv4PrefixSet><item><ipv4Prefix>10.0.0.16/28</ipv4Prefix></item>\
             </assignedIpv4PrefixSet>",
            "10.0.0.16/28",
        ),
        (
            Kind::PrefixV6,
            "Ipv6PrefixCount",
            "AssignIpv6Addresses",
            "<assignedIpv6PrefixSet><item>2001:db8:0:1:1::/80</item></assignedIpv6PrefixSet>",
            "2001:db8:0:1:1::/80",
        ),
    ];
    for (kind, parameter, call, content, block) in cases {
        let (outcome, form) = sent(assignment(kind, 1), Reply::ok(call, content)).await;
        let Outcome::Assigned(blocks) = outcome else {
            panic!("{outcome:?}");
        };
        assert_eq!(blocks, [block.parse().unwrap()].into());
        assert_form(
            &form,
            &[
                ("Action", call),
                (parameter, "1"),
                ("NetworkInterfaceId", "eni-1"),
            ],
        );
    }
}

#[tokio::test]
async fn an_assignment_that_names_no_block_has_to_be_read() {
    let reply = Reply::ok("AssignPrivateIpAddresses", "<return>true</return>");
    let (outcome, _) = sent(assignment(Kind::Address, 1), reply).await;
    let failure = failure(outcome);
    assert_eq!(failure.class, cloud::Class::Unanswered, "{failure}");
}

#[tokio::test]
async fn a_mark_and_groups_change_one_attribute_each() {
    let done = || Reply::ok("ModifyNetworkInterfaceAttribute", "<return>true</return>");
    let (outcome, form) = sent(mark(), done()).await;
    assert!(matches!(outcome, Outcome::Done), "{outcome:?}");
    assert_form(
        &form,
        &[
            ("Action", "ModifyNetworkInterfaceAttribute"),
            ("Attachment.AttachmentId", "eni-attach-1"),
            ("Attachment.DeleteOnTermination", "true"),
            ("DryRun", "false"),
            ("NetworkInterfaceId", "eni-1"),
        ],
    );
    let groups = Step::Group {
        eni: "eni-1".into(),
        groups: ["sg-2".into()].into(),
    };
    let (outcome, form) = sent(groups, done()).await;
    assert!(matches!(outcome, Outcome::Done), "{outcome:?}");
    assert_form(
        &form,
        &[
            ("Action", "ModifyNetworkInterfaceAttribute"),
            ("DryRun", "false"),
            ("NetworkInterfaceId", "eni-1"),
            ("SecurityGroupId.1", "sg-2"),
        ],
    );
}

fn association() -> Step {
    Step::Associate {
        eni: "eni-1".into(),
        allocation: "eipalloc-1".into(),
        address: "198.51.100.1".parse().unwrap(),
    }
}

#[tokio::test]
async fn an_association_takes_the_address_from_nothing_else() {
    let content = "<return>true</return><associationId>eipassoc-1</associationId>";
    let (outcome, form) = sent(association(), Reply::ok("AssociateAddress", content)).await;
    assert!(matches!(outcome, Outcome::Done), "{outcome:?}");
    assert_form(
        &form,
        &[
            ("Action", "AssociateAddress"),
            ("AllocationId", "eipalloc-1"),
            ("AllowReassociation", "false"),
            ("DryRun", "false"),
            ("NetworkInterfaceId", "eni-1"),
        ],
    );
    let reply = Reply::error(400, "Resource.AlreadyAssociated", "it has an association");
    let (outcome, _) = sent(association(), reply).await;
    let failure = failure(outcome);
    assert_eq!(failure.class, cloud::Class::AddressTaken, "{failure}");
}

#[tokio::test]
async fn a_trial_changes_nothing_and_is_judged_by_its_code() {
    let delete = Step::Delete {
        eni: "eni-1".into(),
    };
    let played = Played::new(vec![
        Reply::error(412, "DryRunOperation", "Request would have succeeded"),
        Reply::error(403, "UnauthorizedOperation", "You are not authorized"),
    ])
    .await;
    let client = played.client();
    assert_eq!(client.try_step(&mark()).await, Verdict::Allowed);
    let Verdict::Refused(denied) = client.try_step(&delete).await else {
        panic!("expected a refusal");
    };
    assert_eq!(denied.class, cloud::Class::Denied);
    let requests = played.requests();
    assert!(
        requests.iter().all(|it| it["DryRun"] == "true"),
        "{requests:?}"
    );
}

#[tokio::test]
async fn a_check_tries_every_read_and_step_and_carries_none_out() {
    let would = Reply::error(412, "DryRunOperation", "Request would have succeeded");
    let played = Played::new(vec![would; 12]).await;
    let steps = [
        Step::Create(Box::new(creation())),
        mark(),
        association(),
        assignment(Kind::Prefix, 1),
        Step::Delete {
            eni: "eni-1".into(),
        },
    ];
    let rights = check(&played.client(), &steps).await;
    let untried = rights.iter().filter(|it| it.verdict == Verdict::Untried);
    let untried: Vec<_> = untried.map(|it| it.call).collect();
    assert_eq!(untried, ["AssignPrivateIpAddresses"]);
    let allowed = rights.iter().filter(|it| it.verdict == Verdict::Allowed);
    let allowed: Vec<_> = allowed.map(|it| it.call).collect();
    let requests = played.requests();
    let sent: Vec<_> = requests.iter().map(|it| it["Action"].as_str()).collect();
    assert_eq!(allowed, sent);
    assert_eq!(sent.len(), 12);
    assert!(
        requests.iter().all(|it| it["DryRun"] == "true"),
        "{requests:?}"
    );
    assert!(!requests.iter().any(|it| it.contains_key("Filter.1.Name")));
}

#[tokio::test]
async fn a_call_without_trial_is_never_made_as_one() {
    let played = Played::new(Vec::new()).await;
    let client = played.client();
    for kind in [Kind::Address, Kind::Prefix, Kind::PrefixV6] {
        let verdict = client.try_step(&assignment(kind, 1)).await;
        assert_eq!(verdict, Verdict::Untried);
    }
    assert!(played.requests().is_empty());
}
