//! Decisions on flows that have been idle for too long.

use std::time::Duration;

use datapath_common::abi::{Flow, FlowKey, PodTuple, TrackedFlow, TransportAddr};
use datapath_common::headers::protocol;
use datapath_common::progress::{MORE, Phase, SUSPECT};

use crate::lifetimes::{Lifetimes, WELL_KNOWN, flow_phase, note_phase};
use crate::tables::NoteKind;
use crate::tracker::StackLifetimes;

/// The programs note a packet's time at most this often, so a flow may have been busy for so long
/// after its last time.
const GRAIN: Duration = Duration::from_secs(1);

/// Time that a flow may be unanswered where room is short. A client that uses its connection
/// acknowledges within one round trip, and servers answer within a few. No lifetime is shorter.
const UNANSWERED_PRESSED: Duration = Duration::from_secs(10);

/// Idle time of an answered question where ports or the endpoint's quota run short. Its answer has
/// come, and another question has another port.
const QUESTION_PRESSED: Duration = Duration::from_secs(10);

/// Shortages that apply to a flow.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Short {
    /// Room: of the table, or of the endpoint's quota. Closed connections go at once.
    pub room: bool,
    /// Half of the endpoint's quota or of the destination's ports are used: questions that were
    /// answered go early.
    pub half: bool,
    /// True if the destination's ports or the table are short, and the endpoint has more than a
    /// fair share of them. Then unanswered flows are removed early.
    pub most: bool,
}

impl From<bool> for Short {
    fn from(room: bool) -> Self {
        Self {
            room,
            ..Self::default()
        }
    }
}

/// Decides which flows have been idle for too long at one moment.
#[derive(Clone, Copy, Debug)]
pub struct Expiry<'a> {
    /// Timeouts of idle flows.
    pub lifetimes: &'a Lifetimes,
    /// Timeouts of idle notes of the host's stack.
    pub stack: &'a StackLifetimes,
    /// The time, in jiffies.
    pub now: u64,
    /// Jiffies in a second.
    pub jiffies_per_second: u32,
    /// Shortages that apply to the flow.
    pub short: Short,
}

impl Expiry<'_> {
    /// Time since an event, by the event's time in jiffies.
    #[must_use]
    pub fn idle(&self, last_seen: u64) -> Duration {
        let jiffies = self.now.saturating_sub(last_seen);
        let hertz = u64::from(self.jiffies_per_second.max(1));
        let rest = Duration::from_secs(jiffies % hertz) / self.jiffies_per_second.max(1);
        Duration::from_secs(jiffies / hertz) + rest
    }

    /// Timeout of a translated flow at this moment.
    #[must_use]
    pub fn lifetime(&self, key: &FlowKey, flow: &Flow) -> Duration {
        let mut lifetime = self.lifetimes.of_flow(key, flow);
        let phase = flow_phase(key, flow);
        if flow.stack != 0 {
            // Conntrack has it as well, whose answers are lost without the translation.
            lifetime = lifetime.max(self.stack.of(key.protocol, phase));
        }
        if self.short.most && phase == Phase::Opening {
            lifetime = lifetime.min(UNANSWERED_PRESSED);
        }
        if self.short.half && is_question(key, flow) {
            lifetime = lifetime.min(QUESTION_PRESSED);
        }
        let lifetime = self.pressed(lifetime, key.protocol, phase);
        if is_suspect(key, flow) {
            lifetime.min(self.until_checked())
        } else {
            lifetime
        }
    }

    /// Idle time after which the reaper is to check a connection that is suspected of being over.
    fn until_checked(&self) -> Duration {
        if self.short.room {
            self.lifetimes.closed_under_pressure
        } else {
            self.lifetimes.tcp_transitory
        }
    }

    /// Timeout of a noted flow at this moment.
    #[must_use]
    pub fn note_lifetime(&self, kind: NoteKind, tuple: &PodTuple, note: &TrackedFlow) -> Duration {
        let phase = note_phase(kind, tuple, note);
        let lifetime = match kind {
            NoteKind::Inbound => self.lifetimes.of_inbound(tuple, note),
            NoteKind::Stack => self.stack.of(tuple.protocol, phase),
        };
        // No host or pod here has confirmed anything of a flow from the outside.
        let is_unanswered = kind == NoteKind::Inbound || tuple.protocol == protocol::TCP;
        if self.short.room && is_unanswered && phase == Phase::Opening {
            return lifetime.min(UNANSWERED_PRESSED);
        }
        self.pressed(lifetime, tuple.protocol, phase)
    }

    fn pressed(&self, lifetime: Duration, protocol: u8, phase: Phase) -> Duration {
        let is_closed = protocol == protocol::TCP && phase == Phase::Closed;
        if self.short.room && is_closed {
            self.lifetimes.closed_under_pressure
        } else {
            lifetime
        }
    }

    /// True if a translated flow has been idle for too long.
    #[must_use]
    pub fn is_over(&self, key: &FlowKey, flow: &Flow) -> bool {
        self.idle(flow.last_seen) >= self.lifetime(key, flow) + GRAIN
    }

    /// True if a noted flow has been idle for too long.
    #[must_use]
    pub fn is_note_over(&self, kind: NoteKind, tuple: &PodTuple, note: &TrackedFlow) -> bool {
        self.idle(note.last_seen) >= self.note_lifetime(kind, tuple, note) + GRAIN
    }

    /// True if an idle note may only be removed once conntrack has no entry of it.
    #[must_use]
    pub fn is_to_be_asked(&self, tuple: &PodTuple, note: &TrackedFlow) -> bool {
        self.is_asked(tuple.protocol, note_phase(NoteKind::Stack, tuple, note))
    }

    /// Tuple to look up in conntrack before an idle translated flow is removed; none for a flow
    /// that the stack does not carry.
    #[must_use]
    pub fn asked_of_flow(&self, key: &FlowKey, flow: &Flow) -> Option<PodTuple> {
        let is_asked = flow.stack != 0 && self.is_asked(key.protocol, flow_phase(key, flow));
        is_asked.then(|| {
            PodTuple::new(
                key.protocol,
                TransportAddr::new(flow.pod, flow.pod_port),
                TransportAddr::new(key.remote, key.remote_port),
            )
        })
    }

    /// True if conntrack is checked before a removal. A closed connection is not, if room is short.
    /// Our UDP flows live longer than conntrack's entries anyway.
    fn is_asked(&self, protocol: u8, phase: Phase) -> bool {
        protocol == protocol::TCP && !(self.short.room && phase == Phase::Closed)
    }
}

