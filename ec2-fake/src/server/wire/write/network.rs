//! VPCs, subnets, route tables, security groups and Elastic IP addresses as XML.

use ipnet::IpNet;

use super::element::Element;
use super::tags;
use crate::cloud::{Cloud, Elastic, Eni};
use crate::family::Family;
use crate::world::{Group, RouteTable, Subnet, Vpc};

/// Kinds of gateways by the starts of their ids.
const GATEWAYS: [(&str, &str); 5] = [
    ("nat-", "natGatewayId"),
    ("eigw-", "egressOnlyInternetGatewayId"),
    ("tgw-", "transitGatewayId"),
    ("pcx-", "vpcPeeringConnectionId"),
    ("eni-", "networkInterfaceId"),
];

/// A VPC.
pub(super) fn vpc(cloud: &Cloud, vpc: &Vpc) -> Vec<Element> {
    let mut elements = vec![
        Element::text("vpcId", &vpc.id),
        Element::text("ownerId", &cloud.settings().account),
        Element::text("state", "available"),
        Element::text("isDefault", false),
        tags(&vpc.tags),
    ];
    let of = |family| {
        let cidrs = vpc.cidrs.iter();
        cidrs.filter(move |cidr| Family::of(&cidr.addr()) == family)
    };
    elements.extend(Element::maybe("cidrBlock", of(Family::V4).next()));
    for family in [Family::V4, Family::V6] {
        let (name, ..) = cidr_names(family);
        let shown = of(family).map(|cidr| associated(&vpc.id, family, cidr));
        elements.push(Element::list(name, shown));
    }
    elements
}

/// Names of the list of associated CIDRs, and of the CIDR and its state in an element.
const fn cidr_names(family: Family) -> (&'static str, &'static str, &'static str) {
    match family {
        Family::V4 => ("cidrBlockAssociationSet", "cidrBlock", "cidrBlockState"),
        Family::V6 => (
            "ipv6CidrBlockAssociationSet",
            "ipv6CidrBlock",
            "ipv6CidrBlockState",
        ),
    }
}

fn associated(owner: &str, family: Family, cidr: &IpNet) -> Vec<Element> {
    let (_, name, state) = cidr_names(family);
    vec![
        Element::text("associationId", format!("{owner}-{cidr}-assoc")),
        Element::text(name, cidr),
        Element::of(state, vec![Element::text("state", "associated")]),
    ]
}

/// A subnet and its free IPv4 addresses.
pub(super) fn subnet(cloud: &Cloud, subnet: &Subnet, free: u128) -> Vec<Element> {
    let settings = cloud.settings();
    let arn = format!(
        "arn:{}:ec2:{}:{}:subnet/{}",
        settings.partition, settings.region, settings.account, subnet.id
    );
    let ipv6 = subnet.ipv6.iter();
    let ipv6 = ipv6.map(|cidr| associated(&subnet.id, Family::V6, cidr));
    let (ipv6_name, ..) = cidr_names(Family::V6);
    let mut elements = vec![
        Element::text("subnetId", &subnet.id),
        Element::text("subnetArn", arn),
        Element::text("vpcId", &subnet.vpc),
        Element::text("ownerId", &settings.account),
        Element::text("state", "available"),
        Element::text("availabilityZone", &subnet.zone),
        Element::text("availableIpAddressCount", free),
        Element::text("ipv6Native", subnet.ipv4.is_none()),
        Element::list(ipv6_name, ipv6),
        tags(&subnet.tags),
    ];
    elements.extend(Element::maybe("cidrBlock", subnet.ipv4));
    elements
}

/// A route table.
pub(super) fn route_table(cloud: &Cloud, table: &RouteTable) -> Vec<Element> {
    let main = table.main.then(|| association(table, None));
    let subnets = table.subnets.iter();
    let subnets = subnets.map(|subnet| association(table, Some(subnet)));
    let routes = table.routes.iter().map(|(to, by)| route(to, by));
    vec![
        Element::text("routeTableId", &table.id),
        Element::text("vpcId", &table.vpc),
        Element::text("ownerId", &cloud.settings().account),
        Element::list("routeSet", routes),
        Element::list("associationSet", main.into_iter().chain(subnets)),
        tags(&table.tags),
    ]
}

/// The association of a table with a subnet, or with the VPC.
fn association(table: &RouteTable, subnet: Option<&String>) -> Vec<Element> {
    let with = subnet.unwrap_or(&table.vpc);
    let state = vec![Element::text("state", "associated")];
    let mut elements = vec![
        Element::text(
            "routeTableAssociationId",
            format!("rtbassoc-{}-{with}", table.id),
        ),
        Element::text("routeTableId", &table.id),
        Element::text("main", subnet.is_none()),
        Element::of("associationState", state),
    ];
    elements.extend(Element::maybe("subnetId", subnet));
    elements
}

fn route(to: &IpNet, by: &str) -> Vec<Element> {
    let destination = match Family::of(&to.addr()) {
        Family::V4 => "destinationCidrBlock",
        Family::V6 => "destinationIpv6CidrBlock",
    };
    let gateway = GATEWAYS.iter().find(|(start, _)| by.starts_with(start));
    let gateway = gateway.map_or("gatewayId", |(_, name)| name);
    vec![
        Element::text(destination, to),
        Element::text(gateway, by),
        Element::text("state", "active"),
    ]
}

/// A security group.
pub(super) fn group(cloud: &Cloud, group: &Group) -> Vec<Element> {
    vec![
        Element::text("groupId", &group.id),
        Element::text("groupName", &group.name),
        Element::text("groupDescription", &group.name),
        Element::text("vpcId", &group.vpc),
        Element::text("ownerId", &cloud.settings().account),
        tags(&group.tags),
    ]
}

/// A security group of `GetSecurityGroupsForVpc`.
pub(super) fn group_of_vpc(cloud: &Cloud, group: &Group) -> Vec<Element> {
    vec![
        Element::text("groupId", &group.id),
        Element::text("groupName", &group.name),
        Element::text("description", &group.name),
        Element::text("primaryVpcId", &group.vpc),
        Element::text("ownerId", &cloud.settings().account),
        tags(&group.tags),
    ]
}

/// An Elastic IP address, and the interface that it is associated with.
pub(super) fn address(cloud: &Cloud, elastic: &Elastic, eni: Option<&Eni>) -> Vec<Element> {
    let mut elements = vec![
        Element::text("allocationId", &elastic.id),
        Element::text("publicIp", elastic.ip),
        Element::text("domain", "vpc"),
        tags(&elastic.tags),
    ];
    if let Some((association, eni, private)) = &elastic.association {
        elements.extend([
            Element::text("associationId", association),
            Element::text("networkInterfaceId", eni),
            Element::text("networkInterfaceOwnerId", &cloud.settings().account),
            Element::text("privateIpAddress", private),
        ]);
    }
    let instance = eni.and_then(|eni| Some(&eni.attachment.as_ref()?.instance));
    elements.extend(Element::maybe("instanceId", instance));
    elements
}
