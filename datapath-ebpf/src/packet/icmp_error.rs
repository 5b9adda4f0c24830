//! ICMP errors: what they quote belongs to a flow and is translated with it.
//!
//! A quote's lengths are not believed: routers quote as much as they like and some quote what they
//! have changed. What counts is what lies in the error itself.

use aya_ebpf::bindings::__sk_buff;
use aya_ebpf::programs::TcContext;
use datapath_common::abi::{Addr, PodTuple, TransportAddr};
use datapath_common::checksum;
use datapath_common::headers::{Icmp, IcmpMessage, PortPair, protocol};
use datapath_common::outcome::DropReason;

use super::family::NewAddress;
use super::rewrite::Translation;
use super::transport::{self, ChecksumField};
use super::{IP_OFFSET, Packet, rewrite};
use crate::base::code::{from_number, reason, to_number};
use crate::scratch::{self, AddrField, Edit, Inner, Ip, ScratchRef, scratch};

/// Bytes of a transport header that an error must quote (RFC 792), and that Linux requires.
const QUOTED: usize = 8;

impl Inner {
    /// The flow of a quoted packet that came from the outside, as its receiver sees it.
    #[inline(always)]
    pub(crate) fn answered(&self) -> PodTuple {
        PodTuple::new(
            self.protocol,
            TransportAddr::new(scratch::copied(&self.destination), self.destination_port),
            TransportAddr::new(scratch::copied(&self.source), self.source_port),
        )
    }

    /// The flow of a quoted packet that went to the outside, as its sender sees it.
    #[inline(always)]
    pub(crate) fn sent(&self) -> PodTuple {
        PodTuple::new(
            self.protocol,
            TransportAddr::new(scratch::copied(&self.source), self.source_port),
            TransportAddr::new(scratch::copied(&self.destination), self.destination_port),
        )
    }

    /// The address and port of a side.
    #[inline(always)]
    fn of(&self, side: AddrField) -> (Addr, u16) {
        match side {
            AddrField::Source => (self.source, self.source_port),
            AddrField::Destination => (self.destination, self.destination_port),
        }
    }
}

/// Reads what an ICMP error quotes; `None` when that has no ports, or is a later fragment. The IP
/// header of the error is the one that is kept.
#[inline(always)]
pub(crate) fn inner(
    packet: &Packet,
    scratch: ScratchRef,
) -> Result<Option<&'static Inner>, DropReason> {
    match error_read(packet.skb()) {
        IS_SOME => Ok(Some(scratch::read(scratch.inner()))),
        0 => Ok(None),
        number => Err(reason(number)),
    }
}

/// Rewrites address and port of one side of the quoted packet, and on request the address of one
/// side of the error itself.
#[inline(always)]
pub(crate) fn rewrite_error(
    packet: &mut Packet,
    scratch: ScratchRef,
    translation: Translation,
    outer: Option<AddrField>,
) -> Result<(), DropReason> {
    scratch::write(scratch.edit(), translation.edit(outer));
    from_number(error_rewrite(packet.skb()))
}

/// Return value of [`error_read`] when it has written the quoted packet.
const IS_SOME: u32 = 1;

/// [`IS_SOME`] if it has written the quoted packet, 0 if not, or the number of the reason to drop
/// the packet.
#[unsafe(no_mangle)]
#[inline(never)]
extern "C" fn error_read(skb: *mut __sk_buff) -> u32 {
    let mut packet = Packet::new(TcContext::new(skb));
    let answer = scratch().and_then(|scratch| {
        let Some(inner) = read(&mut packet, scratch::read(scratch.ip()))? else {
            return Ok(0);
        };
        scratch::write(scratch.inner(), inner);
        Ok(IS_SOME)
    });
    answer.unwrap_or_else(|reason| reason as u32)
}

/// 0, or the number of the reason why it could not be done.
#[unsafe(no_mangle)]
#[inline(never)]
extern "C" fn error_rewrite(skb: *mut __sk_buff) -> u32 {
    let mut packet = Packet::new(TcContext::new(skb));
    to_number(scratch().and_then(|scratch| edit(&mut packet, scratch)))
}

