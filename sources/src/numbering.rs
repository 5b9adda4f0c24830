//! Numbers of the ENIs, and the last valid form of each: both outlive the agent, within one boot.
//!
//! Numbers are in packet marks and in flows. The number of an ENI is given to another only when
//! nothing carries it any more.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::path::{Path, PathBuf};
use std::time::Instant;

use anyhow::Result;
use api::ids::{EniNumber, MacAddr};
use api::types::Readiness;
use datapath_common::mark::MarkLayout;
use loader::intent::{Eni, Node};
use loader::kernel::{Link, MapEntry, MapKey};
use loader::observation::ownership::may_be_eni;
use serde::{Deserialize, Serialize};

use crate::record;
use flows as nat;
use node_document::{Around, take_enis};

/// Name of the record in the state folder.
const NAME: &str = "enis.json";

/// The entries of the datapath's maps.
type Maps = BTreeMap<MapKey, MapEntry>;

/// The numbers.
#[derive(Debug)]
pub struct Numbering {
    path: PathBuf,
    record: Record,
    /// Times since which numbers have no ENI, as far as this agent knows.
    since: BTreeMap<EniNumber, Instant>,
    /// Conditions of the last placement.
    around: Around,
    /// True if the datapath's numbers were read.
    is_adopted: bool,
    /// True if the record on disk differs.
    is_stale: bool,
}

/// The record on disk.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
struct Record {
    /// The boot that it is of: flows do not outlive it.
    boot: String,
    /// ENIs for pods, by id, in their last good form.
    enis: BTreeMap<String, Eni>,
    /// Numbers that something may still carry, and the ENIs that had them.
    retired: BTreeMap<EniNumber, String>,
}

impl Numbering {
    /// Reads the record of an earlier agent of this boot. An unreadable record counts as missing.
    #[must_use]
    pub fn open(state: &Path, boot: &str) -> Self {
        let path = state.join(NAME);
        let record = record::read::<Record>(&path).unwrap_or_else(|error| {
            tracing::warn!("numbers of ENIs are read from the kernel instead: {error:#}");
            None
        });
        let record = record.filter(|record| record.boot == boot);
        let record = record.unwrap_or_else(|| Record {
            boot: boot.to_owned(),
            ..Record::default()
        });
        let now = Instant::now();
        let since = record.retired.keys().map(|number| (*number, now));
        Self {
            path,
            since: since.collect(),
            record,
            around: Around::default(),
            is_adopted: false,
            is_stale: false,
        }
    }

    /// True if the datapath's numbers were taken up.
    #[must_use]
    pub fn is_adopted(&self) -> bool {
        self.is_adopted
    }

    /// Takes up the numbers that the datapath has, of ENIs that there is no record of.
    pub fn adopt(&mut self, enis: &[Eni], maps: &Maps, links: &BTreeMap<u32, Link>) {
        self.is_adopted = true;
        for (key, entry) in maps {
            let (MapKey::Eni(number), MapEntry::Eni(_, entry)) = (key, entry) else {
                continue;
            };
            let mac = links.get(&entry.ifindex()).and_then(|link| link.mac);
            let is_known = self.record.enis.values().any(|eni| eni.number == *number);
            let eni = enis.iter().find(|eni| Some(eni.mac) == mac);
            if let Some(eni) = eni.filter(|eni| !is_known && eni.excluded.is_none()) {
                let eni = Eni {
                    number: *number,
                    ..eni.clone()
                };
                self.record.enis.entry(eni.id.clone()).or_insert(eni);
            }
        }
    }

