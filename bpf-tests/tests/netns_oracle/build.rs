//! Frames, built byte by byte: sequences contain packets that no packet builder would make.

use std::net::IpAddr;

pub(crate) const TCP: u8 = 6;
pub(crate) const UDP: u8 = 17;
pub(crate) const SCTP: u8 = 132;
const ICMP: u8 = 1;
const ICMPV6: u8 = 58;
const IPV6_FRAGMENT: u8 = 44;
const IPV6_DESTINATION_OPTIONS: u8 = 60;

/// Bytes of payload in each fragment of a datagram but the last; a multiple of 8.
pub(crate) const PIECE: usize = 512;

/// The ones' complement sum of RFC 1071 over some bytes, continued from another one.
fn sum(bytes: &[u8], start: u32) -> u32 {
    bytes.chunks(2).fold(start, |sum, pair| {
        let low = pair.get(1).copied().unwrap_or_default();
        sum + u32::from(u16::from_be_bytes([pair[0], low]))
    })
}

fn folded(mut sum: u32) -> u16 {
    while sum > 0xffff {
        sum = (sum & 0xffff) + (sum >> 16);
    }
    u16::try_from(sum).unwrap_or_default()
}

/// The Internet checksum of some bytes; 0 over bytes with a correct one.
pub(crate) fn checksum(bytes: &[u8]) -> u16 {
    !folded(sum(bytes, 0))
}

/// The protocol of ICMP in a family.
pub(crate) fn icmp(address: IpAddr) -> u8 {
    if address.is_ipv4() { ICMP } else { ICMPV6 }
}

fn octets(address: IpAddr) -> Vec<u8> {
    match address {
        IpAddr::V4(v4) => v4.octets().to_vec(),
        IpAddr::V6(v6) => v6.octets().to_vec(),
    }
}

/// The checksum of an IP packet's payload; 0 if a correct one is in place.
pub(crate) fn transport_checksum(
    source: &[u8],
    destination: &[u8],
    protocol: u8,
    bytes: &[u8],
) -> u16 {
    if protocol == ICMP {
        return checksum(bytes);
    }
    let length = u32::try_from(bytes.len()).unwrap_or_default();
    let mut total = sum(source, u32::from(protocol));
    total = sum(destination, total);
    total = sum(&length.to_be_bytes(), total);
    !folded(sum(bytes, total))
}

/// Offset of the checksum in a protocol's header.
pub(crate) fn checksum_offset(protocol: u8) -> Option<usize> {
    match protocol {
        TCP => Some(16),
        UDP => Some(6),
        ICMP | ICMPV6 => Some(2),
        _ => None,
    }
}

/// Payload of an IP packet, with its checksum.
pub(crate) struct Transport {
    pub(crate) protocol: u8,
    pub(crate) bytes: Vec<u8>,
}

impl Transport {
    /// A TCP segment.
    pub(crate) fn tcp(ports: [u16; 2], flags: u8, numbers: [u32; 2], payload: &[u8]) -> Self {
        let mut bytes = ports.map(u16::to_be_bytes).concat();
        bytes.extend(numbers.map(u32::to_be_bytes).concat());
        bytes.extend([0x50, flags, 0x20, 0, 0, 0, 0, 0]);
        bytes.extend(payload);
        Self {
            protocol: TCP,
            bytes,
        }
    }

    /// A UDP datagram.
    pub(crate) fn udp([source, destination]: [u16; 2], payload: &[u8]) -> Self {
        let length = u16::try_from(8 + payload.len()).unwrap_or_default();
        let words = [source, destination, length, 0];
        let mut bytes: Vec<u8> = words.into_iter().flat_map(u16::to_be_bytes).collect();
        bytes.extend(payload);
        Self {
            protocol: UDP,
            bytes,
        }
    }

    /// An SCTP packet with an INIT chunk and its checksum (RFC 9260).
    pub(crate) fn sctp(ports: [u16; 2]) -> Self {
        let mut bytes = ports.map(u16::to_be_bytes).concat();
        bytes.extend([0; 8]);
        bytes.extend([
            1, 0, 0, 20, 0, 0, 0, 7, 0, 0, 0x80, 0, 0, 1, 0, 1, 0, 0, 0, 9,
        ]);
        let crc = crc32c(&bytes).to_le_bytes();
        bytes[8..12].copy_from_slice(&crc);
        Self {
            protocol: SCTP,
            bytes,
        }
    }

    /// An ICMP message of the family of an address.
    pub(crate) fn icmp(family: IpAddr, kind: [u8; 2], word: u32, payload: &[u8]) -> Self {
        let mut bytes = vec![kind[0], kind[1], 0, 0];
        bytes.extend(word.to_be_bytes());
        bytes.extend(payload);
        Self {
            protocol: icmp(family),
            bytes,
        }
    }

    /// With the checksum that these addresses give.
    pub(crate) fn summed(mut self, source: IpAddr, destination: IpAddr) -> Self {
        let Some(offset) = checksum_offset(self.protocol) else {
            return self;
        };
        let (source, destination) = (octets(source), octets(destination));
        let sum = transport_checksum(&source, &destination, self.protocol, &self.bytes);
        let sum = if sum == 0 && self.protocol == UDP {
            0xffff
        } else {
            sum
        };
        self.bytes[offset..offset + 2].copy_from_slice(&sum.to_be_bytes());
        self
    }
}

