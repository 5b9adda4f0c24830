//! Specification of a fabric.

use anyhow::Result;
use datapath_common::mark::MarkLayout;
use serde_json::{Value, json};

use super::layout::{Addressing, Eni};
use super::vpc::MTU_JUMBO;

/// A cloud's instance that acts as a node.
#[derive(Clone, Debug)]
pub struct Instance {
    /// Its id.
    pub id: String,
    /// Its type.
    pub kind: String,
    /// Its primary ENI.
    pub primary: Eni,
}

/// Properties of a fabric.
#[derive(Clone, Debug)]
pub struct Spec {
    /// ENIs that the document lists; the first is the primary.
    pub enis: u8,
    /// Form of the ENIs' addresses for pods.
    pub addressing: Addressing,
    /// MTU of all links.
    pub mtu: u32,
    /// Settings of the agent, as its configuration file has them.
    pub settings: Value,
    /// ENIs that are attached later.
    pub late: Vec<u8>,
    /// True if all secondary ENIs are in one subnet.
    pub shared_subnet: bool,
    /// True if there is a world beyond the VPC, with gateways that count untranslated packets. Then
    /// every ENI has an IPv6 address and addresses of a second pool, and the agent masquerades both
    /// families.
    pub world: bool,
    /// The ENIs whose subnets have no IPv4.
    pub v6_only: Vec<u8>,
    /// A node document, which the agent gets verbatim. It determines the ENIs, whatever the other
    /// fields are.
    pub document: Option<String>,
    /// The cloud's instance that acts as the node.
    ///
    /// The node has the instance's primary ENI, and the cloud attaches all others.
    pub instance: Option<Instance>,
}

impl Spec {
    /// The ENIs of a node, as the cloud has them. Nodes count from 0.
    pub(super) fn enis(&self, node: u8) -> Result<Vec<Eni>> {
        if let Some(text) = &self.document {
            let document = node_document::parse(text, MarkLayout::DEFAULT)?;
            let enis = Eni::of_node(&document).into_iter();
            return Ok(enis.map(|eni| eni.moved_to(node)).collect());
        }
        if let Some(instance) = &self.instance {
            return Ok(vec![instance.primary.clone()]);
        }
        let last = if self.shared_subnet { 1 } else { u8::MAX };
        let eni = |number: u8| -> Result<Eni> {
            let eni = Eni::on_node(node, number, number.min(last), self.addressing)?;
            let v6_only = self.v6_only.contains(&number);
            let eni = if self.world || v6_only {
                eni.with_own_v6()
            } else {
                eni
            };
            Ok(if v6_only { eni.without_v4() } else { eni })
        };
        (0..self.enis).map(eni).collect()
    }

    /// A node with a world beyond the VPC, and settings of the agent in addition to those for it.
    #[must_use]
    pub fn with_world(settings: Value) -> Self {
        Self {
            world: true,
            settings,
            ..Self::default()
        }
    }
}

impl Default for Spec {
    fn default() -> Self {
        Self {
            enis: 2,
            addressing: Addressing::Addresses,
            mtu: MTU_JUMBO,
            settings: json!({}),
            late: Vec::new(),
            shared_subnet: false,
            world: false,
            v6_only: Vec::new(),
            document: None,
            instance: None,
        }
    }
}