/// True if the reaper can see in the endpoint's kernel that a connection is over. Conntrack knows
/// more of a connection of the stack.
fn is_suspect(key: &FlowKey, flow: &Flow) -> bool {
    key.protocol == protocol::TCP && flow.progress_in & SUSPECT != 0 && flow.stack == 0
}

/// True if a flow is one question and its answer.
fn is_question(key: &FlowKey, flow: &Flow) -> bool {
    let is_well_known = key.protocol == protocol::UDP && u16::from_be(key.remote_port) < WELL_KNOWN;
    is_well_known && flow.progress_in != 0 && flow.progress_out & MORE == 0
}

#[cfg(test)]
mod tests {
    use std::sync::LazyLock;

    use datapath_common::abi::Addr;
    use datapath_common::progress::{DATA, DOUBT, FIN, SYN};

    use super::*;

    const HERTZ: u32 = 250;
    static STACK: LazyLock<StackLifetimes> = LazyLock::new(StackLifetimes::default);
    const REMOTE: Addr = Addr::from_v4_word(0x0101_0101);
    const POD: Addr = Addr::from_v4_word(0x0a00_0001);

    fn at(address: Addr, port: u16) -> TransportAddr {
        TransportAddr::new(address, port)
    }

    fn expiry(now: u64, is_pressed: bool, lifetimes: &Lifetimes) -> Expiry<'_> {
        Expiry {
            lifetimes,
            stack: &STACK,
            now,
            jiffies_per_second: HERTZ,
            short: is_pressed.into(),
        }
    }

    /// The seconds at which a flow is over that was last seen at 0.
    fn over(protocol: u8, progress: (u8, u8), is_pressed: bool) -> u64 {
        let key = FlowKey::new(0, protocol, at(REMOTE, 8080_u16.to_be()), 50000_u16.to_be());
        let mut flow = Flow::new(&key, at(POD, key.port), 7, 0);
        (flow.progress_out, flow.progress_in) = progress;
        let lifetimes = Lifetimes::default();
        let seconds = (0..10_000).find(|seconds| {
            expiry(seconds * u64::from(HERTZ), is_pressed, &lifetimes).is_over(&key, &flow)
        });
        let seconds = seconds.unwrap();
        let early = expiry(seconds * u64::from(HERTZ) - 1, is_pressed, &lifetimes);
        assert!(!early.is_over(&key, &flow), "a jiffy too early");
        seconds
    }

    #[test]
    fn a_flow_has_its_lifetime_and_the_second_in_which_it_was_not_noted() {
        assert_eq!(over(protocol::TCP, (SYN | DATA, SYN | DATA), false), 7441);
        assert_eq!(over(protocol::UDP, (DATA, 0), false), 31);
    }

    #[test]
    fn under_pressure_closed_connections_go_and_no_other_flow() {
        let closed = (SYN | DATA | FIN, SYN | DATA | FIN);
        assert_eq!(over(protocol::TCP, closed, false), 241);
        assert_eq!(over(protocol::TCP, closed, true), 3);
        let closing = (SYN | DATA | FIN, SYN | DATA);
        assert_eq!(over(protocol::TCP, closing, true), 241);
        assert_eq!(over(protocol::TCP, (SYN | DATA, SYN | DATA), true), 7441);
        assert_eq!(over(protocol::UDP, (DATA, DATA), true), 301);
    }

    /// The seconds at which a flow to a port is over for which something is short.
    fn over_short(protocol: u8, port: u16, progress: (u8, u8), short: Short) -> Option<u64> {
        let key = FlowKey::new(0, protocol, at(REMOTE, port.to_be()), 50000_u16.to_be());
        let mut flow = Flow::new(&key, at(POD, key.port), 7, 0);
        (flow.progress_out, flow.progress_in) = progress;
        let lifetimes = Lifetimes::default();
        (0..10_000).find(|seconds| {
            let expiry = Expiry {
                short,
                ..expiry(seconds * u64::from(HERTZ), false, &lifetimes)
            };
            expiry.is_over(&key, &flow)
        })
    }

    #[test]
    fn a_question_that_was_answered_goes_early_and_longer_chatter_stays() {
        let short = Short {
            half: true,
            ..Short::default()
        };
        let udp = |port, progress| over_short(protocol::UDP, port, progress, short);
        assert_eq!(udp(53, (DATA, DATA)), Some(11));
        assert_eq!(udp(53, (DATA | MORE, DATA)), Some(61));
        assert_eq!(udp(53, (DATA, 0)), Some(31), "no answer yet");
        assert_eq!(udp(1024, (DATA, DATA)), Some(301));
        let rest = over_short(protocol::UDP, 53, (DATA, DATA), Short::default());
        assert_eq!(rest, Some(61));
        let tcp = over_short(protocol::TCP, 53, (SYN | DATA, SYN | DATA), short);
        assert_eq!(tcp, Some(7441));
    }

    #[test]
    fn a_connection_that_is_suspected_of_being_over_is_checked_soon() {
        for suspect in [SUSPECT, SUSPECT | DOUBT] {
            let progress = (SYN | DATA, SYN | DATA | suspect);
            assert_eq!(over(protocol::TCP, progress, false), 241);
            assert_eq!(over(protocol::TCP, progress, true), 3);
        }
        let doubted = (SYN | DATA, SYN | DATA | DOUBT);
        assert_eq!(over(protocol::TCP, doubted, true), 241);
    }

    #[test]
    fn unanswered_flows_of_who_has_most_go_early_and_no_others() {
        let short = Short {
            most: true,
            ..Short::default()
        };
        let over = |protocol, progress| over_short(protocol, 8080, progress, short);
        assert_eq!(over(protocol::TCP, (SYN, 0)), Some(11));
        assert_eq!(over(protocol::TCP, (SYN, SYN)), Some(11));
        assert_eq!(over(protocol::UDP, (DATA, 0)), Some(11));
        assert_eq!(over(protocol::ICMP, (DATA, 0)), Some(11));
        assert_eq!(over(protocol::TCP, (SYN | DATA, SYN | DATA)), Some(7441));
        assert_eq!(over(protocol::UDP, (DATA, DATA)), Some(301));
    }

    #[test]
    fn under_pressure_datagrams_from_outside_go_that_nobody_has_answered() {
        let lifetimes = Lifetimes::default();
        let over = |out, is_pressed| {
            let tuple = PodTuple::new(protocol::UDP, at(POD, 1), at(REMOTE, 2));
            let note = TrackedFlow::new(&tuple, 0, 7, out);
            let seconds = (0..10_000).find(|seconds| {
                let expiry = expiry(seconds * u64::from(HERTZ), is_pressed, &lifetimes);
                expiry.is_note_over(NoteKind::Inbound, &tuple, &note)
            });
            seconds.unwrap()
        };
        assert_eq!((over(0, false), over(0, true)), (31, 11));
        assert_eq!((over(DATA, false), over(DATA, true)), (301, 301));
    }

    #[test]
    fn under_pressure_connections_from_outside_go_that_nobody_has_completed() {
        let lifetimes = Lifetimes::default();
        let over = |progress: (u8, u8), is_pressed| {
            let tuple = PodTuple::new(protocol::TCP, at(POD, 1), at(REMOTE, 2));
            let mut inbound = TrackedFlow::new(&tuple, 0, 7, progress.0);
            inbound.progress_in = progress.1;
            let seconds = (0..10_000).find(|seconds| {
                let expiry = expiry(seconds * u64::from(HERTZ), is_pressed, &lifetimes);
                expiry.is_note_over(NoteKind::Inbound, &tuple, &inbound)
            });
            seconds.unwrap()
        };
        assert_eq!((over((SYN, 0), false), over((SYN, 0), true)), (241, 11));
        assert_eq!(over((SYN, DATA), true), 7441);
        assert_eq!(over((SYN | DATA | FIN, DATA | FIN), true), 3);
        assert_eq!(over((SYN | DATA | FIN, DATA), true), 241);
    }

    #[test]
    fn what_was_seen_after_the_clock_was_read_is_not_idle() {
        let lifetimes = Lifetimes::default();
        let expiry = expiry(100, false, &lifetimes);
        assert_eq!(expiry.idle(150), Duration::ZERO);
        assert_eq!(expiry.idle(0), Duration::from_millis(400));
        let tuple = PodTuple::new(protocol::UDP, at(POD, 1), at(REMOTE, 2));
        assert!(!expiry.is_note_over(
            NoteKind::Inbound,
            &tuple,
            &TrackedFlow::new(&tuple, u64::MAX, 7, 0)
        ));
    }
}
