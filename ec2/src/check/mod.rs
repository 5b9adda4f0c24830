//! The operator's rights: EC2 judges each call without carrying it out.

use std::collections::BTreeSet;

use cloud::Failure;
use cloud::call::query::What;
use cloud::inventory::Scope;
use cloud::node::Step;

use crate::Ec2;

/// EC2's judgement of a call that was not carried out.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// EC2 would carry it out.
    Allowed,
    /// EC2 does not judge this call without carrying it out.
    Untried,
    /// EC2 refused it, or did not answer.
    Refused(Failure),
}

/// The judgement of one call.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Right {
    /// The call, such as `CreateNetworkInterface`.
    pub call: &'static str,
    /// EC2's judgement.
    pub verdict: Verdict,
}

/// Asks EC2 for its verdict on every read and on the given steps, one after another.
pub async fn check(ec2: &dyn Ec2, steps: &[Step]) -> Vec<Right> {
    let mut rights = Vec::new();
    for what in reads() {
        let verdict = ec2.try_read(&what).await;
        rights.push(Right {
            call: what.action().name(),
            verdict,
        });
    }
    for step in steps {
        let verdict = ec2.try_step(step).await;
        rights.push(Right {
            call: step.action().name(),
            verdict,
        });
    }
    rights
}

/// A read of each kind.
fn reads() -> [What; 8] {
    [
        What::Enis(Scope::All),
        What::Instances(BTreeSet::new()),
        What::Subnets,
        What::RouteTables,
        What::Groups,
        What::Vpcs,
        What::Types(BTreeSet::new()),
        What::Addresses,
    ]
}

#[cfg(test)]
mod tests;
