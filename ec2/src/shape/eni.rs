//! ENIs.

use std::net::{IpAddr, Ipv4Addr};

use aws_sdk_ec2::types::{AttachmentStatus, NetworkInterface, NetworkInterfaceAttachment};
use cloud::{
    AttachState, Attachment, AttachmentId, Eni, EniId, GroupId, InstanceId, InterfaceKind,
    Placement, SubnetId, VpcId,
};
use ipnet::IpNet;

use super::field::{FieldError, Object, tags};

/// An ENI.
pub(crate) fn eni(shown: &NetworkInterface) -> Result<Eni, FieldError> {
    let id = shown.network_interface_id();
    let id = Object("network interface").id("networkInterfaceId", id, EniId::parse)?;
    let object = Object(id.as_str());
    let own: Option<Ipv4Addr> =
        object.parse_some("privateIpAddress", shown.private_ip_address())?;
    let public = shown.association().and_then(|it| it.public_ip());
    let zone = object.required("availabilityZone", shown.availability_zone())?;
    let mac = object.required("macAddress", shown.mac_address())?;
    let kind = shown.interface_type().map_or("", |it| it.as_str());
    let groups = shown.groups().iter();
    Ok(Eni {
        placement: Placement {
            vpc: object.id("vpcId", shown.vpc_id(), VpcId::parse)?,
            subnet: object.id("subnetId", shown.subnet_id(), SubnetId::parse)?,
            zone: zone.to_owned(),
        },
        mac: parse_mac(object, mac)?,
        kind: InterfaceKind::parse(kind),
        description: shown.description().unwrap_or_default().to_owned(),
        own,
        public: object.parse_some("association.publicIp", public)?,
        blocks: cloud::blocks(
            own.map(IpAddr::V4),
            prefixes(object, shown)?,
            addresses(object, shown)?,
        ),
        groups: groups
            .filter_map(|it| GroupId::parse(it.group_id()?))
            .collect(),
        tags: tags(shown.tag_set()),
        is_pending: shown.status().is_some_and(|it| it.as_str() == "pending"),
        attachment: attachment(object, shown.attachment())?,
        id,
    })
}

fn addresses(object: Object<'_>, shown: &NetworkInterface) -> Result<Vec<IpAddr>, FieldError> {
    let ipv4 = shown.private_ip_addresses().iter();
    let ipv4 = ipv4.filter_map(|it| it.private_ip_address());
    let ipv6 = shown.ipv6_addresses().iter();
    let ipv6 = ipv6.filter_map(|it| it.ipv6_address());
    let ipv4 = ipv4.map(|it| object.parse("privateIpAddressesSet", it));
    let ipv6 = ipv6.map(|it| object.parse("ipv6AddressesSet", it));
    ipv4.chain(ipv6).collect()
}

fn prefixes(object: Object<'_>, shown: &NetworkInterface) -> Result<Vec<IpNet>, FieldError> {
    let ipv4 = shown.ipv4_prefixes().iter();
    let ipv4 = ipv4.filter_map(|it| it.ipv4_prefix());
    let ipv6 = shown.ipv6_prefixes().iter();
    let ipv6 = ipv6.filter_map(|it| it.ipv6_prefix());
    let ipv4 = ipv4.map(|it| object.parse("ipv4PrefixSet", it));
    let ipv6 = ipv6.map(|it| object.parse("ipv6PrefixSet", it));
    ipv4.chain(ipv6).collect()
}

fn attachment(
    object: Object<'_>,
    shown: Option<&NetworkInterfaceAttachment>,
) -> Result<Option<Attachment>, FieldError> {
    let Some(shown) = shown else {
        return Ok(None);
    };
    let state = match shown.status() {
        Some(AttachmentStatus::Attaching) => AttachState::Attaching,
        Some(AttachmentStatus::Detaching) => AttachState::Detaching,
        Some(AttachmentStatus::Detached) => return Ok(None),
        // A state of later versions must not make the ENI count as a loose one.
        _ => AttachState::Attached,
    };
    let index = shown.device_index().unwrap_or_default();
    let card = shown.network_card_index().unwrap_or_default();
    Ok(Some(Attachment {
        id: object.id(
            "attachment.attachmentId",
            shown.attachment_id(),
            AttachmentId::parse,
        )?,
        instance: shown.instance_id().and_then(InstanceId::parse),
        index: object.number("attachment.deviceIndex", index)?,
        card: object.number("attachment.networkCardIndex", card)?,
        state,
        delete_on_termination: shown.delete_on_termination().unwrap_or_default(),
    }))
}

fn parse_mac(object: Object<'_>, text: &str) -> Result<[u8; 6], FieldError> {
    let bytes: Option<Vec<u8>> = text.split(':').map(byte).collect();
    let mac = bytes.and_then(|it| <[u8; 6]>::try_from(it).ok());
    mac.ok_or_else(|| {
        let fault = format!("{text:?}, expected six bytes such as 0a:1b:2c:3d:4e:5f");
        object.fault("macAddress", fault)
    })
}

/// A byte of two hexadecimal digits.
fn byte(text: &str) -> Option<u8> {
    let is_hex = text.len() == 2 && text.bytes().all(|it| it.is_ascii_hexdigit());
    is_hex.then(|| u8::from_str_radix(text, 16).ok()).flatten()
}
