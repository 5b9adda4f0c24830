//! An entry of the conntrack table, out of the kernel's message.

use std::fmt;
use std::net::{IpAddr, SocketAddr};

use netlink_packet_core::{DefaultNla, Nla};
use netlink_packet_netfilter::conntrack::{
    ConntrackAttribute, ConntrackMessage, IPTuple, ProtoInfo, ProtoInfoTCP, ProtoTuple, Protocol,
    Status, Tuple as TupleAttribute,
};
use netlink_packet_netfilter::{NetfilterMessage, NetfilterMessageInner};

/// `CTA_ZONE` in `include/uapi/linux/netfilter/nfnetlink_conntrack.h`: the entry's zone. The kernel
/// leaves it out where it is the default one.
const ZONE: u16 = 18;
/// `CTA_ID`: the entry's id, in network byte order.
pub(super) const ID: u16 = 12;
/// `CTA_TUPLE_ZONE`, the same for one direction alone.
const TUPLE_ZONE: u16 = 3;

/// One direction of a flow: a packet's protocol, addresses and ports.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Tuple {
    /// The protocol's number: TCP, UDP or SCTP.
    pub protocol: u8,
    /// Where its packets come from.
    pub source: SocketAddr,
    /// Where its packets go to.
    pub destination: SocketAddr,
}

/// A flow that conntrack follows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Entry {
    /// The packets of the side that began, as they come in.
    pub original: Tuple,
    /// The answers, as they come in. Where nothing is translated it is the original one turned
    /// round.
    pub reply: Tuple,
    /// State of TCP, if it is a TCP flow.
    pub tcp_state: Option<TcpState>,
    /// The entry's `IPS_*` bits (`include/uapi/linux/netfilter/nf_conntrack_common.h`).
    pub status: u32,
    /// The kernel's id of the entry (`CTA_ID`): a later entry with these tuples has another one.
    pub id: u32,
}

/// The states that conntrack has for a TCP flow, with the numbers of `enum tcp_conntrack` in
/// `include/uapi/linux/netfilter/nf_conntrack_tcp.h`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum TcpState {
    /// `TCP_CONNTRACK_NONE`: nothing seen.
    None,
    /// A SYN was seen.
    SynSent,
    /// A SYN and its answer were seen.
    SynRecv,
    /// Open.
    Established,
    /// One side's FIN was seen.
    FinWait,
    /// That FIN's acknowledgement was seen.
    CloseWait,
    /// The other side's FIN was seen.
    LastAck,
    /// Both are closed.
    TimeWait,
    /// A reset was seen.
    Close,
    /// SYNs from both sides were seen.
    SynSent2,
    /// A number that this has no name for.
    Other(u8),
}

impl From<u8> for TcpState {
    fn from(number: u8) -> Self {
        match number {
            0 => Self::None,
            1 => Self::SynSent,
            2 => Self::SynRecv,
            3 => Self::Established,
            4 => Self::FinWait,
            5 => Self::CloseWait,
            6 => Self::LastAck,
            7 => Self::TimeWait,
            8 => Self::Close,
            9 => Self::SynSent2,
            other => Self::Other(other),
        }
    }
}

impl Entry {
    /// True if source NAT changes the flow (`IPS_SRC_NAT`).
    #[must_use]
    pub fn is_source_translated(&self) -> bool {
        self.bits().contains(Status::SrcNat)
    }

    /// True if destination NAT changes the flow (`IPS_DST_NAT`).
    #[must_use]
    pub fn is_destination_translated(&self) -> bool {
        self.bits().contains(Status::DstNat)
    }

    /// True if an answer was seen (`IPS_SEEN_REPLY`).
    #[must_use]
    pub fn has_seen_reply(&self) -> bool {
        self.bits().contains(Status::SeenReply)
    }

    /// True if both sides have sent enough to keep the entry from early removal (`IPS_ASSURED`).
    #[must_use]
    pub fn is_assured(&self) -> bool {
        self.bits().contains(Status::Assured)
    }

    fn bits(&self) -> Status {
        Status::from_bits_retain(self.status)
    }
}

impl Tuple {
    /// The tuple as attributes of a request.
    pub(super) fn attributes(&self) -> Vec<TupleAttribute> {
        let ip = vec![
            IPTuple::SourceAddress(self.source.ip()),
            IPTuple::DestinationAddress(self.destination.ip()),
        ];
        let protocol = vec![
            ProtoTuple::Protocol(Protocol::from(self.protocol)),
            ProtoTuple::SourcePort(self.source.port()),
            ProtoTuple::DestinationPort(self.destination.port()),
        ];
        vec![TupleAttribute::Ip(ip), TupleAttribute::Proto(protocol)]
    }
}

impl fmt::Display for Tuple {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self {
            protocol,
            source,
            destination,
        } = self;
        write!(formatter, "protocol {protocol} {source} to {destination}")
    }
}

/// The attributes of a message that are used.
#[derive(Default)]
struct Parts {
    original: Option<Direction>,
    reply: Option<Direction>,
    status: Option<u32>,
    tcp_state: Option<TcpState>,
    id: Option<u32>,
    is_of_zone: bool,
}

