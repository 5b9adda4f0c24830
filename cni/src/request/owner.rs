//! Owner of an attachment.

use std::fmt;

use serde::{Deserialize, Serialize};

use crate::failure::{Code, Failure};

/// One interface of one container: how CNI identifies an attachment.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub struct Owner {
    /// The runtime's id of the container.
    pub container_id: String,
    /// Name of the interface inside the container.
    pub interface: String,
}

impl Owner {
    /// Longest container id that the agent takes.
    const LONGEST_ID: usize = 255;
    /// Linux's `IFNAMSIZ` without the terminating zero.
    const LONGEST_INTERFACE: usize = 15;

    /// An owner from what the environment says.
    ///
    /// # Errors
    /// When one of both is not as the specification has it (1.1.0, section 2, "Parameters").
    pub fn new(container_id: String, interface: String) -> Result<Self, Failure> {
        let mut letters = container_id.bytes();
        let is_id = letters.next().is_some_and(|b| b.is_ascii_alphanumeric())
            && letters.all(|b| b.is_ascii_alphanumeric() || b"_.-".contains(&b))
            && container_id.len() <= Self::LONGEST_ID;
        if !is_id {
            return Err(invalid(
                "CNI_CONTAINERID",
                &container_id,
                "a letter or digit, then letters, digits, `_`, `.` and `-`, at most 255",
            ));
        }
        let is_name = (1..=Self::LONGEST_INTERFACE).contains(&interface.len())
            && !matches!(interface.as_str(), "." | "..")
            && !interface
                .chars()
                .any(|c| matches!(c, '/' | ':') || c.is_whitespace() || c.is_control());
        if !is_name {
            return Err(invalid(
                "CNI_IFNAME",
                &interface,
                "1 to 15 characters without `/`, `:` and white space, not `.` or `..`",
            ));
        }
        Ok(Self {
            container_id,
            interface,
        })
    }

    /// Name of the owner for files and devices, the agent's `EndpointId`: FNV-1a of both parts,
    /// folded to 48 bits.
    #[must_use]
    pub fn endpoint_id(&self) -> String {
        // http://www.isthe.com/chongo/tech/comp/fnv/: offset basis and prime for 64 bits.
        const OFFSET: u64 = 0xcbf2_9ce4_8422_2325;
        const PRIME: u64 = 0x0000_0100_0000_01b3;
        let hash = self.to_string().bytes().fold(OFFSET, |hash, byte| {
            (hash ^ u64::from(byte)).wrapping_mul(PRIME)
        });
        let folded = (hash >> 48) ^ (hash & ((1 << 48) - 1));
        format!("{folded:012x}")
    }
}

impl fmt::Display for Owner {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.container_id, self.interface)
    }
}

fn invalid(variable: &str, value: &str, allowed: &str) -> Failure {
    let message = format!("{variable} is {value:?}: {allowed} are allowed");
    Failure::new(Code::InvalidEnvironment, message)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_id_is_the_agents() {
        // The device's name in docs/reference/api.md.
        let owner = Owner::new("0a1b2c".into(), "eth0".into()).unwrap();
        assert_eq!(owner.endpoint_id(), "3cbc86a9b99a");
    }

    #[test]
    fn what_the_specification_forbids_is_refused() {
        let long = "a".repeat(256);
        for (id, interface, variable) in [
            ("", "eth0", "CNI_CONTAINERID"),
            ("-a", "eth0", "CNI_CONTAINERID"),
            ("a/b", "eth0", "CNI_CONTAINERID"),
            ("a b", "eth0", "CNI_CONTAINERID"),
            (long.as_str(), "eth0", "CNI_CONTAINERID"),
            ("a", "", "CNI_IFNAME"),
            ("a", ".", "CNI_IFNAME"),
            ("a", "..", "CNI_IFNAME"),
            ("a", "sixteen-letters-", "CNI_IFNAME"),
            ("a", "et/0", "CNI_IFNAME"),
            ("a", "et:0", "CNI_IFNAME"),
            ("a", "et 0", "CNI_IFNAME"),
        ] {
            let failure = Owner::new(id.into(), interface.into()).unwrap_err();
            assert_eq!(failure.code.number(), 4, "{id:?} {interface:?}");
            assert!(failure.message.starts_with(variable), "{failure}");
        }
    }
}
