//! VPCs, subnets, route tables, security groups and Elastic IP addresses.

use std::collections::BTreeSet;

use aws_sdk_ec2::types::{
    Address, RouteTableAssociation, RouteTableAssociationStateCode, SecurityGroup,
    SubnetCidrBlockStateCode, VpcCidrBlockState, VpcCidrBlockStateCode,
};
use cloud::elastic::{Association, Elastic};
use cloud::groups::Group;
use cloud::object::subnet::{RouteTable, Subnet};
use cloud::{AllocationId, EniId, GroupId, RouteTableId, SubnetId, Vpc, VpcId};
use ipnet::IpNet;

use super::field::{FieldError, Object, tags};

/// A VPC. CIDRs that are not associated, or not any more, are none of it.
pub(crate) fn vpc(shown: &aws_sdk_ec2::types::Vpc) -> Result<Vpc, FieldError> {
    let id = Object("VPC").id("vpcId", shown.vpc_id(), VpcId::parse)?;
    let object = Object(id.as_str());
    let primary = object.required("cidrBlock", shown.cidr_block())?;
    let primary = object.parse("cidrBlock", primary)?;
    let ipv4 = shown.cidr_block_association_set().iter();
    let ipv4 = ipv4.filter(|it| is_associated(it.cidr_block_state()));
    let ipv4 = ipv4.filter_map(|it| it.cidr_block());
    let ipv6 = shown.ipv6_cidr_block_association_set().iter();
    let ipv6 = ipv6.filter(|it| is_associated(it.ipv6_cidr_block_state()));
    let ipv6 = ipv6.filter_map(|it| it.ipv6_cidr_block());
    let ipv4 = ipv4.map(|it| object.parse("cidrBlockAssociationSet", it));
    let ipv6 = ipv6.map(|it| object.parse("ipv6CidrBlockAssociationSet", it));
    let mut others: BTreeSet<IpNet> = ipv4.chain(ipv6).collect::<Result<_, _>>()?;
    others.remove(&primary);
    Ok(Vpc {
        id,
        primary,
        others,
    })
}

fn is_associated(state: Option<&VpcCidrBlockState>) -> bool {
    let state = state.and_then(|it| it.state());
    state == Some(&VpcCidrBlockStateCode::Associated)
}

/// A subnet, without its route table.
pub(crate) fn subnet(shown: &aws_sdk_ec2::types::Subnet) -> Result<Subnet, FieldError> {
    let id = Object("subnet").id("subnetId", shown.subnet_id(), SubnetId::parse)?;
    let object = Object(id.as_str());
    let zone = object.required("availabilityZone", shown.availability_zone())?;
    let ipv6 = shown.ipv6_cidr_block_association_set().iter();
    let mut ipv6 = ipv6.filter(|it| {
        let state = it.ipv6_cidr_block_state().and_then(|it| it.state());
        state == Some(&SubnetCidrBlockStateCode::Associated)
    });
    let ipv6 = ipv6.next().and_then(|it| it.ipv6_cidr_block());
    let free = shown.available_ip_address_count().unwrap_or_default();
    Ok(Subnet {
        vpc: object.id("vpcId", shown.vpc_id(), VpcId::parse)?,
        zone: zone.to_owned(),
        ipv4: object.parse_some("cidrBlock", shown.cidr_block())?,
        ipv6: object.parse_some("ipv6CidrBlockAssociationSet", ipv6)?,
        free: object.number("availableIpAddressCount", free)?,
        tags: tags(shown.tags()),
        route_table: None,
        id,
    })
}

/// A route table. Subnets whose association failed or ended are none of it.
pub(crate) fn route_table(
    shown: &aws_sdk_ec2::types::RouteTable,
) -> Result<RouteTable, FieldError> {
    let id = shown.route_table_id();
    let id = Object("route table").id("routeTableId", id, RouteTableId::parse)?;
    let vpc = Object(id.as_str()).id("vpcId", shown.vpc_id(), VpcId::parse)?;
    let associations = shown.associations().iter().filter(|it| holds(it));
    let subnets = associations.clone().filter_map(|it| it.subnet_id());
    Ok(RouteTable {
        vpc,
        is_main: associations.clone().any(|it| it.main() == Some(true)),
        subnets: subnets.filter_map(SubnetId::parse).collect(),
        id,
    })
}

fn holds(association: &RouteTableAssociation) -> bool {
    let state = association.association_state().and_then(|it| it.state());
    let ended = [
        RouteTableAssociationStateCode::Disassociating,
        RouteTableAssociationStateCode::Disassociated,
        RouteTableAssociationStateCode::Failed,
    ];
    state.is_none_or(|it| !ended.contains(it))
}

/// A security group.
pub(crate) fn group(shown: &SecurityGroup) -> Result<Group, FieldError> {
    let id = Object("security group").id("groupId", shown.group_id(), GroupId::parse)?;
    Ok(Group {
        vpc: Object(id.as_str()).id("vpcId", shown.vpc_id(), VpcId::parse)?,
        tags: tags(shown.tags()),
        id,
    })
}

/// An Elastic IP address.
pub(crate) fn elastic(shown: &Address) -> Result<Elastic, FieldError> {
    let id = shown.allocation_id();
    let id = Object("address").id("allocationId", id, AllocationId::parse)?;
    let object = Object(id.as_str());
    let address = object.required("publicIp", shown.public_ip())?;
    let private = object.parse_some("privateIpAddress", shown.private_ip_address())?;
    let association = shown.association_id().filter(|it| !it.is_empty());
    Ok(Elastic {
        address: object.parse("publicIp", address)?,
        association: association.map(|_| Association {
            eni: shown.network_interface_id().and_then(EniId::parse),
            private,
        }),
        tags: tags(shown.tags()),
        id,
    })
}
