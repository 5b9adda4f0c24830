//! The addresses of a subnet, of one family: single ones and aligned prefixes.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;

use ipnet::IpNet;

use crate::error::{Failure, Result};
use crate::family::Family;

/// Addresses at the start of a subnet that EC2 keeps for itself; the last one is kept as well.
const KEPT_FIRST: u128 = 4;
/// Most blocks of a subnet that are searched; an IPv6 subnet has more than any test uses.
const MOST_BLOCKS: u128 = 1 << 16;

/// The use of one aligned block.
#[derive(Clone, Debug)]
enum Use {
    Whole,
    Singles(BTreeSet<u128>),
}

/// A request for addresses.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Ask {
    /// Addresses by value.
    pub addresses: Vec<IpAddr>,
    /// Addresses by number.
    pub count: usize,
    /// Prefixes by value.
    pub prefixes: Vec<IpNet>,
    /// Prefixes by number.
    pub prefix_count: usize,
}

impl Ask {
    /// Single addresses that are wanted.
    #[must_use]
    pub fn singles(&self) -> usize {
        self.addresses.len() + self.count
    }

    /// Prefixes that are wanted.
    #[must_use]
    pub fn blocks(&self) -> usize {
        self.prefixes.len() + self.prefix_count
    }

    /// Refuses what EC2 accepts in no call.
    ///
    /// # Errors
    /// When parameters exclude each other.
    pub fn check(&self) -> Result<()> {
        let by_value_and_number = (!self.addresses.is_empty() && self.count > 0)
            || (!self.prefixes.is_empty() && self.prefix_count > 0);
        if by_value_and_number || (self.singles() > 0 && self.blocks() > 0) {
            return Err(Failure::combination(
                "addresses, an address count, prefixes and a prefix count exclude each other",
            ));
        }
        let crooked = self.prefixes.iter().find(|net| {
            net.prefix_len() != Family::of(&net.addr()).block_length() || net.trunc() != **net
        });
        match crooked {
            Some(net) => Err(Failure::value(format!(
                "{net} is not an aligned /{}",
                Family::of(&net.addr()).block_length()
            ))),
            None => Ok(()),
        }
    }
}

/// The addresses of one family in a subnet.
#[derive(Clone, Debug)]
pub(crate) struct Space {
    family: Family,
    cidr: IpNet,
    base: u128,
    size: u128,
    used: BTreeMap<u128, Use>,
    reservations: Vec<IpNet>,
    taken: u128,
    next_single: u128,
    next_block: u128,
}

impl Space {
    /// A subnet without addresses in use. Prefixes alone are taken from `reservations`.
    pub(crate) fn new(cidr: IpNet, reservations: &[IpNet]) -> Self {
        let family = Family::of(&cidr.addr());
        let size = 1_u128 << (family.bits() - cidr.prefix_len()).min(127);
        let mut space = Self {
            family,
            cidr,
            base: family.number(&cidr.network()),
            size,
            used: BTreeMap::new(),
            reservations: reservations.to_vec(),
            taken: 0,
            next_single: 0,
            next_block: 0,
        };
        for offset in (0..KEPT_FIRST).chain([size - 1]) {
            space.mark(offset);
        }
        space
    }

    /// Addresses that are neither in use nor reserved.
    pub(crate) fn free(&self) -> u128 {
        let sizes = self.reservations.iter().map(|net| self.size_of(net));
        self.size.saturating_sub(self.taken + sizes.sum::<u128>())
    }

    /// Takes addresses, all or none.
    ///
    /// # Errors
    /// When the subnet has not enough of them, or one is in use or not in the subnet.
    pub(crate) fn take(&mut self, ask: &Ask) -> Result<Vec<IpNet>> {
        let mut got = Vec::new();
        match self.take_each(ask, &mut got) {
            Ok(()) => Ok(got),
            Err(failure) => {
                for net in &got {
                    self.give_back(net);
                }
                Err(failure)
            }
        }
    }

    fn take_each(&mut self, ask: &Ask, got: &mut Vec<IpNet>) -> Result<()> {
        for address in &ask.addresses {
            let net = IpNet::from(*address);
            self.take_value(&net)?;
            got.push(net);
        }
        for prefix in &ask.prefixes {
            self.take_value(prefix)?;
            got.push(*prefix);
        }
        for _ in 0..ask.count {
            got.push(self.take_single()?);
        }
        for _ in 0..ask.prefix_count {
            got.push(self.take_prefix()?);
        }
        Ok(())
    }

