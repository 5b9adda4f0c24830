//! Shares of the reserve of a destination's ports.

use std::collections::BTreeMap;
use std::net::IpAddr;

use api::ids::EniNumber;
use datapath_common::config::PortSlice;
use datapath_common::ports::{Ports, sharers};
use ipam::Family;

use super::Exits;
use crate::intent::Intent;
use crate::kernel::{MapEntry, MapKey, Observed};

impl Exits {
    /// Divides the reserves of each ENI among the endpoints whose flows can leave by it.
    pub(super) fn divide(&mut self, intent: &Intent, observed: &Observed) {
        let ports = Ports::from_words(intent.settings.ports.map(PortSlice::to_word));
        let owned = owned(intent);
        for (index, family) in Family::ALL.into_iter().enumerate() {
            let leaving = self.leaving(index, &owned);
            for (number, exit) in &mut self.all {
                let Some(egress) = exit.families.get_mut(index) else {
                    continue;
                };
                let endpoints = leaving.get(number).copied().unwrap_or(0);
                let present = present(observed, *number, family);
                egress.share = share(ports, endpoints, present);
            }
        }
    }

    /// Endpoints of a family whose flows can leave by each ENI: its own, and those of ENIs whose
    /// packets to the outside leave by it.
    fn leaving(
        &self,
        index: usize,
        owned: &BTreeMap<(EniNumber, usize), usize>,
    ) -> BTreeMap<EniNumber, usize> {
        let mut leaving = BTreeMap::new();
        for ((number, _), endpoints) in owned.iter().filter(|((_, of), _)| *of == index) {
            let exit = self.all.get(number);
            let egress = exit.and_then(|exit| exit.families.get(index));
            let external = egress.map(|egress| egress.external);
            for by in external.filter(|by| by != number).iter().chain([number]) {
                *leaving.entry(*by).or_default() += endpoints;
            }
        }
        leaving
    }
}

/// Addresses of endpoints that each ENI owns, by the index of their family. Addresses of plain pools
/// count for the primary, by which they leave.
fn owned(intent: &Intent) -> BTreeMap<(EniNumber, usize), usize> {
    let mut owned = BTreeMap::new();
    let endpoints = intent.endpoints.values();
    for address in endpoints.flat_map(|endpoint| &endpoint.addresses) {
        let owner = intent.node.owner_of(*address);
        let number = owner.map_or(EniNumber::PRIMARY, |eni| eni.number);
        let index = usize::from(matches!(address, IpAddr::V6(_)));
        *owned.entry((number, index)).or_default() += 1;
    }
    owned
}

/// The share in the datapath.
fn present(observed: &Observed, number: EniNumber, family: Family) -> Option<u16> {
    match observed.maps.get(&MapKey::Eni(number)) {
        Some(MapEntry::Eni(_, entry)) => Some(match family {
            Family::V4 => entry.v4().share,
            Family::V6 => entry.v6().share,
        }),
        _ => None,
    }
}

/// The share of each of so many endpoints. The entry of an ENI is not written with each endpoint:
/// the next smaller share stays until a quarter of its endpoints are gone.
fn share(ports: Ports, endpoints: usize, present: Option<u16>) -> u16 {
    let sharers = sharers(endpoints);
    let next = ports.share(sharers.saturating_mul(2));
    let is_near = endpoints >= sharers / 4 * 3;
    if is_near && present == Some(next) {
        next
    } else {
        ports.share(sharers)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_share_changes_where_endpoints_double_and_not_back_at_once() {
        let of = |endpoints, present| share(Ports::DEFAULT, endpoints, Some(present));
        let mut present = 0;
        let mut writes = 0;
        let mut follow = |endpoints| {
            let share = of(endpoints, present);
            writes += u32::from(share != present);
            present = share;
            (share, writes)
        };
        for endpoints in 0..=127 {
            assert_eq!(follow(endpoints), (24, 1), "{endpoints}");
        }
        for endpoints in [128, 127, 128, 127, 96] {
            assert_eq!(follow(endpoints), (12, 2), "{endpoints}");
        }
        assert_eq!(follow(95), (24, 3));
        for endpoints in 128..=255 {
            assert_eq!(follow(endpoints), (12, 4), "{endpoints}");
        }
        assert_eq!(follow(256), (6, 5));
    }
}
