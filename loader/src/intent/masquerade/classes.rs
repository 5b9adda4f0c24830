//! The classes of destinations in words.

use datapath_common::abi::DestinationClass;

/// The names of classes, as people know them.
#[must_use]
pub fn class_names(class: DestinationClass) -> Vec<&'static str> {
    [
        (DestinationClass::BLOCK, "block of this node"),
        (DestinationClass::SERVICE, "service"),
        (DestinationClass::VPC, "vpc"),
        (DestinationClass::NATIVE, "native"),
        (DestinationClass::MASQ_AGENT, "masq-agent"),
        (DestinationClass::LINK_LOCAL, "link-local"),
        (DestinationClass::METADATA, "metadata"),
        (DestinationClass::UNROUTABLE, "unroutable"),
        (DestinationClass::ROUTED, "the host's routes"),
    ]
    .into_iter()
    .filter(|(one, _)| class.contains(*one))
    // The programs treat the host's networks as services.
    .filter(|(one, _)| {
        *one != DestinationClass::SERVICE || !class.contains(DestinationClass::ROUTED)
    })
    .map(|(_, name)| name)
    .collect()
}
