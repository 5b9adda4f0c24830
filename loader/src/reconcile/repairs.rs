//! Counts drift that foreign programs cause, and detects repeated drift.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::time::{Duration, Instant};

use api::types::ObjectKind;
use api::types::RepairWar;
use serde::{Deserialize, Serialize};

use crate::kernel::{Object, ObjectKey};

/// Repairs of one object within [`WINDOW`] that are still taken for accidents.
const TOLERATED: usize = 10;
/// The period in which repairs of an object count; a war is over after this long without one.
const WINDOW: Duration = Duration::from_mins(1);
/// The time between repairs of an object in a war.
const PACE: Duration = Duration::from_secs(1);

/// Repairs: changes of other software that we undid.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Repairs {
    /// Repairs since the start.
    pub total: u64,
    /// The repairs by kind of object.
    pub by_kind: BTreeMap<ObjectKind, u64>,
    /// Objects that are being fought over now.
    pub wars: Vec<RepairWar>,
}

/// The state from which [`Repairs`] is computed.
#[derive(Debug, Default)]
pub(super) struct Ledger {
    /// The desired objects that were there at the end of the last clean pass, or of the last pass
    /// that was clean for the object's scope. Only the loss of these is drift by a foreign program.
    /// An object that was never there is new.
    settled: BTreeSet<Object>,
    recent: BTreeMap<ObjectKey, Recent>,
    total: u64,
    by_kind: BTreeMap<ObjectKind, u64>,
}

#[derive(Debug)]
struct Recent {
    object: Object,
    text: String,
    times: VecDeque<Instant>,
    war: bool,
}

impl Ledger {
    /// Notes what is there after a clean pass.
    pub(super) fn settle(&mut self, objects: impl IntoIterator<Item = Object>) {
        self.settled = objects.into_iter().collect();
    }

    /// Records the objects of clean scopes after a pass that was not clean as a whole. A repeated
    /// failure in one scope must not prevent the counting of repairs in the others.
    pub(super) fn settle_more(&mut self, objects: impl IntoIterator<Item = Object>) {
        self.settled.extend(objects);
    }

    /// Notes that an object went by a step of ours, or may have.
    pub(super) fn forget(&mut self, object: &Object) {
        self.settled.remove(object);
    }

    /// Resets the state: objects that are missing from now on do not count as drift.
    pub(super) fn forget_all(&mut self) {
        self.settled.clear();
    }

    /// True if making this object would be a repair.
    pub(super) fn is_repair(&self, object: &Object) -> bool {
        self.settled.contains(object)
    }

    /// The time that a repair of this object has to wait; `None` if it may be made now.
    pub(super) fn wait(&mut self, object: &Object, now: Instant) -> Option<Duration> {
        self.expire(now);
        let recent = self.recent.get(&object.key()).filter(|r| r.war)?;
        let next = *recent.times.back()? + PACE;
        Some(next.saturating_duration_since(now)).filter(|wait| !wait.is_zero())
    }

    /// Counts a repair that was made.
    pub(super) fn count(&mut self, object: Object, text: String, now: Instant) {
        self.total += 1;
        *self.by_kind.entry(object.kind()).or_default() += 1;
        let recent = self.recent.entry(object.key()).or_insert_with(|| Recent {
            object,
            text: String::new(),
            times: VecDeque::new(),
            war: false,
        });
        recent.object = object;
        recent.text = text;
        recent.times.push_back(now);
        self.expire(now);
    }

    pub(super) fn repairs(&mut self, now: Instant) -> Repairs {
        self.expire(now);
        let at_war = self.recent.values().filter(|recent| recent.war);
        Repairs {
            total: self.total,
            by_kind: self.by_kind.clone(),
            wars: at_war
                .map(|recent| RepairWar {
                    kind: recent.object.kind(),
                    object: recent.text.clone(),
                    count: recent.times.len(),
                    hint: hint(recent.object.kind()).to_owned(),
                })
                .collect(),
        }
    }

    fn expire(&mut self, now: Instant) {
        for recent in self.recent.values_mut() {
            let old = |time: &&Instant| now.saturating_duration_since(**time) >= WINDOW;
            let expired = recent.times.iter().take_while(old).count();
            recent.times.drain(..expired);
            recent.war |= recent.times.len() > TOLERATED;
        }
        self.recent.retain(|_, recent| !recent.times.is_empty());
    }
}

/// Other software that writes objects of a kind, by reports of its users.
fn hint(kind: ObjectKind) -> &'static str {
    match kind {
        ObjectKind::Rule | ObjectKind::Route => {
            "systemd-networkd (ManageForeignRoutes=no, ManageForeignRoutingPolicyRules=no), \
             NetworkManager, or another CNI"
        }
        ObjectKind::Address | ObjectKind::LinkState | ObjectKind::Mtu => {
            "a DHCP client, systemd-networkd or NetworkManager: make the device unmanaged there"
        }
        ObjectKind::Sysctl => "sysctl.d, tuned, or another CNI",
        ObjectKind::Attachment => "another eBPF agent, or tc",
        ObjectKind::Device | ObjectKind::Neighbour => {
            "udev, a network manager, or a container runtime"
        }
        ObjectKind::MapEntry => "a second agent, or bpftool",
        ObjectKind::NetfilterTable => "a firewall manager that flushes the whole ruleset",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn object() -> Object {
        Object::Mtu {
            ifindex: 3,
            mtu: 9001,
        }
    }

    #[test]
    fn the_eleventh_repair_in_a_minute_is_a_war_and_a_quiet_minute_ends_it() {
        let start = Instant::now();
        let at = |seconds| start + Duration::from_secs(seconds);
        let mut ledger = Ledger::default();
        for second in 0..10 {
            assert_eq!(ledger.wait(&object(), at(second)), None);
            ledger.count(object(), "link eth1 mtu 9001".into(), at(second));
        }
        assert!(ledger.repairs(at(9)).wars.is_empty());
        ledger.count(object(), "link eth1 mtu 9001".into(), at(10));
        let repairs = ledger.repairs(at(10));
        assert_eq!(repairs.total, 11);
        assert_eq!(repairs.by_kind[&ObjectKind::Mtu], 11);
        assert_eq!(repairs.wars[0].count, 11);
        assert_eq!(repairs.wars[0].object, "link eth1 mtu 9001");
        assert_eq!(
            ledger.wait(&object(), at(10) + Duration::from_millis(300)),
            Some(Duration::from_millis(700))
        );
        assert_eq!(ledger.wait(&object(), at(11)), None);

        assert_eq!(
            ledger.repairs(at(69)).wars.len(),
            1,
            "one repair is in the window"
        );
        assert!(ledger.repairs(at(70)).wars.is_empty());
        ledger.count(object(), String::new(), at(71));
        assert!(ledger.repairs(at(71)).wars.is_empty());
    }

    #[test]
    fn repairs_that_are_far_apart_are_no_war() {
        let start = Instant::now();
        let mut ledger = Ledger::default();
        for step in 0..100 {
            let now = start + Duration::from_secs(6 * step);
            ledger.count(object(), String::new(), now);
            assert!(ledger.repairs(now).wars.is_empty());
        }
    }
}