    /// Restores the last valid form of entries that cannot be used, so that no running pod loses
    /// its network.
    ///
    /// Such an ENI stays set up for the owners of its addresses, and gives no new ones.
    pub fn recall(&self, node: &mut Node, enis: &mut Vec<Eni>, used: &BTreeSet<IpAddr>) {
        let known = &self.record.enis;
        node.others.retain(|other| {
            let reason = match &other.readiness {
                Readiness::NotReady { reason } => reason,
                Readiness::Ready | Readiness::Excluded { .. } => return true,
            };
            let Some(form) = known.get(&other.id) else {
                return true;
            };
            enis.push(Eni {
                stale: Some(reason.clone()),
                ..form.clone()
            });
            false
        });
        for address in used {
            if enis.iter().any(|eni| eni.owns(*address)) {
                continue;
            }
            let had = enis.iter_mut().find(|eni| {
                let form = known.get(&eni.id);
                form.is_some_and(|form| form.owns(*address)) && node.unfollowed.refuses_of(&eni.id)
            });
            if let Some(eni) = had {
                eni.kept.insert((*address).into());
                eni.blocks.insert((*address).into());
            }
        }
        self.keep_cards(enis, used);
    }

    /// Restores the last valid form of ENIs that now conflict with others. Returns all ENIs, to be
    /// placed again; `None` if there is no conflict.
    pub fn recall_left_out(&self, node: &mut Node) -> Option<Vec<Eni>> {
        let left_out = node
            .others
            .iter()
            .filter_map(|other| match &other.readiness {
                Readiness::NotReady { reason } => Some((other.id.clone(), reason.clone())),
                Readiness::Ready | Readiness::Excluded { .. } => None,
            });
        let known = left_out.filter_map(|(id, reason)| {
            let form = self.record.enis.get(&id)?.clone();
            let stale = Some(reason);
            Some((id, Eni { stale, ..form }))
        });
        let mut known: BTreeMap<String, Eni> = known.collect();
        if known.is_empty() {
            return None;
        }
        let enis = take_enis(node).into_iter();
        let recalled = enis.map(|eni| known.remove(&eni.id).unwrap_or(eni));
        Some(recalled.collect())
    }

    /// Takes the network cards that the metadata service reports.
    pub fn take_cards(&mut self, cards: BTreeMap<MacAddr, u32>) {
        self.around.cards = cards;
    }

    /// Keeps an ENI of another network card for the pods that are on it.
    fn keep_cards(&self, enis: &mut [Eni], used: &BTreeSet<IpAddr>) {
        for eni in enis {
            let card = self.around.cards.get(&eni.mac).copied().unwrap_or(0);
            let is_used = || used.iter().any(|address| eni.owns(*address));
            if card > 0 && self.record.enis.contains_key(&eni.id) && is_used() {
                eni.stale = Some(format!("network card {card}: only card 0 serves pods"));
            }
        }
    }

    /// Conditions of the placement of these ENIs.
    pub fn around(
        &mut self,
        enis: &[Eni],
        highest: u8,
        links: Option<&BTreeMap<u32, Link>>,
    ) -> Around {
        let enis_of_record = self.record.enis.iter();
        let known = enis_of_record.map(|(id, eni)| (id.clone(), eni.number));
        let retired = self.record.retired.iter();
        let returning = retired.map(|(number, id)| (id.clone(), *number));
        let known: BTreeMap<String, EniNumber> = returning.chain(known).collect();
        let listed = |number: &EniNumber, id: &String| {
            let is_back = enis.iter().any(|eni| eni.id == *id);
            is_back && known.get(id) == Some(number)
        };
        // An ENI that is gone from the document retires only once the others are placed.
        let serving = self.record.enis.values().map(|eni| (&eni.number, &eni.id));
        let busy = self.record.retired.iter().chain(serving);
        let busy = busy.filter(|(number, id)| !listed(number, id));
        self.around = Around {
            highest,
            devices: links.map(|links| devices(links, enis)),
            busy: busy.map(|(number, _)| *number).collect(),
            known,
            cards: std::mem::take(&mut self.around.cards),
        };
        self.around.clone()
    }

    /// Records the devices by which these ENIs were placed.
    pub fn saw(&mut self, node: &Node, links: &BTreeMap<u32, Link>) {
        self.around.devices = Some(devices(links, whole(node)));
    }

    /// True if devices have come or gone since these ENIs were placed.
    #[must_use]
    pub fn is_outdated(&self, node: &Node, links: &BTreeMap<u32, Link>) -> bool {
        self.around.devices.as_ref() != Some(&devices(links, whole(node)))
    }

