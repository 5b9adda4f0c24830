//! The `CiliumNode` documents of a fabric's nodes.

use std::fs;
use std::path::Path;

use anyhow::Result;
use ipam::Family;
use ipnet::IpNet;
use serde_json::{Map, Value, json};

use crate::fabric::layout::{DIRECT_POOL, Eni, VPC_V4, VPC_V6};

/// The first node's name in its document.
pub const NODE_NAME: &str = "fabric-node";

/// A node's name in its document. Nodes count from 0.
#[must_use]
pub fn node_name(node: u8) -> String {
    match node {
        0 => NODE_NAME.to_owned(),
        node => format!("{NODE_NAME}-{}", u16::from(node) + 1),
    }
}

/// The first node's document for these ENIs, as the operator would write it. It is a value: a test
/// can spoil it before it is written.
#[must_use]
pub fn document(enis: &[Eni]) -> Value {
    document_of(0, enis)
}

/// A node's document, as [`document`] has the first one's. Nodes count from 0.
#[must_use]
pub fn document_of(node: u8, enis: &[Eni]) -> Value {
    let primary = enis.iter().find(|eni| eni.number == 0);
    let addresses: Vec<_> = Family::ALL
        .iter()
        .filter_map(|family| primary?.own_address(*family))
        .map(|ip| json!({"type": "InternalIP", "ip": ip}))
        .collect();
    let enis: Map<_, _> = enis.iter().map(|eni| (eni.id(), entry(eni))).collect();
    json!({
        "apiVersion": "cilium.io/v2",
        "kind": "CiliumNode",
        "metadata": {"name": node_name(node)},
        "spec": {
            "instance-id": format!("i-0fab{node:013x}"),
            "addresses": addresses,
            "eni": {
                "availability-zone": "eu-west-1a",
                "first-interface-index": 0,
                "instance-type": "m5.large",
                "vpc-id": "vpc-0fab0000000000000"
            },
            "ipam": {}
        },
        "status": {"eni": {"enis": enis}}
    })
}

/// The `spec.ipam` of a node on which some addresses of each ENI are the second pool's.
#[must_use]
pub fn direct_pool(enis: &[Eni]) -> Value {
    let cidrs: Vec<_> = enis.iter().flat_map(Eni::direct_blocks).collect();
    json!({"pools": {"allocated": [{"pool": DIRECT_POOL, "cidrs": cidrs}]}})
}

/// A pool's document.
#[must_use]
pub fn pool(name: &str, skips: bool) -> Value {
    json!({
        "apiVersion": "cilium.io/v2alpha1",
        "kind": "CiliumPodIPPool",
        "metadata": {
            "name": name,
            "annotations": {"ipam.cilium.io/skip-masquerade": skips.to_string()}
        },
        "spec": {"ipv4": {"cidrs": [VPC_V4], "maskSize": 32}}
    })
}

fn entry(eni: &Eni) -> Value {
    let mut addresses = Vec::new();
    let mut prefixes = Vec::new();
    let mut ipv6_prefixes = Vec::new();
    for block in &eni.blocks {
        match block {
            IpNet::V4(net) if net.prefix_len() < 32 => {
                prefixes.push(net.to_string());
                // The operator lists every address of an attached prefix too.
                let first = u32::from(net.network());
                let last = u32::from(net.broadcast());
                addresses.extend((first..=last).map(|ip| std::net::Ipv4Addr::from(ip).to_string()));
            }
            IpNet::V6(net) if net.prefix_len() < 128 => ipv6_prefixes.push(net.to_string()),
            IpNet::V4(_) | IpNet::V6(_) => addresses.push(block.addr().to_string()),
        }
    }
    let mut subnet = json!({"id": format!("subnet-0fab{:013x}", eni.number)});
    let mut entry = json!({
        "id": eni.id(),
        "mac": eni.mac,
        "availability-zone": "eu-west-1a",
        "number": eni.number,
        "vpc": {
            "id": "vpc-0fab0000000000000",
            "primary-cidr": VPC_V4,
            "cidrs": [VPC_V6]
        },
        "addresses": addresses,
        "prefixes": prefixes,
        "ipv6-prefixes": ipv6_prefixes,
        "security-groups": ["sg-0fab0000000000000"]
    });
    // Neither is there in a subnet without IPv4.
    if let Some(own) = eni.own_address(Family::V4) {
        entry["ip"] = json!(own);
        subnet["cidr"] = json!(eni.subnet());
    }
    entry["subnet"] = subnet;
    entry
}

/// Writes a file in one step, so that a reader sees the old text or the new one.
///
/// # Errors
/// When the folder cannot be written to.
pub fn write_atomically(path: &Path, text: &str) -> Result<()> {
    let new = path.with_extension("new");
    fs::write(&new, text)?;
    fs::rename(new, path)?;
    Ok(())
}
