//! Which flows have been idle for too long.

use std::time::Duration;

use datapath_common::abi::{Flow, FlowKey, Note, PodTuple};
use datapath_common::headers::protocol;
use datapath_common::progress::Phase;

use super::lifetimes::{Lifetimes, flow_phase, note_phase};
use super::tables::NoteKind;
use super::tracker::StackLifetimes;

/// The programs note a packet's time at most this often, so a flow may have been busy for so long
/// after its last time.
const GRAIN: Duration = Duration::from_secs(1);

/// How long a TCP connection from the outside may be half open where room is short: whoever opens
/// one for use acknowledges within the time that a packet takes there and back. No lifetime is
/// shorter.
const HALF_OPEN_PRESSED: Duration = Duration::from_secs(10);

/// Judges flows at one moment.
#[derive(Clone, Copy, Debug)]
pub struct Judge<'a> {
    /// How long flows may be idle.
    pub lifetimes: &'a Lifetimes,
    /// How long notes of the host's stack may be.
    pub stack: &'a StackLifetimes,
    /// The time, in jiffies.
    pub now: u64,
    /// Jiffies in a second.
    pub jiffies_per_second: u32,
    /// Whether room is short, so that closed connections go at once.
    pub is_pressed: bool,
}

impl Judge<'_> {
    /// How long ago something was, by its time in jiffies.
    #[must_use]
    pub fn idle(&self, last_seen: u64) -> Duration {
        let jiffies = self.now.saturating_sub(last_seen);
        let hertz = u64::from(self.jiffies_per_second.max(1));
        let rest = Duration::from_secs(jiffies % hertz) / self.jiffies_per_second.max(1);
        Duration::from_secs(jiffies / hertz) + rest
    }

    /// How long a translated flow may be idle at this moment.
    #[must_use]
    pub fn lifetime(&self, key: &FlowKey, flow: &Flow) -> Duration {
        let mut lifetime = self.lifetimes.of_flow(key, flow);
        let phase = flow_phase(key, flow);
        if flow.stack != 0 {
            // Conntrack has it as well, whose answers are lost without the translation.
            lifetime = lifetime.max(self.stack.of(key.protocol, phase));
        }
        self.pressed(lifetime, key.protocol, phase)
    }

    /// How long a noted flow may be idle at this moment.
    #[must_use]
    pub fn note_lifetime(&self, kind: NoteKind, tuple: &PodTuple, note: &Note) -> Duration {
        let phase = note_phase(kind, tuple, note);
        let lifetime = match kind {
            NoteKind::Inbound => self.lifetimes.of_inbound(tuple, note),
            NoteKind::Stack => self.stack.of(tuple.protocol, phase),
        };
        let is_half_open = tuple.protocol == protocol::TCP && phase == Phase::Opening;
        if self.is_pressed && is_half_open {
            return lifetime.min(HALF_OPEN_PRESSED);
        }
        self.pressed(lifetime, tuple.protocol, phase)
    }

    fn pressed(&self, lifetime: Duration, protocol: u8, phase: Phase) -> Duration {
        let is_closed = protocol == protocol::TCP && phase == Phase::Closed;
        if self.is_pressed && is_closed {
            self.lifetimes.closed_under_pressure
        } else {
            lifetime
        }
    }

    /// Whether a translated flow has been idle for too long.
    #[must_use]
    pub fn is_over(&self, key: &FlowKey, flow: &Flow) -> bool {
        self.idle(flow.last_seen) >= self.lifetime(key, flow) + GRAIN
    }

    /// Whether a noted flow has been idle for too long.
    #[must_use]
    pub fn is_note_over(&self, kind: NoteKind, tuple: &PodTuple, note: &Note) -> bool {
        self.idle(note.last_seen) >= self.note_lifetime(kind, tuple, note) + GRAIN
    }

    /// Whether conntrack is to be asked before a note goes that has been idle for too long.
    #[must_use]
    pub fn is_to_be_asked(&self, tuple: &PodTuple, note: &Note) -> bool {
        self.is_asked(tuple.protocol, note_phase(NoteKind::Stack, tuple, note))
    }

    /// What conntrack is to be asked for before a translated flow goes that has been idle for too
    /// long; nothing for one that the stack does not carry.
    #[must_use]
    pub fn asked_of_flow(&self, key: &FlowKey, flow: &Flow) -> Option<PodTuple> {
        let is_asked = flow.stack != 0 && self.is_asked(key.protocol, flow_phase(key, flow));
        is_asked.then(|| {
            PodTuple::new(
                key.protocol,
                flow.pod,
                flow.pod_port,
                key.remote,
                key.remote_port,
            )
        })
    }

    /// A closed connection has nothing to lose where room is short, and what we keep of UDP outlives
    /// conntrack's entries.
    fn is_asked(&self, protocol: u8, phase: Phase) -> bool {
        protocol == protocol::TCP && !(self.is_pressed && phase == Phase::Closed)
    }
}

#[cfg(test)]
mod tests {
    use std::sync::LazyLock;

    use datapath_common::abi::Addr;
    use datapath_common::progress::{DATA, FIN, SYN};

    use super::*;

    const HERTZ: u32 = 250;
    static STACK: LazyLock<StackLifetimes> = LazyLock::new(StackLifetimes::default);
    const REMOTE: Addr = Addr::from_v4_word(0x0101_0101);
    const POD: Addr = Addr::from_v4_word(0x0a00_0001);

    fn judge(now: u64, is_pressed: bool, lifetimes: &Lifetimes) -> Judge<'_> {
        Judge {
            lifetimes,
            stack: &STACK,
            now,
            jiffies_per_second: HERTZ,
            is_pressed,
        }
    }

    /// The seconds at which a flow is over that was last seen at 0.
    fn over(protocol: u8, progress: (u8, u8), is_pressed: bool) -> u64 {
        let key = FlowKey::new(0, protocol, REMOTE, 8080_u16.to_be(), 50000_u16.to_be());
        let mut flow = Flow::new(&key, POD, key.port, 7, 0);
        (flow.progress_out, flow.progress_in) = progress;
        let lifetimes = Lifetimes::default();
        let seconds = (0..10_000).find(|seconds| {
            judge(seconds * u64::from(HERTZ), is_pressed, &lifetimes).is_over(&key, &flow)
        });
        let seconds = seconds.unwrap();
        let early = judge(seconds * u64::from(HERTZ) - 1, is_pressed, &lifetimes);
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

    #[test]
    fn under_pressure_connections_from_outside_go_that_nobody_has_completed() {
        let lifetimes = Lifetimes::default();
        let over = |progress: (u8, u8), is_pressed| {
            let tuple = PodTuple::new(protocol::TCP, POD, 1, REMOTE, 2);
            let mut inbound = Note::new(&tuple, 0, 7, progress.0);
            inbound.progress_in = progress.1;
            let seconds = (0..10_000).find(|seconds| {
                let judge = judge(seconds * u64::from(HERTZ), is_pressed, &lifetimes);
                judge.is_note_over(NoteKind::Inbound, &tuple, &inbound)
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
        let judge = judge(100, false, &lifetimes);
        assert_eq!(judge.idle(150), Duration::ZERO);
        assert_eq!(judge.idle(0), Duration::from_millis(400));
        let tuple = PodTuple::new(protocol::UDP, POD, 1, REMOTE, 2);
        assert!(!judge.is_note_over(
            NoteKind::Inbound,
            &tuple,
            &Note::new(&tuple, u64::MAX, 7, 0)
        ));
    }
}
