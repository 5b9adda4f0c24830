//! Faults of calls, and the numbers that choose them.

use cloud::node::Step;
use ipam::Time;

/// A fault of a call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Fault {
    /// The operator dies before it sends the call.
    KilledBefore,
    /// The operator dies, and the call takes effect.
    KilledAfter,
    /// The operator dies, and the call takes effect later.
    KilledLate,
    /// The call is lost.
    Unsent,
    /// The answer is lost.
    AnswerLost,
    /// The answer is lost, and the call takes effect later.
    Late,
    /// The call takes effect twice.
    Twice,
}

/// Faults of a bed's calls.
#[derive(Debug, Default)]
pub(crate) struct Faults {
    /// Chance of a fault for each call, in percent.
    pub(crate) chance: u32,
    /// The fault of the call with that number, counted from 0.
    pub(crate) planned: Option<(usize, Fault)>,
    /// Calls that take effect later, of which no answer comes.
    pub(super) late: Vec<(Time, Step)>,
    calls: usize,
}

impl Faults {
    /// The fault of the next call.
    pub(super) fn next(&mut self, random: &mut Random) -> Option<Fault> {
        let number = self.calls;
        self.calls += 1;
        if let Some((planned, fault)) = self.planned {
            return (planned == number).then_some(fault);
        }
        (random.below(100) < u64::from(self.chance)).then(|| random.fault())
    }

    /// Takes the late calls that take effect now.
    pub(super) fn take_late(&mut self, now: Time) -> Vec<Step> {
        let due = self.late.extract_if(.., |(at, _)| *at <= now);
        due.map(|(_, step)| step).collect()
    }
}

impl Fault {
    pub(crate) const ALL: [Self; 7] = [
        Self::KilledBefore,
        Self::KilledAfter,
        Self::KilledLate,
        Self::Unsent,
        Self::AnswerLost,
        Self::Late,
        Self::Twice,
    ];
}

/// Pseudorandom numbers (xorshift), so that a run can be repeated.
pub(crate) struct Random(u64);

impl Random {
    pub(crate) fn new(seed: u64) -> Self {
        Self(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1)
    }

    pub(crate) fn below(&mut self, bound: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0 % bound
    }

    pub(crate) fn fault(&mut self) -> Fault {
        let number = self.below(7);
        Fault::ALL[usize::try_from(number).unwrap()]
    }
}
