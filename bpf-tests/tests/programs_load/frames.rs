//! The frames of flows, and functions to read them.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use datapath_common::abi::{Addr, FlowKey, TransportAddr, map};
use datapath_common::headers::protocol;
use etherparse::err::packet::BuildWriteError;
use etherparse::{IpHeaders, PacketBuilder, PacketBuilderStep};

use crate::world::Tuple;

/// A family, with the addresses that are the same for all pods.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Family {
    V4,
    V6,
}

impl Family {
    pub(crate) const ALL: [Self; 2] = [Self::V4, Self::V6];

    /// The flows' map, and the map of flows that did not get their first candidate.
    pub(crate) fn maps(self) -> (&'static str, &'static str) {
        match self {
            Self::V4 => (map::FLOWS_V4, map::MOVED_V4),
            Self::V6 => (map::FLOWS_V6, map::MOVED_V6),
        }
    }

    /// The family in the agent's terms.
    pub(crate) fn intent(self) -> ipam::Family {
        match self {
            Self::V4 => ipam::Family::V4,
            Self::V6 => ipam::Family::V6,
        }
    }

    /// The key of a flow with this port.
    pub(crate) fn key(self, tuple: Tuple, port: u16, protocol: u8) -> FlowKey {
        let remote = Addr::from(self.remote(tuple.remote));
        FlowKey::new(
            0,
            protocol,
            TransportAddr::new(remote, tuple.remote_port.to_be()),
            port.to_be(),
        )
    }

    pub(crate) fn pod(self, pod: usize) -> IpAddr {
        let last = u8::try_from(10 + pod).unwrap();
        match self {
            Self::V4 => Ipv4Addr::new(10, 0, 1, last).into(),
            Self::V6 => Ipv6Addr::new(0x2001, 0xdb8, 0, 1, 0, 0, 0, last.into()).into(),
        }
    }

    /// Translation address of the node.
    pub(crate) fn node(self) -> IpAddr {
        match self {
            Self::V4 => Ipv4Addr::new(10, 0, 0, 5).into(),
            Self::V6 => Ipv6Addr::new(0x2001, 0xdb8, 0, 0, 0, 0, 0, 5).into(),
        }
    }

    /// One of many remotes.
    pub(crate) fn remote(self, number: u16) -> IpAddr {
        let [high, low] = number.to_be_bytes();
        match self {
            Self::V4 => Ipv4Addr::new(198, 51, high, low).into(),
            Self::V6 => Ipv6Addr::new(0x2600, 0, 0, 0, 0, 0, 0, number).into(),
        }
    }

    pub(crate) fn gateway(self) -> IpAddr {
        match self {
            Self::V4 => Ipv4Addr::new(10, 0, 0, 1).into(),
            Self::V6 => Ipv6Addr::new(0xfe80, 0, 0, 0, 0, 0, 0, 1).into(),
        }
    }
}

/// Kind of a packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    Syn,
    SynAck,
    Ack,
    Fin,
    Rst,
    Udp,
    Sctp,
    /// A request from the pod, an answer from the outside; the port is the id.
    Echo,
}

impl Kind {
    pub(crate) fn protocol(self, family: Family) -> u8 {
        match (self, family) {
            (Self::Udp, _) => protocol::UDP,
            (Self::Sctp, _) => protocol::SCTP,
            (Self::Echo, Family::V4) => protocol::ICMP,
            (Self::Echo, Family::V6) => protocol::ICMPV6,
            (Self::Syn | Self::SynAck | Self::Ack | Self::Fin | Self::Rst, _) => protocol::TCP,
        }
    }
}

