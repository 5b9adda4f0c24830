//! Where the instance's metadata service is.

use std::fmt;
use std::net::{Ipv4Addr, SocketAddr};

use serde::{Deserialize, Serialize};

/// Where the service is: `http://`, an address, and a port where it is not 80.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct Endpoint(SocketAddr);

/// A text does not say where the service is.
#[derive(Debug, thiserror::Error)]
#[error(
    "{0:?} is refused; allowed: http://169.254.169.254, http://[fd00:ec2::254], or http:// with \
     another address, and a port where it is not 80"
)]
pub struct NotAnEndpoint(String);

impl TryFrom<String> for Endpoint {
    type Error = NotAnEndpoint;

    fn try_from(text: String) -> Result<Self, NotAnEndpoint> {
        Self::parse(&text).ok_or(NotAnEndpoint(text))
    }
}

impl From<Endpoint> for String {
    fn from(endpoint: Endpoint) -> Self {
        endpoint.to_string()
    }
}

impl Default for Endpoint {
    /// The service's link-local address.
    fn default() -> Self {
        let address = Ipv4Addr::new(169, 254, 169, 254);
        Self(SocketAddr::new(address.into(), Self::PORT))
    }
}

impl Endpoint {
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

impl fmt::Display for Endpoint {
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
            assert_eq!(Endpoint::parse(text).unwrap().to_string(), text);
        }
        assert_eq!(Endpoint::default().to_string(), "http://169.254.169.254");
        assert_eq!(
            Endpoint::parse("http://169.254.169.254/").unwrap(),
            Endpoint::default()
        );
        for text in [
            "169.254.169.254",
            "https://169.254.169.254",
            "http://metadata",
            "http://169.254.169.254/latest",
            "http://fd00:ec2::254",
            "",
        ] {
            assert_eq!(Endpoint::parse(text), None, "{text}");
        }
    }
}
