//! The kernel's connection tracking, by ctnetlink: its flows, their NAT and their timeouts. Entries
//! that lead to a deleted pod are removed.
//!
//! Messages and attributes are those of netlink-packet-netfilter, which belongs to the same project
//! as the other netlink crates here and shares their core. The socket is our own, as rtnetlink's is
//! (`netlink::netfilter`). What else there is: `rustables` is for nftables alone and under the GPL,
//! `conntrack` has no licence and holds a whole dump.
//!
//! All calls apply to the network namespace of the calling thread, and wait for the kernel. The
//! agent's task calls only when flow marks are switched on. The sweeper has a thread of its own.

mod entry;
mod exhaustion;
mod mark;
mod stale;
mod timeouts;

use std::net::IpAddr;
use std::ops::ControlFlow;

use anyhow::{Context, bail};
use netlink_packet_netfilter::conntrack::{ConntrackAttribute, ConntrackMessage};
use netlink_packet_netfilter::{NetfilterHeader, NetfilterMessage, NetfilterProtoFamily};

pub use self::entry::{Entry, TcpState, Tuple};
pub use self::exhaustion::{Exhaustion, Shortage};
pub use self::mark::entries;
pub use self::stale::Removed;
pub use self::timeouts::{TcpTimeouts, Timeouts, timeouts};
use crate::netlink::RequestError;
use crate::netlink::netfilter::Socket;

/// `IPCTNL_MSG_CT_GET_STATS` in `include/uapi/linux/netfilter/nfnetlink_conntrack.h`: how many
/// entries there are.
const GET_STATS: u8 = 5;

/// A connection to the kernel's connection tracking.
pub struct Conntrack {
    socket: Socket,
}

impl Conntrack {
    /// Opens a socket in the network namespace of the calling thread and asks a first question.
    ///
    /// # Errors
    /// When the kernel has no `nf_conntrack_netlink`, or refuses.
    pub fn open() -> anyhow::Result<Self> {
        let mut socket = Socket::open().context(
            "open a netlink socket to netfilter: the kernel needs nfnetlink (CONFIG_NETFILTER_NETLINK)",
        )?;
        let statistics = ConntrackMessage::Other {
            message_type: GET_STATS,
            attributes: Vec::new(),
        };
        let answer = socket.get(message(NetfilterProtoFamily::Unspec, statistics));
        answer.map_err(unavailable)?;
        Ok(Self { socket })
    }

    /// Shows every entry of TCP, UDP and SCTP, of both families; none is held.
    ///
    /// Entries that are created during the dump may be missing. A dump that the kernel reports as
    /// inconsistent is repeated a few times, and then an entry is shown more than once. Entries of
    /// conntrack zones other than the host's own are left out: there equal addresses may be other
    /// flows. Undecodable entries are left out, too, and logged.
    ///
    /// # Errors
    /// If the kernel refuses, or if the socket fails. The next call then uses a new socket.
    pub fn dump(&mut self, show: &mut dyn FnMut(&Entry)) -> anyhow::Result<()> {
        let all = ConntrackMessage::Get(Vec::new());
        self.socket
            .dump(
                &message(NetfilterProtoFamily::Unspec, all),
                &mut |message| {
                    match entry::read(&message) {
                        Ok(Some(entry)) => show(&entry),
                        Ok(None) => {}
                        Err(missing) => {
                            tracing::debug!(missing, "a conntrack entry was left out");
                        }
                    }
                    ControlFlow::Continue(())
                },
            )
            .context("read the conntrack table")
    }

    /// True if an entry has this tuple, in either direction: the kernel keeps an entry under both
    /// of its tuples and looks up a request's among all (`nf_conntrack_find_get`), whichever
    /// attribute it came in.
    ///
    /// # Errors
    /// When the tuple's addresses are of two families, the kernel refuses, or the socket fails; the
    /// next call begins with a new socket then.
    pub fn has(&mut self, tuple: &Tuple) -> anyhow::Result<bool> {
        let family = match (tuple.source.ip(), tuple.destination.ip()) {
            (IpAddr::V4(_), IpAddr::V4(_)) => NetfilterProtoFamily::IPv4,
            (IpAddr::V6(_), IpAddr::V6(_)) => NetfilterProtoFamily::IPv6,
            _ => bail!("{tuple} has addresses of two families"),
        };
        let key = ConntrackAttribute::CtaTupleOrig(tuple.attributes());
        let question = message(family, ConntrackMessage::Get(vec![key]));
        match self.socket.get(question) {
            Ok(()) => Ok(true),
            Err(error) if error.errno() == Some(libc::ENOENT) => Ok(false),
            Err(error) => Err(error).with_context(|| format!("ask conntrack for {tuple}")),
        }
    }
}

fn message(family: NetfilterProtoFamily, inner: ConntrackMessage) -> NetfilterMessage {
    // Version 0 is the only one (NFNETLINK_V0).
    NetfilterMessage::new(NetfilterHeader::new(family, 0, 0), inner)
}

/// Explains the kernel's first refusal.
fn unavailable(error: RequestError) -> anyhow::Error {
    // nfnetlink answers EINVAL to a subsystem that it does not have and could not load
    // (`nfnetlink_rcv_msg` in net/netfilter/nfnetlink.c).
    let is_missing = error.errno() == Some(libc::EINVAL);
    let error = anyhow::Error::new(error);
    if is_missing {
        error.context(
            "the kernel has no nf_conntrack_netlink (CONFIG_NF_CT_NETLINK): its tracked flows cannot be read",
        )
    } else {
        error.context("ask conntrack how many entries it has")
    }
}

#[cfg(test)]
mod tests;
