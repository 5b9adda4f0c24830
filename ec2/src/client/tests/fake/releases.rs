//! Blocks and ENIs that go back.

use std::collections::BTreeSet;
use std::net::IpAddr;

use cloud::AttachmentId;

use super::*;

/// An ENI with two addresses and two prefixes, attached to `i-1`.
async fn attached(client: &Client) -> (Eni, AttachmentId) {
    let made = created(client, creation()).await;
    let outcome = client.step(&attachment(&made.id, "i-1", 1)).await;
    let Outcome::Attached(id) = outcome else {
        panic!("{outcome:?}");
    };
    for (kind, count) in [(Kind::Address, 2), (Kind::Prefix, 2)] {
        let outcome = client.step(&assignment(&made.id, kind, count)).await;
        assert!(matches!(outcome, Outcome::Assigned(_)), "{outcome:?}");
    }
    (eni(client, &made.id).await, id)
}

#[tokio::test]
async fn addresses_and_prefixes_go_back_in_one_call_and_the_others_stay() {
    let bed = Bed::new(document()).await;
    let client = bed.client(LIMIT);
    let (before, _) = attached(&client).await;
    let singles = before.blocks.iter().filter(|it| it.prefix_len() == 32);
    let prefixes = before.blocks.iter().filter(|it| it.prefix_len() == 28);
    let given: BTreeSet<_> = singles.take(1).chain(prefixes.take(1)).copied().collect();
    assert_eq!(given.len(), 2, "{before:?}");
    let unassign = |blocks: &BTreeSet<_>| Step::Unassign {
        eni: before.id.clone(),
        blocks: blocks.clone(),
    };
    let outcome = client.step(&unassign(&given)).await;
    assert!(matches!(outcome, Outcome::Done), "{outcome:?}");
    let after = eni(&client, &before.id).await;
    assert_eq!(after.blocks, &before.blocks - &given);
    assert_eq!(after.own, before.own);
    let calls = bed.fake.peek(|cloud| {
        let log = cloud.log();
        log.filter(|it| it.action == "UnassignPrivateIpAddresses")
            .count()
    });
    assert_eq!(calls, 1);
    // They are gone: a second call names blocks that the ENI does not have.
    refused(&client, unassign(&given), Class::Invalid).await;
    let own = before.own.unwrap();
    refused(
        &client,
        unassign(&[IpAddr::from(own).into()].into()),
        Class::Invalid,
    )
    .await;
    let absent = Step::Unassign {
        eni: "eni-00000000000000099".into(),
        blocks: given,
    };
    refused(&client, absent, Class::NotFound).await;
    assert_eq!(eni(&client, &before.id).await, after);
}

#[tokio::test]
async fn an_eni_is_detached_once_and_then_deleted() {
    let bed = Bed::new(document()).await;
    let client = bed.client(LIMIT);
    let (attached, attachment) = attached(&client).await;
    let detach = |attachment: &AttachmentId| Step::Detach {
        eni: attached.id.clone(),
        attachment: attachment.clone(),
    };
    assert_eq!(
        client.try_step(&detach(&attachment)).await,
        Verdict::Allowed
    );
    assert!(
        eni(&client, &attached.id).await.attachment.is_some(),
        "a trial changes nothing"
    );
    let outcome = client.step(&detach(&attachment)).await;
    assert!(matches!(outcome, Outcome::Done), "{outcome:?}");
    let loose = eni(&client, &attached.id).await;
    assert_eq!(
        (&loose.attachment, &loose.blocks),
        (&None, &attached.blocks)
    );
    refused(&client, detach(&attachment), Class::NotFound).await;
    let primary = bed.fake.peek(|cloud| cloud.primary_of("i-1")).unwrap();
    let primary = eni(&client, &primary.as_str().into())
        .await
        .attachment
        .unwrap();
    // EC2 keeps the ENI at index 0.
    refused(&client, detach(&primary.id), Class::Invalid).await;
    let delete = Step::Delete {
        eni: attached.id.clone(),
    };
    assert!(matches!(client.step(&delete).await, Outcome::Done));
    assert!(bed.fake.refusals().is_empty(), "{:?}", bed.fake.refusals());
}
