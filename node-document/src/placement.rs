//! Placement of ENIs: the precedence of conflicting entries, and the number of each ENI.
//!
//! A number is the device index if that is free, so that tables have the numbers that users expect.
//! Otherwise it is the lowest free one. An ENI keeps its number as long as the document lists it.

use std::collections::{BTreeMap, BTreeSet};

use api::ids::{EniNumber, MacAddr};
use api::types::Readiness;
use loader::intent::{Eni, Node, OtherEni};

/// Inputs of the placement, apart from the document.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Around {
    /// The highest number.
    pub highest: u8,
    /// Index of the device with each MAC; `None` before the devices are observed.
    pub devices: Option<BTreeMap<MacAddr, u32>>,
    /// The present numbers of ENIs, by id.
    pub known: BTreeMap<String, EniNumber>,
    /// Numbers without an ENI that kernel objects still carry.
    pub busy: BTreeSet<EniNumber>,
    /// The network card of each MAC, if the instance metadata service reports it.
    pub cards: BTreeMap<MacAddr, u32>,
}

impl Around {
    /// Inputs with the highest number alone.
    #[must_use]
    pub fn new(highest: u8) -> Self {
        Self {
            highest,
            ..Self::default()
        }
    }

    fn ifindex(&self, eni: &Eni) -> Option<u32> {
        self.devices.as_ref()?.get(&eni.mac).copied()
    }

    /// True if it is known that no device has the ENI's MAC.
    fn is_absent(&self, eni: &Eni) -> bool {
        self.devices.is_some() && self.ifindex(eni).is_none()
    }

    /// The precedence of conflicting ENIs: first one that already has a number, then the lower
    /// index of a device.
    fn rank<'a>(&self, eni: &'a Eni) -> (bool, bool, Option<u32>, u32, &'a str) {
        let is_new = !self.known.contains_key(&eni.id);
        let ifindex = self.ifindex(eni);
        (
            is_new,
            ifindex.is_none(),
            ifindex,
            eni.device_index,
            &eni.id,
        )
    }
}

/// Removes and returns the ENIs whose own entries are valid.
pub fn take_enis(node: &mut Node) -> Vec<Eni> {
    let placed = std::mem::take(&mut node.enis).into_values();
    let others = std::mem::take(&mut node.others);
    let (whole, others) = others.into_iter().partition(|eni| eni.whole.is_some());
    node.others = others;
    let whole: Vec<OtherEni> = whole;
    let whole = whole.into_iter().filter_map(|eni| eni.whole);
    placed.chain(whole.map(|eni| *eni)).collect()
}

/// Assigns numbers to ENIs, and adds them to the node with its unusable entries.
pub fn place(node: &mut Node, mut enis: Vec<Eni>, around: &Around) {
    exclude_cards(&mut enis, around);
    enis.sort_by(|a, b| {
        let rank = |eni| (around.rank(eni), ());
        (a.excluded.is_some(), rank(a)).cmp(&(b.excluded.is_some(), rank(b)))
    });
    let primary = primary(&enis, around);
    let mut placing = Placing {
        around,
        primary,
        node,
    };
    let enis = placing.without_conflicts(enis);
    placing.number(enis);
}

/// Excludes the ENIs of all network cards but the first. An ENI that pods use stays.
fn exclude_cards(enis: &mut [Eni], around: &Around) {
    for eni in enis {
        let card = around.cards.get(&eni.mac).copied().unwrap_or(0);
        if card > 0 && eni.excluded.is_none() && eni.stale.is_none() {
            eni.excluded = Some(format!("network card {card}: only card 0 serves pods"));
        }
    }
}

/// Id of the primary ENI, which may be excluded.
fn primary(enis: &[Eni], around: &Around) -> Option<String> {
    let of_first_card = |eni: &&Eni| around.cards.get(&eni.mac).is_none_or(|card| *card == 0);
    let candidates = enis.iter().filter(|eni| eni.device_index == 0);
    let candidates = candidates.filter(of_first_card);
    let first = candidates.min_by_key(|eni| around.rank(eni));
    first.map(|eni| eni.id.clone())
}

