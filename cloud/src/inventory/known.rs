//! One ENI of the inventory: what a read showed, what is expected, how long reads have lacked it.

use std::collections::BTreeMap;
use std::time::Duration;

use ipam::Time;
use ipnet::IpNet;

use super::expect::{Change, Expectation, SETTLES};
use crate::{AttachState, Eni};

/// A block that no answer named is believed once two reads so far apart show it.
const CONFIRMS: Duration = Duration::from_secs(20);

#[derive(Clone, Debug)]
pub(super) struct Known {
    /// The ENI as the last read showed it.
    read: Eni,
    /// The beginning of that read.
    read_at: Time,
    /// The beginning of the last read by id that showed the ENI.
    by_id_at: Option<Time>,
    /// The read with what is expected on top.
    pub(super) shown: Eni,
    expected: Vec<Expectation>,
    sightings: BTreeMap<IpNet, Sighting>,
    missed: Option<Missed>,
}

/// Reads that lacked the ENI, from first to last.
#[derive(Clone, Copy, Debug)]
struct Missed {
    first: Time,
    last: Time,
    /// One of them was by id.
    by_id: bool,
}

/// Reads that showed a block, from first to last.
#[derive(Clone, Copy, Debug)]
struct Sighting {
    first: Time,
    last: Time,
    answered: bool,
}

impl Known {
    pub(super) fn new(eni: Eni, begun: Time) -> Self {
        let mut known = Self {
            shown: eni.clone(),
            read: eni,
            read_at: begun,
            by_id_at: None,
            expected: Vec::new(),
            sightings: BTreeMap::new(),
            missed: None,
        };
        known.show(begun);
        known
    }

    /// Believes an answer. Blocks of it need no second sight.
    pub(super) fn expect(&mut self, change: Change, now: Time) {
        let answered: Vec<IpNet> = match &change {
            Change::Assigned(blocks) => blocks.iter().copied().collect(),
            _ => Vec::new(),
        };
        self.expected
            .retain_mut(|it| change.supersede(&mut it.change));
        self.expected.push(Expectation { change, since: now });
        self.show(now);
        for block in answered {
            if let Some(sighting) = self.sightings.get_mut(&block) {
                sighting.answered = true;
            }
        }
    }

    /// Updates from a read that has the ENI. A read that can be older than the last one is ignored.
    /// Returns true if it settles an answer or a block.
    pub(super) fn seen(&mut self, eni: &Eni, begun: Time, by_id: bool) -> bool {
        if self.outranks(begun, by_id) {
            return false;
        }
        let (answers, blocks) = (self.expected.len(), self.settled());
        if by_id {
            self.by_id_at = Some(begun);
        }
        self.expected
            .retain(|it| !it.is_settled(begun, Some(eni), by_id));
        self.read = eni.clone();
        self.read_at = begun;
        self.missed = None;
        self.show(begun);
        answers != self.expected.len() || blocks != self.settled()
    }

    /// The number of settled blocks.
    fn settled(&self) -> usize {
        let sightings = self.sightings.values();
        sightings.filter(|it| it.is_settled()).count()
    }

    fn show(&mut self, begun: Time) {
        self.shown = self.read.clone();
        for expectation in &self.expected {
            expectation.change.apply(&mut self.shown);
        }
        self.sightings
            .retain(|block, _| self.shown.blocks.contains(block));
        for block in &self.shown.blocks {
            let sighting = self.sightings.entry(*block).or_insert(Sighting {
                first: begun,
                last: begun,
                answered: false,
            });
            if self.read.blocks.contains(block) {
                sighting.last = sighting.last.max(self.read_at);
            }
        }
    }

    /// Returns true if a block is gone: no read shows it, and none can be older than the answer to
    /// its removal.
    pub(super) fn lacks(&self, block: &IpNet) -> bool {
        let is_expected = self
            .expected
            .iter()
            .any(|it| matches!(&it.change, Change::Unassigned(blocks) if blocks.contains(block)));
        !is_expected && !self.shown.blocks.contains(block)
    }

