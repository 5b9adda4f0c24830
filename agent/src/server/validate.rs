//! Checks what a request says by itself, before the state of the node comes in.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::path::PathBuf;

use api::ids::Owner;
use api::ids::PodRef;
use api::types::{AddEndpoint, AskAddresses, FlowFilter, GcRequest};
use api::{ApiError, ErrorCode};
use flows as nat;
use ipam::Family;

/// Longest container id. containerd, CRI-O and Docker use 64 characters; a file is named after a
/// hash of it, so this is only a bound.
const MAX_CONTAINER_ID: usize = 255;
/// Longest name of a pool, a network or a pod: that of a Kubernetes object (RFC 1123 subdomain).
const MAX_NAME: usize = 253;
/// Longest interface name: `IFNAMSIZ` less the terminator (include/uapi/linux/if.h).
const MAX_INTERFACE: usize = 15;

/// A requested endpoint: checked in itself, not yet against the node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct EndpointRequest {
    /// Its owner.
    pub owner: Owner,
    /// The pod's network namespace: an absolute path.
    pub netns: PathBuf,
    /// Its addresses: one or two, of different families; none where the agent is to allocate them.
    pub addresses: BTreeSet<IpAddr>,
    /// The rest of the request.
    pub ask: Box<AddressSpec>,
}

/// Requested addresses without an endpoint: checked in themselves.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AddressRequest {
    /// Their future owner.
    pub owner: Owner,
    /// Which ones: none, one or two, of different families.
    pub addresses: BTreeSet<IpAddr>,
    /// The rest of the request.
    pub ask: Box<AddressSpec>,
}

/// A request without its addresses.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct AddressSpec {
    /// The families to allocate addresses of; empty: those of the configuration.
    pub families: BTreeSet<Family>,
    /// The pools to allocate from.
    pub pools: BTreeMap<Family, String>,
    /// The CNI network.
    pub network: Option<String>,
    /// The pod.
    pub pod: Option<PodRef>,
}

impl TryFrom<AddEndpoint> for EndpointRequest {
    type Error = ApiError;

    fn try_from(request: AddEndpoint) -> Result<Self, Self::Error> {
        let AddEndpoint {
            owner,
            netns,
            addresses,
            families,
            pools,
            network,
            pod,
        } = request;
        check_owner(&owner, "owner.")?;
        if !netns.is_absolute() || netns.as_os_str().len() > libc::PATH_MAX as usize {
            return Err(invalid(
                "netns",
                format!(
                    "{:?} is not an absolute path, such as /run/netns/pod1",
                    netns.display().to_string()
                ),
            ));
        }
        let requested = AskAddresses {
            owner,
            addresses,
            families,
            pools,
            network,
            pod,
        };
        let AddressRequest {
            owner,
            addresses,
            ask,
        } = check_addresses(requested)?;
        Ok(Self {
            owner,
            netns,
            addresses,
            ask,
        })
    }
}

impl TryFrom<AskAddresses> for AddressRequest {
    type Error = ApiError;

    fn try_from(request: AskAddresses) -> Result<Self, Self::Error> {
        check_owner(&request.owner, "owner.")?;
        check_addresses(request)
    }
}

/// Checks all of a request but its owner.
fn check_addresses(request: AskAddresses) -> Result<AddressRequest, ApiError> {
    let AskAddresses {
        owner,
        addresses,
        families,
        pools,
        network,
        pod,
    } = request;
    if addresses.as_ref().is_some_and(Vec::is_empty) {
        return Err(invalid(
            "addresses",
            "empty; one IPv4 address, one IPv6 address or both are allowed, or none of the field"
                .to_owned(),
        ));
    }
    let is_explicit = addresses.is_some();
    let addresses = addresses.unwrap_or_default();
    for family in Family::ALL {
        let of_family = addresses.iter().filter(|a| Family::of(**a) == family);
        if of_family.count() > 1 {
            return Err(invalid(
                "addresses",
                format!("{addresses:?} has two of one family; one of each is allowed"),
            ));
        }
    }
    let with_addresses = [
        ("families", families.is_empty()),
        ("pools", pools.is_empty()),
    ];
    if let Some((field, _)) = with_addresses.iter().find(|(_, is_empty)| !is_empty)
        && is_explicit
    {
        return Err(invalid(
            field,
            "given beside addresses; one of them is allowed".to_owned(),
        ));
    }
    check_names(&pools, network.as_ref(), pod.as_ref())?;
    Ok(AddressRequest {
        owner,
        addresses: addresses.into_iter().collect(),
        ask: Box::new(AddressSpec {
            families: families.into_iter().collect(),
            pools,
            network,
            pod,
        }),
    })
}

