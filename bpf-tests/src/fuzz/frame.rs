//! Frames, in the kernel's form for a test run and as text.

use crate::model::{Packet, parse};
use testkit::testrun::tables::{Given, Made};

/// A packet, for a test run.
pub(super) fn given(packet: &Packet, is_summed: bool) -> Given<'_> {
    Given {
        frame: &packet.frame,
        ifindex: packet.ifindex,
        ingress_ifindex: packet.ingress_ifindex,
        mark: packet.mark,
        gso_size: packet.gso_size,
        is_summed,
    }
}

/// True if a test run accepts a frame: it must not end within its IP header.
pub(super) fn is_accepted(frame: &[u8]) -> bool {
    let header = match frame.get(12..14) {
        Some([0x08, 0x00]) => 20,
        Some([0x86, 0xdd]) => 40,
        _ => 1,
    };
    frame.len() >= parse::ETHERNET + header
}

/// True if the kernel found a wrong checksum.
pub(super) fn is_wrong_sum(error: &anyhow::Error) -> bool {
    error
        .downcast_ref::<std::io::Error>()
        .is_some_and(|error| error.raw_os_error() == Some(libc::EBADMSG))
}

/// Result for a packet, as text.
pub(super) fn show(made: &Made) -> String {
    format!(
        "code {} mark {:#x} frame {}",
        made.code,
        made.mark,
        hex(&made.frame)
    )
}

/// Bytes as text.
pub(super) fn hex(bytes: &[u8]) -> String {
    bytes
        .iter()
        .map(|byte| format!("{byte:02x}"))
        .collect::<Vec<_>>()
        .concat()
}
