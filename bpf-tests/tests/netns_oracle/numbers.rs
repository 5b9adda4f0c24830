//! Sequence and acknowledgement numbers of the connections in a sequence: conntrack checks them.

use std::collections::BTreeMap;

use crate::sequence::{Direction, Ports, Segment};

/// Sequence numbers that each side of a connection has reached.
#[derive(Clone, Copy)]
struct Counted {
    out: u32,
    inward: u32,
}

/// The connections, by their ports.
#[derive(Default)]
pub(crate) struct Connections {
    known: BTreeMap<(u16, u16), Counted>,
    begun: u32,
}

impl Connections {
    /// The two numbers of the next segment, with a payload of this length.
    pub(crate) fn next(
        &mut self,
        direction: Direction,
        ports: Ports,
        segment: Segment,
        length: usize,
    ) -> (u32, u32) {
        self.begun += 1;
        let fresh = Counted {
            out: self.begun * 1_000_000,
            inward: self.begun * 1_000_000 + 500_000,
        };
        let is_new =
            segment.flags & 0x12 == 0x02 && direction == Direction::Out && !segment.is_again;
        let key = (ports.pod, ports.remote);
        let mut counted = match self.known.get(&key) {
            Some(known) if !is_new => *known,
            _ => fresh,
        };
        // SYN and FIN count as a byte each.
        let length = u32::try_from(length).unwrap_or_default()
            + u32::from(segment.flags & 1)
            + u32::from((segment.flags >> 1) & 1);
        let (own, other) = match direction {
            Direction::Out => (&mut counted.out, counted.inward),
            Direction::In => (&mut counted.inward, counted.out),
        };
        if segment.is_again {
            *own = own.wrapping_sub(length);
        }
        let sequence = own.wrapping_add(segment.skip);
        *own = own.wrapping_add(length);
        if segment.skip == 0 {
            self.known.insert(key, counted);
        }
        let acknowledged = if segment.flags & 0x10 == 0 { 0 } else { other };
        (if segment.is_zero { 0 } else { sequence }, acknowledged)
    }
}
