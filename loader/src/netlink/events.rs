//! The kernel's notifications, reduced to "something that concerns us changed".
//!
//! The socket is read directly: `netlink-packet-route` does not know every message that we wait
//! for (`RTM_NEWNETCONF`), and what cannot be decoded is taken for a change.

use std::collections::{BTreeSet, HashMap, HashSet};
use std::io;
use std::net::IpAddr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use api::ids::MacAddr;
use futures_util::{FutureExt, Stream, StreamExt, stream};
use netlink_packet_core::{NetlinkMessage, NetlinkPayload};
use netlink_packet_route::RouteNetlinkMessage;
use netlink_packet_route::neighbour::{NeighbourMessage, NeighbourState};
use netlink_packet_route::route::RouteMessage;
use nix::sys::socket::{setsockopt, sockopt};
use rtnetlink::MulticastGroup;
use rtnetlink::sys::Socket as Inner;
use tokio::io::unix::AsyncFd;

use super::observe;
use super::socket::{connect, messages, receive, register};
use crate::kernel::Neighbour;
use crate::numbers;

const GROUPS: [MulticastGroup; 11] = [
    MulticastGroup::Link,
    MulticastGroup::Ipv4Ifaddr,
    MulticastGroup::Ipv6Ifaddr,
    MulticastGroup::Ipv4Route,
    MulticastGroup::Ipv6Route,
    MulticastGroup::Ipv4Rule,
    MulticastGroup::Ipv6Rule,
    MulticastGroup::Neigh,
    MulticastGroup::Ipv4Netconf,
    MulticastGroup::Ipv6Netconf,
    MulticastGroup::Tc,
];

/// Room for notifications that wait, in bytes: a thousand pods that come at once make several
/// thousand of them.
const RECEIVE_BUFFER: usize = 1 << 20;

/// The neighbours that matter, shared between what observes them and what hears of changes.
#[derive(Clone, Default)]
pub(super) struct Watched(Arc<Mutex<Known>>);

#[derive(Default)]
struct Known {
    /// The permanent ones. The kernel's notification of a loss does not say that the entry was permanent.
    permanent: HashSet<Key>,
    /// The gateways, with their MACs where there are any. The kernel also tells that one was confirmed or grew
    /// stale, several times a minute.
    gateways: HashMap<Key, Option<MacAddr>>,
}

/// The device and the address of a neighbour.
type Key = (u32, IpAddr);

impl Watched {
    fn known(&self) -> MutexGuard<'_, Known> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Watches these permanent ones and no others.
    pub(super) fn replace(&self, neighbours: &BTreeSet<Neighbour>) {
        self.known().permanent = neighbours.iter().map(|n| (n.ifindex, n.address)).collect();
    }

    /// Watches one more.
    pub(super) fn add(&self, neighbour: &Neighbour) {
        let mut known = self.known();
        known
            .permanent
            .insert((neighbour.ifindex, neighbour.address));
    }

    /// Watches these gateways and no others.
    pub(super) fn replace_gateways(&self, gateways: impl Iterator<Item = (Key, Option<MacAddr>)>) {
        self.known().gateways = gateways.collect();
    }

    /// Whether it is news that a neighbour has this MAC, or none.
    fn is_news(&self, key: Key, mac: Option<MacAddr>) -> bool {
        let known = self.known();
        let gateway = known.gateways.get(&key);
        known.permanent.contains(&key) || gateway.is_some_and(|known| *known != mac)
    }
}

/// Joins the notifications of the calling thread's namespace, from this call on.
pub(super) fn stream(
    watched: Watched,
) -> io::Result<impl Stream<Item = ()> + Send + Unpin + use<>> {
    let socket = connect()?;
    // Beyond the limit for everybody (`net.core.rmem_max`), which is a fifth of this.
    setsockopt(&socket, sockopt::RcvBufForce, &RECEIVE_BUFFER)?;
    for group in GROUPS {
        socket.add_membership(group as u32)?;
    }
    let socket = register(socket)?;
    let changes = stream::unfold((socket, watched), async |(socket, watched)| {
        let open = next_change(&socket, &watched).await;
        open.then_some(((), (socket, watched)))
    });
    Ok(changes.boxed())
}

