//! Packets that the direct path passes to the host's stack in the middle of a connection, and the
//! host's error messages for them. Connection tracking has not seen the rest of the connection, so
//! they are INVALID. Many hosts have rules that drop INVALID packets, which would cut such
//! connections off.
//!
//! Our nftables table makes only these packets untracked, right after connection tracking. It
//! exists only if connection tracking is in use, since its rules would enable it.

mod rules;

use std::ops::ControlFlow;

use anyhow::Context as _;
use netlink_packet_netfilter::nftables::{GenAttribute, GenMessage, NfTablesMessage};
use netlink_packet_netfilter::{
    NetfilterHeader, NetfilterMessage, NetfilterMessageInner, NetfilterProtoFamily,
};

use crate::netlink::RequestError;
use crate::netlink::netfilter::Socket;
use crate::netlink::{HeldSysctl, netfilter_sysctl};

/// The keeper of the table.
#[derive(Debug)]
pub struct Untracked {
    /// The exception bit of the packet mark.
    exception: u32,
    /// The generation of nftables' rules in which the table was as it should be.
    good: Option<u32>,
    /// Number of times that other software removed or changed it.
    repairs: u64,
    /// Why it is not there, though it should be.
    problem: Option<String>,
    /// The number of conntrack entries.
    entries: HeldSysctl,
}

impl Untracked {
    /// A keeper that has not looked yet.
    #[must_use]
    pub fn new(exception: u32) -> Self {
        Self {
            exception,
            good: None,
            repairs: 0,
            problem: None,
            entries: HeldSysctl::netfilter("nf_conntrack_count"),
        }
    }

    /// Number of times that the table was restored.
    #[must_use]
    pub fn repairs(&self) -> u64 {
        self.repairs
    }

    /// Why the table is not there, if it should be.
    #[must_use]
    pub fn problem(&self) -> Option<&str> {
        self.problem.as_deref()
    }

    /// Creates the table if it is needed, and restores it if it was removed. Costs one short
    /// request while no rule changes.
    pub fn keep(&mut self) {
        let problem = match self.look() {
            Ok(()) => None,
            Err(error) => Some(format!(
                "rules that drop INVALID packets can cut off pods' connections, the nftables table \
                 {} cannot be made: {error:#}",
                rules::TABLE
            )),
        };
        if let Some(problem) = &problem
            && self.problem.as_ref() != Some(problem)
        {
            tracing::warn!("{problem}");
        }
        self.problem = problem;
    }

    fn look(&mut self) -> anyhow::Result<()> {
        if self.good.is_none() && !self.is_tracking() {
            return Ok(());
        }
        let Some((mut socket, generation)) = open()? else {
            return Ok(());
        };
        if self.good == Some(generation) {
            return Ok(());
        }
        if there(&mut socket)? != wanted(self.exception) {
            let replacement = rules::replacement(self.exception);
            socket.transact(replacement).context("make the table")?;
            if self.good.is_some() {
                self.repairs += 1;
                tracing::info!("nftables table {} put back", rules::TABLE);
            }
        }
        // After a change between the two reads, the next check finds another generation.
        self.good = generation_of(&mut socket)?;
        Ok(())
    }

    /// True if connection tracking follows this node's packets. Its entries show that, since the
    /// module may be loaded without use.
    fn is_tracking(&mut self) -> bool {
        let entries = self.entries.read();
        entries.is_some_and(|entries| entries != "0")
    }
}

/// The effect on connections that were open when a pod's packets began to take the host's stack, to
/// be added to a finding. Connection tracking takes them up in their middle unless it must not.
#[must_use]
pub fn on_change_of_path() -> &'static str {
    match netfilter_sysctl("nf_conntrack_tcp_loose") {
        Some(0) => {
            "; net.netfilter.nf_conntrack_tcp_loose is 0, so connection tracking calls TCP connections \
             that were open before INVALID: set it to 1, or have the pod open them again"
        }
        Some(_) | None => "",
    }
}

/// Removes the table; true if there was one.
///
/// # Errors
/// When the kernel refuses.
pub fn remove() -> anyhow::Result<bool> {
    let Some((mut socket, _generation)) = open()? else {
        return Ok(false);
    };
    match socket.transact(vec![rules::removal()]) {
        Ok(()) => Ok(true),
        Err(error) if error.errno() == Some(libc::ENOENT) => Ok(false),
        Err(error) => Err(error).with_context(|| format!("remove nftables table {}", rules::TABLE)),
    }
}

fn wanted(exception: u32) -> Vec<rules::Known> {
    rules::known(exception)
}

/// A socket and the present generation of rules; none where the kernel has no nftables.
pub(crate) fn open() -> anyhow::Result<Option<(Socket, u32)>> {
    let mut socket = match Socket::open() {
        Ok(socket) => socket,
        Err(error) if error.raw_os_error() == Some(libc::EPROTONOSUPPORT) => return Ok(None),
        Err(error) => return Err(error).context("open a netfilter socket"),
    };
    let generation = generation_of(&mut socket)?;
    Ok(generation.map(|generation| (socket, generation)))
}

/// The generation of nftables' rules, which changes with each change of a rule; none without
/// nftables.
fn generation_of(socket: &mut Socket) -> anyhow::Result<Option<u32>> {
    let message = NfTablesMessage::GetGen(GenMessage {
        attributes: Vec::new(),
    });
    let header = NetfilterHeader::new(NetfilterProtoFamily::Unspec, 0, 0);
    let mut generation = None;
    let read = socket.get_shown(NetfilterMessage::new(header, message), &mut |message| {
        if let NetfilterMessageInner::NfTables(NfTablesMessage::NewGen(message)) = message.inner {
            generation = message
                .attributes
                .iter()
                .find_map(|attribute| match attribute {
                    GenAttribute::Id(id) => Some(*id),
                    _ => None,
                });
        }
    });
    match read {
        Ok(()) => Ok(generation),
        Err(error) if is_absence(&error) => Ok(None),
        Err(error) => Err(error).context("read nftables' generation"),
    }
}

/// True if the answer is that of a kernel without nftables (`nfnetlink_rcv_msg` in
/// net/netfilter/nfnetlink.c).
fn is_absence(error: &RequestError) -> bool {
    error.errno() == Some(libc::EINVAL)
}

/// The rules of the table that is there; none where there is no such table.
fn there(socket: &mut Socket) -> anyhow::Result<Vec<rules::Known>> {
    let mut found = Vec::new();
    socket
        .dump(&rules::listing(), &mut |message| {
            if let NetfilterMessageInner::NfTables(message) = &message.inner {
                found.extend(rules::shown(message));
            }
            ControlFlow::Continue(())
        })
        .context("list the table's rules")?;
    Ok(found)
}
