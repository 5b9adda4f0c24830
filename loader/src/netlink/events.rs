//! The kernel's notifications, reduced to relevant changes and their scope.
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
use netlink_packet_route::route::{RouteMessage, RouteProtocol, RouteType};
use nix::sys::socket::{setsockopt, sockopt};
use rtnetlink::MulticastGroup;
use rtnetlink::sys::Socket as Inner;
use tokio::io::unix::AsyncFd;

use super::observe;
use super::socket::{connect, messages, receive, register};
use crate::constants;
use crate::kernel::{Neighbour, Resolved};

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

/// A burst of changes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Change {
    /// Routes of others only, which may change many times a second without an end.
    Foreign,
    /// A change of an object that may be ours.
    Own,
}

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
    /// The gateways, with their MACs if known. The kernel also reports confirmed or stale ones,
    /// several times a minute.
    gateways: HashMap<Key, Option<MacAddr>>,
    /// Gateways that the kernel has not had confirmed for a while.
    stale: HashSet<Key>,
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

    /// Takes the gateways that were heard to be stale.
    pub(super) fn take_stale(&self) -> HashSet<Key> {
        std::mem::take(&mut self.known().stale)
    }

    /// Records the resolution of a neighbour, or its failure. Returns true if that is a change.
    fn take(&self, key: Key, resolved: Option<Resolved>) -> bool {
        let mut known = self.known();
        let mac = resolved.map(|resolved| resolved.mac);
        let gateway = known.gateways.get(&key).copied();
        if gateway.is_some() && resolved.is_some_and(|resolved| resolved.is_stale) {
            known.stale.insert(key);
        } else {
            known.stale.remove(&key);
        }
        known.permanent.contains(&key) || gateway.is_some_and(|known| known != mac)
    }
}

/// Joins the notifications of the calling thread's namespace, from this call on.
pub(super) fn stream(
    watched: Watched,
) -> io::Result<impl Stream<Item = Change> + Send + Unpin + use<>> {
    let socket = connect()?;
    // Beyond the limit for everybody (`net.core.rmem_max`), which is a fifth of this.
    setsockopt(&socket, sockopt::RcvBufForce, &RECEIVE_BUFFER)?;
    for group in GROUPS {
        socket.add_membership(group as u32)?;
    }
    let socket = register(socket)?;
    let changes = stream::unfold((socket, watched), async |(socket, watched)| {
        let change = next_change(&socket, &watched).await?;
        Some((change, (socket, watched)))
    });
    Ok(changes.boxed())
}

/// Waits for a change that concerns us and takes those that came with it; none when the socket
/// failed.
async fn next_change(socket: &AsyncFd<Inner>, watched: &Watched) -> Option<Change> {
    loop {
        let mut change = None;
        let mut received = Some(receive(socket).await);
        while let Some(next) = received {
            match news(next, watched) {
                Ok(news) => change = change.max(news),
                Err(error) => {
                    tracing::error!(%error, "the socket for the kernel's notifications failed");
                    return None;
                }
            }
            received = receive(socket).now_or_never();
        }
        if change.is_some() {
            return change;
        }
    }
}

/// The change in a received message, if any. Lost notifications are a change: the socket goes on
/// working, and the kernel reports the loss once, in any call (`sock_error` clears it).
fn news(received: io::Result<Vec<u8>>, watched: &Watched) -> io::Result<Option<Change>> {
    match received {
        // All messages are read, since one may report a stale gateway.
        Ok(datagram) => Ok(messages(&datagram)
            .map(|bytes| news_of(bytes, watched))
            .max()
            .flatten()),
        Err(error) if error.raw_os_error() == Some(libc::ENOBUFS) => Ok(Some(Change::Own)),
        Err(error) => Err(error),
    }
}

fn news_of(bytes: &[u8], watched: &Watched) -> Option<Change> {
    let Ok(message) = NetlinkMessage::<RouteNetlinkMessage>::deserialize(bytes) else {
        return Some(Change::Own);
    };
    let NetlinkPayload::InnerMessage(message) = message.payload else {
        return None;
    };
    match message {
        RouteNetlinkMessage::NewRoute(route) | RouteNetlinkMessage::DelRoute(route) => {
            news_of_route(&route)
        }
        RouteNetlinkMessage::NewNeighbour(entry) => {
            let resolved = observe::resolved_neighbour(&entry);
            is_our_neighbour(&entry, resolved, watched).then_some(Change::Own)
        }
        RouteNetlinkMessage::DelNeighbour(entry) => {
            is_our_neighbour(&entry, None, watched).then_some(Change::Own)
        }
        _ => Some(Change::Own),
    }
}

/// Addresses and links bring the kernel's own routes along, and are news themselves.
fn news_of_route(route: &RouteMessage) -> Option<Change> {
    if constants::is_our_table(observe::route_table(route)) {
        return Some(Change::Own);
    }
    let is_of_kernel = route.header.protocol == RouteProtocol::Kernel;
    let counts = match route.header.kind {
        RouteType::Unicast => true,
        RouteType::Local => !is_of_kernel,
        _ => false,
    };
    counts.then_some(Change::Foreign)
}

/// True if an entry is permanent, or was so at the last observation, or has another MAC for a
/// gateway, or none.
fn is_our_neighbour(
    entry: &NeighbourMessage,
    resolved: Option<Resolved>,
    watched: &Watched,
) -> bool {
    let address = observe::neighbour_address(entry);
    let is_news =
        address.is_some_and(|address| watched.take((entry.header.ifindex, address), resolved));
    entry.header.state == NeighbourState::Permanent || is_news
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_loss_is_news_and_another_error_is_the_end() {
        let received = |errno| Err(io::Error::from_raw_os_error(errno));
        let watched = Watched::default();
        let lost = news(received(libc::ENOBUFS), &watched);
        assert_eq!(lost.unwrap(), Some(Change::Own));
        assert!(news(received(libc::EBADF), &watched).is_err());
        assert_eq!(news(Ok(Vec::new()), &watched).unwrap(), None);
    }

    #[test]
    fn of_a_gateway_only_another_mac_is_news() {
        let watched = Watched::default();
        let (mac, other) = (MacAddr([2; 6]), MacAddr([4; 6]));
        let key = |number| (3, IpAddr::from([10, 0, 0, number]));
        watched.replace_gateways([(key(1), Some(mac)), (key(2), None)].into_iter());
        let by = |mac, is_stale| Some(Resolved { mac, is_stale });
        assert!(!watched.take(key(1), by(mac, false)), "confirmed");
        assert!(!watched.take(key(1), by(mac, true)), "stale");
        assert!(!watched.take(key(3), by(mac, true)), "nobody's gateway");
        assert_eq!(watched.take_stale(), HashSet::from([key(1)]));
        assert!(!watched.take(key(1), by(mac, true)));
        assert!(!watched.take(key(1), by(mac, false)));
        assert_eq!(watched.take_stale(), HashSet::new(), "confirmed meanwhile");
        assert!(watched.take(key(1), by(other, false)));
        assert!(watched.take(key(1), None), "lost");
        assert!(watched.take(key(2), by(mac, false)), "found");
        assert!(!watched.take(key(2), None), "still looked for");
    }
}
