//! Instances and their types.

use std::collections::BTreeMap;

use aws_sdk_ec2::types::{InstanceType, InstanceTypeInfo, NetworkInfo};
use cloud::{Instance, InstanceId, InstanceState, SubnetId, TypeInfo, VpcId};

use super::field::{FieldError, Object, tags};

/// An instance.
pub(crate) fn instance(shown: &aws_sdk_ec2::types::Instance) -> Result<Instance, FieldError> {
    let id = Object("instance").id("instanceId", shown.instance_id(), InstanceId::parse)?;
    let object = Object(id.as_str());
    let state = shown.state().and_then(|it| it.name());
    let state = object.required("instanceState.name", state)?;
    let zone = shown.placement().and_then(|it| it.availability_zone());
    let kind = shown.instance_type().map(InstanceType::as_str);
    Ok(Instance {
        kind: kind.unwrap_or_default().to_owned(),
        state: InstanceState::parse(state.as_str()),
        vpc: shown.vpc_id().and_then(VpcId::parse),
        subnet: shown.subnet_id().and_then(SubnetId::parse),
        zone: zone.unwrap_or_default().to_owned(),
        tags: tags(shown.tags()),
        id,
    })
}

/// An instance type. Numbers that are missing count as 0, which the limits refuse by name.
pub(crate) fn type_info(shown: &InstanceTypeInfo) -> Result<TypeInfo, FieldError> {
    let name = shown.instance_type();
    let name = Object("instance type").required("instanceType", name)?;
    let object = Object(name.as_str());
    let network = object.required("networkInfo", shown.network_info())?;
    let number = |field, value: Option<i32>| object.number(field, value.unwrap_or_default());
    Ok(TypeInfo {
        name: name.as_str().to_owned(),
        enis: number(
            "networkInfo.maximumNetworkInterfaces",
            network.maximum_network_interfaces(),
        )?,
        cards: cards(object, network)?,
        ipv4_per_eni: number(
            "networkInfo.ipv4AddressesPerInterface",
            network.ipv4_addresses_per_interface(),
        )?,
        ipv6_per_eni: number(
            "networkInfo.ipv6AddressesPerInterface",
            network.ipv6_addresses_per_interface(),
        )?,
        hypervisor: shown.hypervisor().map_or("", |it| it.as_str()).to_owned(),
        bare_metal: shown.bare_metal().unwrap_or_default(),
    })
}

fn cards(object: Object<'_>, network: &NetworkInfo) -> Result<BTreeMap<u16, u16>, FieldError> {
    let cards = network.network_cards().iter().map(|card| {
        let index = card.network_card_index().unwrap_or_default();
        let enis = card.maximum_network_interfaces().unwrap_or_default();
        Ok((
            object.number("networkInfo.networkCards.networkCardIndex", index)?,
            object.number("networkInfo.networkCards.maximumNetworkInterfaces", enis)?,
        ))
    });
    cards.collect()
}
