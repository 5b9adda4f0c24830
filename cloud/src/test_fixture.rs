//! Values that tests begin with.

use std::collections::BTreeSet;

use jiff::Timestamp;

use crate::object::subnet::{Location, Subnet};
use crate::object::tags;
use crate::{AttachState, Attachment, Eni, InterfaceKind, Placement, Tags};

/// The name of the tests' cluster.
pub(crate) const CLUSTER: &str = "blue";

/// The moment of creation of the tests' ENIs.
pub(crate) fn epoch() -> Timestamp {
    Timestamp::from_second(1_769_860_800).unwrap()
}

/// An ENI without an attachment and without an owner.
pub(crate) fn eni(id: &str) -> Eni {
    Eni {
        id: id.into(),
        placement: Placement {
            vpc: "vpc-1".into(),
            subnet: "subnet-1".into(),
            zone: "a".to_owned(),
        },
        mac: [2, 0, 0, 0, 0, 1],
        kind: InterfaceKind::Standard,
        description: String::new(),
        own: "10.0.0.4".parse().ok(),
        public: None,
        blocks: BTreeSet::new(),
        groups: BTreeSet::from(["sg-1".into()]),
        tags: Tags::new(),
        is_pending: false,
        attachment: None,
    }
}

/// An ENI that was created for an instance.
pub(crate) fn ours(id: &str, instance: &str) -> Eni {
    Eni {
        tags: tags::of_creation(CLUSTER, &instance.into(), epoch(), &Tags::new()),
        ..eni(id)
    }
}

/// An attachment.
pub(crate) fn attachment(instance: &str, index: u16) -> Attachment {
    Attachment {
        id: format!("eni-attach-{instance}-{index}").as_str().into(),
        instance: Some(instance.into()),
        index,
        card: 0,
        state: AttachState::Attached,
        delete_on_termination: false,
    }
}

/// An ENI that is attached.
pub(crate) fn attached(id: &str, instance: &str, index: u16) -> Eni {
    Eni {
        attachment: Some(attachment(instance, index)),
        ..ours(id, instance)
    }
}

/// A subnet of the tests' VPC, with the route table of the nodes.
pub(crate) fn subnet(id: &str, free: u32) -> Subnet {
    Subnet {
        id: id.into(),
        vpc: "vpc-1".into(),
        zone: "a".to_owned(),
        ipv4: "10.0.0.0/16".parse().ok(),
        ipv6: None,
        free,
        tags: Tags::new(),
        route_table: Some("rtb-1".into()),
    }
}

/// A node in subnet `own`, without wishes.
pub(crate) fn location() -> Location {
    Location {
        vpc: "vpc-1".into(),
        zone: "a".to_owned(),
        own: Some("own".into()),
        ids: BTreeSet::new(),
        tags: Tags::new(),
    }
}