#[inline(always)]
fn read(packet: &mut Packet, ip: &Ip) -> Result<Option<Inner>, DropReason> {
    let header = ip.transport + Icmp::LENGTH;
    let end = IP_OFFSET + ip.length;
    let quoted = ip.version.quoted(packet, header, end)?;
    if quoted.is_later_fragment {
        return Ok(None);
    }
    let (protocol, transport) = (quoted.protocol, quoted.transport);
    let has_ports = matches!(protocol, protocol::TCP | protocol::UDP | protocol::SCTP);
    if !has_ports && protocol != ip.version.icmp() {
        return Ok(None);
    }
    if transport + QUOTED > end {
        return Err(DropReason::Truncated);
    }
    let (source_port, destination_port, asker) = if has_ports {
        let ports: PortPair = packet.copy(transport)?;
        (ports.source, ports.destination, AddrField::Source)
    } else {
        let icmp: Icmp = packet.copy(transport)?;
        match ip.version.icmp_message(icmp.kind) {
            IcmpMessage::Query => (icmp.id, 0, AddrField::Source),
            IcmpMessage::Answer => (0, icmp.id, AddrField::Destination),
            IcmpMessage::Error | IcmpMessage::Other => return Ok(None),
        }
    };
    Ok(Some(Inner {
        protocol,
        source: quoted.source,
        destination: quoted.destination,
        source_port,
        destination_port,
        asker,
        header,
        transport,
        end,
    }))
}

#[inline(always)]
fn edit(packet: &mut Packet, scratch: ScratchRef) -> Result<(), DropReason> {
    let (ip, inner) = (scratch::read(scratch.ip()), scratch::read(scratch.inner()));
    let Edit {
        side: inner_side,
        to,
        to_port,
        outer,
    } = *scratch::read(scratch.edit());
    let (from, from_port) = inner.of(inner_side);
    let port_offset = transport::port_offset(ip.version, inner.protocol, inner.asker, inner_side)
        .filter(|_offset| from_port != to_port);
    if port_offset.is_some() && inner.protocol == protocol::SCTP {
        return Err(DropReason::SctpPortTaken);
    }
    let field = ChecksumField::forgotten(scratch, ChecksumField::of(ip.version, inner.protocol));
    // By how much the sum grows of what the quoted packet's transport checksum covers, and of all
    // that the error's covers.
    let (mut covered, mut total) = (0, 0);
    if from != to {
        let growth = checksum::growth(from.words(), to.words());
        let side = inner_side;
        let new = NewAddress { side, to };
        total = ip
            .version
            .set_quoted_address(packet, inner.header, new, growth)?;
        if field.as_ref().is_some_and(|field| field.covers_addresses) {
            covered = growth;
        }
    }
    if let Some(offset) = port_offset {
        packet.store(inner.transport + offset, &to_port, 0)?;
        let growth = checksum::growth_of_lane(from_port, to_port);
        covered = checksum::add(covered, growth);
        total = checksum::add(total, growth);
    }
    covered = scratch.forgotten(covered);
    if let Some(field) = field {
        let growth = quoted_checksum(packet, inner, &field, covered)?;
        total = checksum::add(total, growth);
    }
    packet.update_checksum(ip.transport + Icmp::CHECKSUM, total, 0)?;
    match outer {
        Some(side) => {
            let field = ChecksumField::of(ip.version, ip.version.icmp());
            rewrite::address(packet, ip, NewAddress { side, to }, field)
        }
        None => Ok(()),
    }
}

/// Updates the transport checksum of the quoted packet if the quote goes as far as that, and gives
/// by how much it grows itself.
#[inline(always)]
fn quoted_checksum(
    packet: &mut Packet,
    inner: &Inner,
    field: &ChecksumField,
    growth: u32,
) -> Result<u32, DropReason> {
    let at = inner.transport + field.offset;
    if growth == 0 || at + size_of::<u16>() > inner.end {
        return Ok(0);
    }
    let from: u16 = packet.copy(at)?;
    let to = if inner.protocol == protocol::UDP {
        checksum::update_udp_by(from, growth)
    } else {
        checksum::update_by(from, growth)
    };
    packet.store(at, &to, 0)?;
    Ok(checksum::growth_of_lane(from, to))
}
