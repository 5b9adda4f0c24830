//! Refusals of the fake, and the codes of EC2 that the fake has no rule for.

use super::*;
use crate::check;

#[tokio::test]
async fn refusals_have_their_classes() {
    let bed = Bed::new(document()).await;
    let client = bed.client(LIMIT);
    let eni = created(&client, creation()).await.id;
    let absent: EniId = "eni-00000000000000099".into();
    let create = |create: Create| Step::Create(Box::new(create));
    let full = Create {
        subnet: "subnet-b".into(),
        ipv4: Some(Blocks {
            kind: Kind::Prefix,
            count: 1,
        }),
        ..numbered(3)
    };
    let mismatch = Create {
        description: "other".to_owned(),
        ..creation()
    };
    let delete = Step::Delete { eni: eni.clone() };
    let before = [
        (create(full), Class::SubnetFull),
        (create(mismatch), Class::TokenMismatch),
        (attachment(&absent, "i-1", 1), Class::NotFound),
        (attachment(&eni, "i-9", 1), Class::InstanceGone),
        (attachment(&eni, "i-2", 1), Class::AdapterLimit),
        (attachment(&eni, "i-1", 0), Class::IndexTaken),
        (attachment(&eni, "i-3", 1), Class::Invalid),
    ];
    for (step, class) in before {
        refused(&client, step, class).await;
    }
    let attached = client.step(&attachment(&eni, "i-1", 1)).await;
    assert!(matches!(attached, Outcome::Attached(_)), "{attached:?}");
    refused(&client, delete, Class::NotNow).await;
    refused(
        &client,
        assignment(&eni, Kind::Address, 10),
        Class::SlotLimit,
    )
    .await;
    bed.fake
        .with(|cloud, now| cloud.terminate("i-1", now))
        .unwrap();
    let other = created(&client, numbered(4)).await.id;
    refused(&client, attachment(&other, "i-1", 2), Class::NotNow).await;
}

#[tokio::test]
async fn limits_of_the_account_and_of_calls_are_named() {
    let mut document = document();
    document["settings"] = json!({
        "interface_quota": 1,
        "rates": {"DeleteNetworkInterface": {"burst": 1.0, "refill": 0.0}}
    });
    let bed = Bed::new(document).await;
    let client = bed.client(LIMIT);
    refused(&client, Step::Create(Box::new(creation())), Class::Quota).await;
    let delete = || Step::Delete {
        eni: "eni-00000000000000099".into(),
    };
    refused(&client, delete(), Class::NotFound).await;
    refused(&client, delete(), Class::Throttled).await;
}

#[tokio::test]
async fn callers_without_rights_or_with_other_secrets_are_told_so() {
    let mut document = document();
    document["principals"] = json!({
        "AKIDTEST": {"secret": "secret", "policy": {"Version": "2012-10-17", "Statement": [
            {"Effect": "Allow", "Action": "ec2:Describe*", "Resource": "*"}
        ]}}
    });
    let bed = Bed::new(document.clone()).await;
    let client = bed.client(LIMIT);
    let create = Step::Create(Box::new(creation()));
    let rights = check(&client, std::slice::from_ref(&create)).await;
    for right in rights {
        match (right.call, right.verdict) {
            ("CreateNetworkInterface", Verdict::Refused(failure)) => {
                assert_eq!(failure.class, Class::Denied, "{failure}");
            }
            (call, verdict) => assert_eq!(verdict, Verdict::Allowed, "{call}"),
        }
    }
    document["principals"]["AKIDTEST"]["secret"] = json!("other");
    let bed = Bed::new(document).await;
    refused(&bed.client(LIMIT), create, Class::Credentials).await;
}

/// The codes of EC2 by their class, whatever the call.
const CODES: [(Class, &[&str]); 14] = [
    (
        Class::Throttled,
        &[
            "RequestLimitExceeded",
            "RequestThrottled",
            "RequestThrottledException",
            "TooManyRequestsException",
            "EC2ThrottledException",
            "SlowDown",
            "ThrottlingException",
            "Unavailable",
            "ServiceUnavailable",
        ],
    ),
    (Class::Unanswered, &["InternalError", "InternalFailure"]),
    (Class::NotNow, &["IncorrectState", "IncorrectInstanceState"]),
    (
        Class::SubnetFull,
        &[
            "InsufficientFreeAddressesInSubnet",
            "InsufficientCidrBlocks",
            "InvalidSubnetID.NotFound",
            "InvalidSubnet.Conflict",
        ],
    ),
    (Class::AdapterLimit, &["AttachmentLimitExceeded"]),
    (Class::SlotLimit, &["PrivateIpAddressLimitExceeded"]),
    (Class::Quota, &["NetworkInterfaceLimitExceeded"]),
    (
        Class::Denied,
        &[
            "UnauthorizedOperation",
            "AccessDenied",
            "AccessDeniedException",
            "OptInRequired",
        ],
    ),
    (
        Class::Credentials,
        &[
            "AuthFailure",
            "ExpiredToken",
            "ExpiredTokenException",
            "RequestExpired",
            "InvalidClientTokenId",
            "SignatureDoesNotMatch",
            "IncompleteSignature",
            "MissingAuthenticationToken",
            "UnrecognizedClientException",
        ],
    ),
    (Class::TokenMismatch, &["IdempotentParameterMismatch"]),
    (
        Class::AddressTaken,
        &["Resource.AlreadyAssociated", "InvalidAllocationID.NotFound"],
    ),
    (
        Class::InstanceGone,
        &["InvalidInstanceID.NotFound", "InvalidInstanceID.Malformed"],
    ),
    (
        Class::NotFound,
        &[
            "InvalidNetworkInterfaceID.NotFound",
            "InvalidAttachmentID.NotFound",
            "InvalidVpcID.NotFound",
        ],
    ),
    (
        Class::Invalid,
        &[
            "InvalidGroup.NotFound",
            "InvalidSecurityGroupID.NotFound",
            "InvalidParameterValue",
            "InvalidParameterCombination",
            "MissingParameter",
            "OperationNotPermitted",
            "InvalidIPAddress.InUse",
            "SecurityGroupsPerInterfaceLimitExceeded",
            "TagLimitExceeded",
            "UnknownCodeOfTomorrow",
        ],
    ),
];

/// Each code comes as the fake answers with it: with its status, and as XML.
#[tokio::test]
async fn every_code_of_ec2_has_its_class_whatever_the_call() {
    let bed = Bed::new(document()).await;
    let client = bed.client(LIMIT);
    let detach = || Step::Detach {
        eni: "eni-1".into(),
        attachment: "eni-attach-1".into(),
    };
    let unassign = || Step::Unassign {
        eni: "eni-1".into(),
        blocks: ["10.0.0.9/32".parse().unwrap()].into(),
    };
    for (class, codes) in CODES {
        for code in codes {
            for step in [detach(), unassign()] {
                bed.inject(step.action().name(), FaultKind::Refused((*code).to_owned()));
                let Outcome::Failed(failure) = client.step(&step).await else {
                    panic!("{code}: {step:?}");
                };
                assert_eq!(
                    (failure.class, failure.code.as_str()),
                    (class, *code),
                    "{failure}"
                );
            }
        }
    }
}
