//! Leftovers of network managers on ENIs.

use serde::{Deserialize, Serialize};

use crate::ids::EniNumber;

/// Kind of foreign configuration.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum ForeignConfigKind {
    /// Another MAC on the device that had the ENI's.
    Mac,
    /// A secondary ENI with IPv6 for pods has no link-local address.
    NoLinkLocal,
    /// An address on a secondary ENI that is not the ENI's own.
    Address,
    /// An address that the VPC gives to an ENI or to its pods, on a device that it is not for.
    Claim,
    /// A default route out of a secondary ENI.
    DefaultRoute,
    /// A route to a subnet that came with an address on a secondary ENI.
    ConnectedRoute,
    /// Another route out of a secondary ENI.
    Route,
    /// A rule for what has an address of the ENI or its pods.
    Rule,
}

impl ForeignConfigKind {
    /// Effect of it, and the remedy.
    #[must_use]
    pub fn hint(self) -> &'static str {
        match self {
            Self::Mac => {
                "the ENI cannot be identified by its MAC: restore the MAC; udev: MACAddressPolicy=none, \
                 NetworkManager: cloned-mac-address=preserve"
            }
            Self::NoLinkLocal => {
                "the kernel cannot ask for the IPv6 gateway, so pods' IPv6 stands still: make the \
                 device unmanaged"
            }
            Self::Address => {
                "the node's ARP there may have it for sender: make the device unmanaged"
            }
            Self::Claim => {
                "the host receives packets for it: remove it, and make the device unmanaged"
            }
            Self::DefaultRoute | Self::Route => {
                "the node's own packets may leave by this ENI with another one's address: make \
                 the device unmanaged"
            }
            Self::ConnectedRoute => {
                "the node reaches that subnet by this ENI with another one's address: make the \
                 device unmanaged"
            }
            Self::Rule => "pods do not meet it, Towpath's rules come first",
        }
    }
}

/// An object that other software left on an ENI.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub struct ForeignConfig {
    /// The ENI that it is about.
    pub eni: EniNumber,
    /// The device that it is on.
    pub device: String,
    /// Its kind.
    pub kind: ForeignConfigKind,
    /// The object, in the words that `ip` uses.
    pub object: String,
    /// Origin of a route or rule, by the kernel's name of its protocol: `dhcp`, `ra`, `kernel`,
    /// `static` …
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub protocol: Option<String>,
    /// Effect of it, and the remedy.
    pub hint: String,
}
