//! Damage at random.

use datapath_common::abi::AddressEntry;
use proptest::prelude::*;
use proptest::sample::Index;

use crate::kernel::fixture::{BRIDGE, ETH0, mac};
use crate::kernel::{Attachment, MapEntry, Neighbour, NextHop, Object, Route, Rule};
use crate::observation::ownership::{Owned, recognise};
use crate::reconcile::model::ModelKernel;

/// Something that befalls the kernel; the index picks among what there is.
#[derive(Clone, Debug)]
pub(super) enum Damage {
    Remove(Index),
    Corrupt(Index),
    Attachment(Index, Attachment),
    Down(Index),
    Unfinished(Index),
    Unplug(Index),
    Mtu(Index, u32),
}

impl Damage {
    /// True if it replaces a device, so that the node's state may change permanently.
    pub(super) fn is_of_a_device(&self) -> bool {
        match self {
            Self::Down(_) | Self::Unfinished(_) | Self::Unplug(_) | Self::Mtu(..) => true,
            Self::Remove(_) | Self::Corrupt(_) | Self::Attachment(..) => false,
        }
    }
}

pub(super) fn damage() -> impl Strategy<Value = Damage> {
    let attachment = prop::sample::select(vec![Attachment::Stale, Attachment::Dead]);
    prop_oneof![
        4 => any::<Index>().prop_map(Damage::Remove),
        2 => any::<Index>().prop_map(Damage::Corrupt),
        2 => (any::<Index>(), attachment).prop_map(|(i, a)| Damage::Attachment(i, a)),
        2 => any::<Index>().prop_map(Damage::Down),
        1 => any::<Index>().prop_map(Damage::Unfinished),
        1 => any::<Index>().prop_map(Damage::Unplug),
        1 => (any::<Index>(), 1000..10_000_u32).prop_map(|(i, mtu)| Damage::Mtu(i, mtu)),
    ]
}

pub(super) fn befall(kernel: &mut ModelKernel, damage: &Damage) {
    let owned = recognise(&kernel.state, 2);
    let owned: Vec<Object> = owned.iter().map(Owned::object).collect();
    let links: Vec<u32> = kernel.state.links.keys().copied().collect();
    // The loopback and the foreign devices are not what is tested here.
    let ours = |index: &Index| {
        Some(*index.get(&links)).filter(|i| (ETH0..BRIDGE).contains(i) || *i >= 100)
    };
    match damage {
        Damage::Remove(index) if !owned.is_empty() => match *index.get(&owned) {
            Object::Address(a) => drop(kernel.state.addresses.remove(&a)),
            Object::Route(r) => drop(kernel.state.routes.remove(&r)),
            Object::Rule(r) => drop(kernel.state.rules.remove(&r)),
            Object::Neighbour(n) => drop(kernel.state.neighbours.remove(&n)),
            Object::MapEntry(e) => drop(kernel.state.maps.remove(&e.key())),
            Object::Attachment(h) => drop(kernel.state.attachments.remove(&h)),
            Object::Sysctl(..)
            | Object::ReservedPorts(_)
            | Object::Mtu { .. }
            | Object::Up(_)
            | Object::Device(_) => {}
        },
        Damage::Corrupt(index) if !owned.is_empty() => corrupt(kernel, *index.get(&owned)),
        Damage::Attachment(index, to) if !kernel.state.attachments.is_empty() => {
            let mut all: Vec<&mut Attachment> = kernel.state.attachments.values_mut().collect();
            let picked = index.index(all.len());
            *all[picked] = *to;
        }
        Damage::Down(index) => {
            if let Some(ifindex) = ours(index) {
                kernel.set_down(ifindex);
            }
        }
        Damage::Unfinished(index) => {
            if let Some(ifindex) = ours(index) {
                kernel.unfinish(ifindex);
            }
        }
        Damage::Unplug(index) => {
            if let Some(ifindex) = ours(index) {
                kernel.unplug(ifindex);
            }
        }
        Damage::Mtu(index, mtu) => {
            if let Some(link) = ours(index).and_then(|i| kernel.state.links.get_mut(&i)) {
                link.mtu = *mtu;
            }
        }
        Damage::Remove(_) | Damage::Corrupt(_) | Damage::Attachment(..) => {}
    }
}

/// Gives an object another value under the same key.
fn corrupt(kernel: &mut ModelKernel, object: Object) {
    match object {
        Object::Route(route) => {
            kernel.state.routes.remove(&route);
            let next_hop = NextHop::Device(BRIDGE);
            kernel.state.routes.insert(Route { next_hop, ..route });
        }
        Object::Neighbour(neighbour) => {
            kernel.state.neighbours.remove(&neighbour);
            let mac = mac(99);
            kernel
                .state
                .neighbours
                .insert(Neighbour { mac, ..neighbour });
        }
        Object::MapEntry(MapEntry::Address(key, _)) => {
            let host = AddressEntry::host();
            let entry = MapEntry::Address(key, host);
            kernel.state.maps.insert(entry.key(), entry);
        }
        Object::Rule(rule) => {
            kernel.state.rules.remove(&rule);
            kernel.state.rules.insert(Rule {
                protocol: 4,
                ..rule
            });
        }
        Object::MapEntry(_)
        | Object::Sysctl(..)
        | Object::ReservedPorts(_)
        | Object::Mtu { .. }
        | Object::Up(_)
        | Object::Device(_)
        | Object::Address(_)
        | Object::Attachment(_) => {}
    }
}