    /// Returns true if an answer assigned a block, and no read has settled that.
    pub(super) fn was_given(&self, block: &IpNet) -> bool {
        let mut expected = self.expected.iter();
        expected.any(|it| matches!(&it.change, Change::Assigned(blocks) if blocks.contains(block)))
    }

    /// Updates from a read that lacks the ENI. Returns true if the ENI is gone: the operator
    /// deleted it and the read is late enough, or reads have lacked it for long and now one by id
    /// does, too.
    pub(super) fn lacked(&mut self, begun: Time, by_id: bool) -> bool {
        if self.outranks(begun, by_id) {
            return false;
        }
        if let Some(deleted) = self.deletion() {
            return deleted.is_settled(begun, None, by_id);
        }
        if self.is_fresh(begun) {
            return false;
        }
        let was_doubted = self.is_doubted();
        let missed = self.missed.get_or_insert(Missed {
            first: begun,
            last: begun,
            by_id,
        });
        missed.last = missed.last.max(begun);
        missed.by_id |= by_id;
        was_doubted && by_id
    }

    /// Reports if a read shows less than is known already. Reads with filters lag far more than
    /// those by id.
    fn outranks(&self, begun: Time, by_id: bool) -> bool {
        let by_id_at = self.by_id_at.filter(|_| !by_id);
        begun < self.read_at || by_id_at.is_some_and(|at| begun.since(at) < SETTLES)
    }

    /// The beginning of the last read by id that showed the ENI.
    pub(super) fn by_id_at(&self) -> Option<Time> {
        self.by_id_at
    }

    /// Reports if EC2 still creates the ENI, attaches it or detaches it.
    pub(super) fn is_moving(&self) -> bool {
        match &self.shown.attachment {
            Some(attachment) => attachment.state != AttachState::Attached,
            None => self.shown.is_pending,
        }
    }

    /// The beginning of the last read that showed the ENI.
    pub(super) fn read_at(&self) -> Time {
        self.read_at
    }

    /// Reports if something is expected that a read could not deny yet.
    pub(super) fn is_fresh(&self, now: Time) -> bool {
        self.expected.iter().any(|it| it.outlasts(now))
    }

    /// Lets the next read by id decide.
    pub(super) fn doubt(&mut self, now: Time) {
        let last = now.max(Time::default().after(SETTLES));
        self.missed = Some(Missed {
            first: Time::default(),
            last,
            by_id: false,
        });
    }

    fn deletion(&self) -> Option<&Expectation> {
        self.expected.iter().find(|it| it.change == Change::Deleted)
    }

    pub(super) fn is_deleted(&self) -> bool {
        self.deletion().is_some()
    }

    /// Reports if two reads, far enough apart, lacked the ENI.
    pub(super) fn is_doubted(&self) -> bool {
        self.missed
            .is_some_and(|it| it.last.since(it.first) >= SETTLES)
    }

    /// Reports if a block was answered, or two reads far enough apart showed it.
    pub(super) fn is_settled(&self, block: &IpNet) -> bool {
        self.sightings.get(block).is_some_and(Sighting::is_settled)
    }

    /// Reports if a read by id is due: it lags little, it shows an ENI that went elsewhere, and it
    /// withdraws one that other reads have lacked for long.
    pub(super) fn wants_a_read_by_id(&self) -> bool {
        self.is_moving() || self.is_doubted() || self.missed.is_some_and(|it| !it.by_id)
    }

    /// Reports if another read could say something new about an answer, or about an ENI that was
    /// missed.
    pub(super) fn wants_an_answer(&self, now: Time) -> bool {
        let is_missed = self
            .missed
            .is_some_and(|it| !it.by_id || now.since(it.first) >= SETTLES);
        let mut expected = self.expected.iter();
        is_missed || expected.any(|it| now.since(it.since) >= SETTLES)
    }

    /// Reports if another read could say something new about the ENI's state or its blocks.
    pub(super) fn wants_a_look(&self, now: Time) -> bool {
        let mut unsettled = self.sightings.values().filter(|it| !it.is_settled());
        self.is_moving() || unsettled.any(|it| now.since(it.first) >= CONFIRMS)
    }
}

impl Sighting {
    fn is_settled(&self) -> bool {
        self.answered || self.last.since(self.first) >= CONFIRMS
    }
}
