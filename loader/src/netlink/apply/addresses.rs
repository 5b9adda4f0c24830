//! Addresses on devices.

use anyhow::Context;
use ipam::Family;
use netlink_packet_core::{NLM_F_CREATE, NLM_F_REPLACE};
use netlink_packet_route::RouteNetlinkMessage;
use netlink_packet_route::address::{
    AddressAttribute, AddressFlags, AddressHeaderFlags, AddressMessage, AddressScope, CacheInfo,
};

use super::super::address_family;
use super::super::errno::deleted;
use super::super::socket::Socket;
use crate::kernel::Address;

/// Index of the loopback device in every namespace (`LOOPBACK_IFINDEX` in include/net/flow.h).
const LOOPBACK: u32 = 1;

/// Adds an address to a device, without a lifetime and, for IPv6, without duplicate address
/// detection: the cloud assigned it to this node, and the detection takes a second. An address on
/// the loopback device is for listeners: the kernel does not select it as the source of a
/// connection.
pub(in crate::netlink) async fn add(socket: &mut Socket, address: &Address) -> anyhow::Result<()> {
    socket
        .change(
            RouteNetlinkMessage::NewAddress(message(address)),
            NLM_F_CREATE | NLM_F_REPLACE,
        )
        .await
        .with_context(|| format!("put {} on device {}", address.net, address.ifindex))
}

/// Takes an address off a device.
pub(in crate::netlink) async fn delete(
    socket: &mut Socket,
    address: &Address,
) -> anyhow::Result<()> {
    let request = RouteNetlinkMessage::DelAddress(message(address));
    deleted(socket.change(request, 0).await)
        .with_context(|| format!("take {} off device {}", address.net, address.ifindex))
}

fn message(address: &Address) -> AddressMessage {
    let family = Family::of(address.net.addr());
    let mut message = AddressMessage::default();
    message.header.family = address_family(family);
    message.header.prefix_len = address.net.prefix_len();
    message.header.index = address.ifindex;
    message.attributes = vec![
        AddressAttribute::Local(address.net.addr()),
        AddressAttribute::Address(address.net.addr()),
    ];
    if family == Family::V6 {
        message.header.flags = AddressHeaderFlags::Nodad;
        message
            .attributes
            .push(AddressAttribute::Flags(AddressFlags::Nodad));
    }
    if address.ifindex == LOOPBACK {
        match family {
            Family::V4 => message.header.scope = AddressScope::Host,
            Family::V6 => message.attributes.push(deprecated()),
        }
    }
    message
}

/// Makes the kernel prefer any other address as a source (RFC 6724 section 5, rule 3).
fn deprecated() -> AddressAttribute {
    let mut lifetimes = CacheInfo::default();
    lifetimes.ifa_valid = u32::MAX;
    lifetimes.ifa_preferred = 0;
    AddressAttribute::CacheInfo(lifetimes)
}