    /// Ends the use of an address or a prefix.
    pub(crate) fn give_back(&mut self, net: &IpNet) {
        let offset = self.offset(net);
        let inner = self.family.block_size();
        let block = offset / inner;
        let was = match self.used.get_mut(&block) {
            Some(Use::Whole) if !is_single(net) => {
                self.used.remove(&block);
                inner
            }
            Some(Use::Singles(set)) => {
                let was = set.remove(&(offset % inner));
                if set.is_empty() {
                    self.used.remove(&block);
                }
                u128::from(was)
            }
            Some(Use::Whole) | None => 0,
        };
        if !self.is_reserved(block) {
            self.taken = self.taken.saturating_sub(was);
        }
        self.next_single = self.next_single.min(block);
        self.next_block = self.next_block.min(block);
    }

    /// Reports if any address of `net` is in use.
    pub(crate) fn is_used(&self, net: &IpNet) -> bool {
        let inner = self.family.block_size();
        let offset = self.offset(net);
        match self.used.get(&(offset / inner)) {
            Some(Use::Whole) => true,
            Some(Use::Singles(set)) => !is_single(net) || set.contains(&(offset % inner)),
            None => false,
        }
    }

    fn take_value(&mut self, net: &IpNet) -> Result<()> {
        if !self.cidr.contains(net) {
            return Err(Failure::value(format!(
                "{net} does not fall within the subnet's range {}",
                self.cidr
            )));
        }
        let length = net.prefix_len();
        if !is_single(net) && (length != self.family.block_length() || net.trunc() != *net) {
            return Err(Failure::value(format!(
                "{net} is not an aligned /{}",
                self.family.block_length()
            )));
        }
        if self.is_used(net) {
            return Err(Failure::new(
                "InvalidIPAddress.InUse",
                format!("{net} is already in use"),
            ));
        }
        let offset = self.offset(net);
        if is_single(net) {
            self.mark(offset);
        } else {
            self.mark_whole(offset / self.family.block_size());
        }
        Ok(())
    }

    fn take_single(&mut self) -> Result<IpNet> {
        let inner = self.family.block_size();
        for block in self.next_single..self.blocks() {
            if self.is_reserved(block) {
                continue;
            }
            let offset = match self.used.get(&block) {
                Some(Use::Whole) => None,
                Some(Use::Singles(set)) => (0..inner).find(|offset| !set.contains(offset)),
                None => Some(0),
            };
            self.next_single = block;
            if let Some(offset) = offset {
                self.mark(block * inner + offset);
                return Ok(self.net(block * inner + offset, self.family.bits()));
            }
        }
        Err(Failure::new(
            "InsufficientFreeAddressesInSubnet",
            format!("{} has not enough free addresses", self.cidr),
        ))
    }

    fn take_prefix(&mut self) -> Result<IpNet> {
        for block in self.next_block..self.blocks() {
            if !self.used.contains_key(&block) {
                self.next_block = block;
                self.mark_whole(block);
                let offset = block * self.family.block_size();
                return Ok(self.net(offset, self.family.block_length()));
            }
        }
        Err(Failure::new(
            "InsufficientCidrBlocks",
            format!("{} has not enough free CIDR blocks", self.cidr),
        ))
    }

    fn mark(&mut self, offset: u128) {
        let inner = self.family.block_size();
        let block = offset / inner;
        let entry = self.used.entry(block);
        if let Use::Singles(set) = entry.or_insert_with(|| Use::Singles(BTreeSet::new())) {
            set.insert(offset % inner);
        }
        if !self.is_reserved(block) {
            self.taken += 1;
        }
    }

    fn mark_whole(&mut self, block: u128) {
        self.used.insert(block, Use::Whole);
        if !self.is_reserved(block) {
            self.taken += self.family.block_size();
        }
    }

    fn blocks(&self) -> u128 {
        (self.size / self.family.block_size()).min(MOST_BLOCKS)
    }

    fn is_reserved(&self, block: u128) -> bool {
        let net = self.net(block * self.family.block_size(), self.family.bits());
        self.reservations.iter().any(|range| range.contains(&net))
    }

    fn size_of(&self, net: &IpNet) -> u128 {
        1_u128 << (self.family.bits() - net.prefix_len()).min(127)
    }

    fn offset(&self, net: &IpNet) -> u128 {
        let number = self.family.number(&net.addr());
        number.saturating_sub(self.base)
    }

    fn net(&self, offset: u128, length: u8) -> IpNet {
        let address = self.family.address(self.base.saturating_add(offset));
        IpNet::new(address, length).unwrap_or_else(|_| IpNet::from(address))
    }
}

/// Reports if a net is one address.
pub(crate) fn is_single(net: &IpNet) -> bool {
    net.prefix_len() == net.max_prefix_len()
}

#[cfg(test)]
mod tests;