/// A frame with one packet of a flow. In an echo, the remote side has port 0, and the pod's port is
/// the id.
pub(crate) fn frame(
    macs: [[u8; 6]; 2],
    [source, destination]: [IpAddr; 2],
    [source_port, destination_port]: [u16; 2],
    kind: Kind,
) -> Vec<u8> {
    let builder = PacketBuilder::ethernet2(macs[0], macs[1]);
    let builder = match (source, destination) {
        (IpAddr::V4(source), IpAddr::V4(destination)) => {
            builder.ipv4(source.octets(), destination.octets(), 64)
        }
        (IpAddr::V6(source), IpAddr::V6(destination)) => {
            builder.ipv6(source.octets(), destination.octets(), 64)
        }
        _ => panic!("two families"),
    };
    let mut bytes = Vec::with_capacity(80);
    let tcp =
        |builder: PacketBuilderStep<IpHeaders>| builder.tcp(source_port, destination_port, 1, 1024);
    match kind {
        Kind::Udp => builder
            .udp(source_port, destination_port)
            .write(&mut bytes, &[7; 8]),
        Kind::Sctp => {
            let mut chunk = [0; 28];
            chunk[..2].copy_from_slice(&source_port.to_be_bytes());
            chunk[2..4].copy_from_slice(&destination_port.to_be_bytes());
            builder.write(&mut bytes, protocol::SCTP.into(), &chunk)
        }
        Kind::Syn => tcp(builder).syn().write(&mut bytes, &[]),
        Kind::SynAck => tcp(builder).syn().ack(2).write(&mut bytes, &[]),
        Kind::Ack => tcp(builder).ack(2).write(&mut bytes, &[]),
        Kind::Fin => tcp(builder).fin().ack(2).write(&mut bytes, &[]),
        Kind::Rst => tcp(builder).rst().ack(2).write(&mut bytes, &[]),
        Kind::Echo => echo(
            builder,
            source.is_ipv4(),
            [source_port, destination_port],
            &mut bytes,
        ),
    }
    .unwrap();
    bytes
}

/// "Host unreachable", or "address unreachable", about an IP packet.
pub(crate) fn unreachable(
    macs: [[u8; 6]; 2],
    [source, destination]: [IpAddr; 2],
    quoted: &[u8],
) -> Vec<u8> {
    let builder = PacketBuilder::ethernet2(macs[0], macs[1]);
    let mut bytes = Vec::new();
    match (source, destination) {
        (IpAddr::V4(source), IpAddr::V4(destination)) => builder
            .ipv4(source.octets(), destination.octets(), 64)
            .icmpv4_raw(3, 1, [0; 4])
            .write(&mut bytes, quoted),
        (IpAddr::V6(source), IpAddr::V6(destination)) => builder
            .ipv6(source.octets(), destination.octets(), 64)
            .icmpv6_raw(1, 3, [0; 4])
            .write(&mut bytes, quoted),
        _ => panic!("two families"),
    }
    .unwrap();
    bytes
}

/// An echo request if the source has the id, otherwise a reply.
fn echo(
    builder: PacketBuilderStep<IpHeaders>,
    is_v4: bool,
    [source_port, destination_port]: [u16; 2],
    bytes: &mut Vec<u8>,
) -> Result<(), BuildWriteError> {
    let id = source_port.max(destination_port);
    let payload = [7; 8];
    match (is_v4, destination_port == 0) {
        (true, true) => builder.icmpv4_echo_request(id, 1).write(bytes, &payload),
        (true, false) => builder.icmpv4_echo_reply(id, 1).write(bytes, &payload),
        (false, true) => builder.icmpv6_echo_request(id, 1).write(bytes, &payload),
        (false, false) => builder.icmpv6_echo_reply(id, 1).write(bytes, &payload),
    }
}

/// Address and port of one side of a frame.
fn side(frame: &[u8], is_source: bool) -> (IpAddr, u16) {
    let skip = usize::from(!is_source);
    let (address, transport): (IpAddr, _) = if frame[12..14] == [8, 0] {
        let at = 26 + 4 * skip;
        let bytes: [u8; 4] = frame[at..at + 4].try_into().unwrap();
        (bytes.into(), 34)
    } else {
        let at = 22 + 16 * skip;
        let bytes: [u8; 16] = frame[at..at + 16].try_into().unwrap();
        (bytes.into(), 54)
    };
    let is_icmp = matches!((frame[23], frame[20], transport), (1, _, 34) | (_, 58, 54));
    let at = transport + if is_icmp { 4 } else { 2 * skip };
    (address, u16::from_be_bytes([frame[at], frame[at + 1]]))
}

/// Source address, and source port or id.
pub(crate) fn source(frame: &[u8]) -> (IpAddr, u16) {
    side(frame, true)
}

/// Destination address, and destination port or id.
pub(crate) fn destination(frame: &[u8]) -> (IpAddr, u16) {
    side(frame, false)
}
