//! Translation of a packet: an address, the port beside it, and the checksums over both.
//!
//! Every checksum is updated by the change, and none is recomputed. A packet that the device has to
//! checksum or segment carries only the sum of its pseudo-header, and `bpf_l4_csum_replace` handles
//! that.

use aya_ebpf::bindings::{__sk_buff, BPF_F_PSEUDO_HDR, BPF_F_RECOMPUTE_CSUM};
use aya_ebpf::programs::TcContext;
use datapath_common::abi::Addr;
use datapath_common::checksum;
use datapath_common::fault::Fault;
use datapath_common::headers::protocol;
use datapath_common::outcome::DropReason;

use crate::family::{Ip, Piece};
use crate::fault;
use crate::packet::Packet;
use crate::transport::{self, ChecksumField, Ports};
use crate::work::{self, Edit, Parts, from_number, to_number, work};

pub(crate) use crate::family::Side;

/// Rewrites address and port of one side of the packet. `ports` are those of the packet, or those
/// of the datagram for a later fragment, which has none. Uses the saved IP header.
#[inline(always)]
pub(crate) fn rewrite(
    packet: &mut Packet,
    work: Parts,
    ports: &Ports,
    side: Side,
    (to, to_port): (Addr, u16),
) -> Result<(), DropReason> {
    work::write(work.ports(), *ports);
    let edit = Edit {
        side,
        to,
        to_port,
        outer: None,
    };
    work::write(work.edit(), edit);
    from_number(rewrite_packet(packet.skb()))
}

/// 0, or the number of the reason why it could not be done.
#[unsafe(no_mangle)]
#[inline(never)]
extern "C" fn rewrite_packet(skb: *mut __sk_buff) -> u32 {
    let mut packet = Packet::new(TcContext::new(skb));
    to_number(work().and_then(|work| {
        let (ip, ports) = (work::read(work.ip()), work::read(work.ports()));
        edit(&mut packet, work, ip, ports)
    }))
}

#[inline(always)]
fn edit(packet: &mut Packet, work: Parts, ip: &Ip, ports: &Ports) -> Result<(), DropReason> {
    let Edit {
        side, to, to_port, ..
    } = *work::read(work.edit());
    let from_port = ports.of(side);
    let port_offset = transport::port_offset(ip.version, ports.protocol, ports.asker(), side)
        .filter(|_offset| from_port != to_port);
    if port_offset.is_some() && ports.protocol == protocol::SCTP {
        return Err(DropReason::SctpPortTaken);
    }
    let field = match ip.fragment {
        Piece::Whole | Piece::First => ChecksumField::of(ip.version, ports.protocol),
        Piece::Later => None,
    };
    let field = ChecksumField::forgotten(work, field);
    if let (Some(offset), Some(field)) = (port_offset, &field) {
        port(packet, ip.transport, offset, field, from_port, to_port)?;
    }
    address(packet, ip, side, to, field)
}

/// Writes a port and updates the checksum.
#[inline(always)]
fn port(
    packet: &mut Packet,
    transport: usize,
    offset: usize,
    field: &ChecksumField,
    from: u16,
    to: u16,
) -> Result<(), DropReason> {
    let at = transport + field.offset;
    // The kernel may know the sum of the whole packet. It does not change when a checksum within
    // the packet makes up for the port; where UDP has none, the sum has to follow.
    let is_none = field.flags != 0 && packet.copy::<u16>(at)? == 0;
    let flags = if is_none { BPF_F_RECOMPUTE_CSUM } else { 0 };
    let growth = checksum::growth_of_lane(from, to);
    if !fault::has(Fault::PortChecksum) {
        packet.update_checksum(at, growth, field.flags)?;
    }
    packet.store(transport + offset, &to, flags)
}

/// Writes an address and updates the checksums over it.
#[inline(always)]
pub(crate) fn address(
    packet: &mut Packet,
    ip: &Ip,
    side: Side,
    to: Addr,
    field: Option<ChecksumField>,
) -> Result<(), DropReason> {
    let from = ip.address(side);
    if from == to {
        return Ok(());
    }
    let growth = checksum::growth(from.words(), to.words());
    let is_covered =
        |field: &ChecksumField| field.covers_addresses && !fault::has(Fault::AddressChecksum);
    if let Some(field) = field.filter(is_covered) {
        let flags = BPF_F_PSEUDO_HDR | field.flags;
        packet.update_checksum(ip.transport + field.offset, growth, flags)?;
    }
    ip.version.set_address(packet, side, to, growth)
}
