//! Which pinned maps are adopted.

use std::collections::BTreeMap;

use aya::maps::MapInfo;
use datapath_common::abi::{DestinationClass, map};
use datapath_common::counter::Program;
use towpath::bpf::{AttachMode, Datapath, DatapathSettings};
use towpath::kernel::{Attachment, MapEntry, MapKey, StepKind};

use crate::world::{World, at, attach, hook, in_world, observe, run, veth};

fn entry() -> (MapKey, MapEntry) {
    let entry = MapEntry::Destination("10.1.0.0/16".parse().unwrap(), DestinationClass::VPC);
    (entry.key(), entry)
}

/// Id of each pinned map.
fn ids(world: &World) -> BTreeMap<&'static str, u32> {
    map::PINNED
        .into_iter()
        .map(|name| (name, MapInfo::from_pin(world.map_pin(name)).unwrap().id()))
        .collect()
}

#[test]
fn maps_that_fit_are_adopted_with_their_contents() {
    in_world(|world| {
        let (key, value) = entry();
        let mut datapath = world.load(AttachMode::Auto);
        datapath.apply(&StepKind::PutMapEntry(value)).unwrap();
        let before = ids(world);
        drop(datapath);
        let datapath = world.load(AttachMode::Auto);
        assert_eq!(ids(world), before);
        assert_eq!(observe(&datapath).maps, BTreeMap::from([(key, value)]));
    });
}

#[test]
fn a_map_that_does_not_fit_is_made_anew_and_the_others_are_kept() {
    // Each differs from ADDRESSES (hash, 16, 28, 16384, 0) in one thing.
    for (kind, key, value, entries, flags) in [
        ("lru_hash", "16", "28", "16384", "0"),
        ("hash", "8", "28", "16384", "0"),
        ("hash", "16", "64", "16384", "0"),
        ("hash", "16", "28", "64", "0"),
        ("hash", "16", "28", "16384", "1"),
    ] {
        in_world(move |world| {
            let device = veth("eni0");
            let hook = hook(&device, Program::FromNetwork);
            let (kept, value_kept) = entry();
            let mut datapath = world.load(AttachMode::Auto);
            let right = shape(world);
            assert_eq!(
                right,
                (16, 28, 16_384, 0),
                "the cases above have to follow ADDRESSES"
            );
            datapath.apply(&StepKind::PutMapEntry(value_kept)).unwrap();
            attach(&mut datapath, hook);
            let before = ids(world);
            drop(datapath);

            let pin = world.map_pin(map::ADDRESSES);
            std::fs::remove_file(&pin).unwrap();
            let pin = pin.to_str().unwrap();
            run(
                "bpftool",
                &[
                    "map",
                    "create",
                    pin,
                    "type",
                    kind,
                    "key",
                    key,
                    "value",
                    value,
                    "entries",
                    entries,
                    "name",
                    "ADDRESSES",
                    "flags",
                    flags,
                ],
            );
            let wrong = MapInfo::from_pin(pin).unwrap();
            let mut datapath = world.load(AttachMode::Auto);
            let after = ids(world);
            assert_ne!(after[map::ADDRESSES], wrong.id());
            assert_eq!(shape(world), right);
            for (name, id) in after {
                assert_eq!(name == map::ADDRESSES, before[name] != id, "{name}");
            }
            assert_eq!(
                observe(&datapath).maps,
                BTreeMap::from([(kept, value_kept)])
            );
            // The running program was left alone, and can be replaced.
            assert_eq!(at(&datapath, hook), Some(Attachment::Stale));
            attach(&mut datapath, hook);
        });
    }
}

fn shape(world: &World) -> (u32, u32, u32, u32) {
    let info = MapInfo::from_pin(world.map_pin(map::ADDRESSES)).unwrap();
    (
        info.key_size(),
        info.value_size(),
        info.max_entries(),
        info.map_flags(),
    )
}

#[test]
fn a_changed_capacity_makes_its_maps_anew_and_no_other() {
    in_world(|world| {
        let options = world.options(AttachMode::Auto);
        drop(world.load(AttachMode::Auto));
        let mut before = ids(world);
        let settings = DatapathSettings {
            flows_v4: 1000,
            ..DatapathSettings::default()
        };
        for changed in [&[map::FLOWS_V4, map::MOVED_V4][..], &[]] {
            drop(Datapath::load(&options, &settings).unwrap());
            let after = ids(world);
            for (name, id) in &after {
                assert_eq!(changed.contains(name), before[name] != *id, "{name}");
            }
            before = after;
        }
        let flows = MapInfo::from_pin(world.map_pin(map::FLOWS_V4)).unwrap();
        assert_eq!(flows.max_entries(), 1000);
    });
}

#[test]
fn where_flows_go_what_is_about_them_goes_with_them() {
    in_world(|world| {
        drop(world.load(AttachMode::Auto));
        let before = ids(world);
        std::fs::remove_file(world.map_pin(map::FLOWS_V6)).unwrap();
        drop(world.load(AttachMode::Auto));
        for (name, id) in ids(world) {
            let gone = [map::FLOWS_V6, map::MOVED_V6].contains(&name);
            assert_eq!(gone, before[name] != id, "{name}");
        }
    });
}
