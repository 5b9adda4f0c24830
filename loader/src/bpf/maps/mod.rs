//! The datapath's maps, typed.

pub(in crate::bpf) mod counters;
pub(in crate::bpf) mod gateways;

use std::collections::BTreeMap;
use std::net::IpAddr;

use anyhow::{Context, Result};
use api::ids::EniNumber;
use aya::Ebpf;
use aya::maps::lpm_trie::Key;
use aya::maps::{Array, HashMap, LpmTrie, Map, MapData, MapError, PerCpuArray};
use datapath_common::abi::{Addr, AddressEntry, DestinationClass, EniEntry, MAX_ENIS, map};
use datapath_common::counter::Counter;
use ipnet::{IpNet, Ipv6Net};
use zerocopy::{FromBytes, Immutable, IntoBytes, transmute};

use crate::bpf::flow_maps::cache::Cache;
use crate::bpf::flow_maps::nat::table;
use crate::bpf::sys::table::Table;
use crate::kernel::{MapEntry, MapKey};

/// The datapath's maps.
pub(super) struct Maps {
    dumps: Dumps,
    addresses: HashMap<MapData, Addr, AddressEntry>,
    destinations: LpmTrie<MapData, Addr, DestinationClass>,
    enis: Array<MapData, EniEntry>,
    eni_by_ifindex: HashMap<MapData, u32, u32>,
    pub(super) counters: PerCpuArray<MapData, Counter>,
    cache: Cache,
}

/// Maps that are read as a whole, in batches.
struct Dumps {
    addresses: Table<Addr, AddressEntry>,
    destinations: Table<PrefixKey, DestinationClass>,
    enis: Table<u32, EniEntry>,
    eni_by_ifindex: Table<u32, u32>,
}

fn take<T>(ebpf: &mut Ebpf, name: &str) -> Result<T>
where
    T: TryFrom<Map, Error = MapError>,
{
    let map = ebpf
        .take_map(name)
        .with_context(|| format!("the eBPF object has no map {name}"))?;
    T::try_from(map).with_context(|| format!("the map {name} has another type"))
}

impl Maps {
    pub(super) fn take(ebpf: &mut Ebpf) -> Result<Self> {
        Ok(Self {
            dumps: Dumps {
                addresses: table(ebpf, map::ADDRESSES)?,
                destinations: table(ebpf, map::DESTINATIONS)?,
                enis: table(ebpf, map::ENIS)?,
                eni_by_ifindex: table(ebpf, map::ENI_BY_IFINDEX)?,
            },
            cache: Cache::new(ebpf)?,
            addresses: take(ebpf, map::ADDRESSES)?,
            destinations: take(ebpf, map::DESTINATIONS)?,
            enis: take(ebpf, map::ENIS)?,
            eni_by_ifindex: take(ebpf, map::ENI_BY_IFINDEX)?,
            counters: take(ebpf, map::COUNTERS)?,
        })
    }

    /// Every entry of the four data maps. A slot of `ENIS` that is all zero is no entry.
    pub(super) fn entries(&self) -> Result<BTreeMap<MapKey, MapEntry>> {
        let mut entries = BTreeMap::new();
        let mut put = |entry: MapEntry| {
            entries.insert(entry.key(), entry);
        };
        let Dumps {
            addresses,
            destinations,
            enis,
            eni_by_ifindex,
        } = &self.dumps;
        addresses
            .each(|addr, entry| put(MapEntry::Address((*addr).into(), *entry)))
            .with_context(|| reading(map::ADDRESSES))?;
        let shown = destinations.each(|key, class| {
            if let Some(net) = key.prefix() {
                put(MapEntry::Destination(net, *class));
            }
        });
        shown.with_context(|| reading(map::DESTINATIONS))?;
        let shown = enis.each(|slot, entry| {
            if *entry != EniEntry::ABSENT {
                put(MapEntry::Eni(number(*slot), *entry));
            }
        });
        shown.with_context(|| reading(map::ENIS))?;
        eni_by_ifindex
            .each(|ifindex, eni| put(MapEntry::EniDevice(*ifindex, number(*eni))))
            .with_context(|| reading(map::ENI_BY_IFINDEX))?;
        Ok(entries)
    }

    /// The entry of an address.
    pub(super) fn of_address(&self, address: IpAddr) -> Result<Option<MapEntry>> {
        match self.addresses.get(&Addr::from(address), 0) {
            Ok(entry) => Ok(Some(MapEntry::Address(address, entry))),
            Err(error) if is_missing(&error) => Ok(None),
            Err(error) => Err(error).with_context(|| reading(map::ADDRESSES)),
        }
    }

