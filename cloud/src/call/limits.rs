//! Limits of instance types, and limits that EC2 taught by a refusal.

use std::collections::BTreeMap;
use std::time::Duration;

use ipam::{Family, Time};

use crate::{Eni, EniId, InstanceId};

/// The life of a limit that was learned from a refusal.
pub const LEARNED_FOR: Duration = Duration::from_hours(1);

/// An instance type as `DescribeInstanceTypes` shows it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TypeInfo {
    /// Its name, such as `m5.large`.
    pub name: String,
    /// ENIs of all network cards.
    pub enis: u16,
    /// ENIs of each network card, by its index.
    pub cards: BTreeMap<u16, u16>,
    /// IPv4 addresses of an ENI, its own one included.
    pub ipv4_per_eni: u16,
    /// IPv6 addresses of an ENI.
    pub ipv6_per_eni: u16,
    /// `nitro` or `xen`; empty on bare metal.
    pub hypervisor: String,
    /// The instance is a whole machine.
    pub bare_metal: bool,
}

/// The most that an instance can have.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// ENIs of network card 0.
    pub adapters: u16,
    /// Blocks of IPv4 that an ENI can have beside its own address.
    pub slots: u16,
    /// Blocks of IPv6 that an ENI can have.
    pub slots_v6: u16,
    /// ENIs can have prefixes.
    pub prefixes: bool,
}

/// A type's limits cannot be used.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("instance type {name}: {field} is 0, expected at least 1")]
pub struct LimitsError {
    /// The type's name.
    pub name: String,
    /// The field.
    pub field: &'static str,
}

impl Limits {
    /// The limits of an instance type. ENIs of other cards than 0 are not counted.
    ///
    /// # Errors
    /// When the type has no ENIs, or its ENIs no addresses.
    pub fn of(info: &TypeInfo) -> Result<Self, LimitsError> {
        let adapters = info.cards.get(&0).copied().unwrap_or(info.enis);
        let error = |field| LimitsError {
            name: info.name.clone(),
            field,
        };
        if adapters == 0 {
            return Err(error("the number of network interfaces"));
        }
        if info.ipv4_per_eni == 0 {
            return Err(error("the number of IPv4 addresses per interface"));
        }
        Ok(Self {
            adapters,
            slots: info.ipv4_per_eni - 1,
            slots_v6: info.ipv6_per_eni,
            prefixes: info.bare_metal || info.hypervisor == "nitro",
        })
    }
}

/// Limits that EC2 taught by refusing something. Each is forgotten after [`LEARNED_FOR`].
#[derive(Clone, Debug, Default)]
pub struct Learned {
    adapters: BTreeMap<InstanceId, (u16, Time)>,
    slots: BTreeMap<(EniId, Family), (u32, Time)>,
}

impl Learned {
    /// EC2 attaches no more than so many ENIs to the instance.
    pub fn refuse_attach(&mut self, instance: InstanceId, attached: u16, now: Time) {
        self.adapters.insert(instance, (attached, now));
    }

    /// EC2 gives the ENI no more than so many blocks of a family.
    pub fn refuse_assign(&mut self, eni: EniId, family: Family, taken: u32, now: Time) {
        self.slots.insert((eni, family), (taken, now));
    }

