//! Pods and other ends of traffic.

use std::net::IpAddr;

use anyhow::Result;
use api::ids::{EndpointId, Owner};
use ipam::Family;
use serde_json::{Value, json};

use crate::fabric::Netns;

/// An address in a namespace: one end of a flow.
#[derive(Clone, Copy, Debug)]
pub struct Place<'a> {
    /// The namespace.
    pub netns: &'a Netns,
    /// The address.
    pub address: IpAddr,
}

/// The interface inside a pod.
pub const POD_INTERFACE: &str = "eth0";

/// A pod: a namespace with an address of each family, or of one.
#[derive(Debug)]
pub struct Pod {
    /// Its name.
    pub name: String,
    /// Its namespace.
    pub netns: Netns,
    addresses: [Option<IpAddr>; 2],
}

impl Pod {
    /// A pod without a network yet, with its addresses for IPv4 and IPv6.
    ///
    /// # Errors
    /// When its namespace cannot be made.
    pub fn create(prefix: &str, name: &str, addresses: [Option<IpAddr>; 2]) -> Result<Self> {
        let netns = Netns::create(&format!("{prefix}-{name}"))?;
        let name = name.to_owned();
        Ok(Self {
            name,
            netns,
            addresses,
        })
    }

    /// Its address of a family.
    ///
    /// # Panics
    /// When it has none.
    #[must_use]
    pub fn address(&self, family: Family) -> IpAddr {
        let [v4, v6] = self.addresses;
        let address = match family {
            Family::V4 => v4,
            Family::V6 => v6,
        };
        match address {
            Some(address) => address,
            None => panic!("{} has no {family:?} address", self.name),
        }
    }

    /// Its end of a flow.
    #[must_use]
    pub fn at(&self, family: Family) -> Place<'_> {
        Place {
            netns: &self.netns,
            address: self.address(family),
        }
    }

    /// Owner of the pod's endpoint, in the agent's terms.
    #[must_use]
    pub fn owner(&self) -> Owner {
        Owner {
            container_id: self.netns.name().to_owned(),
            interface: POD_INTERFACE.to_owned(),
        }
    }

    /// Its host-side device.
    #[must_use]
    pub fn host_device(&self) -> String {
        EndpointId::of(&self.owner()).device()
    }

    /// The body of the request to add it.
    #[must_use]
    pub fn request(&self) -> Value {
        json!({
            "owner": self.owner(),
            "netns": self.netns.path(),
            "addresses": self.addresses.iter().flatten().collect::<Vec<_>>(),
        })
    }

    /// The path of the request to delete it.
    #[must_use]
    pub fn path(&self) -> String {
        let Owner {
            container_id,
            interface,
        } = self.owner();
        format!("/v1/endpoints/{container_id}/{interface}")
    }
}
