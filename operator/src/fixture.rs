//! Values that tests begin with.

use std::collections::BTreeSet;

use cloud::{Eni, InterfaceKind, Placement, Tags};

/// An ENI that nothing holds.
pub(crate) fn eni(id: &str, tags: Tags) -> Eni {
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
        own: None,
        public: None,
        blocks: BTreeSet::new(),
        groups: BTreeSet::from(["sg-1".into()]),
        tags,
        is_pending: false,
        attachment: None,
    }
}
