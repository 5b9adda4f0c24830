//! Packets with a source that no ENI owns: the fabric sends some to see that it counts them.

use std::net::IpAddr;
use std::os::fd::AsRawFd as _;

use anyhow::{Context as _, Result, bail};
use api::ids::MacAddr;
use etherparse::PacketBuilder;
use ipam::Family;
use nix::sys::socket::{
    AddressFamily, LinkAddr, MsgFlags, SockFlag, SockType, SockaddrLike as _, sendto, socket,
};

use crate::fabric::layout::{Eni, Host, foreign_source};
use crate::fabric::netns::Netns;

/// A UDP packet from a foreign source to the peer, in a frame from the ENI to the router.
///
/// # Errors
/// When the addresses of a family do not match.
pub(super) fn frame(eni: &Eni, router: MacAddr, family: Family) -> Result<Vec<u8>> {
    let ethernet = PacketBuilder::ethernet2(eni.mac.0, router.0);
    let ip = match (foreign_source(family), Host::Peer.address(family)) {
        (IpAddr::V4(from), IpAddr::V4(to)) => ethernet.ipv4(from.octets(), to.octets(), 64),
        (IpAddr::V6(from), IpAddr::V6(to)) => ethernet.ipv6(from.octets(), to.octets(), 64),
        (from, to) => bail!("{from} and {to} are of different families"),
    };
    let mut frame = Vec::new();
    ip.udp(9, 9).write(&mut frame, b"foreign")?;
    Ok(frame)
}

/// Sends a frame out of a device of a namespace, past its stack.
///
/// # Errors
/// When the device is missing or down.
pub(in crate::fabric) fn send(netns: &Netns, device: &str, frame: &[u8]) -> Result<()> {
    netns.enter(|| {
        let socket = socket(
            AddressFamily::Packet,
            SockType::Raw,
            SockFlag::SOCK_CLOEXEC,
            None,
        )?;
        let ifindex = nix::net::if_::if_nametoindex(device)?;
        let raw = libc::sockaddr_ll {
            sll_family: u16::try_from(libc::AF_PACKET)?,
            sll_protocol: u16::try_from(libc::ETH_P_ALL)?.to_be(),
            sll_ifindex: i32::try_from(ifindex)?,
            sll_hatype: 0,
            sll_pkttype: 0,
            sll_halen: 0,
            sll_addr: [0; 8],
        };
        // SAFETY: `raw` is a whole `sockaddr_ll`, and the length is its size.
        let address = unsafe {
            LinkAddr::from_raw(
                std::ptr::from_ref(&raw).cast(),
                Some(u32::try_from(size_of_val(&raw))?),
            )
        }
        .context("a packet socket's address")?;
        sendto(socket.as_raw_fd(), frame, &address, MsgFlags::empty())
            .with_context(|| format!("cannot send by {device} of {}", netns.name()))?;
        Ok(())
    })
}
