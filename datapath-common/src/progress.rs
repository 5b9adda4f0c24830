//! Progress of a flow, from the packets of each direction.

use crate::headers::protocol;

/// A TCP SYN has passed.
pub const SYN: u8 = 1;
/// A packet that is not a SYN has passed: a TCP segment with ACK, or any packet of another
/// protocol. A SYN-ACK in the answering direction sets it, too ([`inbound`]).
pub const DATA: u8 = 1 << 1;
/// A TCP FIN has passed.
pub const FIN: u8 = 1 << 2;
/// A TCP RST has passed.
pub const RST: u8 = 1 << 3;
/// A packet of a connectionless flow has passed more than two seconds after its start, and after
/// both sides have sent. From then on conntrack treats the flow as a stream
/// (`nf_conntrack_udp_packet` in `net/netfilter/nf_conntrack_proto_udp.c`). Only entries of `STACK`
/// have it.
pub const STREAM: u8 = 1 << 4;

/// A segment from the outside may have ended a TCP connection: it has a FIN or RST, and a sequence
/// number near the awaited one. Only packets from the outside set it.
pub const DOUBT: u8 = 1 << 5;

/// The endpoint's kernel had the TCP connection when a segment passed that may have ended it. If it
/// has the connection no more, that is over, even if the endpoint has sent something in between: it
/// can acknowledge what came before the segment. The reaper looks, and clears the bit. Only
/// translated flows have it.
pub const SUSPECT: u8 = 1 << 6;

/// A second packet of a connectionless flow has passed from the inside, within a second of another
/// packet. A later one may be another question from the same port. Only translated flows have it.
pub const MORE: u8 = 1 << 4;

/// Flags of a TCP header (RFC 9293 section 3.1).
pub mod tcp {
    /// No more data.
    pub const FIN: u8 = 0x01;
    /// Synchronise sequence numbers.
    pub const SYN: u8 = 0x02;
    /// Reset the connection.
    pub const RST: u8 = 0x04;
    /// The acknowledgement field counts.
    pub const ACK: u8 = 0x10;
    /// Segment that accepts a connection.
    pub const SYN_ACK: u8 = SYN | ACK;
}

/// Credibility of a segment from the outside that ends a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
pub enum Ending {
    /// The segment is forged: its sender does not know the connection.
    Ignored = 0,
    /// The segment may end the connection, of which nothing is known.
    Doubtful = 1,
    /// The segment ends the connection.
    Believed = 2,
    /// The segment may end the connection: its number is near the one that the receiver awaits.
    Near = 3,
}

impl Ending {
    /// Largest distance above the awaited sequence number that counts as within the receiver's
    /// window.
    const NEAR: u32 = 1 << 16;

    /// Judges a segment by its sequence number and the one that its receiver awaits. A receiver
    /// accepts a reset only with exactly the awaited number (RFC 5961 section 3.2).
    #[inline(always)]
    #[must_use]
    pub const fn of(sequence: u32, awaited: u32) -> Self {
        match sequence.wrapping_sub(awaited) {
            0 => Self::Believed,
            1..=Self::NEAR => Self::Near,
            _ => Self::Ignored,
        }
    }

    /// The ending whose number a global function gave.
    #[inline(always)]
    #[must_use]
    pub const fn from_register(register: u32) -> Self {
        const BELIEVED: u32 = Ending::Believed as u32;
        const DOUBTFUL: u32 = Ending::Doubtful as u32;
        const NEAR: u32 = Ending::Near as u32;
        match register {
            BELIEVED => Self::Believed,
            DOUBTFUL => Self::Doubtful,
            NEAR => Self::Near,
            _ => Self::Ignored,
        }
    }

    /// True if the segment may end the connection, or not.
    #[inline(always)]
    #[must_use]
    pub const fn is_doubtful(self) -> bool {
        matches!(self, Self::Doubtful | Self::Near)
    }
}

/// Progress of a flow; decides how long it may be idle.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Phase {
    /// One side has not sent yet, or TCP's handshake is not complete.
    Opening,
    /// Both sides have sent.
    Established,
    /// One side has ended the TCP connection, or the outside may have.
    Closing,
    /// Both sides have ended the TCP connection, or one has reset it.
    Closed,
}

