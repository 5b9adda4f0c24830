//! Frames for program tests, built by etherparse: nothing here shares code with the programs, so
//! that lengths, offsets and checksums are checked against someone else's.

use std::net::IpAddr;

use etherparse::{
    IpHeaders, IpNumber, Ipv4Extensions, Ipv4Header, Ipv4Options, Ipv6Extensions, Ipv6Header,
    Ipv6RawExtHeader, PacketBuilder,
};

/// Length of an Ethernet header.
pub const ETHERNET: usize = 14;

/// What an IP packet carries.
#[derive(Clone, Copy, Debug)]
pub enum Body {
    /// A UDP datagram with so many bytes of payload.
    Udp(usize),
    /// A TCP segment with 12 bytes of options, as a time stamp takes, and so many of payload.
    Tcp(usize),
    /// An ICMPv6 message of this type.
    Icmpv6(u8),
}

/// An IP packet in an Ethernet frame.
#[derive(Clone, Debug)]
pub struct Frame {
    /// Source and destination MAC.
    pub macs: ([u8; 6], [u8; 6]),
    /// Source address; the family of the packet.
    pub source: IpAddr,
    /// Destination address, of the same family.
    pub destination: IpAddr,
    /// TTL or hop limit.
    pub hop_limit: u8,
    /// IPv4 options: 0 to 40 bytes, a multiple of 4.
    pub options: Vec<u8>,
    /// Whether an IPv6 packet has a hop-by-hop header with a router alert.
    pub router_alert: bool,
    /// What the packet carries.
    pub body: Body,
}

impl Frame {
    /// A frame with a hop limit of 64.
    #[must_use]
    pub fn new(macs: ([u8; 6], [u8; 6]), source: IpAddr, destination: IpAddr, body: Body) -> Self {
        Self {
            macs,
            source,
            destination,
            hop_limit: 64,
            options: Vec::new(),
            router_alert: false,
            body,
        }
    }

    /// With another hop limit.
    #[must_use]
    pub fn hop_limit(mut self, hop_limit: u8) -> Self {
        self.hop_limit = hop_limit;
        self
    }

    /// With other MACs.
    #[must_use]
    pub fn macs(mut self, source: [u8; 6], destination: [u8; 6]) -> Self {
        self.macs = (source, destination);
        self
    }

    /// With IPv4 options.
    #[must_use]
    pub fn options(mut self, options: &[u8]) -> Self {
        self.options = options.to_vec();
        self
    }

    /// With a router alert in an IPv6 hop-by-hop header.
    #[must_use]
    pub fn router_alert(mut self) -> Self {
        self.router_alert = true;
        self
    }

    /// The bytes.
    ///
    /// # Panics
    /// When the two addresses are of different families, or the options have a length that IPv4
    /// does not allow.
    #[must_use]
    pub fn bytes(&self) -> Vec<u8> {
        let (source, destination) = self.macs;
        let builder = PacketBuilder::ethernet2(source, destination).ip(self.ip());
        let mut bytes = Vec::new();
        let written = match self.body {
            Body::Udp(length) => builder.udp(40_000, 53).write(&mut bytes, &pattern(length)),
            Body::Tcp(length) => builder
                .tcp(40_000, 80, 1, 1024)
                .options_raw(&[1; 12])
                .expect("options of a good length")
                .write(&mut bytes, &pattern(length)),
            Body::Icmpv6(kind) => builder
                .icmpv6_raw(kind, 0, [0; 4])
                .write(&mut bytes, &pattern(16)),
        };
        written.expect("a frame in memory");
        bytes
    }

    fn ip(&self) -> IpHeaders {
        match (self.source, self.destination) {
            (IpAddr::V4(source), IpAddr::V4(destination)) => {
                let mut header = Ipv4Header::new(
                    0,
                    self.hop_limit,
                    IpNumber::UDP,
                    source.octets(),
                    destination.octets(),
                )
                .expect("an empty packet");
                header.identification = 0x1234;
                header.options =
                    Ipv4Options::try_from(self.options.as_slice()).expect("IPv4 options");
                IpHeaders::Ipv4(header, Ipv4Extensions::default())
            }
            (IpAddr::V6(source), IpAddr::V6(destination)) => {
                let header = Ipv6Header {
                    hop_limit: self.hop_limit,
                    source: source.octets(),
                    destination: destination.octets(),
                    ..Ipv6Header::default()
                };
                let mut extensions = Ipv6Extensions::default();
                if self.router_alert {
                    // RFC 2711 section 2.1, and PadN to eight bytes.
                    let options = [5, 2, 0, 0, 1, 0];
                    let header = Ipv6RawExtHeader::new_raw(IpNumber::IPV6_ICMP, &options);
                    extensions.hop_by_hop_options = Some(header.expect("six bytes of options"));
                }
                IpHeaders::Ipv6(header, extensions)
            }
            (source, destination) => panic!("{source} and {destination} are of two families"),
        }
    }
}

/// A frame of another ether type: two MACs, the type, and 46 bytes.
#[must_use]
pub fn other(macs: ([u8; 6], [u8; 6]), ether_type: u16) -> Vec<u8> {
    let mut bytes = [macs.1, macs.0].concat();
    bytes.extend(ether_type.to_be_bytes());
    bytes.extend(pattern(46));
    bytes
}

/// Bytes that differ from their neighbours, so that a shift shows.
fn pattern(length: usize) -> Vec<u8> {
    (0..=u8::MAX).cycle().take(length).collect()
}
