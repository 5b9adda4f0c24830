//! Bytes of frames: numbers in network order, addresses, one's complement sums.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

/// The byte at an offset.
#[must_use]
pub fn byte(frame: &[u8], at: usize) -> Option<u8> {
    frame.get(at).copied()
}

/// The 16-bit number at an offset.
#[must_use]
pub fn number16(frame: &[u8], at: usize) -> Option<u16> {
    Some(u16::from_be_bytes(*frame.get(at..)?.first_chunk()?))
}

/// The 32-bit number at an offset.
#[must_use]
pub fn number32(frame: &[u8], at: usize) -> Option<u32> {
    Some(u32::from_be_bytes(*frame.get(at..)?.first_chunk()?))
}

/// The address at an offset, of the family of `version`.
#[must_use]
pub fn address(frame: &[u8], at: usize, version: u8) -> Option<IpAddr> {
    let rest = frame.get(at..)?;
    Some(if version == 4 {
        Ipv4Addr::from(*rest.first_chunk::<4>()?).into()
    } else {
        Ipv6Addr::from(*rest.first_chunk::<16>()?).into()
    })
}

/// An address as it lies in a packet.
#[must_use]
pub fn octets(address: IpAddr) -> Vec<u8> {
    match address {
        IpAddr::V4(v4) => v4.octets().to_vec(),
        IpAddr::V6(v6) => v6.octets().to_vec(),
    }
}

/// Writes bytes at an offset that the frame is known to have.
pub fn put(frame: &mut [u8], at: usize, bytes: &[u8]) {
    frame[at..at + bytes.len()].copy_from_slice(bytes);
}

/// The one's complement sum of bytes, the last odd one padded with zero (RFC 1071).
#[must_use]
pub fn sum(bytes: &[u8]) -> u64 {
    bytes
        .chunks(2)
        .map(|pair| match pair {
            [high, low] => u64::from(u16::from_be_bytes([*high, *low])),
            [high] => u64::from(*high) << 8,
            _ => 0,
        })
        .sum()
}

/// A sum in 16 bits, the carries added at the other end.
#[must_use]
pub fn fold(mut sum: u64) -> u16 {
    loop {
        match u16::try_from(sum) {
            Ok(folded) => return folded,
            Err(_too_large) => sum = (sum & 0xffff) + (sum >> 16),
        }
    }
}

/// A checksum after bytes that it covers went from `old` to `new` (RFC 1624 equation 3). A wrong
/// checksum stays as wrong as it was: the receiver shall see that.
#[must_use]
pub fn adjusted(checksum: u16, old: &[u8], new: &[u8]) -> u16 {
    let mut inverted: Vec<u8> = old.iter().map(|byte| !byte).collect();
    if inverted.len() % 2 == 1 {
        // The padding is inverted, too.
        inverted.push(0xff);
    }
    !fold(u64::from(!checksum) + sum(&inverted) + sum(new))
}

/// Replaces bytes, and carries the change over to the checksums at these offsets.
pub fn replace(frame: &mut [u8], at: usize, new: &[u8], checksums: &[usize]) {
    let old = frame[at..at + new.len()].to_vec();
    for checksum in checksums {
        if let Some(value) = number16(frame, *checksum) {
            put(frame, *checksum, &adjusted(value, &old, new).to_be_bytes());
        }
    }
    put(frame, at, new);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_replacement_leaves_a_right_checksum_right() {
        for new in [&[0xab, 0xcd, 0xef, 1][..], &[0xab, 0xcd, 0xef, 1, 7]] {
            let mut frame = vec![0x12, 0x34, 0, 0, 0xff, 0xff, 0, 0, 0x80];
            let checksum = !fold(sum(&frame));
            put(&mut frame, 2, &checksum.to_be_bytes());
            replace(&mut frame, 4, new, &[2]);
            assert_eq!(fold(sum(&frame)), 0xffff);
        }
    }
}
