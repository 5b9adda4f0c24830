//! Progress of flows.

use super::parse::TCP;
use super::transport::{ACK, FIN, RST, SYN};

/// Bits for the packets seen in one direction of a flow, as in the ABI.
pub mod shown {
    /// SYN.
    pub const SYN: u8 = 1;
    /// Anything but a SYN.
    pub const DATA: u8 = 2;
    /// FIN.
    pub const FIN: u8 = 4;
    /// RST.
    pub const RST: u8 = 8;
    /// A packet of a flow through the stack has passed long after both sides had sent.
    pub const STREAM: u8 = 16;
    /// A second packet of a translated, connectionless flow has passed from the inside.
    pub const MORE: u8 = 16;
    /// A segment from the outside may have ended the connection.
    pub const DOUBT: u8 = 32;
}

/// Bits of [`shown`] that a packet sets.
#[must_use]
pub fn of_packet(protocol: u8, flags: u8) -> u8 {
    if protocol != TCP {
        return shown::DATA;
    }
    let mut bits = 0;
    for (flag, bit) in [(SYN, shown::SYN), (FIN, shown::FIN), (RST, shown::RST)] {
        if flags & flag != 0 {
            bits |= bit;
        }
    }
    if flags & SYN == 0 && flags & ACK != 0 {
        bits |= shown::DATA;
    }
    bits
}

/// Progress bits of the outside after a packet with the bits `shown`.
///
/// The model's pods have no sockets, and only a socket confirms a FIN or reset.
pub(super) fn comes(shown: u8, inward: u8) -> u8 {
    let ends = shown::FIN | shown::RST;
    if shown & ends == 0 {
        return inward & !shown::DOUBT | shown;
    }
    inward | shown & !ends | shown::DOUBT
}