/// Checks the lengths of all names in a request.
fn check_names(
    pools: &BTreeMap<Family, String>,
    network: Option<&String>,
    pod: Option<&PodRef>,
) -> Result<(), ApiError> {
    let names = pools.values().map(|name| ("pools", name));
    let names = names.chain(network.map(|name| ("network", name)));
    let of_pod = pod.into_iter().flat_map(|pod| {
        let uid = pod.uid.iter().map(|uid| ("pod.uid", uid));
        [("pod.namespace", &pod.namespace), ("pod.name", &pod.name)]
            .into_iter()
            .chain(uid)
    });
    for (field, name) in names.chain(of_pod) {
        if !(1..=MAX_NAME).contains(&name.len()) || name.contains(char::is_control) {
            return Err(invalid(
                field,
                format!("{name:?} is refused; allowed: a name of 1 to {MAX_NAME} characters"),
            ));
        }
    }
    Ok(())
}

/// Checks the attachments of a garbage collection. Any owner may be named as valid: one that the
/// agent does not allow has nothing here.
pub(super) fn check_collect(collect: &GcRequest) -> Result<(), ApiError> {
    if collect.network.is_empty() {
        return Err(invalid(
            "network",
            "empty; the name of a CNI network is needed".to_owned(),
        ));
    }
    Ok(())
}

/// Checks a filter of flows.
pub(super) fn check_filter(filter: &FlowFilter) -> Result<(), ApiError> {
    match &filter.protocol {
        Some(protocol) if nat::protocol_number(protocol).is_none() => Err(invalid(
            "protocol",
            format!("{protocol:?}; allowed: tcp, udp, icmp, icmpv6, sctp, or a number up to 255"),
        )),
        _known => Ok(()),
    }
}

/// Checks which flows are to be removed: it must be said that all are meant.
pub(super) fn check_flush(filter: &FlowFilter) -> Result<(), ApiError> {
    check_filter(filter)?;
    let FlowFilter {
        pod,
        remote,
        protocol,
        all,
    } = filter;
    match (pod, all) {
        (None, false) => Err(invalid(
            "pod",
            "missing; a pod's address is needed, or all: true".to_owned(),
        )),
        (Some(_), true) => Err(invalid(
            "all",
            "true with a pod's address; one of them is allowed".to_owned(),
        )),
        (None, true) if remote.is_some() || protocol.is_some() => Err(invalid(
            "all",
            "true with a remote or a protocol; all are all".to_owned(),
        )),
        (Some(_), false) | (None, true) => Ok(()),
    }
}

/// Checks an owner by the rules of the CNI specification 1.1.0 (section 2, parameters
/// `CNI_CONTAINERID` and `CNI_IFNAME`) and the kernel's for device names (`dev_valid_name` in
/// net/core/dev.c): it would take '%' for a pattern, and "all" and "default" for its folders of
/// sysctls (`sysctl_dev_name_is_allowed` in include/linux/inetdevice.h).
pub(super) fn check_owner(owner: &Owner, prefix: &str) -> Result<(), ApiError> {
    let Owner {
        container_id,
        interface,
    } = owner;
    let mut bytes = container_id.bytes();
    let well_formed = bytes.next().is_some_and(|b| b.is_ascii_alphanumeric())
        && bytes.all(|b| b.is_ascii_alphanumeric() || b"_.-".contains(&b));
    if !well_formed || container_id.len() > MAX_CONTAINER_ID {
        return Err(invalid(
            &format!("{prefix}container-id"),
            format!(
                "{container_id:?} is not a container id: a letter or digit, then letters, \
                 digits, '_', '.' and '-' are allowed, {MAX_CONTAINER_ID} in all"
            ),
        ));
    }
    let field = format!("{prefix}interface");
    let well_formed = (1..=MAX_INTERFACE).contains(&interface.len())
        && ![".", "..", "all", "default"].contains(&interface.as_str())
        && interface
            .bytes()
            .all(|b| b.is_ascii_graphic() && !b"/:%".contains(&b));
    if !well_formed {
        return Err(invalid(
            &field,
            format!(
                "{interface:?} is not an interface name: 1 to {MAX_INTERFACE} ASCII characters \
                 without '/', ':', '%' and blanks are allowed, not \".\", \"..\", \"all\" or \
                 \"default\""
            ),
        ));
    }
    if interface == "lo" {
        return Err(invalid(&field, "\"lo\" is the loopback device".to_owned()));
    }
    Ok(())
}