    /// Writes an entry.
    pub(super) fn put(&mut self, entry: &MapEntry) -> Result<()> {
        match *entry {
            MapEntry::Address(address, entry) => {
                self.addresses.insert(Addr::from(address), entry, 0)
            }
            MapEntry::Destination(net, class) => self.destinations.insert(&key(net), class, 0),
            MapEntry::Eni(number, entry) => self.enis.set(u32::from(number.0), entry, 0),
            MapEntry::EniDevice(ifindex, number) => {
                self.eni_by_ifindex.insert(ifindex, u32::from(number.0), 0)
            }
        }
        .with_context(|| format!("cannot write the map entry {entry:?}"))?;
        self.cache.invalidate()
    }

    /// Removes an entry; one that is not there is success.
    pub(super) fn delete(&mut self, wanted: &MapKey) -> Result<()> {
        let result = match *wanted {
            MapKey::Address(address) => self.addresses.remove(&Addr::from(address)),
            MapKey::Destination(net) => self.destinations.remove(&key(net)),
            MapKey::Eni(number) => self.enis.set(u32::from(number.0), EniEntry::ABSENT, 0),
            MapKey::EniDevice(ifindex) => self.eni_by_ifindex.remove(&ifindex),
        };
        match result {
            Err(error) if is_missing(&error) => Ok(()),
            other => other.with_context(|| format!("cannot remove the map entry {wanted:?}")),
        }?;
        self.cache.invalidate()
    }
}

fn reading(name: &str) -> String {
    format!("cannot read the map {name}")
}

fn is_missing(error: &MapError) -> bool {
    match error {
        MapError::KeyNotFound => true,
        MapError::SyscallError(error) => error.io_error.raw_os_error() == Some(libc::ENOENT),
        _other => false,
    }
}

/// The trie's key of a prefix.
fn key(net: IpNet) -> Key<Addr> {
    let (length, addr) = Addr::prefix(net);
    Key::new(length, addr)
}

/// A trie's key as it lies in the kernel (`struct bpf_lpm_trie_key` in `include/uapi/linux/bpf.h`).
#[derive(Clone, Copy, FromBytes, IntoBytes, Immutable)]
#[repr(C)]
struct PrefixKey {
    length: u32,
    address: [u8; size_of::<Addr>()],
}

impl PrefixKey {
    /// The prefix. A foreign one, such as one below 96 of a v4-mapped address, is shown as an IPv6
    /// prefix, so that it is found and removed.
    fn prefix(self) -> Option<IpNet> {
        let (length, addr): (_, Addr) = (self.length, transmute!(self.address));
        let net = addr.to_prefix(length).or_else(|| {
            let address = match IpAddr::from(addr) {
                IpAddr::V4(v4) => v4.to_ipv6_mapped(),
                IpAddr::V6(v6) => v6,
            };
            let length = u8::try_from(length).ok()?;
            Some(Ipv6Net::new(address, length).ok()?.into())
        });
        net.map(|net| net.trunc())
    }
}

/// The number of an ENI in a map. A foreign value that no ENI can have becomes the highest number:
/// it differs from the desired one and is repaired.
fn number(raw: u32) -> EniNumber {
    EniNumber(u8::try_from(raw).unwrap_or(u8::MAX))
}

const _: () = assert!(MAX_ENIS <= 256, "an ENI's number is a u8");

#[cfg(test)]
mod tests {
    use std::net::Ipv6Addr;

    use super::*;

    #[test]
    fn a_short_prefix_of_a_mapped_address_shows_as_ipv6() {
        let prefix = |(length, addr): (u32, Addr)| {
            let address = transmute!(addr);
            PrefixKey { length, address }.prefix()
        };
        let mapped: Ipv6Addr = "::ffff:0:0".parse().unwrap();
        let shown = prefix((90, Addr::from(mapped))).unwrap();
        assert_eq!(shown.to_string(), "::ffc0:0:0/90");
        assert_eq!(Addr::prefix(shown).0, 90);
        let plain: IpNet = "10.0.0.0/8".parse().unwrap();
        assert_eq!(prefix(Addr::prefix(plain)), Some(plain));
    }

    #[test]
    fn numbers_that_do_not_fit_are_the_highest() {
        assert_eq!(number(3), EniNumber(3));
        assert_eq!(number(256), EniNumber(255));
    }
}
