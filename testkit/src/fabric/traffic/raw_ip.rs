//! Raw IP packets: fragments in any order, protocols without ports.

use std::net::{IpAddr, SocketAddr};
use std::os::fd::AsRawFd as _;

use anyhow::{Context as _, Result, bail};
use nix::sys::socket::{
    AddressFamily, MsgFlags, SockFlag, SockProtocol, SockType, SockaddrStorage, sendto, socket,
};

use crate::fabric::Place;

/// IANA, "Protocol Numbers".
const UDP: u8 = 17;
const FRAGMENT: u8 = 44;
const HOP_LIMIT: u8 = 64;
/// Unit of fragments' offsets in both families (RFC 791, RFC 8200 section 4.5).
const UNIT: usize = 8;

/// A fragment's datagram id, its offset, and true if more fragments follow.
#[derive(Clone, Copy, Debug)]
struct Piece {
    id: u16,
    offset: usize,
    more: bool,
}

/// The ends and the protocol of an IP packet.
#[derive(Clone, Copy, Debug)]
struct Header {
    from: IpAddr,
    to: IpAddr,
    protocol: u8,
}

/// One IP packet. The kernel fills in the checksum of an IPv4 header (raw(7)).
fn packet(header: Header, piece: Option<Piece>, data: &[u8]) -> Result<Vec<u8>> {
    let protocol = header.protocol;
    let mut packet = Vec::new();
    match (header.from, header.to) {
        (IpAddr::V4(from), IpAddr::V4(to)) => {
            let length = u16::try_from(20 + data.len())?;
            let (id, place) = match piece {
                Some(piece) => (piece.id, place(piece)? | u16::from(piece.more) << 13),
                None => (0, 0),
            };
            packet.extend([0x45, 0]);
            packet.extend(length.to_be_bytes());
            packet.extend(id.to_be_bytes());
            packet.extend(place.to_be_bytes());
            packet.extend([HOP_LIMIT, protocol, 0, 0]);
            packet.extend(from.octets());
            packet.extend(to.octets());
        }
        (IpAddr::V6(from), IpAddr::V6(to)) => {
            let extension = if piece.is_some() { UNIT } else { 0 };
            let next = if piece.is_some() { FRAGMENT } else { protocol };
            packet.extend([0x60, 0, 0, 0]);
            packet.extend(u16::try_from(extension + data.len())?.to_be_bytes());
            packet.extend([next, HOP_LIMIT]);
            packet.extend(from.octets());
            packet.extend(to.octets());
            if let Some(piece) = piece {
                let place = place(piece)? << 3 | u16::from(piece.more);
                packet.extend([protocol, 0]);
                packet.extend(place.to_be_bytes());
                packet.extend(u32::from(piece.id).to_be_bytes());
            }
        }
        (from, to) => bail!("{from} and {to} are of different families"),
    }
    packet.extend(data);
    Ok(packet)
}

fn place(piece: Piece) -> Result<u16> {
    Ok(u16::try_from(piece.offset / UNIT)?)
}

/// A UDP datagram.
#[derive(Clone, Copy, Debug)]
pub struct Datagram<'a> {
    /// The sender.
    pub from: SocketAddr,
    /// The receiver, of the same family.
    pub to: SocketAddr,
    /// The payload.
    pub data: &'a [u8],
}

impl Datagram<'_> {
    /// The datagram in fragments of a size, a multiple of 8, under an id.
    ///
    /// # Errors
    /// When the addresses are of different families, or the data is too long.
    pub fn fragments(&self, id: u16, size: usize) -> Result<Vec<Vec<u8>>> {
        let header = Header {
            from: self.from.ip(),
            to: self.to.ip(),
            protocol: UDP,
        };
        let length = u16::try_from(8 + self.data.len())?;
        let mut datagram = Vec::new();
        for field in [self.from.port(), self.to.port(), length, 0] {
            datagram.extend(field.to_be_bytes());
        }
        datagram.extend(self.data);
        let sum = checksum(header.from, header.to, length, &datagram);
        datagram.splice(6..8, sum.to_be_bytes());
        let count = datagram.len().div_ceil(size);
        let pieces = datagram.chunks(size).enumerate();
        pieces
            .map(|(index, chunk)| {
                let piece = Piece {
                    id,
                    offset: index * size,
                    more: index + 1 < count,
                };
                packet(header, Some(piece), chunk)
            })
            .collect()
    }
}

/// The checksum of a UDP datagram with its pseudo-header (RFC 768, RFC 8200 section 8.1).
fn checksum(from: IpAddr, to: IpAddr, length: u16, datagram: &[u8]) -> u16 {
    let mut bytes = Vec::new();
    for address in [from, to] {
        match address {
            IpAddr::V4(v4) => bytes.extend(v4.octets()),
            IpAddr::V6(v6) => bytes.extend(v6.octets()),
        }
    }
    bytes.extend(length.to_be_bytes());
    bytes.extend([0, UDP]);
    bytes.extend(datagram);
    let mut sum = 0_u32;
    for pair in bytes.chunks(2) {
        let word = pair
            .iter()
            .fold(0, |word, byte| word << 8 | u32::from(*byte));
        sum += if pair.len() == 1 { word << 8 } else { word };
    }
    while sum > 0xffff {
        sum = (sum & 0xffff) + (sum >> 16);
    }
    // 0 stands for "none".
    match u16::try_from(sum).map(|sum| !sum) {
        Ok(0) | Err(_) => 0xffff,
        Ok(sum) => sum,
    }
}

/// A packet of any protocol.
///
/// # Errors
/// When the addresses are of different families.
pub fn of_protocol(from: IpAddr, to: IpAddr, protocol: u8, data: &[u8]) -> Result<Vec<u8>> {
    let header = Header { from, to, protocol };
    packet(header, None, data)
}

/// Sends packets from a place, in their order.
///
/// # Errors
/// When the kernel refuses one.
pub fn send_ip<'a>(
    from: Place,
    to: IpAddr,
    packets: impl IntoIterator<Item = &'a Vec<u8>>,
) -> Result<()> {
    let family = match to {
        IpAddr::V4(_) => AddressFamily::Inet,
        IpAddr::V6(_) => AddressFamily::Inet6,
    };
    let socket = from.netns.enter(|| {
        socket(
            family,
            SockType::Raw,
            SockFlag::SOCK_CLOEXEC,
            SockProtocol::Raw,
        )
        .context("a raw socket needs root")
    })?;
    let to = SockaddrStorage::from(SocketAddr::new(to, 0));
    for packet in packets {
        sendto(socket.as_raw_fd(), packet, &to, MsgFlags::empty())
            .with_context(|| format!("a packet of {} bytes from {}", packet.len(), from.address))?;
    }
    Ok(())
}
