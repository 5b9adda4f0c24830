//! Conversion of a document's texts to addresses and CIDRs.

use std::fmt::Display;
use std::net::{IpAddr, Ipv4Addr};

use ipnet::{IpNet, Ipv4Net};

use crate::problem::Findings;

/// Reads an IPv4 address that a device can have.
pub(super) fn ipv4(findings: &mut Findings, path: impl Display, text: &str) -> Option<Ipv4Addr> {
    match address(text) {
        Some(IpAddr::V4(address)) => Some(address),
        Some(IpAddr::V6(_)) | None => {
            findings.refuse(path, text, "a unicast IPv4 address (10.0.1.5)");
            None
        }
    }
}

/// Reads an address of either family that a device can have.
pub(super) fn ip(findings: &mut Findings, path: impl Display, text: &str) -> Option<IpAddr> {
    let address = address(text);
    if address.is_none() {
        findings.refuse(
            path,
            text,
            "a unicast IPv4 or IPv6 address, not link-local (10.0.1.5, 2001:db8::5)",
        );
    }
    address
}

fn address(text: &str) -> Option<IpAddr> {
    text.parse().ok().filter(|a| is_assignable(*a))
}

/// True if the cloud can assign the address to an ENI.
fn is_assignable(address: IpAddr) -> bool {
    match address {
        IpAddr::V4(a) => {
            // RFC 6890 section 2.2.2: 0/8, 127/8, 169.254/16, and all from 224/4 on.
            a.octets()[0] != 0 && a.octets()[0] < 224 && !a.is_loopback() && !a.is_link_local()
        }
        IpAddr::V6(a) => {
            !a.is_unspecified()
                && !a.is_loopback()
                && !a.is_multicast()
                && !a.is_unicast_link_local()
                && a.to_ipv4_mapped().is_none()
        }
    }
}

/// A kind of CIDR.
#[derive(Clone, Copy)]
struct CidrKind {
    /// The allowed values, for the error.
    allowed: &'static str,
    usable: fn(IpNet) -> bool,
}

/// Reads a CIDR in its canonical form. The cloud gives no other form. Host bits are therefore a
/// mistake in the document, and the error names the canonical form.
fn cidr(findings: &mut Findings, path: impl Display, text: &str, kind: CidrKind) -> Option<IpNet> {
    let CidrKind { allowed, usable } = kind;
    let Ok(net) = text.parse::<IpNet>() else {
        findings.refuse(path, text, allowed);
        return None;
    };
    if net.trunc() != net {
        findings.refuse(path, text, format_args!("{} ({allowed})", net.trunc()));
        return None;
    }
    if !usable(net) || !is_assignable(net.addr()) {
        findings.refuse(path, text, allowed);
        return None;
    }
    Some(net)
}

/// Reads a subnet (AWS, "Subnet CIDR blocks": /16 to /28).
pub(super) fn subnet(findings: &mut Findings, path: impl Display, text: &str) -> Option<Ipv4Net> {
    let kind = CidrKind {
        allowed: "an IPv4 CIDR, /16 to /28 (10.0.1.0/24)",
        usable: |net| matches!(net, IpNet::V4(_)) && (16..=28).contains(&net.prefix_len()),
    };
    let net = cidr(findings, path, text, kind)?;
    match net {
        IpNet::V4(net) => Some(net),
        IpNet::V6(_) => None,
    }
}

/// Reads one CIDR of a VPC.
pub(super) fn vpc(findings: &mut Findings, path: impl Display, text: &str) -> Option<IpNet> {
    let kind = CidrKind {
        allowed: "an IPv4 CIDR, /8 to /28 (10.0.0.0/16), or an IPv6 CIDR, /16 to /64",
        usable: |net| match net {
            IpNet::V4(net) => (8..=28).contains(&net.prefix_len()),
            IpNet::V6(net) => (16..=64).contains(&net.prefix_len()),
        },
    };
    cidr(findings, path, text, kind)
}

/// Reads a delegated prefix (AWS, "Assigning prefixes to network interfaces": IPv4 /28).
pub(super) fn prefix_v4(findings: &mut Findings, path: impl Display, text: &str) -> Option<IpNet> {
    let kind = CidrKind {
        allowed: "an IPv4 /28 (10.0.1.16/28)",
        usable: |net| matches!(net, IpNet::V4(_)) && net.prefix_len() == 28,
    };
    cidr(findings, path, text, kind)
}

/// Reads a delegated prefix (AWS, "Assigning prefixes to network interfaces": IPv6 /80).
pub(super) fn prefix_v6(findings: &mut Findings, path: impl Display, text: &str) -> Option<IpNet> {
    let kind = CidrKind {
        allowed: "an IPv6 /80 (2001:db8::/80)",
        usable: |net| matches!(net, IpNet::V6(_)) && net.prefix_len() == 80,
    };
    cidr(findings, path, text, kind)
}

/// Reads a block of a pool, of either family.
pub(super) fn block(findings: &mut Findings, path: impl Display, text: &str) -> Option<IpNet> {
    let kind = CidrKind {
        allowed: "a CIDR of IPv4 or IPv6 (10.0.1.16/28, 2001:db8::/80)",
        usable: |net| net.prefix_len() > 0,
    };
    cidr(findings, path, text, kind)
}
