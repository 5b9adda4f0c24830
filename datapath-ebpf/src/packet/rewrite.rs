//! Translation of a packet: an address, the port beside it, and the checksums over both.
//!
//! Every checksum is updated by the change, and none is recomputed. A packet that the device has to
//! checksum or segment carries only the sum of its pseudo-header, and `bpf_l4_csum_replace` handles
//! that.

use aya_ebpf::bindings::{__sk_buff, BPF_F_PSEUDO_HDR, BPF_F_RECOMPUTE_CSUM};
use aya_ebpf::programs::TcContext;
use datapath_common::abi::TransportAddr;
use datapath_common::checksum;
use datapath_common::headers::protocol;
use datapath_common::outcome::DropReason;

use super::Packet;
use super::family::NewAddress;
use super::transport::{self, ChecksumField};
use crate::base::code::{from_number, to_number};
use crate::scratch::{self, AddrField, Edit, FragmentKind, Ip, Ports, ScratchRef, scratch};

/// Address and port to write into one end of a packet.
#[derive(Clone, Copy)]
pub(crate) struct Translation {
    pub(crate) side: AddrField,
    pub(crate) to: TransportAddr,
}

impl Translation {
    /// The change as the scratch space has it. `outer` is as in [`Edit`].
    #[inline(always)]
    pub(super) fn edit(self, outer: Option<AddrField>) -> Edit {
        Edit {
            side: self.side,
            to: self.to.address,
            to_port: self.to.port,
            outer,
        }
    }
}

/// Rewrites address and port of one side of the packet. `ports` are those of the packet, or those
/// of the datagram for a later fragment, which has none. Uses the saved IP header.
#[inline(always)]
pub(crate) fn rewrite(
    packet: &mut Packet,
    scratch: ScratchRef,
    ports: &Ports,
    translation: Translation,
) -> Result<(), DropReason> {
    scratch::write(scratch.ports(), *ports);
    scratch::write(scratch.edit(), translation.edit(None));
    from_number(rewrite_packet(packet.skb()))
}

/// 0, or the number of the reason why it could not be done.
#[unsafe(no_mangle)]
#[inline(never)]
extern "C" fn rewrite_packet(skb: *mut __sk_buff) -> u32 {
    let mut packet = Packet::new(TcContext::new(skb));
    to_number(scratch().and_then(|scratch| {
        let (ip, ports) = (scratch::read(scratch.ip()), scratch::read(scratch.ports()));
        edit(&mut packet, scratch, ip, ports)
    }))
}

#[inline(always)]
fn edit(
    packet: &mut Packet,
    scratch: ScratchRef,
    ip: &Ip,
    ports: &Ports,
) -> Result<(), DropReason> {
    let Edit {
        side, to, to_port, ..
    } = *scratch::read(scratch.edit());
    let from_port = ports.of(side);
    let port_offset = transport::port_offset(ip.version, ports.protocol, ports.asker(), side)
        .filter(|_offset| from_port != to_port);
    if port_offset.is_some() && ports.protocol == protocol::SCTP {
        return Err(DropReason::SctpPortTaken);
    }
    let field = match ip.fragment {
        FragmentKind::Whole | FragmentKind::First => ChecksumField::of(ip.version, ports.protocol),
        FragmentKind::Later => None,
    };
    let field = ChecksumField::forgotten(scratch, field);
    if let (Some(offset), Some(field)) = (port_offset, &field) {
        let change = PortChange {
            offset,
            from: from_port,
            to: to_port,
        };
        port(packet, ip.transport, field, change)?;
    }
    address(packet, ip, NewAddress { side, to }, field)
}

/// The change of a port.
#[derive(Clone, Copy)]
struct PortChange {
    /// Where the port lies in the transport header.
    offset: usize,
    from: u16,
    to: u16,
}

/// Writes a port and updates the checksum.
#[inline(always)]
fn port(
    packet: &mut Packet,
    transport: usize,
    field: &ChecksumField,
    change: PortChange,
) -> Result<(), DropReason> {
    let PortChange { offset, from, to } = change;
    let at = transport + field.offset;
    // The kernel may know the sum of the whole packet. It does not change when a checksum within
    // the packet makes up for the port; where UDP has none, the sum has to follow.
    let is_none = field.flags != 0 && packet.copy::<u16>(at)? == 0;
    let flags = if is_none { BPF_F_RECOMPUTE_CSUM } else { 0 };
    let growth = checksum::growth_of_lane(from, to);
    packet.update_checksum(at, growth, field.flags)?;
    packet.store(transport + offset, &to, flags)
}

/// Writes an address and updates the checksums over it.
#[inline(always)]
pub(crate) fn address(
    packet: &mut Packet,
    ip: &Ip,
    new: NewAddress,
    field: Option<ChecksumField>,
) -> Result<(), DropReason> {
    let NewAddress { side, to } = new;
    let from = ip.address(side);
    if from == to {
        return Ok(());
    }
    let growth = checksum::growth(from.words(), to.words());
    if let Some(field) = field.filter(|field| field.covers_addresses) {
        let flags = BPF_F_PSEUDO_HDR | field.flags;
        packet.update_checksum(ip.transport + field.offset, growth, flags)?;
    }
    ip.version.set_address(packet, new, growth)
}
