//! Blocks: an ENI's addresses as the cloud counts them, each a single address or a prefix.

use std::collections::BTreeSet;
use std::net::IpAddr;

use ipam::Family;
use ipnet::IpNet;

/// Length of a delegated IPv4 prefix.
pub const PREFIX_V4: u8 = 28;
/// Length of a delegated IPv6 prefix.
pub const PREFIX_V6: u8 = 80;
/// Addresses of a delegated IPv4 prefix.
pub const PREFIX_SIZE: u32 = 1 << (32 - PREFIX_V4);

/// A kind of block. A subnet can be short of one kind and have plenty of another.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Kind {
    /// A single IPv4 address.
    Address,
    /// An IPv4 /28.
    Prefix,
    /// An IPv6 /80.
    PrefixV6,
}

impl Kind {
    /// IPv4 addresses of one block.
    #[must_use]
    pub fn addresses(self) -> u32 {
        match self {
            Self::Address => 1,
            Self::Prefix => PREFIX_SIZE,
            Self::PrefixV6 => 0,
        }
    }

    /// The family.
    #[must_use]
    pub fn family(self) -> Family {
        match self {
            Self::Address | Self::Prefix => Family::V4,
            Self::PrefixV6 => Family::V6,
        }
    }

    /// Blocks that hold so many addresses.
    #[must_use]
    pub fn blocks_for(self, addresses: u32) -> u32 {
        match self {
            Self::Address | Self::Prefix => addresses.div_ceil(self.addresses()),
            Self::PrefixV6 => addresses.min(1),
        }
    }
}

/// An ENI's blocks, from the lists of EC2: each address is in one block at most. Addresses that a
/// prefix covers are part of that prefix, and the ENI's own address is in none.
#[must_use]
pub fn blocks(
    own: Option<IpAddr>,
    prefixes: impl IntoIterator<Item = IpNet>,
    addresses: impl IntoIterator<Item = IpAddr>,
) -> BTreeSet<IpNet> {
    let mut blocks: BTreeSet<IpNet> = prefixes.into_iter().map(|net| net.trunc()).collect();
    let singles: Vec<IpNet> = addresses
        .into_iter()
        .filter(|address| Some(*address) != own)
        .filter(|address| !blocks.iter().any(|block| block.contains(address)))
        .map(IpNet::from)
        .collect();
    blocks.extend(singles);
    blocks
}

/// The IPv4 addresses of blocks.
#[must_use]
pub(crate) fn addresses_v4<'a>(blocks: impl IntoIterator<Item = &'a IpNet>) -> u32 {
    let sizes = blocks.into_iter().map(|block| match block {
        IpNet::V4(net) => 1_u32
            .checked_shl(32 - u32::from(net.prefix_len()))
            .unwrap_or(u32::MAX),
        IpNet::V6(_) => 0,
    });
    sizes.fold(0, u32::saturating_add)
}

/// Reports if a block is a delegated IPv6 prefix.
#[must_use]
pub(crate) fn is_prefix_v6(block: &IpNet) -> bool {
    matches!(block, IpNet::V6(net) if net.prefix_len() < 128)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn a_prefix_holds_its_addresses_and_the_own_one_is_left_out() {
        let own = "10.0.0.4".parse().unwrap();
        let addresses = [
            "10.0.0.4",
            "10.0.0.1",
            "10.0.0.16",
            "10.0.0.31",
            "2001:db8::1",
        ];
        let got = blocks(
            Some(own),
            ["10.0.0.17/28".parse().unwrap()],
            addresses.map(|text| text.parse().unwrap()),
        );
        let expected = ["10.0.0.1/32", "10.0.0.16/28", "2001:db8::1/128"];
        assert_eq!(got, expected.map(|text| text.parse().unwrap()).into());
        assert_eq!(addresses_v4(&got), 17);
    }

    #[test]
    fn prefixes_for_addresses() {
        for (addresses, prefixes) in [(0, 0), (9, 1), (16, 1), (17, 2), (31, 2), (32, 2)] {
            assert_eq!(Kind::Prefix.blocks_for(addresses), prefixes, "{addresses}");
        }
    }

    proptest! {
        #[test]
        fn blocks_are_a_partition(
            prefixes in prop::collection::vec(0_u8..16, 0..6),
            addresses in prop::collection::vec(any::<u8>(), 0..60),
            own in any::<u8>(),
        ) {
            let address = |n: u8| IpAddr::from([10, 0, 0, n]);
            let nets: Vec<IpNet> =
                prefixes.iter().map(|n| IpNet::new_assert(address(n * 16), PREFIX_V4)).collect();
            let singles = addresses.iter().map(|n| address(*n));
            let got = blocks(Some(address(own)), nets.clone(), singles);
            for n in 0..=u8::MAX {
                let covering = got.iter().filter(|block| block.contains(&address(n))).count();
                let in_prefix = nets.iter().any(|net| net.contains(&address(n)));
                let single = addresses.contains(&n) && n != own;
                prop_assert_eq!(covering, usize::from(in_prefix || single), "{}", n);
            }
        }
    }
}
