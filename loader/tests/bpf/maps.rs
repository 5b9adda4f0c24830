//! Entries of the maps.

use std::collections::{BTreeMap, BTreeSet};
use std::net::{IpAddr, Ipv4Addr};

use api::ids::EniNumber;
use aya::maps::{Array, Map, MapData};
use datapath_common::abi::{
    Addr, AddressEntry, DestinationClass, EndpointAddress, EniAddresses, EniEntry, map,
};
use datapath_common::masquerade::PoolPolicy;
use flows::{CompatLookups, LookupControl as _};
use ipnet::Ipv4Net;
use loader::bpf::AttachMode;
use loader::kernel::{MapEntry, MapKey, StepKind};

use crate::system_calls;
use crate::world::{in_world, observe};

fn entries() -> Vec<MapEntry> {
    let endpoint = AddressEntry::endpoint(EndpointAddress {
        eni: 2,
        eni_ifindex: 4,
        pool: PoolPolicy::Skip,
        via_stack: false,
        ifindex: 9,
        mtu: 9001,
        pod_mac: [2, 0, 0, 0, 0, 1],
        host_mac: [2, 0, 0, 0, 0, 2],
        namespace: None,
    });
    let addresses = |gateway: &str, snat: &str, external| {
        let addr = |text: &str| Addr::from(text.parse::<IpAddr>().unwrap());
        EniAddresses::new(addr(gateway), addr(snat), external)
    };
    let gateway = addresses("10.0.1.1", "10.0.1.10", 2);
    let v6 = addresses("fe80:ec2::1", "2001:db8::10", 0);
    vec![
        MapEntry::Address("10.0.1.7".parse().unwrap(), endpoint),
        MapEntry::Address("2001:db8::7".parse().unwrap(), endpoint),
        MapEntry::Address("10.0.0.1".parse().unwrap(), AddressEntry::host()),
        MapEntry::Destination("0.0.0.0/0".parse().unwrap(), DestinationClass::SERVICE),
        MapEntry::Destination("10.0.0.0/8".parse().unwrap(), DestinationClass::VPC),
        MapEntry::Destination("2001:db8::/80".parse().unwrap(), DestinationClass::BLOCK),
        MapEntry::Eni(EniNumber(0), EniEntry::new(2, 9001, gateway, v6)),
        MapEntry::Eni(EniNumber(2), EniEntry::new(4, 9001, gateway, v6)),
        MapEntry::EniDevice(4, EniNumber(2)),
    ]
}

#[test]
fn a_change_since_the_last_look_is_known() {
    in_world(|world| {
        let mut datapath = world.load(AttachMode::Auto);
        observe(&mut datapath);
        assert!(!datapath.have_maps_changed().unwrap());
        for entry in entries() {
            datapath.apply(&StepKind::PutMapEntry(entry)).unwrap();
            assert!(datapath.have_maps_changed().unwrap(), "{entry:?}");
            observe(&mut datapath);
            assert!(!datapath.have_maps_changed().unwrap(), "{entry:?}");
        }
    });
}

#[test]
fn entries_are_written_read_overwritten_and_removed() {
    in_world(|world| {
        let mut datapath = world.load(AttachMode::Auto);
        for entry in entries() {
            datapath.apply(&StepKind::PutMapEntry(entry)).unwrap();
        }
        let expected = entries().into_iter().map(|e| (e.key(), e)).collect();
        assert_eq!(observe(&mut datapath).maps, expected);

        let changed = MapEntry::EniDevice(4, EniNumber(3));
        datapath.apply(&StepKind::PutMapEntry(changed)).unwrap();
        assert_eq!(observe(&mut datapath).maps[&MapKey::EniDevice(4)], changed);

        for _again in 0..2 {
            for entry in entries() {
                datapath
                    .apply(&StepKind::DeleteMapEntry(entry.key()))
                    .unwrap();
            }
            assert!(observe(&mut datapath).maps.is_empty());
        }
    });
}

/// More than one batch of destinations.
#[test]
fn destinations_are_read_in_batches() {
    in_world(|world| {
        let mut datapath = world.load(AttachMode::Auto);
        let few = system_calls::count(|| drop(datapath.map_entries().unwrap()));
        let destinations: Vec<_> = (0..5_000_u32)
            .map(|number| {
                let address = Ipv4Addr::from(0x0a00_0000 + (number << 4));
                let net = Ipv4Net::new(address, 28).unwrap().into();
                MapEntry::Destination(net, DestinationClass::BLOCK)
            })
            .collect();
        for entry in &destinations {
            datapath.apply(&StepKind::PutMapEntry(*entry)).unwrap();
        }
        let mut read = BTreeMap::new();
        let many = system_calls::count(|| read = datapath.map_entries().unwrap());
        let expected = destinations.into_iter().map(|entry| (entry.key(), entry));
        assert_eq!(read, expected.collect());
        assert!(many < few + 50, "{few} system calls without, {many} with");
    });
}

/// The programs' cached decisions depend on these entries.
#[test]
fn every_write_makes_the_flow_cache_worthless() {
    in_world(|world| {
        let mut datapath = world.load(AttachMode::Auto);
        let control = Map::Array(MapData::from_pin(world.map_pin(map::CACHE_CONTROL)).unwrap());
        let control: Array<_, u32> = control.try_into().unwrap();
        let generation = || control.get(&0, 0).unwrap();
        let mut seen = BTreeSet::from([generation()]);
        let puts = entries().into_iter().map(StepKind::PutMapEntry);
        let keys = entries().into_iter().map(|entry| entry.key());
        for step in puts.chain(keys.map(StepKind::DeleteMapEntry)) {
            datapath.apply(&step).unwrap();
            assert!(seen.insert(generation()), "{step:?}");
        }
        let nat = datapath.take_nat().unwrap();
        nat.switch.set(CompatLookups::ALL).unwrap();
        assert!(seen.insert(generation()), "the switch for exempt packets");
    });
}