/// Progress bits of a packet. `flags` are those of TCP, 0 for other protocols.
#[inline(always)]
#[must_use]
pub const fn of_packet(protocol: u8, flags: u8) -> u8 {
    if protocol != protocol::TCP {
        return DATA;
    }
    // Shifts instead of branches: the verifier would follow each of them.
    let (fin, syn, rst) = (flags & 1, flags >> 1 & 1, flags >> 2 & 1);
    let data = flags >> 4 & 1 & !syn;
    (syn * SYN) | (data * DATA) | (fin * FIN) | (rst * RST)
}

/// True if TCP flags are of a segment that ends or resets its connection.
#[inline(always)]
#[must_use]
pub const fn ends(flags: u8) -> bool {
    flags & (tcp::FIN | tcp::RST) != 0
}

/// Progress bits of the outside after a packet of a flow that was opened from the inside. The end
/// of a connection is left to [`ended`].
///
/// A SYN-ACK also sets the bit of a later segment. That does not change [`phase`], and such a
/// segment then sets no new bit.
#[inline(always)]
#[must_use]
pub const fn inbound(protocol: u8, flags: u8, inward: u8) -> u8 {
    let shown = of_packet(protocol, flags);
    let acknowledged = flags >> 4 & 1 & (shown & SYN);
    goes_on(shown, inward) | (shown & !(FIN | RST)) | (acknowledged * DATA)
}

/// Progress bits of the outside after a packet from it with the bits `shown`. A segment that
/// neither ends nor resets the connection clears [`DOUBT`].
#[inline(always)]
#[must_use]
pub const fn goes_on(shown: u8, inward: u8) -> u8 {
    // A shift, as in `of_packet`: the bit of a segment that neither ends nor resets.
    let goes_on = !(shown >> 2 | shown >> 3) & 1;
    inward & !(goes_on * DOUBT)
}

/// Progress bits of the outside after a segment that ends a connection.
#[inline(always)]
#[must_use]
pub const fn ended(ending: Ending, flags: u8, inward: u8) -> u8 {
    match ending {
        Ending::Ignored => inward,
        Ending::Doubtful => inward | DOUBT,
        Ending::Near => inward | DOUBT | SUSPECT,
        Ending::Believed => inward | (of_packet(protocol::TCP, flags) & (FIN | RST)),
    }
}

/// Progress bits of both directions, out and in, after a packet from the inside.
///
/// A SYN on a closed connection opens a new one on the same ports (RFC 5382 REQ-1, RFC 6191). A
/// segment from the inside after a reset or a doubtful end from the outside shows that the inside
/// did not accept it.
#[inline(always)]
#[must_use]
pub const fn outbound(protocol: u8, flags: u8, out: u8, inward: u8) -> (u8, u8) {
    let shown = of_packet(protocol, flags);
    let opens = flags & (tcp::SYN | tcp::ACK) == tcp::SYN;
    if opens && matches!(phase(protocol, out, inward), Phase::Closed) {
        return (shown, 0);
    }
    let inward = if shown & (SYN | RST) == 0 {
        inward & !(RST | DOUBT)
    } else {
        inward
    };
    (out | shown, inward)
}

/// [`MORE`] of a packet from the inside, if another one has shown `out` before.
#[inline(always)]
#[must_use]
pub const fn more(protocol: u8, out: u8) -> u8 {
    if protocol == protocol::TCP {
        0
    } else {
        (out & DATA) / DATA * MORE
    }
}

/// Progress of both directions of a flow.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Progress {
    /// That of packets from the inside.
    pub out: u8,
    /// That of packets from the outside.
    pub inward: u8,
}

/// True if a packet has turned a flow, by the progress before and after it: some progress was
/// withdrawn, or the flow was reset. Progress after a turn counts as new.
#[inline(always)]
#[must_use]
pub const fn is_turned(before: Progress, after: Progress) -> bool {
    let taken_back = (before.out & !after.out) | (before.inward & !after.inward);
    let shown = (after.out & !before.out) | (after.inward & !before.inward);
    taken_back | (shown & RST) != 0
}

