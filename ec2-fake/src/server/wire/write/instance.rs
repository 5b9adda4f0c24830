//! Instances and their types as XML.

use std::sync::Arc;

use super::element::Element;
use super::{interface, tags, time};
use crate::cloud::{Cloud, Eni, Instance, InstanceState};
use crate::settings::limits::Limits;

/// The reservation of an instance; each has one of its own.
pub(super) fn reservation(cloud: &Cloud, instance: &Instance, enis: &[Arc<Eni>]) -> Vec<Element> {
    let id = instance.id.trim_start_matches("i-");
    vec![
        Element::text("reservationId", format!("r-{id}")),
        Element::text("ownerId", &cloud.settings().account),
        Element::list("instancesSet", [shown(cloud, instance, enis)]),
    ]
}

fn shown(cloud: &Cloud, instance: &Instance, enis: &[Arc<Eni>]) -> Vec<Element> {
    let (code, state) = instance.state.wire();
    let limits = instance.limits();
    let mut elements = vec![
        Element::text("instanceId", &instance.id),
        Element::text("instanceType", &instance.kind),
        Element::of(
            "instanceState",
            vec![Element::text("code", code), Element::text("name", state)],
        ),
        time("launchTime", instance.launched),
        Element::of(
            "placement",
            vec![
                Element::text("availabilityZone", &instance.zone),
                Element::text("tenancy", "default"),
            ],
        ),
        tags(&instance.tags),
    ];
    elements.extend(limits.map(|limits| Element::text("architecture", limits.architecture)));
    // An instance that has ended is in no network.
    if instance.state != InstanceState::Terminated {
        elements.push(Element::text("subnetId", &instance.subnet));
        elements.push(Element::text("vpcId", &instance.vpc));
    }
    let is_primary = |eni: &&Arc<Eni>| {
        let attachment = eni.attachment.as_ref();
        attachment.is_some_and(|attachment| attachment.index == 0 && attachment.card == 0)
    };
    let primary = enis
        .iter()
        .find(is_primary)
        .and_then(|eni| eni.addresses.primary);
    elements.extend(Element::maybe("privateIpAddress", primary));
    let enis = enis.iter().map(|eni| interface::of_instance(cloud, eni));
    elements.push(Element::list("networkInterfaceSet", enis));
    elements
}

/// An instance type.
pub(super) fn kind(limits: &Limits) -> Vec<Element> {
    let architectures = Element::texts("supportedArchitectures", [limits.architecture]);
    let card = |index| {
        vec![
            Element::text("networkCardIndex", index),
            Element::text("maximumNetworkInterfaces", limits.interfaces),
        ]
    };
    let network = vec![
        Element::text("maximumNetworkInterfaces", limits.all_interfaces()),
        Element::text("maximumNetworkCards", limits.cards),
        Element::text("defaultNetworkCardIndex", 0),
        Element::text("ipv4AddressesPerInterface", limits.ipv4),
        Element::text("ipv6AddressesPerInterface", limits.ipv6),
        Element::text("ipv6Supported", limits.ipv6 > 0),
        Element::list("networkCards", (0..limits.cards).map(card)),
    ];
    let mut elements = vec![
        Element::text("instanceType", limits.name),
        Element::text("bareMetal", limits.hypervisor.is_none()),
        Element::of("processorInfo", vec![architectures]),
        Element::of("networkInfo", network),
    ];
    elements.extend(Element::maybe("hypervisor", limits.hypervisor));
    elements
}
