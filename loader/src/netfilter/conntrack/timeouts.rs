//! Timeouts and the limit of conntrack: its sysctls, as they are now.

use std::time::Duration;

use crate::netlink::netfilter_sysctl;

/// Lifetimes of idle entries by kind, and the maximum number of entries.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Timeouts {
    /// TCP.
    pub tcp: TcpTimeouts,
    /// UDP where no answer, or only one exchange, was seen.
    pub udp: Duration,
    /// UDP that went on.
    pub udp_stream: Duration,
    /// SCTP that is open; none where the kernel does not follow SCTP, and `generic` holds.
    pub sctp_established: Option<Duration>,
    /// Protocols that conntrack knows nothing of.
    pub generic: Duration,
    /// Maximum number of entries; none where conntrack is not loaded. 0 means no limit.
    pub max: Option<u32>,
}

/// Lifetimes of idle TCP entries by state.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TcpTimeouts {
    /// After a SYN, also after SYNs from both sides.
    pub syn_sent: Duration,
    /// After a SYN and its answer.
    pub syn_recv: Duration,
    /// Open.
    pub established: Duration,
    /// After one side's FIN.
    pub fin_wait: Duration,
    /// After that FIN's acknowledgement.
    pub close_wait: Duration,
    /// After the other side's FIN.
    pub last_ack: Duration,
    /// After both are closed.
    pub time_wait: Duration,
    /// After a reset.
    pub close: Duration,
    /// The limit of a lifetime after too many retransmissions.
    pub max_retrans: Duration,
    /// The limit of a lifetime while data waits for its acknowledgement.
    pub unacknowledged: Duration,
}

const MINUTE: u32 = 60;
const DAY: u32 = 24 * 60 * MINUTE;

/// Reads the sysctls of the calling thread's network namespace. One that is missing, because
/// conntrack is not loaded, is what the kernel begins with: `tcp_timeouts`, `udp_timeouts` and
/// `nf_ct_generic_timeout` in `net/netfilter/nf_conntrack_proto_*.c`.
#[must_use]
pub fn timeouts() -> Timeouts {
    let of = |name: &str, otherwise: u32| seconds(name).unwrap_or_else(|| as_time(otherwise));
    Timeouts {
        tcp: TcpTimeouts {
            syn_sent: of("tcp_timeout_syn_sent", 2 * MINUTE),
            syn_recv: of("tcp_timeout_syn_recv", MINUTE),
            established: of("tcp_timeout_established", 5 * DAY),
            fin_wait: of("tcp_timeout_fin_wait", 2 * MINUTE),
            close_wait: of("tcp_timeout_close_wait", MINUTE),
            last_ack: of("tcp_timeout_last_ack", 30),
            time_wait: of("tcp_timeout_time_wait", 2 * MINUTE),
            close: of("tcp_timeout_close", 10),
            max_retrans: of("tcp_timeout_max_retrans", 5 * MINUTE),
            unacknowledged: of("tcp_timeout_unacknowledged", 5 * MINUTE),
        },
        udp: of("udp_timeout", 30),
        udp_stream: of("udp_timeout_stream", 2 * MINUTE),
        sctp_established: seconds("sctp_timeout_established"),
        generic: of("generic_timeout", 10 * MINUTE),
        max: number("max"),
    }
}

fn seconds(name: &str) -> Option<Duration> {
    number(name).map(as_time)
}

fn as_time(seconds: u32) -> Duration {
    Duration::from_secs(seconds.into())
}

fn number(name: &str) -> Option<u32> {
    netfilter_sysctl(&format!("nf_conntrack_{name}"))
}
