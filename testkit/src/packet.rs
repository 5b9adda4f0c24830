//! Frames for program tests, built by etherparse. They share no code with the programs, so that
//! lengths, offsets and checksums are checked against an independent implementation.

use std::net::{IpAddr, Ipv4Addr};

use etherparse::{
    IpFragOffset, IpHeaders, IpNumber, Ipv4Extensions, Ipv4Header, Ipv4Options, Ipv6Extensions,
    Ipv6FragmentHeader, Ipv6Header, Ipv6RawExtHeader, LaxSlicedPacket, PacketBuilder,
    PacketBuilderStep, TcpHeader,
};

/// Length of an Ethernet header.
pub const ETHERNET: usize = 14;

/// Contents of an IP packet.
#[derive(Clone, Copy, Debug)]
pub enum Body {
    /// A UDP datagram with so many bytes of payload.
    Udp(usize),
    /// A TCP segment with 12 bytes of options, as a time stamp takes, and so many bytes of payload.
    Tcp(usize),
    /// An ICMPv6 message of this type.
    Icmpv6(u8),
    /// An ICMP or ICMPv6 echo request, or the answer to one; its identifier is the requester's
    /// port.
    Echo {
        /// True if it is the request.
        asks: bool,
    },
    /// An SCTP packet with so many bytes after its ports and tag.
    Sctp(usize),
    /// An ICMP or ICMPv6 error of this type, which quotes [`Frame::quote`].
    Error(u8),
    /// Another protocol.
    Protocol(u8),
}

/// A fragment of a datagram.
#[derive(Clone, Copy, Debug)]
pub struct Piece {
    /// Offset in the datagram's payload, in bytes: a multiple of 8.
    pub offset: usize,
    /// Its length in bytes.
    pub length: usize,
    /// True if more fragments follow.
    pub more: bool,
    /// Identification of the datagram.
    pub id: u16,
}

/// The MACs of a frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Macs {
    /// The sender's.
    pub source: [u8; 6],
    /// The receiver's.
    pub destination: [u8; 6],
}

impl Macs {
    /// The MACs of a frame from a sender to a receiver.
    #[must_use]
    pub const fn new(source: [u8; 6], destination: [u8; 6]) -> Self {
        Self {
            source,
            destination,
        }
    }

    /// The beginning of an Ethernet header.
    #[must_use]
    pub fn bytes(self) -> Vec<u8> {
        [self.destination, self.source].concat()
    }
}

/// An IP packet in an Ethernet frame.
#[derive(Clone, Debug)]
pub struct Frame {
    /// Its MACs.
    pub macs: Macs,
    /// Source address; the family of the packet.
    pub source: IpAddr,
    /// Destination address, of the same family.
    pub destination: IpAddr,
    /// Source and destination port.
    pub ports: (u16, u16),
    /// TTL or hop limit.
    pub hop_limit: u8,
    /// IPv4 options: 0 to 40 bytes, a multiple of 4.
    pub options: Vec<u8>,
    /// True if an IPv6 packet has a hop-by-hop header with a router alert.
    pub router_alert: bool,
    /// Contents of the packet.
    pub body: Body,
    /// Flags and sequence number of a TCP segment.
    pub tcp: (u8, u32),
    /// True if a UDP datagram has no checksum.
    pub no_checksum: bool,
    /// Bytes that an ICMP error quotes.
    pub quote: Vec<u8>,
    /// Fragment of the datagram to send, instead of all of it.
    pub piece: Option<Piece>,
}