    /// Drops limits that the ENIs of an instance exceed. The view was old when EC2 refused more: a
    /// call without an answer, or one of the leader before, had taken the room.
    pub fn see<'a>(&mut self, instance: &InstanceId, enis: impl Iterator<Item = &'a Eni>) {
        let mut attached = 0;
        for eni in enis {
            attached += u16::from(eni.attachment.as_ref().is_some_and(|it| it.card == 0));
            for family in Family::ALL {
                let key = (eni.id.clone(), family);
                let learned = self.slots.get(&key);
                if learned.is_some_and(|(count, _)| eni.taken(family) > *count) {
                    self.slots.remove(&key);
                }
            }
        }
        let learned = self.adapters.get(instance);
        if learned.is_some_and(|(count, _)| attached > *count) {
            self.adapters.remove(instance);
        }
    }

    /// The ENIs that the instance can have on card 0.
    #[must_use]
    pub fn adapters(&self, instance: &InstanceId, limits: &Limits, now: Time) -> u16 {
        let learned = self
            .adapters
            .get(instance)
            .filter(|(_, since)| holds(*since, now));
        learned.map_or(limits.adapters, |(count, _)| limits.adapters.min(*count))
    }

    /// The blocks that the ENI can have of a family.
    #[must_use]
    pub fn slots(&self, eni: &EniId, family: Family, limits: &Limits, now: Time) -> u32 {
        let slots = match family {
            Family::V4 => u32::from(limits.slots),
            Family::V6 => u32::from(limits.slots_v6),
        };
        let learned = self.slots.get(&(eni.clone(), family));
        let learned = learned.filter(|(_, since)| holds(*since, now));
        learned.map_or(slots, |(count, _)| slots.min(*count))
    }

    /// Forgets what holds no more.
    pub fn forget(&mut self, now: Time) {
        self.adapters.retain(|_, (_, since)| holds(*since, now));
        self.slots.retain(|_, (_, since)| holds(*since, now));
    }
}

fn holds(since: Time, now: Time) -> bool {
    now.since(since) < LEARNED_FOR
}

#[cfg(test)]
mod tests {
    use super::*;

    fn info(name: &str, cards: &[u16], hypervisor: &str) -> TypeInfo {
        TypeInfo {
            name: name.to_owned(),
            enis: cards.iter().sum(),
            cards: (0..).zip(cards.iter().copied()).collect(),
            ipv4_per_eni: 50,
            ipv6_per_eni: 50,
            hypervisor: hypervisor.to_owned(),
            bare_metal: hypervisor.is_empty(),
        }
    }

    #[test]
    fn only_card_0_counts() {
        for (name, cards, adapters) in [
            ("m5.large", &[3][..], 3),
            ("p4d.24xlarge", &[15, 15, 15, 15], 15),
            ("p5.48xlarge", &[2; 32], 2),
            ("c6in.32xlarge", &[8, 8], 8),
        ] {
            let limits = Limits::of(&info(name, cards, "nitro")).unwrap();
            assert_eq!(limits.adapters, adapters, "{name}");
        }
    }

    #[test]
    fn prefixes_need_nitro_or_bare_metal() {
        for (name, hypervisor, prefixes) in [
            ("m4.large", "xen", false),
            ("m5.metal", "", true),
            ("m5.large", "nitro", true),
        ] {
            let limits = Limits::of(&info(name, &[3], hypervisor)).unwrap();
            assert_eq!(limits.prefixes, prefixes, "{name}");
        }
    }

    #[test]
    fn zero_limits_are_named() {
        let none = info("x1.none", &[0], "nitro");
        let error = Limits::of(&none).unwrap_err().to_string();
        assert!(error.starts_with("instance type x1.none: the number of network interfaces is 0"));
        let mut none = info("x1.none", &[1], "nitro");
        none.ipv4_per_eni = 0;
        assert!(
            Limits::of(&none)
                .unwrap_err()
                .to_string()
                .contains("IPv4 addresses")
        );
    }

    #[test]
    fn a_learned_limit_holds_for_an_hour_and_never_raises_one() {
        let limits = Limits::of(&info("m5.large", &[3], "nitro")).unwrap();
        let instance = InstanceId::from("i-1");
        let eni = EniId::from("eni-1");
        let (start, mut learned) = (Time::default(), Learned::default());
        learned.refuse_attach(instance.clone(), 2, start);
        learned.refuse_assign(eni.clone(), Family::V4, 90, start);
        let almost = start.after(Duration::from_millis(3_599_999));
        assert_eq!(learned.adapters(&instance, &limits, almost), 2);
        assert_eq!(learned.slots(&eni, Family::V4, &limits, almost), 49);
        let later = start.after(LEARNED_FOR);
        assert_eq!(learned.adapters(&instance, &limits, later), 3);
        learned.forget(later);
        assert!(learned.adapters.is_empty() && learned.slots.is_empty());
    }
}
