//! Which pinned maps are adopted.

use std::collections::{BTreeMap, BTreeSet};

use aya::maps::{Array, Map, MapData, MapInfo};
use datapath_common::abi::{
    Addr, CACHE_GROUPS, DestinationClass, GROUP_COUNTED, Moved, PodTuple, TrackedFlow,
    TransportAddr, given_up, group_of, map,
};
use datapath_common::counter::Program;
use flows::Tables as _;
use ipam::Family;
use loader::bpf::{AttachMode, Datapath, DatapathSettings};
use loader::kernel::{Attachment, MapEntry, MapKey, StepKind};
use loader::netfilter::service_nat::Notes as _;

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
        let mut datapath = world.load(AttachMode::Auto);
        assert_eq!(ids(world), before);
        assert_eq!(observe(&mut datapath).maps, BTreeMap::from([(key, value)]));
    });
}

/// Kinds, sizes of keys and values, entries, and flags of maps. Each differs from ADDRESSES (hash,
/// 16, 32, 16384, 0) in one thing.
const SHAPES: [[&str; 5]; 5] = [
    ["lru_hash", "16", "32", "16384", "0"],
    ["hash", "8", "32", "16384", "0"],
    ["hash", "16", "64", "16384", "0"],
    ["hash", "16", "32", "64", "0"],
    ["hash", "16", "32", "16384", "1"],
];

/// Puts a map of another shape in the place of ADDRESSES.
fn replace_addresses(pin: &str, [kind, key, value, entries, flags]: [&str; 5]) {
    std::fs::remove_file(pin).unwrap();
    let shape = ["type", kind, "key", key, "value", value, "entries", entries];
    let create = ["map", "create", pin];
    let rest = ["name", "ADDRESSES", "flags", flags];
    run("bpftool", &[&create[..], &shape, &rest].concat());
}

#[test]
fn a_map_that_does_not_fit_is_made_anew_and_the_others_are_kept() {
    for other in SHAPES {
        in_world(move |world| {
            let device = veth("eni0");
            let hook = hook(&device, Program::FromNetwork);
            let (kept, value_kept) = entry();
            let mut datapath = world.load(AttachMode::Auto);
            let right = shape(world);
            assert_eq!(
                right,
                (16, 32, 16_384, 0),
                "the cases above have to follow ADDRESSES"
            );
            datapath.apply(&StepKind::PutMapEntry(value_kept)).unwrap();
            attach(&mut datapath, hook);
            let before = ids(world);
            drop(datapath);

            let pin = world.map_pin(map::ADDRESSES);
            let pin = pin.to_str().unwrap();
            replace_addresses(pin, other);
            let wrong = MapInfo::from_pin(pin).unwrap();
            let mut datapath = world.load(AttachMode::Auto);
            let after = ids(world);
            assert_ne!(after[map::ADDRESSES], wrong.id());
            assert_eq!(shape(world), right);
            for (name, id) in after {
                assert_eq!(name == map::ADDRESSES, before[name] != id, "{name}");
            }
            assert_eq!(
                observe(&mut datapath).maps,
                BTreeMap::from([(kept, value_kept)])
            );
            // The running program was left alone, and can be replaced.
            assert_eq!(at(&mut datapath, hook), Some(Attachment::Stale));
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

/// The words of the groups of flows.
fn words(world: &World) -> Vec<u64> {
    let words = Map::Array(MapData::from_pin(world.map_pin(map::CACHE_EPOCHS)).unwrap());
    let words: Array<_, u64> = words.try_into().unwrap();
    (0..CACHE_GROUPS)
        .map(|group| words.get(&group, 0).unwrap())
        .collect()
}

/// True if every group's word has the flag of counted notes alone; false if all are zero.
fn counts_notes(world: &World) -> bool {
    let words: Vec<_> = BTreeSet::from_iter(words(world)).into_iter().collect();
    match words[..] {
        [0] => false,
        [GROUP_COUNTED] => true,
        ref others => panic!("{others:x?}"),
    }
}

#[test]
fn notes_are_counted_where_none_has_been_made_before() {
    in_world(|world| {
        drop(world.load(AttachMode::Auto));
        assert!(counts_notes(world));
        // The counts cover the entries of the other maps. Stale counts of this map do no harm.
        std::fs::remove_file(world.map_pin(map::INBOUND)).unwrap();
        drop(world.load(AttachMode::Auto));
        assert!(counts_notes(world));
    });
    for kept in [map::MOVED_V4, map::MOVED_V6, map::INBOUND, map::STACK] {
        in_world(move |world| {
            drop(world.load(AttachMode::Auto));
            for name in map::PINNED {
                // Flows and where they are go together.
                let is_about_kept = [map::FLOWS_V4, map::FLOWS_V6].contains(&name);
                if name != kept && !is_about_kept {
                    std::fs::remove_file(world.map_pin(name)).unwrap();
                }
            }
            drop(world.load(AttachMode::Auto));
            assert!(!counts_notes(world), "{kept} may have notes");
        });
    }
}

#[test]
fn notes_that_user_space_makes_are_looked_for() {
    in_world(|world| {
        let mut datapath = world.load(AttachMode::Auto);
        let nat = datapath.take_nat().unwrap();
        let (pod, remote) = (
            Addr::from_v4_word(0x0a00_0001),
            Addr::from_v4_word(0x0101_0101),
        );
        let of = |port: u16| {
            PodTuple::new(
                6,
                TransportAddr::new(pod, port.to_be()),
                TransportAddr::new(remote, 80_u16.to_be()),
            )
        };
        let (stack, moved) = (of(1000), of(1001));
        assert_ne!(group_of(&stack), group_of(&moved));
        let note = TrackedFlow::new(&stack, 1, 7, 0);
        let to = Moved::new(1, 5000);
        for _again in 0..2 {
            nat.notes.note(&stack, &note).unwrap();
            nat.tables.note_moved(Family::V4, &moved, &to).unwrap();
        }
        for (group, word) in (0..).zip(words(world)) {
            let is_noted = [group_of(&stack), group_of(&moved)].contains(&group);
            let is_given_up = word == given_up(GROUP_COUNTED).unwrap();
            assert_eq!(
                (is_noted, word == GROUP_COUNTED),
                (is_given_up, !is_noted),
                "group {group}"
            );
        }
    });
}
