//! Steps as calls.

use std::collections::BTreeSet;
use std::net::IpAddr;

use aws_sdk_ec2::Client;
use aws_sdk_ec2::types::{NetworkInterfaceAttachmentChanges, ResourceType, Tag, TagSpecification};
use cloud::node::{Blocks, Create, Outcome, Step};
use cloud::{AllocationId, AttachmentId, EniId, Failure, GroupId, InstanceId, Kind, Tags};
use ipnet::IpNet;

use super::Sent;
use crate::shape::{FieldError, Object, eni};

/// Sends a step. A trial is judged and not carried out.
pub(super) async fn step(
    sdk: &Client,
    call: Sent,
    step: &Step,
    trial: bool,
) -> Result<Outcome, Failure> {
    match step {
        Step::Create(create) => self::create(sdk, call, create, trial).await,
        Step::Attach {
            eni,
            instance,
            index,
        } => attach(sdk, call, (eni, instance, *index), trial).await,
        Step::Assign { eni, blocks, .. } if blocks.kind == Kind::PrefixV6 => {
            assign_ipv6(sdk, call, eni, *blocks).await
        }
        Step::Assign { eni, blocks, .. } => assign(sdk, call, eni, *blocks).await,
        Step::Mark { eni, attachment } => mark(sdk, call, (eni, attachment), trial).await,
        Step::Group { eni, groups } => group(sdk, call, (eni, groups), trial).await,
        Step::Unassign { eni, blocks } => unassign(sdk, call, eni, blocks).await,
        Step::Detach { attachment, .. } => detach(sdk, call, attachment, trial).await,
        Step::Delete { eni } => delete(sdk, call, eni, trial).await,
        Step::Associate {
            eni, allocation, ..
        } => associate(sdk, call, (eni, allocation), trial).await,
    }
}

async fn create(
    sdk: &Client,
    call: Sent,
    create: &Create,
    trial: bool,
) -> Result<Outcome, Failure> {
    let ipv4 = |kind| create.ipv4.filter(|it| it.kind == kind).map(count);
    let groups = create.groups.iter().map(ToString::to_string).collect();
    let request = sdk
        .create_network_interface()
        .subnet_id(create.subnet.as_str())
        .description(&create.description)
        .set_groups(Some(groups))
        .set_secondary_private_ip_address_count(ipv4(Kind::Address))
        .set_ipv4_prefix_count(ipv4(Kind::Prefix))
        .set_ipv6_prefix_count(create.ipv6_prefix.then_some(1))
        .tag_specifications(specification(&create.tags))
        .client_token(&create.token)
        .dry_run(trial);
    let answer = request.send().await.map_err(|error| call.failed(&error))?;
    let shown = Object("answer").required("networkInterface", answer.network_interface());
    let created = shown.and_then(eni);
    let created = created.map_err(|error| call.unreadable(&error))?;
    Ok(Outcome::Created(Box::new(created)))
}

fn specification(tags: &Tags) -> TagSpecification {
    let tags = tags
        .iter()
        .map(|(key, value)| Tag::builder().key(key).value(value).build());
    TagSpecification::builder()
        .resource_type(ResourceType::NetworkInterface)
        .set_tags(Some(tags.collect()))
        .build()
}

async fn attach(
    sdk: &Client,
    call: Sent,
    (eni, instance, index): (&EniId, &InstanceId, u16),
    trial: bool,
) -> Result<Outcome, Failure> {
    let request = sdk
        .attach_network_interface()
        .network_interface_id(eni.as_str())
        .instance_id(instance.as_str())
        .device_index(i32::from(index))
        .dry_run(trial);
    let answer = request.send().await.map_err(|error| call.failed(&error))?;
    let id = Object("answer").id("attachmentId", answer.attachment_id(), AttachmentId::parse);
    let id = id.map_err(|error| call.unreadable(&error))?;
    Ok(Outcome::Attached(id))
}

async fn assign(sdk: &Client, call: Sent, eni: &EniId, blocks: Blocks) -> Result<Outcome, Failure> {
    let request = sdk
        .assign_private_ip_addresses()
        .network_interface_id(eni.as_str());
    let request = match blocks.kind {
        Kind::Prefix => request.ipv4_prefix_count(count(blocks)),
        _ => request.secondary_private_ip_address_count(count(blocks)),
    };
    let answer = request.send().await.map_err(|error| call.failed(&error))?;
    let singles = answer.assigned_private_ip_addresses().iter();
    let prefixes = answer.assigned_ipv4_prefixes().iter();
    assigned(
        call,
        singles.filter_map(|it| it.private_ip_address()),
        prefixes.filter_map(|it| it.ipv4_prefix()),
    )
}

