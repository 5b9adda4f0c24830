//! Owner of an endpoint, and the names of its devices that follow from the owner.

use std::fmt;
use std::str::FromStr;

pub use ipam::Owner;
use serde::{Deserialize, Serialize};

use super::MacAddr;

/// A 48-bit name of an endpoint, a function of its owner.
///
/// The host-side device's name and both MACs follow from it and from nothing else, so a device of
/// ours can be recognised by what it is, and a second ADD of one owner finds the first one's
/// device.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct EndpointId(u64);

/// A text is not an endpoint id.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{0:?} is not an endpoint id: twelve hexadecimal digits in lower case are allowed")]
pub struct ParseEndpointIdError(String);

impl EndpointId {
    /// Prefix of every host-side device's name.
    pub const DEVICE_PREFIX: &'static str = "tow";
    const BITS: u32 = 48;

    /// Placeholder for the container of an owner of whom only the id is known. No container has
    /// this id: a container's id begins with a letter or a digit.
    const UNKNOWN: &'static str = "?";

    /// The owner of an endpoint of whom only the id is known.
    #[must_use]
    pub fn unknown_owner(self) -> Owner {
        Owner {
            container_id: Self::UNKNOWN.to_owned(),
            interface: self.device(),
        }
    }

    /// True if an owner is one of whom nothing but the id is known.
    #[must_use]
    pub fn is_unknown(owner: &Owner) -> bool {
        owner.container_id == Self::UNKNOWN
    }

    /// The id of an owner: FNV-1a of both parts, folded to 48 bits.
    #[must_use]
    pub fn of(owner: &Owner) -> Self {
        // http://www.isthe.com/chongo/tech/comp/fnv/: offset basis and prime for 64 bits.
        const OFFSET: u64 = 0xcbf2_9ce4_8422_2325;
        const PRIME: u64 = 0x0000_0100_0000_01b3;
        if let Some(id) = Self::from_device(&owner.interface).filter(|_| Self::is_unknown(owner)) {
            return id;
        }
        let bytes = owner
            .container_id
            .bytes()
            .chain([b'/'])
            .chain(owner.interface.bytes());
        let hash = bytes.fold(OFFSET, |hash, byte| {
            (hash ^ u64::from(byte)).wrapping_mul(PRIME)
        });
        Self((hash >> Self::BITS) ^ (hash & ((1 << Self::BITS) - 1)))
    }

    /// The id that a host-side device's name stands for; `None` when the name is not of our form.
    #[must_use]
    pub fn from_device(name: &str) -> Option<Self> {
        Self::from_hex(name.strip_prefix(Self::DEVICE_PREFIX)?)
    }

    fn from_hex(hex: &str) -> Option<Self> {
        let lower_hex = |b: u8| b.is_ascii_digit() || (b'a'..=b'f').contains(&b);
        if hex.len() != 12 || !hex.bytes().all(lower_hex) {
            return None;
        }
        u64::from_str_radix(hex, 16).ok().map(Self)
    }

    /// Name of the host-side device.
    #[must_use]
    pub fn device(self) -> String {
        format!("{}{:012x}", Self::DEVICE_PREFIX, self.0)
    }

    /// MAC of the host-side device: locally administered, unicast (IEEE 802-2014 section 8.2).
    #[must_use]
    pub fn host_mac(self) -> MacAddr {
        self.mac(0b0110)
    }

    /// MAC of the pod's interface; differs from the host side's in one bit of the first byte.
    #[must_use]
    pub fn pod_mac(self) -> MacAddr {
        self.mac(0b0010)
    }

    fn mac(self, low_bits: u8) -> MacAddr {
        let [_, _, mut bytes @ ..] = self.0.to_be_bytes();
        let [first, ..] = &mut bytes;
        *first = (*first & 0xf8) | low_bits;
        MacAddr(bytes)
    }
}

impl FromStr for EndpointId {
    type Err = ParseEndpointIdError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        Self::from_hex(text).ok_or_else(|| ParseEndpointIdError(text.to_owned()))
    }
}

impl TryFrom<String> for EndpointId {
    type Error = ParseEndpointIdError;

    fn try_from(text: String) -> Result<Self, Self::Error> {
        text.parse()
    }
}

impl From<EndpointId> for String {
    fn from(id: EndpointId) -> Self {
        id.to_string()
    }
}

impl fmt::Display for EndpointId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:012x}", self.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_stable_and_come_back() {
        let owner = Owner {
            container_id: "abc".into(),
            interface: "eth0".into(),
        };
        let id = EndpointId::of(&owner);
        assert_eq!(EndpointId::from_device(&id.device()), Some(id));
        assert_eq!(id.to_string().parse(), Ok(id));
        assert!(id.device().len() <= 15, "IFNAMSIZ");
        assert!(id.host_mac().is_unicast() && id.pod_mac().is_unicast());
        assert_ne!(id.host_mac(), id.pod_mac());
        let other = Owner {
            container_id: "ab".into(),
            interface: "ceth0".into(),
        };
        assert_ne!(EndpointId::of(&other), id);
    }

    #[test]
    fn foreign_names_are_not_ours() {
        for name in [
            "eth0",
            "tow",
            "tow12345678901",
            "tow1234567890123",
            "towABCDEF012345",
            "tun123456789012",
        ] {
            assert_eq!(EndpointId::from_device(name), None, "{name}");
        }
    }
}
