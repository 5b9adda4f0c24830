//! Pins that go while the datapath is loaded: the same maps and links are pinned again.

use std::fs;
use std::os::unix::fs::MetadataExt as _;

use aya::maps::MapInfo;
use datapath_common::abi::{DEFAULT_STACK, map};
use datapath_common::counter::Program;
use loader::bpf::AttachMode;
use loader::kernel::{Attachment, StepKind};
use nix::mount::{MntFlags, MsFlags, mount, umount2};

use crate::world::{World, at, attach, hook, in_world, observe, veth};

fn remove(world: &World) {
    fs::remove_dir_all(world.bpffs().join("towpath")).unwrap();
}

fn unmount(world: &World) {
    umount2(world.bpffs(), MntFlags::MNT_DETACH).unwrap();
}

fn mount_over(world: &World) {
    let none: Option<&str> = None;
    mount(
        Some("bpf"),
        world.bpffs(),
        Some("bpf"),
        MsFlags::empty(),
        none,
    )
    .unwrap();
}

/// Ids of the pinned maps.
fn ids(world: &World) -> Vec<u32> {
    let id = |name: &str| MapInfo::from_pin(world.map_pin(name)).unwrap().id();
    map::PINNED.into_iter().map(id).collect()
}

#[test]
fn the_same_maps_and_links_are_pinned_again() {
    for accident in [remove, unmount, mount_over] {
        in_world(move |world| {
            let device = veth("eni0");
            let hook = hook(&device, Program::FromNetwork);
            let mut datapath = world.load(AttachMode::Tcx);
            attach(&mut datapath, hook);
            assert!(!datapath.keep_pins().unwrap(), "nothing is missing");
            let (maps, link) = (ids(world), world.link(hook));

            accident(world);
            assert_eq!(at(&mut datapath, hook), None, "it is to be seen to");
            assert!(observe(&mut datapath).unpinned.contains(&hook), "it runs");
            assert_eq!(datapath.foreign_programs([&device]).unwrap(), []);
            assert!(datapath.keep_pins().unwrap());
            attach(&mut datapath, hook);
            assert_eq!((ids(world), world.link(hook)), (maps.clone(), link));
            assert!(!datapath.keep_pins().unwrap());

            drop(datapath);
            let mut datapath = world.load(AttachMode::Tcx);
            assert_eq!(ids(world), maps);
            assert_eq!(at(&mut datapath, hook), Some(Attachment::Stale));
        });
    }
}

#[test]
fn notes_begin_with_the_maps_that_are_held() {
    in_world(|world| {
        let mut datapath = world.load(AttachMode::Auto);
        let before = ids(world);
        remove(world);
        datapath.keep_notes(2 * DEFAULT_STACK).unwrap();
        let differ = std::iter::zip(before, ids(world)).filter(|(was, is)| was != is);
        assert_eq!(differ.count(), 1, "the map of notes alone is another one");
        assert!(!datapath.keep_pins().unwrap());
    });
}

#[test]
fn a_foreign_map_in_the_place_of_ours_is_replaced() {
    in_world(|world| {
        let mut datapath = world.load(AttachMode::Auto);
        let before = ids(world);
        let (one, other) = (world.map_pin(map::FLOWS_V4), world.map_pin(map::FLOWS_V6));
        fs::remove_file(&one).unwrap();
        fs::rename(&other, &one).unwrap();
        let there = fs::metadata(&one).unwrap().ino();
        assert!(datapath.keep_pins().unwrap());
        assert_ne!(fs::metadata(&one).unwrap().ino(), there);
        assert_eq!(ids(world), before);
    });
}

#[test]
fn what_cannot_be_pinned_is_told_and_keeps_nothing_else() {
    in_world(|world| {
        let device = veth("eni0");
        let hook = hook(&device, Program::FromNetwork);
        let mut datapath = world.load(AttachMode::Tcx);
        attach(&mut datapath, hook);
        let pin = world.map_pin(map::FLOWS_V4);
        fs::remove_file(&pin).unwrap();
        fs::create_dir(&pin).unwrap();
        fs::remove_file(world.map_pin(map::FLOWS_V6)).unwrap();
        let error = format!("{:#}", datapath.keep_pins().unwrap_err());
        assert!(
            error.contains("FLOWS_V4") && !error.contains("FLOWS_V6"),
            "{error}"
        );
        assert!(world.map_pin(map::FLOWS_V6).exists());
        fs::remove_dir(&pin).unwrap();
        assert!(datapath.keep_pins().unwrap());

        // A hook that is not wanted any more is left, with a pin or without.
        fs::remove_file(world.link_pin(hook)).unwrap();
        datapath.apply(&StepKind::Detach(hook)).unwrap();
        assert!(observe(&mut datapath).unpinned.is_empty());
        assert_eq!(datapath.foreign_programs([&device]).unwrap(), []);
    });
}