async fn assign_ipv6(
    sdk: &Client,
    call: Sent,
    eni: &EniId,
    blocks: Blocks,
) -> Result<Outcome, Failure> {
    let request = sdk
        .assign_ipv6_addresses()
        .network_interface_id(eni.as_str())
        .ipv6_prefix_count(count(blocks));
    let answer = request.send().await.map_err(|error| call.failed(&error))?;
    let singles = answer.assigned_ipv6_addresses().iter();
    let prefixes = answer.assigned_ipv6_prefixes().iter();
    assigned(
        call,
        singles.map(String::as_str),
        prefixes.map(String::as_str),
    )
}

/// The blocks of an answer. One without a block is no answer: a read shows what the ENI has.
fn assigned<'a>(
    call: Sent,
    singles: impl Iterator<Item = &'a str>,
    prefixes: impl Iterator<Item = &'a str>,
) -> Result<Outcome, Failure> {
    let object = Object("answer");
    let single = |text: &str| object.parse::<IpAddr>("address", text).map(IpNet::from);
    let prefix = |text: &str| object.parse::<IpNet>("prefix", text);
    let blocks = singles.map(single).chain(prefixes.map(prefix));
    let blocks: Result<BTreeSet<IpNet>, FieldError> = blocks.collect();
    let blocks = blocks.and_then(|it| {
        let some = (!it.is_empty()).then_some(it);
        object.required("assigned addresses", some)
    });
    let blocks = blocks.map_err(|error| call.unreadable(&error))?;
    Ok(Outcome::Assigned(blocks))
}

async fn unassign(
    sdk: &Client,
    call: Sent,
    eni: &EniId,
    blocks: &BTreeSet<IpNet>,
) -> Result<Outcome, Failure> {
    let is_single = |block: &&IpNet| block.prefix_len() == block.max_prefix_len();
    let (singles, prefixes): (Vec<&IpNet>, Vec<&IpNet>) = blocks.iter().partition(is_single);
    let singles: Vec<String> = singles.iter().map(|it| it.addr().to_string()).collect();
    let prefixes: Vec<String> = prefixes.iter().map(ToString::to_string).collect();
    let request = sdk
        .unassign_private_ip_addresses()
        .network_interface_id(eni.as_str())
        .set_private_ip_addresses((!singles.is_empty()).then_some(singles))
        .set_ipv4_prefixes((!prefixes.is_empty()).then_some(prefixes));
    request.send().await.map_err(|error| call.failed(&error))?;
    Ok(Outcome::Done)
}

async fn detach(
    sdk: &Client,
    call: Sent,
    attachment: &AttachmentId,
    trial: bool,
) -> Result<Outcome, Failure> {
    let request = sdk
        .detach_network_interface()
        .attachment_id(attachment.as_str())
        .dry_run(trial);
    request.send().await.map_err(|error| call.failed(&error))?;
    Ok(Outcome::Done)
}

async fn mark(
    sdk: &Client,
    call: Sent,
    (eni, attachment): (&EniId, &AttachmentId),
    trial: bool,
) -> Result<Outcome, Failure> {
    let change = NetworkInterfaceAttachmentChanges::builder()
        .attachment_id(attachment.as_str())
        .delete_on_termination(true)
        .build();
    let request = sdk
        .modify_network_interface_attribute()
        .network_interface_id(eni.as_str())
        .attachment(change)
        .dry_run(trial);
    request.send().await.map_err(|error| call.failed(&error))?;
    Ok(Outcome::Done)
}

async fn group(
    sdk: &Client,
    call: Sent,
    (eni, groups): (&EniId, &BTreeSet<GroupId>),
    trial: bool,
) -> Result<Outcome, Failure> {
    let groups = groups.iter().map(ToString::to_string).collect();
    let request = sdk
        .modify_network_interface_attribute()
        .network_interface_id(eni.as_str())
        .set_groups(Some(groups))
        .dry_run(trial);
    request.send().await.map_err(|error| call.failed(&error))?;
    Ok(Outcome::Done)
}

async fn delete(sdk: &Client, call: Sent, eni: &EniId, trial: bool) -> Result<Outcome, Failure> {
    let request = sdk
        .delete_network_interface()
        .network_interface_id(eni.as_str())
        .dry_run(trial);
    request.send().await.map_err(|error| call.failed(&error))?;
    Ok(Outcome::Done)
}

/// Nothing loses its address by this call: EC2 refuses one that has an association.
async fn associate(
    sdk: &Client,
    call: Sent,
    (eni, allocation): (&EniId, &AllocationId),
    trial: bool,
) -> Result<Outcome, Failure> {
    let request = sdk
        .associate_address()
        .network_interface_id(eni.as_str())
        .allocation_id(allocation.as_str())
        .allow_reassociation(false)
        .dry_run(trial);
    request.send().await.map_err(|error| call.failed(&error))?;
    Ok(Outcome::Done)
}

/// A number of blocks as the wire has it. EC2 refuses numbers far below its end.
fn count(blocks: Blocks) -> i32 {
    i32::try_from(blocks.count).unwrap_or(i32::MAX)
}
