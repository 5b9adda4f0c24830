use std::future::ready;
use std::net::Ipv4Addr;

use cloud::call::query::{Page, Query};
use cloud::node::Outcome;
use cloud::{Action, Tags};
use ec2::{Call, Meter};

use super::*;
use crate::fixture;

/// An EC2 with a subnet, a group, and perhaps an ENI, that refuses the calls of one name.
struct Played {
    enis: Vec<Eni>,
    refuses: &'static str,
    code: &'static str,
    meter: Meter,
}

impl Played {
    fn refusing(refuses: &'static str, code: &'static str, enis: Vec<Eni>) -> Self {
        Self {
            enis,
            refuses,
            code,
            meter: Meter::default(),
        }
    }

    fn judge(&self, call: &'static str) -> Verdict {
        if call == self.refuses {
            let action = Action::DescribeEnis;
            return Verdict::Refused(Failure::answered(action, 400, self.code, "no"));
        }
        Verdict::Allowed
    }
}

impl Ec2 for Played {
    fn step<'a>(&'a self, _: &'a Step) -> Call<'a, Outcome> {
        unreachable!("a check changes nothing")
    }

    fn read<'a>(&'a self, query: &'a Query) -> Call<'a, Result<Page, Failure>> {
        let items = match &query.what {
            What::Subnets => Items::Subnets(vec![subnet()]),
            What::Groups => Items::Groups(vec![Group {
                id: "sg-1".into(),
                vpc: "vpc-1".into(),
                tags: Tags::new(),
            }]),
            What::Addresses => Items::Addresses(vec![Elastic {
                id: "eipalloc-1".into(),
                address: Ipv4Addr::new(198, 51, 100, 1),
                association: None,
                tags: Tags::new(),
            }]),
            _ => Items::Enis(self.enis.clone()),
        };
        Box::pin(ready(Ok(Page { items, next: None })))
    }

    fn try_step<'a>(&'a self, step: &'a Step) -> Call<'a, Verdict> {
        Box::pin(ready(self.judge(step.action().name())))
    }

    fn try_read<'a>(&'a self, what: &'a What) -> Call<'a, Verdict> {
        Box::pin(ready(self.judge(what.action().name())))
    }

    fn meter(&self) -> &Meter {
        &self.meter
    }
}

fn subnet() -> Subnet {
    Subnet {
        id: "subnet-1".into(),
        vpc: "vpc-1".into(),
        zone: "a".to_owned(),
        ipv4: "10.0.0.0/16".parse().ok(),
        ipv6: None,
        free: 100,
        tags: Tags::new(),
        route_table: None,
    }
}

fn eni() -> Eni {
    let (instance, now) = ("i-1".into(), Timestamp::UNIX_EPOCH);
    let tags = tags::of_creation("blue", &instance, now, &Tags::new());
    fixture::eni("eni-1", tags)
}

async fn judged(ec2: &Played) -> Vec<(&'static str, State)> {
    let blue = ClusterName::try_from("blue".to_owned()).unwrap();
    let judgements = check(ec2, &Config::default(), &blue).await;
    judgements
        .into_iter()
        .map(|it| (it.call, it.state))
        .collect()
}

fn state(judged: &[(&'static str, State)], call: &str) -> State {
    let of_call: Vec<State> = judged
        .iter()
        .filter(|it| it.0 == call)
        .map(|it| it.1)
        .collect();
    assert_eq!(of_call.len(), 1, "{call}: {judged:?}");
    of_call[0]
}

#[tokio::test]
async fn every_call_is_judged_once_and_a_denied_one_is_refused() {
    let calls = [
        "DescribeSubnets",
        "CreateNetworkInterface",
        "AttachNetworkInterface",
        "ModifyNetworkInterfaceAttribute",
        "DeleteNetworkInterface",
        "DescribeAddresses",
        "AssociateAddress",
    ];
    for denied in calls {
        let ec2 = Played::refusing(denied, "UnauthorizedOperation", vec![eni()]);
        let judged = judged(&ec2).await;
        for call in calls {
            let expected = match call {
                _ if call != denied => State::Allowed,
                "DescribeAddresses" | "AssociateAddress" => State::Optional,
                _ => State::Refused,
            };
            assert_eq!(state(&judged, call), expected);
        }
        assert_eq!(state(&judged, "AssignPrivateIpAddresses"), State::Untried);
        assert_eq!(judged.len(), 17, "{judged:?}");
    }
}

#[tokio::test]
async fn a_cluster_without_enis_leaves_their_changes_untried() {
    let judged = judged(&Played::refusing("", "", Vec::new())).await;
    assert_eq!(state(&judged, "CreateNetworkInterface"), State::Allowed);
    assert_eq!(state(&judged, "DeleteNetworkInterface"), State::Untried);
    assert_eq!(state(&judged, "AssociateAddress"), State::Untried);
}

#[tokio::test]
async fn a_refusal_for_the_objects_state_is_no_missing_right() {
    let call = "AttachNetworkInterface";
    for (code, expected) in [
        ("InvalidInstanceID.NotFound", State::Untried),
        ("IncorrectState", State::Untried),
        ("AuthFailure", State::Refused),
    ] {
        let judged = judged(&Played::refusing(call, code, vec![eni()])).await;
        assert_eq!(state(&judged, call), expected, "{code}");
    }
}