/// The addresses of a packet, and its id for fragments.
#[derive(Clone, Copy)]
pub(crate) struct Header {
    pub(crate) source: IpAddr,
    pub(crate) destination: IpAddr,
    pub(crate) id: u16,
}

impl Header {
    /// A whole packet.
    pub(crate) fn packet(&self, transport: &Transport) -> Vec<u8> {
        self.piece(transport.protocol, &transport.bytes, None)
    }

    /// The fragments of a packet, in the order of their offsets.
    pub(crate) fn pieces(&self, transport: &Transport) -> Vec<Vec<u8>> {
        let last = transport.bytes.len().div_ceil(PIECE) - 1;
        let pieces = transport.bytes.chunks(PIECE).enumerate();
        pieces
            .map(|(index, bytes)| {
                let place = (index * PIECE, index < last);
                self.piece(transport.protocol, bytes, Some(place))
            })
            .collect()
    }

    /// A packet; `fragment` gives the offset, and true if more fragments follow.
    fn piece(&self, protocol: u8, bytes: &[u8], fragment: Option<(usize, bool)>) -> Vec<u8> {
        let words = |offset: usize, more: bool, is_v4: bool| {
            let offset = u16::try_from(offset).unwrap_or_default();
            match (is_v4, more) {
                (true, more) => (offset / 8) | if more { 0x2000 } else { 0 },
                (false, more) => offset | u16::from(more),
            }
        };
        let mut packet = if self.source.is_ipv4() {
            let length = u16::try_from(20 + bytes.len()).unwrap_or_default();
            let field = match fragment {
                Some((offset, more)) => words(offset, more, true),
                None => 0x4000,
            };
            let mut header = vec![0x45, 0];
            header.extend(
                [length, self.id, field]
                    .into_iter()
                    .flat_map(u16::to_be_bytes),
            );
            header.extend([64, protocol, 0, 0]);
            header.extend(octets(self.source));
            header.extend(octets(self.destination));
            let sum = checksum(&header);
            header[10..12].copy_from_slice(&sum.to_be_bytes());
            header
        } else {
            let extension = usize::from(fragment.is_some()) * 8;
            let length = u16::try_from(extension + bytes.len()).unwrap_or_default();
            let next = if fragment.is_some() {
                IPV6_FRAGMENT
            } else {
                protocol
            };
            let mut header = vec![0x60, 0, 0, 0];
            header.extend(length.to_be_bytes());
            header.extend([next, 64]);
            header.extend(octets(self.source));
            header.extend(octets(self.destination));
            if let Some((offset, more)) = fragment {
                header.extend([protocol, 0]);
                header.extend(words(offset, more, false).to_be_bytes());
                header.extend(u32::from(self.id).to_be_bytes());
            }
            header
        };
        packet.extend(bytes);
        packet
    }
}

/// A quote of an IP packet for an error: this many bytes after its header, optionally with options
/// that a router on the path might have added.
pub(crate) fn quote(packet: &[u8], bytes: Option<usize>, with_options: bool) -> Vec<u8> {
    let is_v4 = packet.first().is_some_and(|byte| byte >> 4 == 4);
    let header = if is_v4 { 20 } else { 40 };
    let end = bytes.map_or(packet.len(), |bytes| packet.len().min(header + bytes));
    let mut quoted = packet[..end].to_vec();
    if with_options && is_v4 {
        quoted[0] = 0x46;
        let length = u16::from_be_bytes([quoted[2], quoted[3]]) + 4;
        quoted[2..4].copy_from_slice(&length.to_be_bytes());
        quoted.splice(20..20, [1; 4]);
        quoted[10..12].fill(0);
        let sum = checksum(&quoted[..24]);
        quoted[10..12].copy_from_slice(&sum.to_be_bytes());
    } else if with_options {
        let next = quoted[6];
        quoted[6] = IPV6_DESTINATION_OPTIONS;
        let length = u16::from_be_bytes([quoted[4], quoted[5]]) + 8;
        quoted[4..6].copy_from_slice(&length.to_be_bytes());
        // PadN over the whole header.
        quoted.splice(40..40, [next, 0, 1, 4, 0, 0, 0, 0]);
    }
    quoted
}

/// The checksum of SCTP, bit by bit (RFC 9260 appendix A).
fn crc32c(bytes: &[u8]) -> u32 {
    !bytes.iter().fold(u32::MAX, |crc, byte| {
        (0..8).fold(crc ^ u32::from(*byte), |crc, _| {
            (crc >> 1) ^ if crc & 1 == 1 { 0x82f6_3b78 } else { 0 }
        })
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The check values of RFC 1071 section 3 and RFC 3720 appendix B.4.
    #[test]
    fn checksums_are_those_of_the_standards() {
        let bytes = [0x00, 0x01, 0xf2, 0x03, 0xf4, 0xf5, 0xf6, 0xf7];
        assert_eq!(checksum(&bytes), !0xddf2);
        assert_eq!(crc32c(&[0; 32]), 0x8a91_36aa);
    }
}