/// Phase of a flow.
#[inline(always)]
#[must_use]
pub const fn phase(protocol: u8, out: u8, inward: u8) -> Phase {
    let both = out & inward;
    let either = out | inward;
    if protocol != protocol::TCP {
        return if inward == 0 {
            Phase::Opening
        } else {
            Phase::Established
        };
    }
    if either & RST != 0 || both & FIN != 0 {
        Phase::Closed
    } else if either & FIN != 0 {
        Phase::Closing
    } else if both & DATA != 0 || (out & DATA != 0 && inward & SYN != 0) {
        if inward & DOUBT == 0 {
            Phase::Established
        } else {
            Phase::Closing
        }
    } else {
        Phase::Opening
    }
}

#[cfg(test)]
mod tests {
    use std::vec;
    use std::vec::Vec;

    use super::tcp::{ACK, FIN as F, RST as R, SYN as S};
    use super::*;

    #[test]
    fn a_second_packet_shows_of_flows_without_connections() {
        let udp = |out| more(protocol::UDP, out);
        assert_eq!([0, DATA, DATA | MORE].map(udp), [0, MORE, MORE]);
        assert_eq!(more(protocol::TCP, SYN | DATA), 0);
    }

    enum Packet {
        Out(u8),
        In(u8),
        Doubted(u8),
    }
    use Packet::{Doubted, In, Out};

    fn received(ending: Ending, flags: u8, inward: u8) -> u8 {
        let inward = inbound(protocol::TCP, flags, inward);
        if ends(flags) {
            ended(ending, flags, inward)
        } else {
            inward
        }
    }

    fn after(packets: &[Packet]) -> Phase {
        let (mut out, mut inward) = (0, 0);
        for packet in packets {
            match packet {
                Out(flags) => (out, inward) = outbound(protocol::TCP, *flags, out, inward),
                In(flags) => inward = received(Ending::Believed, *flags, inward),
                Doubted(flags) => inward = received(Ending::Doubtful, *flags, inward),
            }
        }
        phase(protocol::TCP, out, inward)
    }

    #[test]
    fn flags_show_what_they_are() {
        for flags in 0..=u8::MAX {
            let has = |flag, shown| if flags & flag == 0 { 0 } else { shown };
            let opening = if flags & S == 0 { has(ACK, DATA) } else { SYN };
            let expected = opening | has(F, FIN) | has(R, RST);
            assert_eq!(of_packet(protocol::TCP, flags), expected, "{flags:#x}");
            assert_eq!(of_packet(protocol::UDP, flags), DATA);
        }
    }

    #[test]
    fn an_answers_acknowledgement_says_no_more_than_its_syn() {
        for flags in 0..=u8::MAX {
            let accepts = flags & (S | ACK) == S | ACK;
            let more = if accepts { DATA } else { 0 };
            let tcp = protocol::TCP;
            let shown = of_packet(tcp, flags) & !(FIN | RST);
            assert_eq!(inbound(tcp, flags, 0), shown | more);
            assert_eq!(inbound(protocol::UDP, flags, 0), DATA);
        }
        for out in 0..16 {
            for inward in (0..16).map(|inward| inward | SYN) {
                let phase = |inward| phase(protocol::TCP, out, inward);
                assert_eq!(
                    phase(inward | DATA),
                    phase(inward & !DATA),
                    "{out} {inward}"
                );
            }
        }
    }

    #[test]
    fn a_connection_opens_lives_and_ends() {
        assert_eq!(after(&[Out(S)]), Phase::Opening);
        assert_eq!(after(&[Out(S), In(S | ACK)]), Phase::Opening);
        assert_eq!(after(&[Out(S), In(S | ACK), Out(ACK)]), Phase::Established);
        let open = || vec![Out(S), In(S | ACK), Out(ACK), In(ACK)];
        let with = |more: Vec<Packet>| after(&open().into_iter().chain(more).collect::<Vec<_>>());
        assert_eq!(with(vec![Out(F | ACK)]), Phase::Closing);
        assert_eq!(with(vec![In(F | ACK), Out(ACK)]), Phase::Closing);
        assert_eq!(with(vec![In(F | ACK), Out(F | ACK)]), Phase::Closed);
        assert_eq!(with(vec![Out(R)]), Phase::Closed);
        assert_eq!(with(vec![In(R)]), Phase::Closed);
    }

