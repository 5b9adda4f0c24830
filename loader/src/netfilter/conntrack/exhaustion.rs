//! Exhaustion of connection tracking: the part of its entries in use, and the addresses with the
//! most of them. Where all are in use, the kernel evicts an entry without an answer for each new
//! one, or else drops the packet (`__nf_conntrack_alloc` in
//! `net/netfilter/nf_conntrack_core.c`).

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::ops::ControlFlow;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use anyhow::Context as _;
use netlink_packet_core::{DefaultNla, Nla as _};
use netlink_packet_netfilter::conntrack::ConntrackMessage;
use netlink_packet_netfilter::{NetfilterMessageInner, NetfilterProtoFamily};

use super::{Conntrack, Entry, message};
use crate::netfilter::periodic::{Periodic, lock};
use crate::netlink::HeldSysctl;

/// Interval of checks.
const LOOK: Duration = Duration::from_secs(5);
/// Rest after a read of all entries, in multiples of its duration.
const REST: u32 = 50;
/// Most addresses that are counted.
const ADDRESSES: usize = 65_536;
/// `IPCTNL_MSG_CT_GET_STATS_CPU` in `include/uapi/linux/netfilter/nfnetlink_conntrack.h`.
const GET_STATS_CPU: u8 = 4;
/// `CTA_STATS_DROP` and `CTA_STATS_EARLY_DROP`: packets that found no entry, and entries without an
/// answer that made room, on one CPU.
const REFUSED: [u16; 2] = [10, 11];

/// A shortage of entries.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Shortage {
    /// Largest number of entries (`net.netfilter.nf_conntrack_max`).
    pub most: u32,
    /// True if all entries are in use, or the kernel has dropped packets or evicted entries since
    /// the last check.
    pub is_full: bool,
    entries: BTreeMap<IpAddr, u64>,
}

impl Shortage {
    /// The address with the most entries among those of pods, or else among all.
    pub fn top(&self, is_pod: impl Fn(&IpAddr) -> bool) -> Option<IpAddr> {
        let of = |(address, entries): (&IpAddr, &u64)| (is_pod(address), *entries, *address);
        let top = self.entries.iter().map(of).max();
        top.map(|(_, _, address)| address)
    }

    /// Counts an entry for its client and for the server that answers.
    fn count(&mut self, entry: &Entry) {
        for address in [entry.original.source.ip(), entry.reply.source.ip()] {
            if self.entries.len() < ADDRESSES || self.entries.contains_key(&address) {
                *self.entries.entry(address).or_default() += 1;
            }
        }
    }
}

/// The shortage that the last check found, for any caller.
#[derive(Clone, Default)]
pub struct Exhaustion(Arc<Mutex<Option<Shortage>>>);

impl Exhaustion {
    /// Starts checking connection tracking of the calling thread's network namespace.
    ///
    /// # Errors
    /// If the thread cannot be started.
    pub fn start(&self) -> anyhow::Result<Periodic> {
        let found = self.0.clone();
        let mut check = Check {
            entries: HeldSysctl::netfilter("nf_conntrack_count"),
            most: HeldSysctl::netfilter("nf_conntrack_max"),
            refused: None,
            read: None,
        };
        Periodic::start("conntrack-room", move || {
            let last = lock(&found).clone().unwrap_or_default();
            let shortage = check.run(last);
            if let Err(error) = &shortage {
                tracing::debug!("the owners of conntrack's entries are not known: {error:#}");
            }
            *lock(&found) = shortage.unwrap_or_default();
            LOOK
        })
    }

    /// The shortage; none while there is room.
    #[must_use]
    pub fn shortage(&self) -> Option<Shortage> {
        lock(&self.0).clone()
    }
}

/// State of the checks.
struct Check {
    entries: HeldSysctl,
    most: HeldSysctl,
    /// Refusals until the last check; none while there was room.
    refused: Option<u64>,
    /// The time at which all entries were read, and the time that it took.
    read: Option<(Instant, Duration)>,
}