/// Waits for a change that concerns us and takes those that came with it; false when the socket
/// failed.
async fn next_change(socket: &AsyncFd<Inner>, watched: &Watched) -> bool {
    loop {
        let mut concerns = false;
        let mut received = Some(receive(socket).await);
        while let Some(next) = received {
            match is_news(next, watched) {
                Ok(news) => concerns |= news,
                Err(error) => {
                    tracing::error!(%error, "the socket for the kernel's notifications failed");
                    return false;
                }
            }
            received = receive(socket).now_or_never();
        }
        if concerns {
            return true;
        }
    }
}

/// Whether what was received concerns us. That notifications were lost does: the socket works on,
/// and the kernel says so once (`sock_error` clears it), whichever call it meets.
fn is_news(received: io::Result<Vec<u8>>, watched: &Watched) -> io::Result<bool> {
    match received {
        Ok(datagram) => Ok(concerns_us(&datagram, watched)),
        Err(error) if error.raw_os_error() == Some(libc::ENOBUFS) => Ok(true),
        Err(error) => Err(error),
    }
}

fn concerns_us(datagram: &[u8], watched: &Watched) -> bool {
    messages(datagram).any(|bytes| {
        let Ok(message) = NetlinkMessage::<RouteNetlinkMessage>::deserialize(bytes) else {
            return true;
        };
        let NetlinkPayload::InnerMessage(message) = message.payload else {
            return false;
        };
        match message {
            RouteNetlinkMessage::NewRoute(route) | RouteNetlinkMessage::DelRoute(route) => {
                is_our_route(&route)
            }
            RouteNetlinkMessage::NewNeighbour(entry) => {
                let resolved = observe::resolved_neighbour(&entry);
                is_our_neighbour(&entry, resolved.map(|resolved| resolved.mac), watched)
            }
            RouteNetlinkMessage::DelNeighbour(entry) => is_our_neighbour(&entry, None, watched),
            _ => true,
        }
    })
}

fn is_our_route(route: &RouteMessage) -> bool {
    numbers::is_our_table(observe::route_table(route))
}

/// Whether an entry is permanent, or was when we last looked, or has another MAC for a gateway, or none.
fn is_our_neighbour(entry: &NeighbourMessage, mac: Option<MacAddr>, watched: &Watched) -> bool {
    entry.header.state == NeighbourState::Permanent
        || observe::neighbour_address(entry)
            .is_some_and(|address| watched.is_news((entry.header.ifindex, address), mac))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_loss_is_news_and_another_error_is_the_end() {
        let received = |errno| Err(io::Error::from_raw_os_error(errno));
        let watched = Watched::default();
        assert!(is_news(received(libc::ENOBUFS), &watched).unwrap());
        assert!(is_news(received(libc::EBADF), &watched).is_err());
        assert!(!is_news(Ok(Vec::new()), &watched).unwrap());
    }

    #[test]
    fn of_a_gateway_only_another_mac_is_news() {
        let watched = Watched::default();
        let (mac, other) = (MacAddr([2; 6]), MacAddr([4; 6]));
        let key = |number| (3, IpAddr::from([10, 0, 0, number]));
        watched.replace_gateways([(key(1), Some(mac)), (key(2), None)].into_iter());
        assert!(!watched.is_news(key(1), Some(mac)), "confirmed, or stale");
        assert!(watched.is_news(key(1), Some(other)));
        assert!(watched.is_news(key(1), None), "lost");
        assert!(watched.is_news(key(2), Some(mac)), "found");
        assert!(!watched.is_news(key(2), None), "still looked for");
        assert!(!watched.is_news(key(3), Some(mac)), "nobody's gateway");
    }
}
