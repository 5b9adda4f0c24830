//! Comparison of what nodes' objects publish with what the cloud has.

use std::collections::BTreeMap;
use std::net::IpAddr;

use anyhow::Result;
use ec2_fake::Cloud;
use serde_json::Value;

use super::CLUSTER;
use crate::fabric::eventually::check;

/// Checks that every address in the status of `CiliumNode` objects is one that the cloud gives to an ENI
/// of that instance, and that no two of them have it.
///
/// # Errors
/// With the first address of which that is not true.
pub fn addresses(cloud: &Cloud, nodes: &Value) -> Result<()> {
    let mut owners = BTreeMap::new();
    for node in nodes["items"].as_array().into_iter().flatten() {
        let instance = node["spec"]["instance-id"].as_str().unwrap_or_default();
        for (eni, address) in published(node) {
            check(owns(cloud, &eni, instance, &address), || {
                format!("{address} of {eni} is not of {instance}")
            })?;
            let other = owners.insert(address.clone(), instance.to_owned());
            check(other.is_none(), || {
                format!("{address} is of {instance} and of {other:?}")
            })?;
        }
    }
    Ok(())
}

/// The addresses in a node's status, each with its ENI.
#[must_use]
pub fn published(node: &Value) -> Vec<(String, String)> {
    let enis = node["status"]["eni"]["enis"].as_object();
    let of_eni = |(id, eni): (&String, &Value)| {
        let addresses = eni["addresses"].as_array().cloned().unwrap_or_default();
        let pairs = addresses
            .into_iter()
            .filter_map(|it| it.as_str().map(str::to_owned));
        pairs
            .map(|address| (id.clone(), address))
            .collect::<Vec<_>>()
    };
    enis.into_iter().flatten().flat_map(of_eni).collect()
}

/// The cluster's ENIs that nothing holds.
#[must_use]
pub fn loose(cloud: &Cloud) -> Vec<String> {
    let ours = cloud.interfaces().filter(|eni| {
        let cluster = eni.tags.get("ipam.towpath.dev/cluster");
        cluster.is_some_and(|name| name == CLUSTER)
    });
    let loose = ours.filter(|eni| eni.attachment.is_none());
    loose.map(|eni| eni.id.clone()).collect()
}

/// Reports if an address is one of an ENI that the instance holds.
fn owns(cloud: &Cloud, eni: &str, instance: &str, address: &str) -> bool {
    cloud.interface(eni).is_some_and(|it| {
        let is_held = it
            .attachment
            .as_ref()
            .is_some_and(|it| it.instance == instance);
        let address = address.parse::<IpAddr>().ok();
        is_held
            && address.is_some_and(|address| it.addresses.nets().any(|net| net.contains(&address)))
    })
}
