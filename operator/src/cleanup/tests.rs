use std::collections::BTreeMap;
use std::future::ready;
use std::sync::Mutex;

use cloud::call::query::{Page, Query};
use cloud::{Action, AttachState, Attachment};
use ec2::{Call, Meter, Verdict};

use super::*;
use crate::fixture;

/// An EC2 with these ENIs. Each delete gets the next of the refusals first.
#[derive(Default)]
struct Played {
    listed: Vec<Eni>,
    by_id: BTreeMap<EniId, Eni>,
    refusals: Mutex<Vec<Failure>>,
    deleted: Mutex<Vec<EniId>>,
    meter: Meter,
}

impl Played {
    fn of(enis: &[Eni]) -> Self {
        Self {
            listed: enis.to_vec(),
            by_id: enis.iter().map(|it| (it.id.clone(), it.clone())).collect(),
            ..Self::default()
        }
    }

    async fn clean(&self, only_list: bool) -> Vec<(String, Fate)> {
        let blue = ClusterName::try_from("blue".to_owned()).unwrap();
        let remnants = cleanup(self, &blue, only_list).await.unwrap();
        remnants.into_iter().map(|it| (it.eni, it.fate)).collect()
    }
}

impl Ec2 for Played {
    fn step<'a>(&'a self, step: &'a Step) -> Call<'a, Outcome> {
        let Step::Delete { eni } = step else {
            unreachable!("a cleanup deletes");
        };
        let refusal = self.refusals.lock().unwrap().pop();
        let outcome = refusal.map_or(Outcome::Done, Outcome::Failed);
        if matches!(outcome, Outcome::Done) {
            self.deleted.lock().unwrap().push(eni.clone());
        }
        Box::pin(ready(outcome))
    }

    /// A page is one ENI.
    fn read<'a>(&'a self, query: &'a Query) -> Call<'a, Result<Page, Failure>> {
        let enis: Vec<Eni> = match &query.what {
            What::Enis(Scope::Ids(ids)) => ids
                .iter()
                .filter_map(|id| self.by_id.get(id))
                .cloned()
                .collect(),
            What::Enis(_) => self.listed.clone(),
            _ => unreachable!("a cleanup reads ENIs"),
        };
        let at: usize = query.page.as_ref().map_or(0, |page| page.parse().unwrap());
        let next = (at + 1 < enis.len()).then(|| (at + 1).to_string());
        let items = Items::Enis(enis.get(at).cloned().into_iter().collect());
        Box::pin(ready(Ok(Page { items, next })))
    }

    fn try_step<'a>(&'a self, _: &'a Step) -> Call<'a, Verdict> {
        unreachable!("a cleanup tries nothing")
    }

    fn try_read<'a>(&'a self, _: &'a What) -> Call<'a, Verdict> {
        unreachable!("a cleanup tries nothing")
    }

    fn meter(&self) -> &Meter {
        &self.meter
    }
}

fn eni(id: &str, cluster: Option<&str>) -> Eni {
    let tags = cluster.map(|name| (tags::CLUSTER.to_owned(), name.to_owned()));
    fixture::eni(id, tags.into_iter().collect())
}

fn held(id: &str) -> Eni {
    let attachment = Attachment {
        id: "eni-attach-1".into(),
        instance: Some("i-1".into()),
        index: 1,
        card: 0,
        state: AttachState::Attached,
        delete_on_termination: true,
    };
    Eni {
        attachment: Some(attachment),
        ..eni(id, Some("blue"))
    }
}

fn named(id: &str, fate: Fate) -> (String, Fate) {
    (id.to_owned(), fate)
}

#[tokio::test]
async fn loose_enis_of_the_cluster_are_deleted_and_all_others_stay() {
    let ec2 = Played::of(&[
        eni("eni-1", Some("blue")),
        eni("eni-2", Some("bluer")),
        eni("eni-3", None),
        held("eni-4"),
        eni("eni-5", Some("blue")),
    ]);
    let expected = [
        named("eni-1", Fate::Deleted),
        named("eni-4", Fate::InUse),
        named("eni-5", Fate::Deleted),
    ];
    assert_eq!(ec2.clean(false).await, expected);
    let deleted = ec2.deleted.lock().unwrap().clone();
    assert_eq!(deleted, ["eni-1".into(), "eni-5".into()]);
}

#[tokio::test]
async fn a_list_deletes_nothing() {
    let ec2 = Played::of(&[eni("eni-1", Some("blue")), held("eni-2")]);
    let expected = [named("eni-1", Fate::Deletable), named("eni-2", Fate::InUse)];
    assert_eq!(ec2.clean(true).await, expected);
    assert!(ec2.deleted.lock().unwrap().is_empty());
}

#[tokio::test]
async fn an_eni_that_was_attached_after_the_listing_stays() {
    let mut ec2 = Played::of(&[eni("eni-1", Some("blue")), eni("eni-2", Some("blue"))]);
    ec2.by_id.insert("eni-1".into(), held("eni-1"));
    ec2.by_id.remove(&EniId::from("eni-2"));
    let expected = [named("eni-1", Fate::InUse), named("eni-2", Fate::Deleted)];
    assert_eq!(ec2.clean(false).await, expected);
    assert!(ec2.deleted.lock().unwrap().is_empty());
}

#[tokio::test(start_paused = true)]
async fn a_throttled_delete_is_repeated_and_a_refused_one_is_shown() {
    let refused = |code| Failure::answered(Action::Delete, 400, code, "no");
    let ec2 = Played::of(&[eni("eni-1", Some("blue")), eni("eni-2", Some("blue"))]);
    *ec2.refusals.lock().unwrap() = vec![
        refused("UnauthorizedOperation"),
        refused("RequestLimitExceeded"),
        refused("RequestLimitExceeded"),
    ];
    let all = ec2.clean(false).await;
    let Fate::Failed(cause) = &all[0].1 else {
        panic!("{all:?}");
    };
    assert!(cause.contains("UnauthorizedOperation"), "{cause}");
    assert_eq!(all[1].1, Fate::Deleted);
}
