//! Pods and other places that traffic goes between.

use std::net::IpAddr;

use anyhow::Result;
use serde_json::{Value, json};
use towpath::intent::Family;
use towpath::types::{EndpointId, Owner};

use super::Netns;

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

/// A pod: a namespace with an address of each family.
#[derive(Debug)]
pub struct Pod {
    /// Its name.
    pub name: String,
    /// Its namespace.
    pub netns: Netns,
    v4: IpAddr,
    v6: IpAddr,
}

impl Pod {
    /// A pod without a network yet.
    ///
    /// # Errors
    /// When its namespace cannot be made.
    pub fn create(prefix: &str, name: &str, v4: IpAddr, v6: IpAddr) -> Result<Self> {
        let netns = Netns::create(&format!("{prefix}-{name}"))?;
        let name = name.to_owned();
        Ok(Self {
            name,
            netns,
            v4,
            v6,
        })
    }

    /// Its address of a family.
    #[must_use]
    pub fn address(&self, family: Family) -> IpAddr {
        match family {
            Family::V4 => self.v4,
            Family::V6 => self.v6,
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

    /// Who the agent knows it as.
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

    /// The body of the request that adds it.
    #[must_use]
    pub fn request(&self) -> Value {
        json!({
            "owner": self.owner(),
            "netns": self.netns.path(),
            "addresses": [self.v4, self.v6],
        })
    }

    /// The path of the request that deletes it.
    #[must_use]
    pub fn path(&self) -> String {
        let Owner {
            container_id,
            interface,
        } = self.owner();
        format!("/v1/endpoints/{container_id}/{interface}")
    }
}
