//! The operator's rights: every call that it makes, judged by EC2 and not carried out.

use std::collections::BTreeSet;

use cloud::call::query::{Items, What};
use cloud::elastic::Elastic;
use cloud::groups::Group;
use cloud::inventory::Scope;
use cloud::node::{Create, Step};
use cloud::object::subnet::Subnet;
use cloud::object::tags;
use cloud::{Class, Eni, Failure, InstanceId};
use ec2::{Ec2, Right, Verdict};
use jiff::Timestamp;
use serde::Serialize;

use crate::config::{ClusterName, Config};
use crate::reading::read_all;

/// EC2's judgement of a call.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Judgement {
    /// The call, such as `CreateNetworkInterface`.
    pub call: &'static str,
    /// The judgement.
    pub state: State,
    /// The reason, where the call is not allowed.
    pub reason: Option<String>,
}

/// A judgement in a word.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub enum State {
    /// EC2 would carry it out.
    Allowed,
    /// EC2 cannot judge it without carrying it out, or there is nothing to try it on.
    Untried,
    /// EC2 refuses it, and only nodes with a static IP need it.
    Optional,
    /// EC2 refuses it.
    Refused,
}

/// Objects to try calls on.
#[derive(Debug, Default)]
struct Samples {
    subnets: Vec<Subnet>,
    groups: Vec<Group>,
    enis: Vec<Eni>,
    addresses: Vec<Elastic>,
}

/// Checks with EC2 that every call of the operator is permitted.
pub async fn check(ec2: &dyn Ec2, config: &Config, cluster: &ClusterName) -> Vec<Judgement> {
    let samples = samples(ec2).await;
    let steps = steps(&samples, config, cluster);
    let rights = ec2::check(ec2, &steps).await;
    let mut judgements: Vec<Judgement> = rights.into_iter().map(judgement).collect();
    for (call, reason) in CHANGES {
        if judgements.iter().all(|it| it.call != call) {
            judgements.push(Judgement {
                call,
                state: State::Untried,
                reason: Some(reason.to_owned()),
            });
        }
    }
    judgements
}

/// Every change, and the reason where it was not tried.
const CHANGES: [(&str, &str); 9] = [
    ("CreateNetworkInterface", NO_PLACE),
    ("AttachNetworkInterface", NO_ENI),
    ("ModifyNetworkInterfaceAttribute", NO_ENI),
    ("DeleteNetworkInterface", NO_ENI),
    ("AssignPrivateIpAddresses", NO_TRIAL),
    ("AssignIpv6Addresses", NO_TRIAL),
    ("UnassignPrivateIpAddresses", NO_TRIAL),
    ("DetachNetworkInterface", NO_ENI),
    (ASSOCIATE, NO_ADDRESS),
];
/// The calls that only nodes with a static IP need.
const STATIC_IP: [&str; 2] = [READ_ADDRESSES, ASSOCIATE];
const READ_ADDRESSES: &str = "DescribeAddresses";
const ASSOCIATE: &str = "AssociateAddress";
const NO_PLACE: &str = "there is no subnet with a security group in its VPC to try it on";
const NO_ENI: &str = "the cluster has no ENI yet to try it on";
const NO_ADDRESS: &str = "there is no ENI and Elastic IP address to try it on";
const NO_TRIAL: &str = "EC2 has no trial of this call";

/// Reads what calls can be tried on. A read that is refused shows up among the judgements.
async fn samples(ec2: &dyn Ec2) -> Samples {
    let mut samples = Samples::default();
    let enis = What::Enis(Scope::All);
    for what in [What::Subnets, What::Groups, enis, What::Addresses] {
        match read_all(ec2, what, BTreeSet::new()).await {
            Ok(Items::Subnets(subnets)) => samples.subnets = subnets,
            Ok(Items::Groups(groups)) => samples.groups = groups,
            Ok(Items::Enis(enis)) => samples.enis = enis,
            Ok(Items::Addresses(addresses)) => samples.addresses = addresses,
            Ok(_) | Err(_) => {}
        }
    }
    samples
}

fn steps(samples: &Samples, config: &Config, cluster: &ClusterName) -> Vec<Step> {
    let mut steps = Vec::new();
    let fits = |subnet: &Subnet| samples.groups.iter().find(|group| group.vpc == subnet.vpc);
    let place = samples.subnets.iter().find_map(|it| Some((it, fits(it)?)));
    if let Some((subnet, group)) = place {
        steps.push(create(subnet, group, config, cluster));
    }
    if let (Some(eni), Some(elastic)) = (samples.enis.first(), samples.addresses.first()) {
        steps.push(Step::Associate {
            eni: eni.id.clone(),
            allocation: elastic.id.clone(),
            address: elastic.address,
        });
    }
    let is_ours = |eni: &&Eni| tags::instance_of(&eni.tags, cluster.as_str()).is_some();
    let Some(eni) = samples.enis.iter().find(is_ours) else {
        return steps;
    };
    if let Some(instance) = tags::instance_of(&eni.tags, cluster.as_str()) {
        steps.push(Step::Attach {
            eni: eni.id.clone(),
            instance,
            index: 1,
        });
    }
    steps.push(Step::Group {
        eni: eni.id.clone(),
        groups: eni.groups.clone(),
    });
    if let Some(attachment) = &eni.attachment {
        steps.push(Step::Detach {
            eni: eni.id.clone(),
            attachment: attachment.id.clone(),
        });
    }
    steps.push(Step::Delete {
        eni: eni.id.clone(),
    });
    steps
}

fn create(subnet: &Subnet, group: &Group, config: &Config, cluster: &ClusterName) -> Step {
    let instance = InstanceId::from("i-00000000000000000");
    let now = Timestamp::now();
    let tags = tags::of_creation(cluster.as_str(), &instance, now, &config.eni.tags);
    Step::Create(Box::new(Create {
        instance,
        subnet: subnet.id.clone(),
        groups: BTreeSet::from([group.id.clone()]),
        description: "trial".to_owned(),
        ipv4: None,
        ipv6_prefix: false,
        tags,
        token: format!("towpath-check-{}", now.as_millisecond()),
    }))
}

fn judgement(right: Right) -> Judgement {
    let (state, reason) = match right.verdict {
        Verdict::Allowed => (State::Allowed, None),
        Verdict::Untried => (State::Untried, Some(NO_TRIAL.to_owned())),
        Verdict::Refused(failure) => (refused(right.call, &failure), Some(failure.to_string())),
    };
    Judgement {
        call: right.call,
        state,
        reason,
    }
}

/// A refusal for the state of the object that was tried says nothing about the right.
fn refused(call: &str, failure: &Failure) -> State {
    match failure.class {
        Class::Denied if STATIC_IP.contains(&call) => State::Optional,
        Class::Denied
        | Class::Credentials
        | Class::Throttled
        | Class::Unanswered
        | Class::Invalid => State::Refused,
        _ => State::Untried,
    }
}

#[cfg(test)]
mod tests;
