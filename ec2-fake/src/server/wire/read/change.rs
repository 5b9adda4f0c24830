//! Calls that change something.

use std::net::Ipv4Addr;

use super::addresses;
use crate::call::{Associate, Attach, Change, Create, Modify};
use crate::error::{Failure, Result};
use crate::family::Family;
use crate::server::wire::model::missing;
use crate::server::wire::parameters::Parameters;
use crate::world::Tags;

const IPV4: &str = "an IPv4 address";

pub(super) fn create(parameters: &mut Parameters) -> Result<Create> {
    let mut create = Create {
        subnet: parameters.required("SubnetId")?,
        groups: parameters.texts("SecurityGroupId")?,
        description: parameters.text("Description").unwrap_or_default(),
        primary: parameters.parsed("PrivateIpAddress", IPV4)?,
        ipv4: addresses::created(parameters, Family::V4)?,
        ipv6: addresses::created(parameters, Family::V6)?,
        kind: parameters.text("InterfaceType"),
        token: parameters.text("ClientToken"),
        tags: specified_tags(parameters)?,
    };
    let listed = parameters.each("PrivateIpAddresses", |element| {
        let address: Option<Ipv4Addr> = element.parsed("PrivateIpAddress", IPV4)?;
        let address = address.ok_or_else(|| missing("PrivateIpAddress"))?;
        Ok((address, element.flag("Primary")?))
    })?;
    for (address, is_primary) in listed {
        if !is_primary {
            create.ipv4.addresses.push(address.into());
        } else if create.primary.replace(address).is_some() {
            return Err(Failure::combination(
                "an interface has only one primary private IP address",
            ));
        }
    }
    Ok(create)
}

/// The tags of the interface that is created; a call cannot specify those of another resource.
fn specified_tags(parameters: &mut Parameters) -> Result<Tags> {
    let specified = parameters.each("TagSpecification", |element| {
        let kind = element.required("ResourceType")?;
        if kind != "network-interface" {
            return Err(Failure::value(format!(
                "'{kind}' is not a valid taggable resource type for this operation."
            )));
        }
        tags(element)
    })?;
    let mut all = Tags::new();
    for (key, value) in specified.into_iter().flatten() {
        add(&mut all, key, value)?;
    }
    Ok(all)
}

/// The tags of a list.
pub(super) fn tags(parameters: &mut Parameters) -> Result<Tags> {
    let pairs = parameters.each("Tag", |element| {
        let key = element.required("Key")?;
        Ok((key, element.text("Value").unwrap_or_default()))
    })?;
    let mut tags = Tags::new();
    for (key, value) in pairs {
        add(&mut tags, key, value)?;
    }
    Ok(tags)
}

fn add(tags: &mut Tags, key: String, value: String) -> Result<()> {
    if tags.contains_key(&key) {
        return Err(Failure::value(format!(
            "Duplicate tag key '{key}' specified."
        )));
    }
    tags.insert(key, value);
    Ok(())
}

pub(super) fn attach(parameters: &mut Parameters) -> Result<Attach> {
    Ok(Attach {
        eni: parameters.required("NetworkInterfaceId")?,
        instance: parameters.required("InstanceId")?,
        index: parameters.number("DeviceIndex")?,
        card: parameters.number("NetworkCardIndex")?,
    })
}

pub(super) fn modify(parameters: &mut Parameters) -> Result<Modify> {
    let eni = parameters.required("NetworkInterfaceId")?;
    let description = parameters.text("Description.Value");
    let check = parameters.parsed("SourceDestCheck.Value", "true or false")?;
    let groups = parameters.texts("SecurityGroupId")?;
    let changes = [
        description.map(Change::Description),
        check.map(Change::SourceDestCheck),
        (!groups.is_empty()).then_some(Change::Groups(groups)),
        termination(parameters)?,
    ];
    let mut changes = changes.into_iter().flatten();
    match (changes.next(), changes.next()) {
        (Some(change), None) => Ok(Modify { eni, change }),
        (Some(_), Some(_)) => Err(Failure::combination(
            "Multiple attributes specified. Specify only one attribute a call.",
        )),
        (None, _) => Err(Failure::combination("No attributes specified.")),
    }
}

fn termination(parameters: &mut Parameters) -> Result<Option<Change>> {
    let attachment = parameters.text("Attachment.AttachmentId");
    let value = parameters.parsed("Attachment.DeleteOnTermination", "true or false")?;
    match (attachment, value) {
        (Some(attachment), Some(value)) => {
            Ok(Some(Change::DeleteOnTermination { attachment, value }))
        }
        (None, None) => Ok(None),
        (None, Some(_)) => Err(missing("Attachment.AttachmentId")),
        (Some(_), None) => Err(missing("Attachment.DeleteOnTermination")),
    }
}

pub(super) fn associate(parameters: &mut Parameters) -> Result<Associate> {
    Ok(Associate {
        allocation: parameters.required("AllocationId")?,
        instance: parameters.text("InstanceId"),
        eni: parameters.text("NetworkInterfaceId"),
        private: parameters.parsed("PrivateIpAddress", IPV4)?,
        reassociate: parameters.flag("AllowReassociation")?,
    })
}
