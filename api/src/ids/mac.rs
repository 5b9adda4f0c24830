//! An Ethernet address.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

/// A 48-bit Ethernet address.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct MacAddr(pub [u8; 6]);

/// A text is not an Ethernet address.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error(
    "{0:?} is not a MAC address: six bytes in hexadecimal with colons are allowed (0a:11:22:33:44:55)"
)]
pub struct ParseMacError(String);

impl MacAddr {
    /// True if a device can have it: neither a group address nor all zero (IEEE 802-2014 section
    /// 8.2).
    #[must_use]
    pub fn is_unicast(self) -> bool {
        self.0[0] & 1 == 0 && self.0 != [0; 6]
    }
}

impl FromStr for MacAddr {
    type Err = ParseMacError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let error = || ParseMacError(text.to_owned());
        let mut bytes = [0; 6];
        let mut parts = text.split(':');
        for byte in &mut bytes {
            let part = parts.next().filter(|p| p.len() == 2).ok_or_else(error)?;
            if !part.bytes().all(|b| b.is_ascii_hexdigit()) {
                return Err(error());
            }
            *byte = u8::from_str_radix(part, 16).map_err(|_not_hex| error())?;
        }
        if parts.next().is_some() {
            return Err(error());
        }
        Ok(Self(bytes))
    }
}

impl TryFrom<String> for MacAddr {
    type Error = ParseMacError;

    fn try_from(text: String) -> Result<Self, Self::Error> {
        text.parse()
    }
}

impl From<MacAddr> for String {
    fn from(mac: MacAddr) -> Self {
        mac.to_string()
    }
}

impl fmt::Display for MacAddr {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let [first, rest @ ..] = self.0;
        write!(f, "{first:02x}")?;
        rest.iter().try_for_each(|byte| write!(f, ":{byte:02x}"))
    }
}

impl fmt::Debug for MacAddr {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parses_either_case_and_prints_lower_case() {
        let mac: MacAddr = "0A:11:22:33:44:fF".parse().unwrap();
        assert_eq!(mac.to_string(), "0a:11:22:33:44:ff");
    }

    #[test]
    fn rejects_what_is_no_address() {
        for text in [
            "",
            "0a:11:22:33:44",
            "0a:11:22:33:44:55:66",
            "0a-11-22-33-44-55",
            "+a:11:22:33:44:55",
            "a:11:22:33:44:55",
        ] {
            assert!(text.parse::<MacAddr>().is_err(), "{text}");
        }
    }
}