    #[test]
    fn a_new_syn_reopens_what_is_closed_and_nothing_else() {
        let closed = || vec![Out(S), In(S | ACK), Out(F | ACK), In(F | ACK)];
        let with = |more: Vec<Packet>| after(&closed().into_iter().chain(more).collect::<Vec<_>>());
        assert_eq!(with(vec![Out(ACK)]), Phase::Closed);
        assert_eq!(with(vec![Out(S)]), Phase::Opening);
        assert_eq!(
            with(vec![Out(S), In(S | ACK), Out(ACK)]),
            Phase::Established
        );
        let live = [Out(S), In(S | ACK), Out(ACK), Out(S)];
        assert_eq!(after(&live), Phase::Established);
    }

    #[test]
    fn a_reset_that_the_inside_does_not_believe_does_not_count() {
        let open = [Out(S), In(S | ACK), Out(ACK), In(R), Out(ACK)];
        assert_eq!(after(&open), Phase::Established);
        let own = [Out(S), In(S | ACK), Out(ACK), Out(R), Out(ACK)];
        assert_eq!(after(&own), Phase::Closed);
    }

    #[test]
    fn only_the_awaited_number_ends_a_connection() {
        let awaited = u32::MAX - 5;
        for (ahead, expected) in [
            (0, Ending::Believed),
            (1, Ending::Near),
            (65_536, Ending::Near),
            (65_537, Ending::Ignored),
            (u32::MAX, Ending::Ignored),
        ] {
            let ending = Ending::of(awaited.wrapping_add(ahead), awaited);
            assert_eq!(ending, expected, "{ahead}");
            assert_eq!(Ending::from_register(ending as u32), ending);
        }
    }

    #[test]
    fn what_may_have_ended_is_taken_back_by_either_side() {
        let open = || vec![Out(S), In(S | ACK), Out(ACK), In(ACK)];
        let with = |more: Vec<Packet>| after(&open().into_iter().chain(more).collect::<Vec<_>>());
        for flags in [R, R | ACK, F | ACK] {
            assert_eq!(with(vec![Doubted(flags)]), Phase::Closing);
            assert_eq!(with(vec![Doubted(flags), Out(ACK)]), Phase::Established);
            assert_eq!(with(vec![Doubted(flags), In(ACK)]), Phase::Established);
            assert_eq!(with(vec![Doubted(flags), Doubted(F)]), Phase::Closing);
            assert_eq!(with(vec![Doubted(flags), In(R)]), Phase::Closed);
            assert_eq!(after(&[Out(S), Doubted(flags)]), Phase::Opening);
        }
        assert_eq!(ended(Ending::Ignored, R, SYN | DATA), SYN | DATA);
        let near = ended(Ending::Near, R, SYN | DATA);
        assert_eq!(phase(protocol::TCP, SYN | DATA, near), Phase::Closing);
        let (out, near) = outbound(protocol::TCP, ACK, SYN | DATA, near);
        assert_eq!(phase(protocol::TCP, out, near), Phase::Established);
        assert_eq!(near, SYN | DATA | SUSPECT, "the reaper will look");
    }

    #[test]
    fn a_turn_is_what_takes_back_and_what_resets() {
        let (begun, spoken, ended) = (SYN, SYN | DATA, SYN | DATA | FIN);
        for (before, after, is_it) in [
            ((0, 0), (begun, 0), false),
            ((begun, 0), (begun, begun), false),
            ((begun, begun), (spoken, begun), false),
            ((spoken, spoken), (ended, spoken), false),
            ((ended, spoken), (ended, ended), false),
            ((spoken, spoken), (spoken | RST, spoken), true),
            ((spoken, spoken), (spoken, spoken | RST), true),
            ((spoken, spoken), (spoken, spoken | DOUBT), false),
            ((spoken, spoken | DOUBT), (spoken, spoken), true),
            ((spoken, spoken | RST), (spoken, spoken), true),
            ((ended, ended), (begun, 0), true),
            ((DATA | FIN, 0), (SYN, 0), true),
        ] {
            let [before, after] = [before, after].map(|(out, inward)| Progress { out, inward });
            assert_eq!(is_turned(before, after), is_it, "{before:?} to {after:?}");
        }
    }

    #[test]
    fn other_protocols_know_only_whether_there_was_an_answer() {
        for protocol in [protocol::UDP, protocol::ICMPV6] {
            let (out, inward) = outbound(protocol, 0, 0, 0);
            assert_eq!(phase(protocol, out, inward), Phase::Opening);
            let inward = inbound(protocol, 0, inward);
            assert_eq!(phase(protocol, out, inward), Phase::Established);
        }
    }
}
