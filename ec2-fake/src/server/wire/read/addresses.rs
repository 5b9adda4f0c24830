//! Parameters of requests for addresses and prefixes, of both families.

use std::net::IpAddr;

use ipnet::IpNet;

use crate::call::Assign;
use crate::error::Result;
use crate::family::Family;
use crate::server::wire::parameters::Parameters;
use crate::space::Ask;

/// Names of parameters; the second of a pair is the name in a list's element.
struct Names {
    addresses: (&'static str, &'static str),
    count: &'static str,
    prefixes: (&'static str, &'static str),
    prefix_count: &'static str,
}

/// Calls on an interface that exists.
const fn of_calls(family: Family) -> Names {
    match family {
        Family::V4 => Names {
            addresses: ("PrivateIpAddress", ""),
            count: "SecondaryPrivateIpAddressCount",
            prefixes: ("Ipv4Prefix", ""),
            prefix_count: "Ipv4PrefixCount",
        },
        Family::V6 => Names {
            addresses: ("Ipv6Addresses", ""),
            count: "Ipv6AddressCount",
            prefixes: ("Ipv6Prefix", ""),
            prefix_count: "Ipv6PrefixCount",
        },
    }
}

/// The creation of an interface. IPv4 addresses are read apart, for one of them may be primary.
const fn of_creation(family: Family) -> Names {
    match family {
        Family::V4 => Names {
            prefixes: ("Ipv4Prefix", "Ipv4Prefix"),
            ..of_calls(family)
        },
        Family::V6 => Names {
            addresses: ("Ipv6Addresses", "Ipv6Address"),
            prefixes: ("Ipv6Prefix", "Ipv6Prefix"),
            ..of_calls(family)
        },
    }
}

/// `Assign…` or `Unassign…`; the model refuses what only one of them has.
pub(super) fn assign(parameters: &mut Parameters, family: Family) -> Result<Assign> {
    Ok(Assign {
        family,
        eni: parameters.required("NetworkInterfaceId")?,
        ask: ask(parameters, &of_calls(family), family)?,
        reassign: parameters.flag("AllowReassignment")?,
    })
}

/// The addresses and prefixes of a family that a new interface gets.
pub(super) fn created(parameters: &mut Parameters, family: Family) -> Result<Ask> {
    ask(parameters, &of_creation(family), family)
}

fn ask(parameters: &mut Parameters, names: &Names, family: Family) -> Result<Ask> {
    let (address, prefix) = match family {
        Family::V4 => ("an IPv4 address", "an IPv4 prefix such as 10.0.0.16/28"),
        Family::V6 => (
            "an IPv6 address",
            "an IPv6 prefix such as 2001:db8:0:0:1::/80",
        ),
    };
    Ok(Ask {
        addresses: parameters.all::<IpAddr>(names.addresses.0, names.addresses.1, address)?,
        count: parameters.number(names.count)?,
        prefixes: parameters.all::<IpNet>(names.prefixes.0, names.prefixes.1, prefix)?,
        prefix_count: parameters.number(names.prefix_count)?,
    })
}
