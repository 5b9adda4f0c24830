//! Request of an ADD.

use std::collections::BTreeMap;
use std::net::IpAddr;

use serde_json::{Map, Value};

use super::Role;
use super::fields::Fields;
use crate::agent::wire::Family;
use crate::failure::{Code, Failure};

/// Addresses and what goes with them.
#[derive(Clone, Debug, PartialEq)]
pub struct Requested {
    /// The families that a container gets addresses of; none for the agent's setting.
    pub families: Vec<Family>,
    /// The pool of each family; none for the agent's default.
    pub pools: BTreeMap<Family, String>,
    /// Addresses that the runtime requests.
    pub addresses: Vec<IpAddr>,
    /// Gateways that the IPAM plugin names.
    pub gateways: Gateways,
    /// Handed on to the container as it is.
    pub dns: Value,
}

/// Gateways that the IPAM plugin names.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Gateways {
    /// Those that the configuration names, in place of the VPC's router.
    pub given: BTreeMap<Family, IpAddr>,
    /// True if the calling plugin puts the gateway's address on the host.
    pub on_host: bool,
}

impl Default for Requested {
    fn default() -> Self {
        Self {
            families: Vec::new(),
            pools: BTreeMap::new(),
            addresses: Vec::new(),
            gateways: Gateways::default(),
            dns: Value::Object(Map::new()),
        }
    }
}

/// The sections of a configuration.
#[derive(Clone, Copy)]
pub(super) struct Sections<'a> {
    /// The whole configuration.
    pub(super) all: &'a Fields<'a>,
    /// The section `ipam`; empty if there is none.
    pub(super) ipam: &'a Fields<'a>,
    /// The section of our own fields.
    pub(super) ours: &'a Fields<'a>,
    /// The section of our own fields that the first one lacks.
    pub(super) more: Option<&'a Fields<'a>>,
}

impl Requested {
    /// Reads the request of a configuration.
    ///
    /// # Errors
    /// When a field has a value that is not allowed or not supported.
    pub(super) fn of(role: Role, sections: Sections<'_>) -> Result<Self, Failure> {
        let Sections {
            all,
            ipam,
            ours,
            more,
        } = sections;
        if role == Role::Interface {
            refuse_unsupported(all)?;
        }
        let holder = |key| {
            if ours.has(key) {
                ours
            } else {
                more.unwrap_or(ours)
            }
        };
        let families = holder("families").families("families")?;
        let mut pools = holder("pools").pools("pools")?;
        if !families.is_empty() {
            pools.retain(|family, _| families.contains(family));
        }
        Ok(Self {
            addresses: wanted_addresses(all)?,
            gateways: gateways(role, all, ipam, &families)?,
            dns: dns(all)?,
            families,
            pools,
        })
    }
}

/// Refuses settings that other plugins obey and ours leaves to the agent, so that they do not seem
/// to be obeyed.
fn refuse_unsupported(all: &Fields<'_>) -> Result<(), Failure> {
    let fields = [
        ("mtu", "the agent's configuration decides the MTU"),
        ("ipMasq", "the agent's configuration decides the masquerade"),
    ];
    for (key, reason) in fields {
        match all.value(key) {
            None | Some(Value::Bool(false)) => {}
            Some(value) => {
                let message = format!("{key} is {value}: {key} is not supported");
                return Err(Failure::new(Code::UnsupportedField, message).with_details(reason));
            }
        }
    }
    Ok(())
}

/// Explicit addresses: by the capability `ips`, else by `args` (CNI conventions, "ips").
fn wanted_addresses(fields: &Fields<'_>) -> Result<Vec<IpAddr>, Failure> {
    if let Some(runtime) = fields.object("runtimeConfig")? {
        let addresses = runtime.addresses("ips")?;
        if !addresses.is_empty() {
            return Ok(addresses);
        }
    }
    let Some(args) = fields.object("args")? else {
        return Ok(Vec::new());
    };
    match args.object("cni")? {
        Some(args) => args.addresses("ips"),
        None => Ok(Vec::new()),
    }
}

/// The gateways for the calling plugin. `ptp`, and `bridge` with a gateway, put their address on
/// the host, where the VPC router's would cut off the node.
fn gateways(
    role: Role,
    all: &Fields<'_>,
    ipam: &Fields<'_>,
    families: &[Family],
) -> Result<Gateways, Failure> {
    if role == Role::Interface {
        return Ok(Gateways::default());
    }
    let mut given = BTreeMap::new();
    for address in ipam.addresses("gateways")? {
        if given.insert(Family::of(address), address).is_some() {
            return Err(ipam.wrong("gateways", "one address of each family is allowed"));
        }
    }
    let on_host = all.text("type")? == Some("ptp")
        || all.is_true("isGateway")
        || all.is_true("isDefaultGateway");
    // Link-local is as good as any for IPv6.
    let is_ipv6_only = families == [Family::Ipv6];
    if on_host && !given.contains_key(&Family::Ipv4) && !is_ipv6_only {
        let message = "ipam.gateways has no IPv4 address, and the plugin puts the gateway's address \
                       on the host";
        return Err(Failure::new(Code::InvalidConfig, message).with_details(
            "with the VPC router's address there, the node could no longer reach the router: name \
             an address that the node has in the subnet, or take isGateway and isDefaultGateway \
             away",
        ));
    }
    Ok(Gateways { given, on_host })
}

fn dns(fields: &Fields<'_>) -> Result<Value, Failure> {
    Ok(fields
        .object("dns")?
        .map_or_else(|| Value::Object(Map::new()), |dns| dns.to_value()))
}