/// ENIs during the placement, in the order of precedence.
struct Placing<'a> {
    around: &'a Around,
    primary: Option<String>,
    node: &'a mut Node,
}

impl Placing<'_> {
    fn is_primary(&self, eni: &Eni) -> bool {
        self.primary.as_ref() == Some(&eni.id)
    }

    /// Leaves an ENI without a number.
    fn leave_out(&mut self, eni: Eni, reason: String) {
        let readiness = match &eni.excluded {
            Some(reason) => Readiness::Excluded {
                reason: reason.clone(),
            },
            None => Readiness::NotReady { reason },
        };
        self.node.others.push(OtherEni {
            id: eni.id.clone(),
            device_index: Some(eni.device_index),
            mac: Some(eni.mac),
            readiness,
            whole: Some(Box::new(eni)),
        });
    }

    /// Leaves out ENIs whose MAC or device index an ENI with precedence has. Excluded ENIs conflict
    /// with none.
    fn without_conflicts(&mut self, enis: Vec<Eni>) -> Vec<Eni> {
        let mut macs: BTreeMap<MacAddr, String> = BTreeMap::new();
        let mut indexes: BTreeMap<u32, String> = BTreeMap::new();
        if let Some(eni) = enis.iter().find(|eni| self.is_primary(eni)) {
            indexes.insert(0, eni.id.clone());
            macs.insert(eni.mac, eni.id.clone());
        }
        let mut clear = Vec::new();
        for eni in enis {
            if eni.excluded.is_some() || self.is_primary(&eni) {
                clear.push(eni);
                continue;
            }
            if eni.stale.is_some() {
                // The ENI is set up, whatever the present document has.
                macs.entry(eni.mac).or_insert_with(|| eni.id.clone());
                indexes
                    .entry(eni.device_index)
                    .or_insert_with(|| eni.id.clone());
                clear.push(eni);
                continue;
            }
            if let Some(holder) = macs.get(&eni.mac) {
                let reason = same_mac(&eni, holder);
                self.leave_out(eni, reason);
                continue;
            }
            match indexes.get(&eni.device_index) {
                Some(holder) if !self.around.cards.contains_key(&eni.mac) => {
                    let reason = self.unknown_card(&eni, holder);
                    self.leave_out(eni, reason);
                }
                Some(_) | None => {
                    macs.insert(eni.mac, eni.id.clone());
                    let holder = eni.id.clone();
                    indexes.entry(eni.device_index).or_insert(holder);
                    clear.push(eni);
                }
            }
        }
        clear
    }

    fn unknown_card(&self, eni: &Eni, holder: &str) -> String {
        if self.around.is_absent(eni) {
            return format!("no device with MAC {}", eni.mac);
        }
        format!(
            "unknown card: status.eni.enis.{}.number: \"{}\" is that of {holder} too, whose device \
             came first; only network card 0 serves pods, and the instance's metadata service has \
             not reported which card this is (kubernetes.metadata-endpoint)",
            eni.id, eni.device_index
        )
    }

    /// Assigns each ENI its number: its present one, its device index, or the lowest free one.
    fn number(&mut self, enis: Vec<Eni>) {
        let mut free: BTreeSet<u8> = (1..=self.around.highest).collect();
        for number in &self.around.busy {
            free.remove(&number.0);
        }
        let (for_pods, excluded): (Vec<Eni>, Vec<Eni>) =
            enis.into_iter().partition(|eni| eni.excluded.is_none());
        for group in [for_pods, excluded] {
            let known = |eni: &Eni| self.around.known.get(&eni.id).map(|number| number.0);
            let group = self.number_by(group, &mut free, known);
            let index = |eni: &Eni| u8::try_from(eni.device_index).ok();
            let group = self.number_by(group, &mut free, index);
            for eni in group {
                if let Some(number) = free.pop_first() {
                    self.set(eni, number);
                } else {
                    let room = u32::from(self.around.highest) + 1;
                    let reason = format!(
                        "no number is free: packet marks and routing tables have room for {room} \
                         ENIs; detach ENIs that are not needed"
                    );
                    self.leave_out(eni, reason);
                }
            }
        }
    }

    /// Assigns ENIs the numbers that they prefer, if free; returns the other ENIs.
    fn number_by(
        &mut self,
        enis: Vec<Eni>,
        free: &mut BTreeSet<u8>,
        wanted: impl Fn(&Eni) -> Option<u8>,
    ) -> Vec<Eni> {
        let mut left = Vec::new();
        for eni in enis {
            if self.is_primary(&eni) {
                self.set(eni, EniNumber::PRIMARY.0);
                continue;
            }
            match wanted(&eni).filter(|number| free.remove(number)) {
                Some(number) => self.set(eni, number),
                None => left.push(eni),
            }
        }
        left
    }

    fn set(&mut self, mut eni: Eni, number: u8) {
        eni.number = EniNumber(number);
        self.node.enis.insert(eni.number, eni);
    }
}

