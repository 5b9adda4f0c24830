//! Timeouts of idle flows.

use std::time::Duration;

use datapath_common::abi::{Flow, FlowKey, PodTuple, TrackedFlow};
use datapath_common::headers::protocol;
use datapath_common::progress::{FIN, Phase, RST, STREAM, phase};

use super::tables::NoteKind;

/// Ports below this are of services that answer at once (RFC 4787 REQ-5 a, RFC 6335 section 6).
pub(super) const WELL_KNOWN: u16 = 1024;

/// Timeouts of idle flows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Lifetimes {
    /// TCP, both sides have spoken.
    pub tcp_established: Duration,
    /// TCP, opening or ending.
    pub tcp_transitory: Duration,
    /// UDP that was answered.
    pub udp: Duration,
    /// UDP to a remote port below 1024 that was answered.
    pub udp_well_known: Duration,
    /// UDP that was not answered yet.
    pub udp_unreplied: Duration,
    /// ICMP queries.
    pub icmp: Duration,
    /// SCTP.
    pub sctp: Duration,
    /// Closed TCP, where room is short: its last segments may be in flight.
    pub closed_under_pressure: Duration,
}

impl Default for Lifetimes {
    fn default() -> Self {
        let seconds = Duration::from_secs;
        Self {
            // RFC 5382 REQ-5: at least 2 hours 4 minutes.
            tcp_established: seconds(7440),
            // RFC 5382 REQ-5: at least 4 minutes.
            tcp_transitory: seconds(240),
            // RFC 4787 REQ-5: at least 2 minutes, 5 recommended.
            udp: seconds(300),
            // RFC 4787 REQ-5 a: may be shorter for well-known ports. DNS, above all.
            udp_well_known: seconds(60),
            // As conntrack's `nf_conntrack_udp_timeout`.
            udp_unreplied: seconds(30),
            // RFC 5508 REQ-2: at least 60 seconds.
            icmp: seconds(60),
            // As a heartbeat's usual interval of 30 seconds, lost several times (RFC 9260 section
            // 16).
            sctp: seconds(300),
            closed_under_pressure: seconds(2),
        }
    }
}

impl Lifetimes {
    /// Timeout of a translated flow.
    #[must_use]
    pub fn of_flow(&self, key: &FlowKey, flow: &Flow) -> Duration {
        let phase = flow_phase(key, flow);
        match key.protocol {
            protocol::TCP => self.tcp(phase),
            protocol::UDP if phase == Phase::Opening => self.udp_unreplied,
            protocol::UDP if u16::from_be(key.remote_port) < WELL_KNOWN => self.udp_well_known,
            protocol::UDP => self.udp,
            protocol::ICMP | protocol::ICMPV6 => self.icmp,
            _sctp => self.sctp,
        }
    }

    /// Timeout of a flow from the outside.
    #[must_use]
    pub fn of_inbound(&self, tuple: &PodTuple, inbound: &TrackedFlow) -> Duration {
        let phase = inbound_phase(tuple, inbound);
        match tuple.protocol {
            protocol::TCP => self.tcp(phase),
            protocol::UDP if phase == Phase::Opening => self.udp_unreplied,
            protocol::UDP => self.udp,
            protocol::ICMP | protocol::ICMPV6 => self.icmp,
            _sctp => self.sctp,
        }
    }

    fn tcp(&self, phase: Phase) -> Duration {
        match phase {
            Phase::Established => self.tcp_established,
            Phase::Opening | Phase::Closing | Phase::Closed => self.tcp_transitory,
        }
    }
}

/// Phase of a translated flow.
#[must_use]
pub(super) fn flow_phase(key: &FlowKey, flow: &Flow) -> Phase {
    phase(key.protocol, flow.progress_out, flow.progress_in)
}

/// Phase of a noted flow.
#[must_use]
pub(super) fn note_phase(kind: NoteKind, tuple: &PodTuple, note: &TrackedFlow) -> Phase {
    match kind {
        NoteKind::Inbound => inbound_phase(tuple, note),
        NoteKind::Stack => stack_phase(tuple, note),
    }
}

/// Phase of a flow of the host's stack: its progress is seen in both directions. A flow without
/// connections is established once conntrack treats it as a stream.
fn stack_phase(tuple: &PodTuple, note: &TrackedFlow) -> Phase {
    let (out, inward) = (note.progress_out, note.progress_in);
    if tuple.protocol == protocol::TCP {
        return phase(tuple.protocol, out, inward);
    }
    if (out | inward) & STREAM == 0 {
        Phase::Opening
    } else {
        Phase::Established
    }
}