impl Check {
    /// Checks once. `last` has the entries of an earlier check.
    fn run(&mut self, last: Shortage) -> anyhow::Result<Option<Shortage>> {
        let number = |sysctl: &mut HeldSysctl| sysctl.read()?.parse::<u32>().ok();
        let entries = number(&mut self.entries).unwrap_or(0);
        let most = number(&mut self.most).filter(|most| is_short(entries, *most));
        let Some(most) = most else {
            self.refused = None;
            return Ok(None);
        };
        let mut conntrack = Conntrack::open()?;
        let refused = conntrack.refused()?;
        let before = self.refused.replace(refused);
        let mut shortage = Shortage {
            most,
            is_full: entries >= most || before.is_some_and(|before| before != refused),
            ..last
        };
        let is_read = |(at, took): (Instant, Duration)| at.elapsed() < took * REST;
        if !self.read.is_some_and(is_read) {
            let began = Instant::now();
            shortage.entries.clear();
            conntrack.dump(&mut |entry| shortage.count(entry))?;
            self.read = Some((Instant::now(), began.elapsed()));
        }
        Ok(Some(shortage))
    }
}

/// True if more than nine tenths of all entries are in use. A limit of 0 is none.
fn is_short(entries: u32, most: u32) -> bool {
    most > 0 && u64::from(entries) * 10 > u64::from(most) * 9
}

impl Conntrack {
    /// Packets that were dropped and entries that were evicted since the network namespace was made.
    fn refused(&mut self) -> anyhow::Result<u64> {
        let all = ConntrackMessage::Other {
            message_type: GET_STATS_CPU,
            attributes: Vec::new(),
        };
        let mut refused = 0;
        self.socket
            .dump(
                &message(NetfilterProtoFamily::Unspec, all),
                &mut |message| {
                    if let NetfilterMessageInner::Conntrack(ConntrackMessage::Other {
                        attributes,
                        ..
                    }) = message.inner
                    {
                        let counts = attributes.iter().filter_map(refusals);
                        refused += counts.map(u64::from).sum::<u64>();
                    }
                    ControlFlow::Continue(())
                },
            )
            .context("read conntrack's statistics")?;
        Ok(refused)
    }
}

/// The count of an attribute, if it is one of refusals.
fn refusals(attribute: &DefaultNla) -> Option<u32> {
    let mut bytes = [0; 4];
    let is_count = REFUSED.contains(&attribute.kind()) && attribute.value_len() == bytes.len();
    is_count.then(|| {
        attribute.emit_value(&mut bytes);
        u32::from_be_bytes(bytes)
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::netfilter::conntrack::Tuple;

    fn address(text: &str) -> IpAddr {
        text.parse().unwrap()
    }

    /// An entry of a client at a server.
    fn entry(client: &str, server: &str) -> Entry {
        let tuple = |source, destination| Tuple {
            protocol: 17,
            source: (address(source), 40_000).into(),
            destination: (address(destination), 53).into(),
        };
        Entry {
            original: tuple(client, "172.20.0.10"),
            reply: tuple(server, client),
            tcp_state: None,
            status: 0,
            id: 1,
        }
    }

    #[test]
    fn the_pod_with_the_most_entries_is_at_the_top_and_without_pods_any_address() {
        let mut shortage = Shortage::default();
        for (client, server) in [
            ("10.0.0.20", "8.8.4.10"),
            ("10.0.0.21", "8.8.4.10"),
            ("9.9.9.9", "10.0.0.21"),
        ] {
            shortage.count(&entry(client, server));
        }
        let pods = ["10.0.0.20", "10.0.0.21"].map(address);
        let top = shortage.top(|address| pods.contains(address));
        assert_eq!(top, Some(address("10.0.0.21")), "its two directions count");
        assert_eq!(shortage.top(|_| false).map(|top| top.is_ipv4()), Some(true));
        assert_eq!(Shortage::default().top(|_| true), None);
    }

    #[test]
    fn entries_are_short_above_nine_tenths_of_a_limit() {
        assert!(!is_short(90, 100) && is_short(91, 100));
        assert!(is_short(u32::MAX, u32::MAX));
        assert!(!is_short(5, 0), "no limit");
    }
}
