//! The next free block of a pool.

use std::net::IpAddr;

use ipnet::IpNet;

use super::held::Held;
use crate::Family;
use crate::value::family::number;

/// The blocks of a pool's family, as a ring: each CIDR's blocks, one CIDR after another.
pub(super) struct Ring<'a> {
    pub(super) cidrs: &'a [IpNet],
    pub(super) mask: u8,
    pub(super) reserved: &'a [(IpAddr, IpAddr)],
}

impl Ring<'_> {
    /// The first free block after another one; each block is examined once. So a released block is
    /// assigned again last.
    pub(super) fn next(&self, last: Option<IpNet>, held: &Held) -> Option<IpNet> {
        let at = last.and_then(|last| {
            let place = self.cidrs.iter().position(|cidr| cidr.contains(&last));
            place.map(|place| (place, number(last.broadcast())))
        });
        let Some((place, end)) = at else {
            return self
                .cidrs
                .iter()
                .find_map(|cidr| self.first(*cidr, 0, held));
        };
        let (before, from) = self.cidrs.split_at(place);
        let (current, after) = from.split_first()?;
        let rest = end.checked_add(1);
        rest.and_then(|start| self.first(*current, start, held))
            .or_else(|| {
                let others = after.iter().chain(before).chain([current]);
                others
                    .into_iter()
                    .find_map(|cidr| self.first(*cidr, 0, held))
            })
    }

    /// The first free block of a CIDR that begins at or after an address.
    fn first(&self, cidr: IpNet, start: u128, held: &Held) -> Option<IpNet> {
        let family = Family::of_net(cidr);
        let size = 1_u128.checked_shl(u32::from(family.host_length() - self.mask))?;
        let last = number(cidr.broadcast());
        let mut at = number(cidr.network()).max(start).next_multiple_of(size);
        while at <= last {
            let block = IpNet::new(family.address(at), self.mask).ok()?;
            match self.end_of_taken(block, held) {
                None => return Some(block),
                // The search goes on after the conflicting block, which may contain several blocks.
                Some(end) => at = end.checked_add(1)?.checked_next_multiple_of(size)?,
            }
        }
        None
    }

    /// The last address of something that takes an address of a block.
    fn end_of_taken(&self, block: IpNet, held: &Held) -> Option<u128> {
        let (first, last) = (number(block.network()), number(block.broadcast()));
        let reserved = self.reserved.iter().find(|(start, end)| {
            Family::of(*start) == Family::of_net(block)
                && number(*start) <= last
                && first <= number(*end)
        });
        if let Some((_, end)) = reserved {
            return Some(number(*end));
        }
        let (taken, _) = held.overlapping(block).next()?;
        Some(number(taken.broadcast()))
    }
}
