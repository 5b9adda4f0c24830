//! Conntrack's view of the flows of the host's stack. Notes of such flows live at least as long as
//! conntrack's entries: a reply that bypasses the stack while conntrack has the connection is not
//! translated back.

use std::collections::BTreeSet;
use std::net::IpAddr;
use std::time::Duration;

use anyhow::Result;
use datapath_common::abi::PodTuple;
use datapath_common::headers::protocol;
use datapath_common::progress::Phase;

use crate::sweep::resting::Mark;
use crate::sweep::stale::Removed;

/// Conntrack.
pub trait Tracker: Send + Sync {
    /// Timeouts of notes, which follow conntrack's current timeouts.
    fn lifetimes(&mut self) -> StackLifetimes;

    /// True if conntrack has an entry with this tuple, in either direction.
    ///
    /// # Errors
    /// When the kernel refuses.
    fn has(&mut self, tuple: &PodTuple) -> Result<bool>;

    /// True if an entry carries a mark.
    ///
    /// # Errors
    /// When conntrack cannot be read.
    fn has_mark(&mut self, mark: Mark) -> Result<bool>;

    /// Removes the entries that lead packets to addresses whose pods are gone.
    ///
    /// # Errors
    /// When conntrack cannot be read.
    fn remove_leading_to(&mut self, gone: &BTreeSet<IpAddr>) -> Result<Removed>;
}

/// Timeouts of notes of the host's stack.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StackLifetimes {
    /// TCP while it opens.
    pub tcp_opening: Duration,
    /// TCP, both sides have spoken.
    pub tcp_established: Duration,
    /// TCP that one side has ended.
    pub tcp_closing: Duration,
    /// TCP that both sides have ended.
    pub tcp_closed: Duration,
    /// UDP until it goes both ways for longer than a question and its answer.
    pub udp: Duration,
    /// UDP that does.
    pub udp_stream: Duration,
    /// ICMP queries.
    pub icmp: Duration,
    /// SCTP, and anything else.
    pub other: Duration,
}

impl Default for StackLifetimes {
    /// Those of a kernel with its own defaults (`tcp_timeouts` in
    /// `net/netfilter/nf_conntrack_proto_tcp.c`, and so on), with some to spare for UDP.
    fn default() -> Self {
        let seconds = Duration::from_secs;
        Self {
            tcp_opening: seconds(120),
            tcp_established: seconds(432_000),
            tcp_closing: seconds(120),
            tcp_closed: seconds(120),
            udp: Self::UDP,
            udp_stream: Self::UDP_STREAM,
            icmp: seconds(30),
            other: seconds(600),
        }
    }
}

impl StackLifetimes {
    /// The least for UDP: conntrack's default of 30 seconds, and ten.
    pub const UDP: Duration = Duration::from_secs(40);
    /// The least for UDP in both directions: conntrack's default of 120 seconds, and thirty.
    pub const UDP_STREAM: Duration = Duration::from_secs(150);

    /// Of a flow of a protocol that has come so far.
    #[must_use]
    pub(super) fn of(&self, protocol: u8, phase: Phase) -> Duration {
        match (protocol, phase) {
            (protocol::TCP, Phase::Opening) => self.tcp_opening,
            (protocol::TCP, Phase::Established) => self.tcp_established,
            (protocol::TCP, Phase::Closing) => self.tcp_closing,
            (protocol::TCP, Phase::Closed) => self.tcp_closed,
            (protocol::UDP, Phase::Opening) => self.udp,
            (protocol::UDP, _answered) => self.udp_stream,
            (protocol::ICMP | protocol::ICMPV6, _any) => self.icmp,
            _sctp => self.other,
        }
    }
}