/// The attributes of a tuple that are used.
#[derive(Default)]
struct Direction {
    source: Option<IpAddr>,
    destination: Option<IpAddr>,
    protocol: Option<u8>,
    source_port: Option<u16>,
    destination_port: Option<u16>,
    is_of_zone: bool,
}

/// Reads the entry of a message. None if it is no entry, or one of another protocol or zone. The
/// error is the name of the missing attribute.
pub(super) fn read(message: &NetfilterMessage) -> Result<Option<Entry>, &'static str> {
    let NetfilterMessageInner::Conntrack(ConntrackMessage::New(attributes)) = &message.inner else {
        return Ok(None);
    };
    let parts = Parts::of(attributes);
    let original = parts.original.ok_or("CTA_TUPLE_ORIG")?;
    let reply = parts.reply.ok_or("CTA_TUPLE_REPLY")?;
    if parts.is_of_zone || original.is_of_zone || reply.is_of_zone {
        return Ok(None);
    }
    let (Some(original), Some(reply)) = (original.tuple()?, reply.tuple()?) else {
        return Ok(None);
    };
    Ok(Some(Entry {
        original,
        reply,
        tcp_state: parts.tcp_state,
        status: parts.status.ok_or("CTA_STATUS")?,
        id: parts.id.ok_or("CTA_ID")?,
    }))
}

impl Parts {
    fn of(attributes: &[ConntrackAttribute]) -> Self {
        let mut parts = Self::default();
        for attribute in attributes {
            match attribute {
                ConntrackAttribute::CtaTupleOrig(tuple) => {
                    parts.original = Some(Direction::of(tuple));
                }
                ConntrackAttribute::CtaTupleReply(tuple) => {
                    parts.reply = Some(Direction::of(tuple));
                }
                ConntrackAttribute::CtaStatus(status) => parts.status = Some(status.bits()),
                ConntrackAttribute::CtaProtoInfo(infos) => parts.tcp_state = tcp_state(infos),
                ConntrackAttribute::Other(other) if other.kind() == ID => parts.id = number(other),
                ConntrackAttribute::Other(other) => parts.is_of_zone |= other.kind() == ZONE,
                _ => {}
            }
        }
        parts
    }
}

/// A number in network byte order.
fn number(attribute: &DefaultNla) -> Option<u32> {
    let mut bytes = [0; 4];
    if attribute.value_len() != bytes.len() {
        return None;
    }
    attribute.emit_value(&mut bytes);
    Some(u32::from_be_bytes(bytes))
}

fn tcp_state(infos: &[ProtoInfo]) -> Option<TcpState> {
    infos.iter().find_map(|info| match info {
        ProtoInfo::TCP(attributes) => attributes.iter().find_map(|attribute| match attribute {
            ProtoInfoTCP::State(number) => Some(TcpState::from(*number)),
            _ => None,
        }),
        _ => None,
    })
}

impl Direction {
    fn of(attributes: &[TupleAttribute]) -> Self {
        let mut direction = Self::default();
        for attribute in attributes {
            match attribute {
                TupleAttribute::Ip(addresses) => direction.take_addresses(addresses),
                TupleAttribute::Proto(protocol) => direction.take_protocol(protocol),
                TupleAttribute::Other(other) => direction.is_of_zone |= other.kind() == TUPLE_ZONE,
                _ => {}
            }
        }
        direction
    }

    fn take_addresses(&mut self, attributes: &[IPTuple]) {
        for attribute in attributes {
            match attribute {
                IPTuple::SourceAddress(address) => self.source = Some(*address),
                IPTuple::DestinationAddress(address) => self.destination = Some(*address),
                _ => {}
            }
        }
    }

    fn take_protocol(&mut self, attributes: &[ProtoTuple]) {
        for attribute in attributes {
            match attribute {
                ProtoTuple::Protocol(protocol) => self.protocol = Some((*protocol).into()),
                ProtoTuple::SourcePort(port) => self.source_port = Some(*port),
                ProtoTuple::DestinationPort(port) => self.destination_port = Some(*port),
                _ => {}
            }
        }
    }

    /// The tuple, where it is of a protocol that matters here.
    fn tuple(&self) -> Result<Option<Tuple>, &'static str> {
        let protocol = self.protocol.ok_or("CTA_PROTO_NUM")?;
        if !matches!(
            Protocol::from(protocol),
            Protocol::Tcp | Protocol::Udp | Protocol::Sctp
        ) {
            return Ok(None);
        }
        let source = self.source.ok_or("CTA_IP_V4_SRC or CTA_IP_V6_SRC")?;
        let destination = self.destination.ok_or("CTA_IP_V4_DST or CTA_IP_V6_DST")?;
        if source.is_ipv4() != destination.is_ipv4() {
            return Err("addresses of one family");
        }
        let source_port = self.source_port.ok_or("CTA_PROTO_SRC_PORT")?;
        let destination_port = self.destination_port.ok_or("CTA_PROTO_DST_PORT")?;
        Ok(Some(Tuple {
            protocol,
            source: SocketAddr::new(source, source_port),
            destination: SocketAddr::new(destination, destination_port),
        }))
    }
}