    /// Records the numbers and the valid entries of the placed ENIs.
    pub fn learn(&mut self, node: &Node) {
        let before = self.record.clone();
        let for_pods = node.enis.values().filter(|eni| eni.excluded.is_none());
        let mut enis: BTreeMap<String, Eni> = BTreeMap::new();
        for eni in for_pods {
            let form = match self.record.enis.get(&eni.id) {
                Some(form) if eni.stale.is_some() => form.clone(),
                _ => eni.clone(),
            };
            let number = eni.number;
            enis.insert(
                eni.id.clone(),
                Eni {
                    number,
                    stale: None,
                    ..form
                },
            );
        }
        let taken: BTreeSet<EniNumber> = enis.values().map(|eni| eni.number).collect();
        for eni in std::mem::take(&mut self.record.enis).into_values() {
            self.record.retired.insert(eni.number, eni.id);
        }
        self.record
            .retired
            .retain(|number, _| !taken.contains(number));
        self.record.enis = enis;
        let now = Instant::now();
        self.since
            .retain(|number, _| self.record.retired.contains_key(number));
        for number in self.record.retired.keys() {
            self.since.entry(*number).or_insert(now);
        }
        self.is_stale |= self.record != before;
        self.save();
    }

    /// Frees numbers that nothing carries any more; returns true if there were any.
    pub fn free(&mut self, maps: &Maps, report: &nat::Report) -> bool {
        let carries = |number: EniNumber| {
            maps.values().any(|entry| match entry {
                MapEntry::Address(_, entry) => entry.is_endpoint() && entry.eni() == number.0,
                _ => false,
            })
        };
        let before = self.record.retired.len();
        let since = &self.since;
        self.record.retired.retain(|number, _| {
            let since = since.get(number);
            let is_clear = since.is_some_and(|since| report.has_none_of(*number, *since));
            !is_clear || carries(*number)
        });
        let is_freed = self.record.retired.len() < before;
        self.is_stale |= is_freed;
        self.save();
        is_freed
    }

    /// True if there are numbers that wait for being free.
    #[must_use]
    pub fn has_retired(&self) -> bool {
        !self.record.retired.is_empty()
    }

    /// The marks of packets that carry such numbers.
    #[must_use]
    pub fn resting(&self, layout: MarkLayout) -> nat::Resting {
        let mask = layout.field_mask();
        let of = |number: &EniNumber| {
            let value = layout.eni(number.0.into())?;
            Some((*number, nat::Mark { value, mask }))
        };
        self.record.retired.keys().filter_map(of).collect()
    }

    fn save(&mut self) {
        if !self.is_stale {
            return;
        }
        match record::write(&self.path, &self.record) {
            Ok(()) => self.is_stale = false,
            Err(error) => tracing::warn!("a restart may renumber ENIs: {error:#}"),
        }
    }
}

/// The ENIs of the document with nothing wrong in their entries.
fn whole(node: &Node) -> impl Iterator<Item = &Eni> {
    let others = node.others.iter();
    let others = others.filter_map(|other| other.whole.as_deref());
    node.enis.values().chain(others)
}

/// The device of each MAC: of several the first.
fn devices<'a>(
    links: &BTreeMap<u32, Link>,
    enis: impl IntoIterator<Item = &'a Eni>,
) -> BTreeMap<MacAddr, u32> {
    let macs: BTreeSet<MacAddr> = enis.into_iter().map(|eni| eni.mac).collect();
    let mut devices = BTreeMap::new();
    for (ifindex, link) in links {
        let mac = link.mac.filter(|mac| macs.contains(mac));
        if let Some(mac) = mac.filter(|_| may_be_eni(link) && link.master.is_none()) {
            devices.entry(mac).or_insert(*ifindex);
        }
    }
    devices
}

/// Removes the record.
///
/// # Errors
/// When it cannot be removed.
pub fn remove(state: &Path) -> Result<()> {
    record::remove(&state.join(NAME))
}
