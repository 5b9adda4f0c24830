use std::future::ready;

use cloud::call::query::{Page, Query};
use cloud::node::Outcome;
use cloud::{Action, EniId};

use super::*;
use crate::{Call, Meter};

/// An EC2 that denies the calls of one name.
struct Denying {
    call: &'static str,
    meter: Meter,
}

impl Denying {
    fn judge(&self, call: &'static str) -> Call<'_, Verdict> {
        let failure = Failure::answered(Action::DescribeEnis, 403, "UnauthorizedOperation", "no");
        Box::pin(ready(if call == self.call {
            Verdict::Refused(failure)
        } else {
            Verdict::Allowed
        }))
    }
}

impl Ec2 for Denying {
    fn step<'a>(&'a self, _: &'a Step) -> Call<'a, Outcome> {
        unreachable!("a check carries nothing out")
    }

    fn read<'a>(&'a self, _: &'a Query) -> Call<'a, Result<Page, Failure>> {
        unreachable!("a check carries nothing out")
    }

    fn try_step<'a>(&'a self, step: &'a Step) -> Call<'a, Verdict> {
        self.judge(step.action().name())
    }

    fn try_read<'a>(&'a self, what: &'a What) -> Call<'a, Verdict> {
        self.judge(what.action().name())
    }

    fn meter(&self) -> &Meter {
        &self.meter
    }
}

#[tokio::test]
async fn each_right_that_is_taken_away_is_named() {
    let eni = EniId::from("eni-1");
    let steps = [Step::Delete { eni }];
    let calls = [
        "DescribeNetworkInterfaces",
        "DescribeInstances",
        "DescribeSubnets",
        "DescribeRouteTables",
        "DescribeSecurityGroups",
        "DescribeVpcs",
        "DescribeInstanceTypes",
        "DescribeAddresses",
        "DeleteNetworkInterface",
    ];
    for call in calls {
        let meter = Meter::default();
        let rights = check(&Denying { call, meter }, &steps).await;
        let names: Vec<_> = rights.iter().map(|it| it.call).collect();
        assert_eq!(names, calls);
        let denied = rights.iter().filter(|it| it.verdict != Verdict::Allowed);
        let denied: Vec<_> = denied.map(|it| it.call).collect();
        assert_eq!(denied, [call]);
    }
}
