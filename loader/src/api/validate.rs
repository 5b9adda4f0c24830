//! Checks what a request says by itself, before the state of the node comes in.

use std::collections::BTreeSet;
use std::net::IpAddr;
use std::path::PathBuf;

use super::error::{ApiError, ErrorCode};
use super::types::{AddEndpoint, FlowFilter};
use crate::intent::Family;
use crate::nat;
use crate::types::Owner;

/// Longest container id. containerd, CRI-O and Docker use 64 characters; a file is named after a
/// hash of it, so this is only a bound.
const MAX_CONTAINER_ID: usize = 255;
/// Longest interface name: `IFNAMSIZ` less the terminator (include/uapi/linux/if.h).
const MAX_INTERFACE: usize = 15;

/// An endpoint that is asked for: checked in itself, not yet against the node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct EndpointRequest {
    /// Whose it is.
    pub owner: Owner,
    /// The pod's network namespace: an absolute path.
    pub netns: PathBuf,
    /// Its addresses: one or two, of different families.
    pub addresses: BTreeSet<IpAddr>,
}

impl TryFrom<AddEndpoint> for EndpointRequest {
    type Error = ApiError;

    fn try_from(request: AddEndpoint) -> Result<Self, Self::Error> {
        let AddEndpoint {
            owner,
            netns,
            addresses,
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
        for family in Family::ALL {
            let of_family = addresses.iter().filter(|a| Family::of(**a) == family);
            if of_family.count() > 1 {
                return Err(invalid(
                    "addresses",
                    format!("{addresses:?} has two of one family; one of each is allowed"),
                ));
            }
        }
        if addresses.is_empty() {
            return Err(invalid(
                "addresses",
                "empty; one IPv4 address, one IPv6 address or both are needed".to_owned(),
            ));
        }
        Ok(Self {
            owner,
            netns,
            addresses: addresses.into_iter().collect(),
        })
    }
}

/// Checks which flows are asked for.
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
            addresses: vec![
                "10.0.1.20".parse().unwrap(),
                "2001:db8::20".parse().unwrap(),
            ],
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
            bad.addresses = addresses.iter().map(|a| a.parse().unwrap()).collect();
            assert_eq!(field_of(bad).as_deref(), Some("addresses"));
        }
    }
}
