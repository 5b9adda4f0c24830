//! Conntrack, for the sweeper of notes.

use std::collections::BTreeSet;
use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

use anyhow::Result;
use datapath_common::abi::PodTuple;
use datapath_common::headers::protocol;
use flows::{Mark, Removed, StackLifetimes, Tracker};

use crate::netfilter::conntrack::{Conntrack, Timeouts, Tuple, entries, timeouts};

/// The kernel's conntrack. Where there is none, it has no entry.
#[derive(Default)]
pub struct KernelTracker {
    /// Open once it could be opened.
    conntrack: Option<Conntrack>,
}

impl Tracker for KernelTracker {
    fn lifetimes(&mut self) -> StackLifetimes {
        lifetimes(&timeouts())
    }

    fn has(&mut self, tuple: &PodTuple) -> Result<bool> {
        // Of others it knows no ports.
        if !matches!(
            tuple.protocol,
            protocol::TCP | protocol::UDP | protocol::SCTP
        ) {
            return Ok(false);
        }
        let conntrack = match self.open() {
            Ok(conntrack) => conntrack,
            Err(error) => {
                tracing::debug!("stack flows expire by age alone: {error:#}");
                return Ok(false);
            }
        };
        let pod = SocketAddr::new(tuple.pod.into(), u16::from_be(tuple.pod_port));
        let remote = SocketAddr::new(tuple.remote.into(), u16::from_be(tuple.remote_port));
        // The pod may be the side that asks or the one that answers, and conntrack knows each side
        // by the addresses that it sends with.
        for (source, destination) in [(pod, remote), (remote, pod)] {
            let tuple = Tuple {
                protocol: tuple.protocol,
                source,
                destination,
            };
            match conntrack.has(&tuple) {
                Ok(true) => return Ok(true),
                Ok(false) => {}
                Err(error) => {
                    self.conntrack = None;
                    return Err(error);
                }
            }
        }
        Ok(false)
    }

    fn has_mark(&mut self, Mark { value, mask }: Mark) -> Result<bool> {
        // Where it is not loaded nothing has a mark, and a question would load it.
        if entries().is_none_or(|entries| entries == 0) {
            return Ok(false);
        }
        let found = self.open()?.has_mark(value, mask);
        if found.is_err() {
            self.conntrack = None;
        }
        found
    }

    fn remove_leading_to(&mut self, gone: &BTreeSet<IpAddr>) -> Result<Removed> {
        if entries().is_none_or(|entries| entries == 0) {
            return Ok(Removed {
                is_whole: true,
                ..Removed::default()
            });
        }
        let removed = self.open()?.remove_leading_to(gone);
        if removed.is_err() {
            self.conntrack = None;
        }
        let removed = removed?;
        let found = removed.leading_to.into_iter();
        Ok(Removed {
            leading_to: found
                .map(|(address, (entries, first))| (address, (entries, first.to_string())))
                .collect(),
            is_whole: removed.is_whole,
        })
    }
}

impl KernelTracker {
    fn open(&mut self) -> Result<&mut Conntrack> {
        let conntrack = match self.conntrack.take() {
            Some(conntrack) => conntrack,
            None => Conntrack::open()?,
        };
        Ok(self.conntrack.insert(conntrack))
    }
}

/// Lifetimes of notes by those of conntrack's entries: never shorter.
fn lifetimes(timeouts: &Timeouts) -> StackLifetimes {
    let Timeouts { tcp, .. } = timeouts;
    let least = StackLifetimes::default();
    let longest = |all: &[Duration]| all.iter().copied().max().unwrap_or_default();
    StackLifetimes {
        tcp_opening: longest(&[tcp.syn_sent, tcp.syn_recv]),
        tcp_established: tcp.established,
        tcp_closing: longest(&[tcp.fin_wait, tcp.close_wait, tcp.last_ack]),
        tcp_closed: longest(&[tcp.time_wait, tcp.close, tcp.last_ack]),
        udp: least.udp.max(timeouts.udp),
        udp_stream: least.udp_stream.max(timeouts.udp_stream),
        icmp: least.icmp,
        other: timeouts.sctp_established.unwrap_or(timeouts.generic),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn notes_live_no_shorter_than_conntracks_entries() {
        let seconds = Duration::from_secs;
        let mut live = timeouts();
        live.tcp.established = seconds(86_400);
        live.tcp.close_wait = seconds(3_600);
        live.udp = seconds(30);
        live.udp_stream = seconds(300);
        let notes = lifetimes(&live);
        assert_eq!(notes.tcp_established, seconds(86_400));
        assert_eq!(notes.tcp_closing, seconds(3_600));
        assert_eq!(notes.udp, seconds(40));
        assert_eq!(notes.udp_stream, seconds(300));
        assert!(notes.tcp_opening >= live.tcp.syn_sent);
        assert!(notes.tcp_closed >= live.tcp.time_wait);
    }
}
