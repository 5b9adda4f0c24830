//! The blocks of one ENI: the addresses for pods that the VPC delivers to it.

use std::collections::BTreeMap;
use std::net::{IpAddr, Ipv4Addr};

use ipnet::{IpNet, Ipv4Net};

use super::values;
use crate::fields;
use crate::problem::Findings;

/// A block and the field that it comes from.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Claim {
    pub(super) net: IpNet,
    pub(super) path: String,
}

/// Facts about an ENI before its blocks are read.
pub(super) struct Around<'a> {
    pub(super) path: &'a str,
    pub(super) primary: Option<Ipv4Addr>,
    pub(super) use_primary: bool,
    pub(super) subnet: Option<Ipv4Net>,
    /// True if the ENI can have IPv4 for pods.
    pub(super) has_ipv4: bool,
    pub(super) node: &'a [IpAddr],
}

/// Reads addresses and prefixes. Addresses that a prefix of the same ENI covers are left out:
/// with prefix delegation the document lists both.
pub(super) fn read(eni: &fields::Eni, around: &Around<'_>, findings: &mut Findings) -> Vec<Claim> {
    let mut claims = prefixes(eni, around, findings);
    let covering: Vec<IpNet> = claims.iter().map(|claim| claim.net).collect();
    let mut seen = BTreeMap::new();
    for (i, text) in eni.addresses.iter().enumerate() {
        let path = format!("{}.addresses[{i}]", around.path);
        let Some(address) = values::ip(findings, &path, text) else {
            continue;
        };
        if let Some(first) = seen.insert(address, i) {
            findings.add(
                path,
                format_args!("{address} is already at addresses[{first}]; each is allowed once"),
            );
            continue;
        }
        if !is_usable(address.into(), around, &path, findings) {
            continue;
        }
        if around.primary.map(IpAddr::V4) == Some(address) {
            if !around.use_primary {
                findings.note(
                    path,
                    format_args!("{address} is the ENI's primary address: not for pods"),
                );
            }
        } else if around.node.contains(&address) {
            findings.note(
                path,
                format_args!("{address} is the node's own address: not for pods"),
            );
        } else if !covering.iter().any(|net| net.contains(&address)) {
            claims.push(Claim {
                net: address.into(),
                path,
            });
        }
    }
    claims
}

fn prefixes(eni: &fields::Eni, around: &Around<'_>, findings: &mut Findings) -> Vec<Claim> {
    let mut claims = Vec::new();
    for (i, text) in eni.prefixes.iter().enumerate() {
        let path = format!("{}.prefixes[{i}]", around.path);
        if let Some(net) = values::prefix_v4(findings, &path, text)
            && is_usable(net, around, &path, findings)
        {
            claims.push(Claim { net, path });
        }
    }
    for (i, text) in eni.ipv6_prefixes.iter().enumerate() {
        let path = format!("{}.ipv6-prefixes[{i}]", around.path);
        if let Some(net) = values::prefix_v6(findings, &path, text) {
            claims.push(Claim { net, path });
        }
    }
    claims
}

/// Checks a block against the ENI. A reason for no usable IPv4 is reported once, not for each
/// block.
fn is_usable(block: IpNet, around: &Around<'_>, path: &str, findings: &mut Findings) -> bool {
    let is_of_family = around.has_ipv4 || block.addr().is_ipv6();
    is_of_family && is_in_subnet(block, around.subnet, path, findings)
}

/// Checks an IPv4 block against the subnet: inside, and not on the addresses of the network and the
/// router. The document has no IPv6 CIDR of the subnet.
pub(super) fn is_in_subnet(
    block: IpNet,
    subnet: Option<Ipv4Net>,
    path: &str,
    findings: &mut Findings,
) -> bool {
    let (IpNet::V4(block), Some(subnet)) = (block, subnet) else {
        return true;
    };
    let text = if block.prefix_len() == 32 {
        block.addr().to_string()
    } else {
        block.to_string()
    };
    if !subnet.contains(&block) {
        findings.refuse(
            path,
            &text,
            format_args!("inside the ENI's subnet {subnet}"),
        );
        return false;
    }
    let network = subnet.network();
    let router = Ipv4Addr::from(u32::from(network).saturating_add(1));
    let reserved = [
        (network, "the subnet's network address"),
        (router, "the VPC's router"),
    ];
    for (address, what) in reserved {
        if block.contains(&address) {
            findings.refuse(path, &text, format_args!("clear of {address}, {what}"));
            return false;
        }
    }
    if block.addr() == subnet.broadcast() {
        findings.refuse(path, &text, "an address other than the subnet's last one");
        return false;
    }
    true
}