/// Phase of a flow from the outside. Data segments from the outside are not inspected, so the
/// acknowledgement of the other side shows that a side has sent data. The end of each side is
/// recorded.
#[must_use]
fn inbound_phase(tuple: &PodTuple, inbound: &TrackedFlow) -> Phase {
    let (out, inward) = (inbound.progress_out, inbound.progress_in);
    let both = (out | inward) & !(FIN | RST);
    phase(tuple.protocol, out | both, inward | both)
}

#[cfg(test)]
mod tests {
    use datapath_common::abi::{Addr, TransportAddr};
    use datapath_common::progress::{DATA, SYN};

    use super::*;

    const REMOTE: Addr = Addr::from_v4_word(0x0101_0101);
    const SCTP: u8 = 132;
    const POD: Addr = Addr::from_v4_word(0x0a00_0001);

    fn flow(protocol: u8, remote_port: u16, progress: (u8, u8)) -> u64 {
        let key = FlowKey::new(
            0,
            protocol,
            TransportAddr::new(REMOTE, remote_port.to_be()),
            50000_u16.to_be(),
        );
        let mut flow = Flow::new(&key, TransportAddr::new(POD, key.port), 7, 0);
        (flow.progress_out, flow.progress_in) = progress;
        Lifetimes::default().of_flow(&key, &flow).as_secs()
    }

    fn from_outside(protocol: u8, progress: (u8, u8)) -> (PodTuple, TrackedFlow) {
        let tuple = PodTuple::new(
            protocol,
            TransportAddr::new(POD, 80_u16.to_be()),
            TransportAddr::new(REMOTE, 4000_u16.to_be()),
        );
        let mut inbound = TrackedFlow::new(&tuple, 0, 7, progress.0);
        inbound.progress_in = progress.1;
        (tuple, inbound)
    }

    fn inbound(protocol: u8, progress: (u8, u8)) -> u64 {
        let (tuple, inbound) = from_outside(protocol, progress);
        Lifetimes::default().of_inbound(&tuple, &inbound).as_secs()
    }

    #[test]
    fn tcp_lives_long_while_both_sides_speak_and_shortly_else() {
        let tcp = |out, inward| flow(protocol::TCP, 443, (out, inward));
        assert_eq!(tcp(SYN, 0), 240);
        assert_eq!(tcp(SYN, SYN), 240);
        assert_eq!(tcp(SYN | DATA, SYN), 7440);
        assert_eq!(tcp(SYN | DATA, SYN | DATA), 7440);
        assert_eq!(tcp(SYN | DATA | FIN, SYN | DATA), 240);
        assert_eq!(tcp(SYN | DATA | FIN, SYN | DATA | FIN), 240);
        assert_eq!(tcp(SYN | DATA, SYN | DATA | RST), 240);
    }

    #[test]
    fn udp_depends_on_the_answer_and_on_the_remote_port() {
        let udp = |port, inward| flow(protocol::UDP, port, (DATA, inward));
        assert_eq!(udp(53, 0), 30);
        assert_eq!(udp(5353, 0), 30);
        assert_eq!(udp(53, DATA), 60);
        assert_eq!(udp(1023, DATA), 60);
        assert_eq!(udp(1024, DATA), 300);
    }

    #[test]
    fn other_protocols_have_one_lifetime() {
        for progress in [(DATA, 0), (DATA, DATA)] {
            assert_eq!(flow(protocol::ICMP, 0, progress), 60);
            assert_eq!(flow(protocol::ICMPV6, 0, progress), 60);
            assert_eq!(flow(SCTP, 3868, progress), 300);
        }
    }

    #[test]
    fn what_comes_from_outside_lives_by_what_both_sides_show() {
        let tcp = |out, inward| inbound(protocol::TCP, (out, inward));
        assert_eq!(tcp(SYN, 0), 240);
        assert_eq!(tcp(SYN | DATA, 0), 7440);
        // The handshake's end, and silence after it.
        assert_eq!(tcp(SYN, DATA), 7440);
        assert_eq!(tcp(SYN | DATA | FIN, 0), 240);
        let phase = |out, inward| {
            let (tuple, inbound) = from_outside(protocol::TCP, (out, inward));
            inbound_phase(&tuple, &inbound)
        };
        assert_eq!(phase(SYN | DATA | FIN, DATA), Phase::Closing);
        assert_eq!(phase(SYN | DATA, DATA | FIN), Phase::Closing);
        assert_eq!(phase(SYN | DATA | FIN, DATA | FIN), Phase::Closed);
        assert_eq!(phase(SYN | DATA | RST, 0), Phase::Closed);
        assert_eq!(phase(SYN, RST), Phase::Closed);
        assert_eq!(inbound(protocol::UDP, (0, 0)), 30);
        assert_eq!(inbound(protocol::UDP, (DATA, 0)), 300);
        assert_eq!(inbound(protocol::ICMP, (0, 0)), 60);
    }
}
