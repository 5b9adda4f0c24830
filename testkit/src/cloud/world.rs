//! The VPC of a fabric, as a cloud begins with it.

use std::fs;

use anyhow::{Context as _, Result};
use ec2_fake::Cloud;
use ipam::Family;
use jiff::Timestamp;
use serde_json::{Value, json};

use super::CLUSTER;
use crate::fabric::Instance;
use crate::fabric::groups::{Admits, Group};
use crate::fabric::layout::{Addressing, Eni, VPC_V4, VPC_V6};
use crate::fabric::room::JOINED;
use crate::kubernetes::{MetadataService, deploy};

/// The access key of a client with all rights.
pub(super) const STRANGER: &str = "stranger";
/// Subnets of the VPC: nodes are in the first one.
pub(super) const SUBNETS: u8 = 3;
/// The security group of nodes.
pub(super) const NODES: Group = Group {
    id: "sg-0fab",
    admits: Admits::All,
};
/// Instances that can be a node, one after the other.
const SUCCESSORS: u8 = 3;

/// The id of a subnet.
#[must_use]
pub fn subnet(number: u8) -> String {
    format!("subnet-0fab{number:013x}")
}

/// An instance of a node.
#[derive(Clone, Copy, Debug)]
pub(super) struct Incarnation {
    /// The node's index.
    pub(super) node: u8,
    /// The number of instances that the node had before.
    pub(super) successor: u8,
}

impl Incarnation {
    /// The instance's id.
    fn id(self) -> String {
        format!(
            "i-0fab{:013x}",
            u16::from(self.node) + 256 * u16::from(self.successor)
        )
    }

    /// The primary ENI's place in the fabric.
    fn place(self) -> Result<Eni> {
        let eni = Eni::on_node(self.node, self.successor, 0, Addressing::Addresses)?;
        Ok(eni.with_own_v6())
    }
}

/// The shipped policy of the operator, for a VPC.
///
/// # Errors
/// When it cannot be read.
pub fn policy(vpc: &str) -> Result<Value> {
    template("policy.json", vpc)
}

/// The shipped policy of an operator whose nodes have static IPs, for a VPC.
///
/// # Errors
/// When it cannot be read.
pub fn policy_with_static_ips(vpc: &str) -> Result<Value> {
    let (mut all, more) = (policy(vpc)?, template("static-ip.json", vpc)?);
    let statements = all["Statement"].as_array_mut();
    let more = more["Statement"].as_array().into_iter().flatten().cloned();
    statements.context("a policy has statements")?.extend(more);
    Ok(all)
}

fn template(name: &str, vpc: &str) -> Result<Value> {
    let policy = fs::read_to_string(deploy().join("iam").join(name))?;
    let policy = policy
        .replace("${PARTITION}", "aws")
        .replace("${CLUSTER_NAME}", CLUSTER)
        .replace("${VPC_ID}", vpc);
    serde_json::from_str(&policy).with_context(|| format!("parse deploy/iam/{name}"))
}

/// A cloud of the fabric's VPC without instances. The operator's key has the shipped policy.
pub(super) fn cloud(settings: &Value, groups: &[Group]) -> Result<Cloud> {
    let vpc = MetadataService::VPC;
    let subnets = (0..SUBNETS).map(|number| {
        let v6 = VPC_V6.subnets(64)?.nth(number.into());
        Ok(json!({
            "id": subnet(number), "vpc": vpc, "zone": MetadataService::ZONE,
            "ipv4": format!("10.0.{number}.0/24"), "ipv6": v6, "taken": taken(number)?,
        }))
    });
    let groups = groups.iter().map(|group| {
        let name = if group.id == NODES.id {
            "default"
        } else {
            group.id
        };
        json!({"id": group.id, "vpc": vpc, "name": name})
    });
    let world = json!({
        "settings": settings,
        "vpcs": [{"id": vpc, "cidrs": [VPC_V4, VPC_V6]}],
        "subnets": subnets.collect::<Result<Vec<_>>>()?,
        "route_tables": [{
            "id": "rtb-0fab", "vpc": vpc, "main": true, "routes": {"10.0.0.0/16": "local"}
        }],
        "groups": groups.collect::<Vec<_>>(),
        "principals": {
            "any": {"secret": "any", "policy": policy(vpc)?}, STRANGER: {"secret": "any"}
        },
    });
    let world = serde_json::from_value(world).context("the fabric's VPC as a cloud")?;
    Ok(Cloud::build(&world, Timestamp::now())?)
}

/// The IPv6 addresses that the host has on primary ENIs, which the cloud does not know as theirs.
fn taken(subnet: u8) -> Result<Vec<String>> {
    if subnet > 0 {
        return Ok(Vec::new());
    }
    let nodes = (0..=JOINED).flat_map(|node| (0..=SUCCESSORS).map(move |it| (node, it)));
    let address = |(node, successor)| {
        let own = Incarnation { node, successor }.place()?;
        let own = own.own_address(Family::V6);
        Ok(own.context("it has one")?.to_string())
    };
    nodes.map(address).collect()
}

/// Starts an instance of a node.
pub(super) fn start(
    cloud: &mut Cloud,
    now: Timestamp,
    incarnation: Incarnation,
    kind: &str,
) -> Result<Instance> {
    let id = incarnation.id();
    let spec = json!({
        "id": id, "type": kind, "subnet": subnet(0), "groups": [NODES.id],
        "address": incarnation.place()?.own_address(Family::V4),
    });
    cloud.start(&serde_json::from_value(spec)?, now)?;
    let held = |eni: &&std::sync::Arc<ec2_fake::Eni>| {
        let attachment = eni.attachment.as_ref();
        attachment.is_some_and(|attachment| attachment.instance == id)
    };
    let primary = cloud.interfaces().find(held).context("it has an ENI")?;
    Ok(Instance {
        primary: Eni::of_cloud(incarnation.node, primary)?.with_own_v6(),
        kind: kind.to_owned(),
        id,
    })
}
