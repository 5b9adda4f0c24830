//! A packet as people ask about it.

use std::fmt;
use std::net::{IpAddr, SocketAddr};
use std::str::FromStr;

use ipam::Family;

/// An address, with a port if one is given.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Peer {
    /// The address.
    pub address: IpAddr,
    /// The port; for ICMP the id.
    pub port: Option<u16>,
}

/// A protocol: by name, or by its IANA number.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Protocol {
    /// TCP.
    Tcp,
    /// UDP.
    Udp,
    /// ICMP echo, of the addresses' family.
    Icmp,
    /// SCTP.
    Sctp,
    /// Any other one; it has no ports for us.
    Other(u8),
}

/// A packet: the first of a flow, where there is none yet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Tuple {
    /// Its protocol.
    pub protocol: Protocol,
    /// Its source.
    pub source: Peer,
    /// Its destination.
    pub destination: Peer,
}

/// A text names no packet.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum BadTuple {
    /// It is no address.
    #[error(
        "{0:?} is refused; allowed: an address, with a port or without (10.0.1.20, 10.0.1.20:443, [2001:db8::20]:443)"
    )]
    Peer(String),
    /// It is no protocol.
    #[error("{0:?} is refused; allowed: tcp, udp, icmp, sctp, or a number from 0 to 255")]
    Protocol(String),
    /// Source and destination are of two families.
    #[error("{0} and {1} are of two families; allowed: two addresses of one")]
    Families(IpAddr, IpAddr),
}

impl Tuple {
    /// A packet.
    ///
    /// # Errors
    /// When the addresses are of two families.
    pub fn new(protocol: Protocol, source: Peer, destination: Peer) -> Result<Self, BadTuple> {
        if Family::of(source.address) != Family::of(destination.address) {
            return Err(BadTuple::Families(source.address, destination.address));
        }
        Ok(Self {
            protocol,
            source,
            destination,
        })
    }

    /// The IANA number of its protocol.
    #[must_use]
    pub fn number(&self) -> u8 {
        match (self.protocol, Family::of(self.source.address)) {
            (Protocol::Tcp, _) => 6,
            (Protocol::Udp, _) => 17,
            (Protocol::Icmp, Family::V4) => 1,
            (Protocol::Icmp, Family::V6) => 58,
            (Protocol::Sctp, _) => 132,
            (Protocol::Other(number), _) => number,
        }
    }

    /// The ports of its flow, if they are given: an ICMP echo has its id and nothing at the other
    /// end.
    #[must_use]
    pub fn ports(&self) -> Option<(u16, u16)> {
        let destination = match self.protocol {
            Protocol::Icmp => Some(0),
            Protocol::Tcp | Protocol::Udp | Protocol::Sctp => self.destination.port,
            Protocol::Other(_) => None,
        };
        Some((self.source.port?, destination?))
    }
}

impl FromStr for Peer {
    type Err = BadTuple;

    fn from_str(text: &str) -> Result<Self, BadTuple> {
        let alone = text.parse().ok().map(|address| (address, None));
        let both = || {
            let socket: SocketAddr = text.parse().ok()?;
            Some((socket.ip(), Some(socket.port())))
        };
        let (address, port) = alone
            .or_else(both)
            .ok_or_else(|| BadTuple::Peer(text.to_owned()))?;
        Ok(Self { address, port })
    }
}

impl fmt::Display for Peer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.port {
            Some(port) => SocketAddr::new(self.address, port).fmt(f),
            None => self.address.fmt(f),
        }
    }
}

impl FromStr for Protocol {
    type Err = BadTuple;

    fn from_str(text: &str) -> Result<Self, BadTuple> {
        Ok(match text {
            "tcp" | "6" => Self::Tcp,
            "udp" | "17" => Self::Udp,
            "icmp" | "icmpv6" | "1" | "58" => Self::Icmp,
            "sctp" | "132" => Self::Sctp,
            other => {
                let bad = |_| BadTuple::Protocol(text.to_owned());
                Self::Other(other.parse().map_err(bad)?)
            }
        })
    }
}

impl fmt::Display for Protocol {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Tcp => f.write_str("tcp"),
            Self::Udp => f.write_str("udp"),
            Self::Icmp => f.write_str("icmp"),
            Self::Sctp => f.write_str("sctp"),
            Self::Other(number) => number.fmt(f),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn peers_and_protocols_are_read_as_they_are_written() {
        for text in [
            "10.0.1.20",
            "10.0.1.20:443",
            "2001:db8::20",
            "[2001:db8::20]:443",
        ] {
            assert_eq!(text.parse::<Peer>().unwrap().to_string(), text);
        }
        for text in ["tcp", "udp", "icmp", "sctp", "47"] {
            assert_eq!(text.parse::<Protocol>().unwrap().to_string(), text);
        }
        for text in ["", "10.0.1", "10.0.1.20:", "10.0.1.20:70000", "[::1]"] {
            assert!(text.parse::<Peer>().is_err(), "{text}");
        }
        for text in ["", "TCP", "256", "gre"] {
            assert!(text.parse::<Protocol>().is_err(), "{text}");
        }
    }

    #[test]
    fn a_flow_has_both_ports_or_an_id() {
        let tuple = |protocol: &str, source: &str, destination: &str| {
            Tuple::new(
                protocol.parse().unwrap(),
                source.parse().unwrap(),
                destination.parse().unwrap(),
            )
        };
        let ports = |p, s, d| tuple(p, s, d).unwrap().ports();
        assert_eq!(ports("tcp", "10.0.0.1:5", "1.1.1.1:80"), Some((5, 80)));
        assert_eq!(ports("tcp", "10.0.0.1:5", "1.1.1.1"), None);
        assert_eq!(ports("icmp", "10.0.0.1:5", "1.1.1.1"), Some((5, 0)));
        assert_eq!(ports("47", "10.0.0.1:5", "1.1.1.1:80"), None);
        assert_eq!(tuple("icmp", "::2", "::1").unwrap().number(), 58);
        assert_eq!(
            tuple("tcp", "::2", "1.1.1.1").unwrap_err().to_string(),
            "::2 and 1.1.1.1 are of two families; allowed: two addresses of one"
        );
    }
}