impl Frame {
    /// A frame with a hop limit of 64, from port 40000 to UDP's 53 or TCP's 80.
    #[must_use]
    pub fn new(macs: Macs, source: IpAddr, destination: IpAddr, body: Body) -> Self {
        let to = match body {
            Body::Udp(_) => 53,
            Body::Echo { .. } => 0,
            _ => 80,
        };
        Self {
            macs,
            source,
            destination,
            ports: (40_000, to),
            hop_limit: 64,
            options: Vec::new(),
            router_alert: false,
            body,
            tcp: (0, 1),
            no_checksum: false,
            quote: Vec::new(),
            piece: None,
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
        self.macs = Macs::new(source, destination);
        self
    }

    /// With other ports; an echo's identifier is the requester's port.
    #[must_use]
    pub fn ports(mut self, source: u16, destination: u16) -> Self {
        self.ports = (source, destination);
        self
    }

    /// From another address and port.
    #[must_use]
    pub fn from(mut self, source: IpAddr, port: u16) -> Self {
        self.source = source;
        self.ports.0 = port;
        self
    }

    /// To another address and port.
    #[must_use]
    pub fn to(mut self, destination: IpAddr, port: u16) -> Self {
        self.destination = destination;
        self.ports.1 = port;
        self
    }

    /// With these TCP flags and this sequence number.
    #[must_use]
    pub fn tcp(mut self, flags: u8, sequence: u32) -> Self {
        self.tcp = (flags, sequence);
        self
    }

    /// Without a UDP checksum.
    #[must_use]
    pub fn no_checksum(mut self) -> Self {
        self.no_checksum = true;
        self
    }

    /// An ICMP error about another packet, of which it quotes so many bytes.
    #[must_use]
    pub fn quoting(mut self, about: &Self, length: usize) -> Self {
        self.quote = about.bytes()[ETHERNET..].to_vec();
        self.quote.truncate(length);
        self
    }

    /// A part of the datagram.
    #[must_use]
    pub fn piece(mut self, piece: Piece) -> Self {
        self.piece = Some(piece);
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
        let Some(piece) = self.piece else {
            return self.built(None, None);
        };
        let whole = Self {
            piece: None,
            ..self.clone()
        };
        let (load, protocol) = whole.load();
        let load = &load[piece.offset..piece.offset + piece.length];
        self.built(Some(piece), Some((load, protocol)))
    }

    /// Payload of the whole datagram, and its protocol.
    fn load(&self) -> (Vec<u8>, IpNumber) {
        let bytes = self.built(None, None);
        let packet = LaxSlicedPacket::from_ethernet(&bytes).expect("a frame of ours");
        let net = packet.net.expect("an IP packet");
        let load = net.ip_payload_ref().expect("an IP packet");
        (load.payload.to_vec(), load.ip_number)
    }

    /// The bytes of a packet, or of a part of its datagram.
    fn built(&self, piece: Option<Piece>, load: Option<(&[u8], IpNumber)>) -> Vec<u8> {
        let macs = self.macs;
        let builder = PacketBuilder::ethernet2(macs.source, macs.destination).ip(self.ip(piece));
        let mut bytes = Vec::new();
        let is_v4 = self.source.is_ipv4();
        let (from, to) = self.ports;
        if let Some((load, protocol)) = load {
            builder
                .write(&mut bytes, protocol, load)
                .expect("a frame in memory");
            return bytes;
        }
        let written = match self.body {
            Body::Udp(length) => {
                let written = builder.udp(from, to).write(&mut bytes, &pattern(length));
                if self.no_checksum {
                    let at = bytes.len() - length - 2;
                    bytes[at..at + 2].fill(0);
                }
                written
            }
            Body::Tcp(length) => {
                let (flags, sequence) = self.tcp;
                let segment = builder.tcp(from, to, sequence, 1024);
                with_flags(segment, flags).write(&mut bytes, &pattern(length))
            }
            Body::Icmpv6(kind) => builder
                .icmpv6_raw(kind, 0, [0; 4])
                .write(&mut bytes, &pattern(16)),
            Body::Echo { asks: true } if is_v4 => builder
                .icmpv4_echo_request(from, 1)
                .write(&mut bytes, &pattern(16)),
            Body::Echo { asks: false } if is_v4 => builder
                .icmpv4_echo_reply(to, 1)
                .write(&mut bytes, &pattern(16)),
            Body::Echo { asks: true } => builder
                .icmpv6_echo_request(from, 1)
                .write(&mut bytes, &pattern(16)),
            Body::Echo { asks: false } => builder
                .icmpv6_echo_reply(to, 1)
                .write(&mut bytes, &pattern(16)),
            Body::Error(kind) if is_v4 => builder
                .icmpv4_raw(kind, 1, [0, 0, 5, 0])
                .write(&mut bytes, &self.quote),
            Body::Error(kind) => builder
                .icmpv6_raw(kind, 1, [0, 0, 5, 0])
                .write(&mut bytes, &self.quote),
            Body::Sctp(length) => {
                let ports = [from.to_be_bytes(), to.to_be_bytes()].concat();
                let load = [ports, vec![0x5a; 8], pattern(length)].concat();
                builder.write(&mut bytes, IpNumber(132), &load)
            }
            Body::Protocol(protocol) => builder.write(&mut bytes, IpNumber(protocol), &pattern(32)),
        };
        written.expect("a frame in memory");
        bytes
    }

    fn ip(&self, piece: Option<Piece>) -> IpHeaders {
        let units = piece.map_or(0, |piece| piece.offset / 8);
        let offset = IpFragOffset::try_new(u16::try_from(units).expect("a short datagram"))
            .expect("a short datagram");
        let more = piece.is_some_and(|piece| piece.more);
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
                header.identification = piece.map_or(0x1234, |piece| piece.id);
                header.dont_fragment = piece.is_none();
                header.fragment_offset = offset;
                header.more_fragments = more;
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
                extensions.fragment = piece.map(|piece| {
                    Ipv6FragmentHeader::new(IpNumber::UDP, offset, more, piece.id.into())
                });
                IpHeaders::Ipv6(header, extensions)
            }
            (source, destination) => panic!("{source} and {destination} are of two families"),
        }
    }
}

/// A frame of another ether type: two MACs, the type, and 46 bytes.
#[must_use]
pub fn other(macs: Macs, ether_type: u16) -> Vec<u8> {
    let mut bytes = macs.bytes();
    bytes.extend(ether_type.to_be_bytes());
    bytes.extend(pattern(46));
    bytes
}

/// An ARP request (RFC 826) between these MACs, from this sender for that target.
#[must_use]
pub fn arp_request(macs: Macs, sender: Ipv4Addr, target: Ipv4Addr) -> Vec<u8> {
    let mut bytes = macs.bytes();
    bytes.extend([0x08, 0x06, 0, 1, 0x08, 0, 6, 4, 0, 1]);
    bytes.extend(macs.source);
    bytes.extend(sender.octets());
    bytes.extend([0; 6]);
    bytes.extend(target.octets());
    bytes
}

/// A segment with flags, and with options of 12 bytes.
fn with_flags(segment: PacketBuilderStep<TcpHeader>, flags: u8) -> PacketBuilderStep<TcpHeader> {
    let mut segment = segment
        .options_raw(&[1; 12])
        .expect("options of a good length");
    if flags & 1 != 0 {
        segment = segment.fin();
    }
    if flags & 2 != 0 {
        segment = segment.syn();
    }
    if flags & 4 != 0 {
        segment = segment.rst();
    }
    if flags & 16 != 0 {
        segment = segment.ack(7);
    }
    segment
}

/// Bytes that differ from their neighbours, so that a shift is visible.
fn pattern(length: usize) -> Vec<u8> {
    (0..=u8::MAX).cycle().take(length).collect()
}
