//! Address of the instance's metadata service.

use std::fmt;
use std::net::{Ipv4Addr, SocketAddr};

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// Address of the service: `http://`, an address, and a port if it is not 80.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(try_from = "String", into = "String")]
pub struct MetadataEndpoint(SocketAddr);

/// A text is no address of the service.
#[derive(Debug, thiserror::Error)]
#[error(
    "{0:?} is refused; allowed: http://169.254.169.254, http://[fd00:ec2::254], or http:// with \
     another address, and a port where it is not 80"
)]
pub struct NotMetadataEndpoint(String);

impl TryFrom<String> for MetadataEndpoint {
    type Error = NotMetadataEndpoint;

    fn try_from(text: String) -> Result<Self, NotMetadataEndpoint> {
        Self::parse(&text).ok_or(NotMetadataEndpoint(text))
    }
}

impl From<MetadataEndpoint> for String {
    fn from(endpoint: MetadataEndpoint) -> Self {
        endpoint.to_string()
    }
}

impl Default for MetadataEndpoint {
    /// The service's link-local address.
    fn default() -> Self {
        let address = Ipv4Addr::new(169, 254, 169, 254);
        Self(SocketAddr::new(address.into(), Self::PORT))
    }
}

impl MetadataEndpoint {
    const SCHEME: &str = "http://";
    const PORT: u16 = 80;

    fn parse(text: &str) -> Option<Self> {
        let place = text.strip_prefix(Self::SCHEME)?;
        let place = place.strip_suffix('/').unwrap_or(place);
        let with_port = || format!("{place}:{}", Self::PORT).parse();
        let address: SocketAddr = place.parse().or_else(|_no_port| with_port()).ok()?;
        Some(Self(address))
    }

    /// The address.
    #[must_use]
    pub fn address(self) -> SocketAddr {
        self.0
    }
}

impl fmt::Display for MetadataEndpoint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let text = self.0.to_string();
        let port = format!(":{}", Self::PORT);
        f.write_str(Self::SCHEME)?;
        f.write_str(text.strip_suffix(&port).unwrap_or(&text))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn endpoints_are_addresses_and_come_back_as_they_were_written() {
        for text in [
            "http://169.254.169.254",
            "http://[fd00:ec2::254]",
            "http://127.0.0.1:1338",
            "http://[::1]:1338",
        ] {
            assert_eq!(MetadataEndpoint::parse(text).unwrap().to_string(), text);
        }
        assert_eq!(
            MetadataEndpoint::default().to_string(),
            "http://169.254.169.254"
        );
        assert_eq!(
            MetadataEndpoint::parse("http://169.254.169.254/").unwrap(),
            MetadataEndpoint::default()
        );
        for text in [
            "169.254.169.254",
            "https://169.254.169.254",
            "http://metadata",
            "http://169.254.169.254/latest",
            "http://fd00:ec2::254",
            "",
        ] {
            assert_eq!(MetadataEndpoint::parse(text), None, "{text}");
        }
    }
}