fn same_mac(eni: &Eni, holder: &str) -> String {
    format!(
        "status.eni.enis.{}.mac: \"{}\" is refused; allowed: one that no other ENI has; {holder} has \
         it",
        eni.id, eni.mac
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use loader::kernel::fixture;

    /// An ENI with a device index; MAC and addresses are those of the fixture's ENI of this number.
    fn eni(name: u8, device_index: u32) -> Eni {
        Eni {
            device_index,
            ..fixture::eni(name)
        }
    }

    /// Inputs of the placement with devices for these ENIs.
    fn around(devices: &[(u8, u32)]) -> Around {
        let devices = devices.iter();
        Around {
            devices: Some(devices.map(|(name, i)| (fixture::mac(*name), *i)).collect()),
            ..Around::new(62)
        }
    }

    fn place(enis: &[Eni], around: &Around) -> Node {
        let mut node = Node::default();
        super::place(&mut node, enis.to_vec(), around);
        node
    }

    fn numbers(node: &Node) -> Vec<(&str, u8)> {
        let enis = node.enis.values();
        enis.map(|eni| (eni.id.as_str(), eni.number.0)).collect()
    }

    fn reason<'a>(node: &'a Node, id: &str) -> &'a str {
        let other = node.others.iter().find(|other| other.id == id);
        other.and_then(|other| other.readiness.reason()).unwrap()
    }

    #[test]
    fn a_number_is_the_device_index_or_else_the_lowest_free_one() {
        let enis = [eni(0, 0), eni(1, 1), eni(2, 99), eni(3, 2), eni(4, 300)];
        let node = place(&enis, &Around::new(62));
        let expected = [
            ("eni-0", 0),
            ("eni-1", 1),
            ("eni-3", 2),
            ("eni-2", 3),
            ("eni-4", 4),
        ];
        assert_eq!(numbers(&node), expected);
    }

    #[test]
    fn what_has_a_number_keeps_it() {
        let known = [("eni-1", 1), ("eni-2", 3)];
        let known = known.map(|(id, number)| (id.to_owned(), EniNumber(number)));
        let around = Around {
            known: known.into(),
            busy: [EniNumber(2)].into(),
            ..Around::new(62)
        };
        let enis = [
            eni(0, 0),
            eni(1, 9),
            eni(2, 2),
            eni(3, 3),
            eni(4, 1),
            eni(5, 2),
        ];
        let node = place(&enis, &around);
        let expected = [
            ("eni-0", 0),
            ("eni-1", 1),
            ("eni-2", 3),
            ("eni-4", 4),
            ("eni-3", 5),
        ];
        assert_eq!(numbers(&node), expected);
        assert!(reason(&node, "eni-5").starts_with("unknown card: "));
    }

    #[test]
    fn without_a_free_number_an_eni_is_not_ready_by_name() {
        let enis = [eni(0, 0), eni(1, 1), eni(2, 2), eni(3, 40)];
        let node = place(&enis, &Around::new(2));
        assert_eq!(numbers(&node), [("eni-0", 0), ("eni-1", 1), ("eni-2", 2)]);
        let text = reason(&node, "eni-3");
        assert!(text.starts_with("no number is free: "), "{text}");
        assert!(text.contains("room for 3 ENIs"), "{text}");
    }

    #[test]
    fn of_two_with_one_index_the_one_whose_device_came_first_serves() {
        let enis = [eni(0, 0), eni(1, 1), eni(2, 1), eni(3, 1)];
        let node = place(&enis, &around(&[(0, 2), (1, 7), (2, 5)]));
        assert_eq!(numbers(&node), [("eni-0", 0), ("eni-2", 1)]);
        let text = reason(&node, "eni-1");
        assert!(
            text.starts_with(
                "unknown card: status.eni.enis.eni-1.number: \"1\" is that of eni-2 too"
            ),
            "{text}"
        );
        let text = reason(&node, "eni-3");
        assert_eq!(text, format!("no device with MAC {}", fixture::mac(3)));
        // An ENI in service stays.
        let known = Around {
            known: [("eni-1".to_owned(), EniNumber(1))].into(),
            ..around(&[(0, 2), (1, 7), (2, 5)])
        };
        assert_eq!(numbers(&place(&enis, &known)), [("eni-0", 0), ("eni-1", 1)]);
    }

    #[test]
    fn the_metadata_service_tells_who_serves() {
        let enis = [eni(0, 0), eni(1, 1), eni(2, 1), eni(3, 2), eni(4, 0)];
        let cards = [(0, 0), (1, 1), (2, 0), (3, 1), (4, 1)];
        let around = Around {
            cards: cards.map(|(name, card)| (fixture::mac(name), card)).into(),
            ..around(&[(0, 9), (1, 3), (2, 4), (3, 5), (4, 2)])
        };
        let node = place(&enis, &around);
        let for_pods = node.enis.values().filter(|eni| eni.excluded.is_none());
        let for_pods: Vec<_> = for_pods
            .map(|eni| (eni.id.as_str(), eni.number.0))
            .collect();
        assert_eq!(for_pods, [("eni-0", 0), ("eni-2", 1)]);
        let of_card = node.enis.values().find(|eni| eni.id == "eni-1").unwrap();
        let expected = "network card 1: only card 0 serves pods";
        assert_eq!(of_card.excluded.as_deref(), Some(expected));
    }

    #[test]
    fn an_excluded_entry_is_in_nobody_s_way() {
        let excluded = Eni {
            excluded: Some("its tags".to_owned()),
            mac: fixture::mac(1),
            ..eni(7, 1)
        };
        let enis = [eni(0, 0), excluded, eni(1, 1)];
        let node = place(&enis, &around(&[(0, 2), (1, 3)]));
        assert_eq!(numbers(&node), [("eni-0", 0), ("eni-1", 1), ("eni-7", 2)]);
        assert_eq!(node.others, []);
        // An excluded ENI can be the primary.
        let primary = Eni {
            excluded: Some("its tags".to_owned()),
            ..eni(0, 0)
        };
        let node = place(&[eni(1, 0), primary], &around(&[(0, 2), (1, 3)]));
        assert_eq!(numbers(&node), [("eni-0", 0)]);
        assert!(reason(&node, "eni-1").starts_with("unknown card: "));
    }

    #[test]
    fn of_two_with_one_mac_both_are_named() {
        let twin = Eni {
            mac: fixture::mac(1),
            ..eni(2, 2)
        };
        let node = place(&[eni(0, 0), eni(1, 1), twin], &around(&[(0, 2), (1, 3)]));
        assert_eq!(numbers(&node), [("eni-0", 0), ("eni-1", 1)]);
        let text = reason(&node, "eni-2");
        assert!(text.starts_with("status.eni.enis.eni-2.mac: "), "{text}");
        assert!(text.ends_with("eni-1 has it"), "{text}");
    }

    #[test]
    fn very_many_entries_of_others_cost_the_own_ones_nothing() {
        let foreign = (10..=209).map(|name| eni(name, u32::from(name) % 100));
        let own = [eni(0, 0), eni(1, 1), eni(2, 2)];
        let enis: Vec<Eni> = foreign.chain(own).collect();
        let node = place(&enis, &around(&[(0, 2), (1, 3), (2, 4)]));
        for name in 0..3 {
            assert_eq!(node.enis[&EniNumber(name)].id, format!("eni-{name}"));
        }
        assert_eq!(node.enis.len() + node.others.len(), enis.len());
    }
}
