//! Ids of the cloud's objects. Each kind has a type of its own; a copy costs a counter.

use std::fmt;
use std::sync::Arc;

macro_rules! ids {
    ($($(#[$doc:meta])+ $name:ident;)+) => {$(
        $(#[$doc])+
        #[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
        pub struct $name(Arc<str>);

        impl $name {
            /// The id as the cloud writes it.
            #[must_use]
            pub fn as_str(&self) -> &str {
                &self.0
            }

            /// An id from outside. An empty field of a document is no id.
            #[must_use]
            pub fn parse(text: &str) -> Option<Self> {
                let text = text.trim();
                (!text.is_empty()).then(|| Self(text.into()))
            }
        }

        impl From<&str> for $name {
            fn from(text: &str) -> Self {
                Self(text.into())
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str(&self.0)
            }
        }

        impl fmt::Debug for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str(&self.0)
            }
        }
    )+};
}

ids! {
    /// An ENI, such as `eni-0a1b2c`.
    EniId;
    /// An instance, such as `i-0a1b2c`.
    InstanceId;
    /// The bond of an ENI and an instance, such as `eni-attach-0a1b2c`.
    AttachmentId;
    /// A subnet.
    SubnetId;
    /// A VPC.
    VpcId;
    /// A security group.
    GroupId;
    /// A route table.
    RouteTableId;
    /// The allocation of an Elastic IP address, such as `eipalloc-0a1b2c`.
    AllocationId;
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_empty_field_is_no_id() {
        assert_eq!(InstanceId::parse(""), None);
        assert_eq!(InstanceId::parse("  "), None);
        assert_eq!(InstanceId::parse("i-1"), Some(InstanceId::from("i-1")));
    }
}
