//! The fabric's pods, and the ends of its flows.

use std::net::IpAddr;
use std::sync::Arc;

use anyhow::{Context as _, Result};
use ipam::Family;
use serde_json::Value;

use super::pod::{Place, Pod};
use crate::fabric::layout::Host;
use crate::fabric::{Fabric, Netns};

impl Fabric {
    /// Makes a pod's namespace with the n-th addresses of an ENI, one of each family that its subnet
    /// has, without a request to the agent.
    ///
    /// # Errors
    /// When the ENI has no such addresses.
    pub fn make_pod(&mut self, eni: u8, index: usize) -> Result<Arc<Pod>> {
        self.make_pod_across([eni, eni], index)
    }

    /// Makes a pod's namespace with the n-th address of an ENI for IPv4 and of one for IPv6,
    /// without a request to the agent.
    ///
    /// # Errors
    /// When an ENI has no such address.
    pub fn make_pod_across(&mut self, [v4, v6]: [u8; 2], index: usize) -> Result<Arc<Pod>> {
        let address = |eni, family| -> Result<Option<IpAddr>> {
            let owner = self.eni(eni)?;
            if owner.own_address(Family::V4).is_none() && family == Family::V4 {
                return Ok(None);
            }
            let address = owner.pod_address(family, index);
            let missing = || format!("ENI {eni} has no address number {index}");
            address.with_context(missing).map(Some)
        };
        let addresses = [address(v4, Family::V4)?, address(v6, Family::V6)?];
        self.make_pod_with(addresses)
    }

    /// Makes a pod's namespace with addresses, without a request to the agent.
    ///
    /// # Errors
    /// When the namespace cannot be made.
    pub fn make_pod_at(&mut self, v4: IpAddr, v6: IpAddr) -> Result<Arc<Pod>> {
        self.make_pod_with([Some(v4), Some(v6)])
    }

    fn make_pod_with(&mut self, addresses: [Option<IpAddr>; 2]) -> Result<Arc<Pod>> {
        let name = format!("pod{}", self.pods.len());
        let pod = Arc::new(Pod::create(&self.record.prefix(), &name, addresses)?);
        self.pods.push(Arc::clone(&pod));
        Ok(pod)
    }

    /// Makes a pod with the n-th addresses of an ENI and adds it.
    ///
    /// # Errors
    /// When the agent refuses.
    pub fn add_pod(&mut self, eni: u8, index: usize) -> Result<Arc<Pod>> {
        let pod = self.make_pod(eni, index)?;
        self.add_endpoint(&pod)?;
        Ok(pod)
    }

    /// Adds a pod's endpoint and returns the agent's answer.
    ///
    /// # Errors
    /// When the agent refuses.
    pub fn add_endpoint(&self, pod: &Pod) -> Result<Value> {
        self.agent.ask("PUT", "/v1/endpoints", Some(&pod.request()))
    }

    /// Deletes a pod's endpoint.
    ///
    /// # Errors
    /// When the agent refuses.
    pub fn delete_endpoint(&self, pod: &Pod) -> Result<()> {
        self.agent.ask("DELETE", &pod.path(), None).map(drop)
    }

    /// The pods so far.
    #[must_use]
    pub fn pods(&self) -> &[Arc<Pod>] {
        &self.pods
    }

    /// A host's end of a flow.
    #[must_use]
    pub fn host(&self, host: Host, family: Family) -> Place<'_> {
        Place {
            netns: self.vpc.host(host),
            address: host.address(family),
        }
    }

    /// Makes the host of a control plane, unless the VPC has one.
    ///
    /// # Errors
    /// When its namespace or its device cannot be made.
    pub fn make_control(&self) -> Result<&Netns> {
        self.vpc.make_control()
    }

    /// The peer's end of a flow.
    #[must_use]
    pub fn peer(&self, family: Family) -> Place<'_> {
        self.host(Host::Peer, family)
    }

    /// The node's end of a flow: its internal address.
    ///
    /// # Errors
    /// When the fabric has no primary ENI.
    pub fn node_at(&self, family: Family) -> Result<Place<'_>> {
        let address = self
            .eni(0)?
            .own_address(family)
            .context("the primary's address")?;
        Ok(Place {
            netns: &self.node,
            address,
        })
    }
}