fn invalid(field: &str, message: String) -> ApiError {
    ApiError::new(ErrorCode::InvalidField, message).at(field)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn request() -> AddEndpoint {
        AddEndpoint {
            owner: Owner {
                container_id: "0a1b2c".into(),
                interface: "eth0".into(),
            },
            netns: "/run/netns/pod1".into(),
            addresses: Some(vec![
                "10.0.1.20".parse().unwrap(),
                "2001:db8::20".parse().unwrap(),
            ]),
            families: Vec::new(),
            pools: BTreeMap::new(),
            network: None,
            pod: None,
        }
    }

    fn field_of(request: AddEndpoint) -> Option<String> {
        let error = EndpointRequest::try_from(request).unwrap_err();
        assert_eq!(error.code, ErrorCode::InvalidField, "{error}");
        error.field
    }

    #[test]
    fn takes_one_address_of_each_family() {
        assert_eq!(
            EndpointRequest::try_from(request())
                .unwrap()
                .addresses
                .len(),
            2
        );
    }

    #[test]
    fn names_the_field_that_is_wrong() {
        for id in ["", "-a", "a/b", "../x", "a b", "ä", &"a".repeat(256)] {
            let mut bad = request();
            id.clone_into(&mut bad.owner.container_id);
            assert_eq!(field_of(bad).as_deref(), Some("owner.container-id"), "{id}");
        }
        for name in [
            "",
            ".",
            "..",
            "lo",
            "a/b",
            "a:b",
            "a b",
            "0123456789abcdef",
            "é",
            "all",
            "default",
            "eth%d",
        ] {
            let mut bad = request();
            name.clone_into(&mut bad.owner.interface);
            assert_eq!(field_of(bad).as_deref(), Some("owner.interface"), "{name}");
        }
        let mut bad = request();
        bad.netns = "netns/pod1".into();
        assert_eq!(field_of(bad).as_deref(), Some("netns"));
        for addresses in [
            &[][..],
            &["10.0.1.20", "10.0.1.21"],
            &["10.0.1.20", "10.0.1.20"],
        ] {
            let mut bad = request();
            bad.addresses = Some(addresses.iter().map(|a| a.parse().unwrap()).collect());
            assert_eq!(field_of(bad).as_deref(), Some("addresses"));
        }
    }

    #[test]
    fn what_is_asked_for_beside_addresses_is_checked() {
        let without = || AddEndpoint {
            addresses: None,
            ..request()
        };
        let good = AddEndpoint {
            families: vec![Family::V4],
            pools: [(Family::V4, "blue".to_owned())].into(),
            network: Some("towpath".to_owned()),
            ..without()
        };
        let checked = EndpointRequest::try_from(good.clone()).unwrap();
        assert_eq!(checked.ask.families, [Family::V4].into());
        let both = AddEndpoint {
            addresses: request().addresses,
            ..good.clone()
        };
        assert_eq!(field_of(both).as_deref(), Some("families"));
        let nameless = AddEndpoint {
            pools: [(Family::V4, String::new())].into(),
            ..without()
        };
        assert_eq!(field_of(nameless).as_deref(), Some("pools"));
        let pod = PodRef {
            namespace: "n".into(),
            name: "x".repeat(MAX_NAME + 1),
            uid: None,
        };
        let long = AddEndpoint {
            pod: Some(pod),
            ..without()
        };
        assert_eq!(field_of(long).as_deref(), Some("pod.name"));
    }
}
