//! Features of TCX alone (Linux 6.6): pinned links, severed links, and other programs at the hook.

use std::time::{Duration, Instant};

use api::types::{Direction, Mechanism, Position};
use aya::maps::MapInfo;
use aya::programs::LinkOrder;
use aya::programs::links::PinnedLink;
use datapath_common::abi::map;
use datapath_common::counter::Program;
use loader::bpf::AttachMode;
use loader::kernel::{Attachment, StepKind};

use crate::world::{Stranger, add_u32_filter, at, attach, hook, in_world, observe, run, veth};

#[test]
fn the_link_of_a_deleted_device_is_dead_until_it_is_detached() {
    in_world(|world| {
        let device = veth("pod0");
        let hook = hook(&device, Program::FromEndpoint);
        let mut datapath = world.load(AttachMode::Tcx);
        attach(&mut datapath, hook);
        run("ip", &["link", "del", "pod0"]);
        assert_eq!(at(&mut datapath, hook), Some(Attachment::Dead));
        datapath.apply(&StepKind::Detach(hook)).unwrap();
        assert_eq!(at(&mut datapath, hook), None);
        assert!(!world.link_pin(hook).exists());
        let error = datapath.apply(&StepKind::Attach(hook)).unwrap_err();
        assert!(format!("{error:#}").contains("cannot attach from_endpoint"));
        assert!(!world.link_pin(hook).exists());
    });
}

#[test]
fn the_link_of_a_device_that_left_the_namespace_is_dead() {
    in_world(|world| {
        let device = veth("eni0");
        let hook = hook(&device, Program::FromNetwork);
        let mut datapath = world.load(AttachMode::Tcx);
        attach(&mut datapath, hook);
        let mut elsewhere = std::process::Command::new("unshare")
            .args(["--net", "cat"])
            .stdin(std::process::Stdio::piped())
            .stdout(std::process::Stdio::piped())
            .spawn()
            .unwrap();
        // `cat` answers once `unshare` has made the namespace.
        {
            use std::io::{Read, Write};
            elsewhere.stdin.as_mut().unwrap().write_all(b"x").unwrap();
            let mut answer = [0];
            elsewhere
                .stdout
                .as_mut()
                .unwrap()
                .read_exact(&mut answer)
                .unwrap();
        }
        run(
            "ip",
            &["link", "set", "eni0", "netns", &elsewhere.id().to_string()],
        );
        assert_eq!(at(&mut datapath, hook), Some(Attachment::Dead));
        // Another device with the same index does not have the link either.
        let index = hook.ifindex.to_string();
        run(
            "ip",
            &[
                "link",
                "add",
                "eni1",
                "index",
                &index,
                "type",
                "veth",
                "peer",
                "name",
                "eni1-peer",
            ],
        );
        assert_eq!(at(&mut datapath, hook), Some(Attachment::Dead));
        attach(&mut datapath, hook);
        datapath.apply(&StepKind::Detach(hook)).unwrap();
        assert_eq!(at(&mut datapath, hook), None);
        drop(elsewhere.stdin.take());
        elsewhere.wait().unwrap();
    });
}

#[test]
fn a_link_that_someone_detached_is_made_anew() {
    in_world(|world| {
        let device = veth("eni0");
        let hook = hook(&device, Program::FromNetwork);
        let mut datapath = world.load(AttachMode::Tcx);
        attach(&mut datapath, hook);
        let (link, _program) = world.link(hook);

        let pin = world.link_pin(hook);
        run(
            "bpftool",
            &["link", "detach", "pinned", pin.to_str().unwrap()],
        );
        assert_eq!(at(&mut datapath, hook), Some(Attachment::Dead));
        attach(&mut datapath, hook);
        assert_ne!(world.link(hook).0, link);

        // The kernel detaches a link that lost its pin in its own time; up to a moment before that
        // the link gets its pin back.
        std::fs::remove_file(&pin).unwrap();
        assert_eq!(at(&mut datapath, hook), None);
        let deadline = Instant::now() + Duration::from_secs(5);
        while datapath.apply(&StepKind::Attach(hook)).is_err() {
            assert!(Instant::now() < deadline, "cannot attach again");
        }
        assert_eq!(at(&mut datapath, hook), Some(Attachment::Current));
        assert_eq!(datapath.foreign_programs([&device]).unwrap(), []);
    });
}

#[test]
fn a_link_that_lost_its_pin_while_someone_holds_it_gets_it_back() {
    in_world(|world| {
        let device = veth("eni0");
        let hook = hook(&device, Program::FromNetwork);
        let mut datapath = world.load(AttachMode::Tcx);
        attach(&mut datapath, hook);
        let pin = world.link_pin(hook);
        let held = PinnedLink::from_pin(&pin).unwrap();
        let before = world.link(hook);
        std::fs::remove_file(&pin).unwrap();
        assert_eq!(at(&mut datapath, hook), None);
        attach(&mut datapath, hook);
        assert_eq!(world.link(hook), before);
        // A process that holds the link does not prevent its detachment either.
        datapath.apply(&StepKind::Detach(hook)).unwrap();
        assert_eq!(datapath.foreign_programs([&device]).unwrap(), []);
        drop(held);
    });
}

#[test]
fn a_pin_for_another_device_is_replaced() {
    in_world(|world| {
        let (one, two) = (veth("eni0"), veth("eni1"));
        let (one, two) = (
            hook(&one, Program::FromNetwork),
            hook(&two, Program::FromNetwork),
        );
        let mut datapath = world.load(AttachMode::Tcx);
        attach(&mut datapath, one);
        std::fs::rename(world.link_pin(one), world.link_pin(two)).unwrap();
        assert_eq!(at(&mut datapath, one), None);
        assert_eq!(at(&mut datapath, two), Some(Attachment::Dead));
        attach(&mut datapath, two);
        attach(&mut datapath, one);
        assert_eq!(at(&mut datapath, two), Some(Attachment::Current));
    });
}

/// Directions, mechanisms, identifiers, priorities and positions of the programs of others.
type Found = (Direction, Mechanism, Option<u32>, Option<u16>, Position);

/// The two programs that surround ours, and the filters behind them.
fn surroundings(early: u32, late: u32) -> [Found; 4] {
    [
        (
            Direction::Ingress,
            Mechanism::Tcx,
            Some(early),
            None,
            Position::Before,
        ),
        (
            Direction::Ingress,
            Mechanism::Tcx,
            Some(late),
            None,
            Position::After,
        ),
        (
            Direction::Ingress,
            Mechanism::Clsact,
            None,
            Some(7),
            Position::After,
        ),
        (
            Direction::Egress,
            Mechanism::Clsact,
            None,
            Some(8),
            Position::Alone,
        ),
    ]
}

#[test]
fn programs_of_others_stay_and_are_listed_in_their_place() {
    in_world(|world| {
        let device = veth("eni0");
        let hook = hook(&device, Program::FromNetwork);
        let (mut early, mut late) = (Stranger::load(), Stranger::load());
        early.attach_tcx(&device, LinkOrder::first());
        let mut datapath = world.load(AttachMode::Tcx);
        attach(&mut datapath, hook);
        late.attach_tcx(&device, LinkOrder::last());
        run("tc", &["qdisc", "add", "dev", "eni0", "clsact"]);
        add_u32_filter("eni0", "ingress", "7");
        add_u32_filter("eni0", "egress", "8");

        let list = || {
            let found = datapath.foreign_programs([&device]).unwrap();
            assert!(
                found
                    .iter()
                    .all(|f| f.device == "eni0" && f.ifindex == device.ifindex)
            );
            found
                .into_iter()
                .map(|f| (f.direction, f.mechanism, f.id, f.priority, f.position))
                .collect::<Vec<_>>()
        };
        let expected = surroundings(early.id(), late.id());
        assert_eq!(list(), expected);
        drop(datapath);

        let mut datapath = world.load(AttachMode::Tcx);
        attach(&mut datapath, hook);
        let named = datapath.foreign_programs([&device]).unwrap();
        assert_eq!(named.len(), expected.len());
        assert_eq!(named[0].name.as_deref(), Some("from_network"));
        assert_eq!(named[2].kind, "u32");
        datapath.apply(&StepKind::Detach(hook)).unwrap();
        let left = datapath.foreign_programs([&device]).unwrap();
        assert_eq!(left.len(), expected.len(), "{left:#?}");
        assert!(left.iter().all(|f| f.position == Position::Alone));
    });
}

#[test]
fn mixed_makes_filters_for_pods_and_keeps_links() {
    in_world(|world| {
        let (eni, old, new) = (veth("eni0"), veth("old0"), veth("new0"));
        let network = hook(&eni, Program::FromNetwork);
        let [old, new] = [old, new].map(|device| hook(&device, Program::FromEndpoint));
        let mut datapath = world.load(AttachMode::Auto);
        attach(&mut datapath, network);
        attach(&mut datapath, old);

        let mut datapath = world.load(AttachMode::Mixed);
        let features = datapath.features();
        assert_eq!(
            (features.attach, features.attach_endpoints),
            (Mechanism::Tcx, Mechanism::Clsact)
        );
        // Of an earlier load, so its program is not this one.
        assert_eq!(at(&mut datapath, old), Some(Attachment::Stale));
        for hook in [network, old, new] {
            attach(&mut datapath, hook);
            assert_eq!(at(&mut datapath, hook), Some(Attachment::Current));
        }
        let linked = [network, old, new].map(|hook| world.link_pin(hook).exists());
        assert_eq!(linked, [true, true, false]);
        let filters = |device| run("tc", &["filter", "show", "dev", device, "ingress"]);
        assert!(filters("new0").contains("from_endpoint"));
        assert!(!filters("old0").contains("from_endpoint"));

        let mut datapath = world.load(AttachMode::Auto);
        assert_eq!(at(&mut datapath, new), Some(Attachment::Stale));
        attach(&mut datapath, new);
        assert!(world.link_pin(new).exists());
        assert!(!run("tc", &["qdisc", "show", "dev", "new0"]).contains("clsact"));
    });
}

#[test]
fn a_change_of_the_mechanism_moves_the_program() {
    in_world(|world| {
        let device = veth("eni0");
        let hook = hook(&device, Program::FromNetwork);
        let mut datapath = world.load(AttachMode::Tcx);
        attach(&mut datapath, hook);
        assert!(world.link_pin(hook).exists());

        let mut datapath = world.load(AttachMode::Clsact);
        assert_eq!(datapath.features().attach, Mechanism::Clsact);
        assert_eq!(at(&mut datapath, hook), Some(Attachment::Stale));
        attach(&mut datapath, hook);
        assert!(!world.link_pin(hook).exists());
        assert!(run("tc", &["filter", "show", "dev", "eni0", "ingress"]).contains("from_network"));

        let mut datapath = world.load(AttachMode::Auto);
        assert_eq!(datapath.features().attach, Mechanism::Tcx);
        assert_eq!(at(&mut datapath, hook), Some(Attachment::Stale));
        attach(&mut datapath, hook);
        assert!(world.link_pin(hook).exists());
        assert!(!run("tc", &["qdisc", "show", "dev", "eni0"]).contains("clsact"));
    });
}

#[test]
fn a_link_of_another_version_is_replaced_and_its_folder_goes() {
    in_world(|world| {
        let device = veth("eni0");
        let hook = hook(&device, Program::FromNetwork);
        let mut datapath = world.load(AttachMode::Tcx);
        attach(&mut datapath, hook);
        let old = world.bpffs().join("towpath/v0");
        std::fs::create_dir_all(old.join("links")).unwrap();
        let name = world.link_pin(hook);
        std::fs::rename(&name, old.join("links").join(name.file_name().unwrap())).unwrap();
        let mut datapath = world.load(AttachMode::Tcx);
        assert_eq!(at(&mut datapath, hook), Some(Attachment::Stale));
        attach(&mut datapath, hook);
        assert!(!old.exists());
    });
}

#[test]
fn a_pin_that_is_no_map_is_replaced() {
    in_world(|world| {
        let device = veth("eni0");
        let hook = hook(&device, Program::FromNetwork);
        let mut datapath = world.load(AttachMode::Tcx);
        attach(&mut datapath, hook);
        drop(datapath);
        let pin = world.map_pin(map::ENIS);
        std::fs::remove_file(&pin).unwrap();
        std::fs::rename(world.link_pin(hook), &pin).unwrap();
        let mut datapath = world.load(AttachMode::Tcx);
        assert!(observe(&mut datapath).maps.is_empty());
        assert_eq!(MapInfo::from_pin(&pin).unwrap().max_entries(), 256);
    });
}

#[test]
fn changes_without_an_event_show_at_a_glance() {
    in_world(|world| {
        let device = veth("eni0");
        let hook = hook(&device, Program::FromNetwork);
        let mut datapath = world.load(AttachMode::Tcx);
        attach(&mut datapath, hook);
        datapath.keep_pins().unwrap();
        assert_eq!(at(&mut datapath, hook), Some(Attachment::Current));
        assert!(!datapath.has_moved());
        let mut other = Stranger::load();
        other.attach_tcx(&device, LinkOrder::first());
        assert!(datapath.has_moved(), "a program came");
        datapath.keep_pins().unwrap();
        observe(&mut datapath);
        assert!(!datapath.has_moved());
        drop(other);
        assert!(datapath.has_moved(), "it went");
        datapath.keep_pins().unwrap();
        observe(&mut datapath);
        std::fs::remove_file(world.link_pin(hook)).unwrap();
        assert!(datapath.has_moved(), "a pin went");
    });
}

#[test]
fn a_program_where_we_have_none_shows_at_a_glance() {
    in_world(|world| {
        let device = veth("pod0");
        let mut endpoint = device.clone();
        "tow0123456789ab".clone_into(&mut endpoint.name);
        endpoint.group = loader::constants::DEVICE_GROUP;
        let mut datapath = world.load(AttachMode::Clsact);
        datapath.keep_pins().unwrap();
        let mut observed = observe(&mut datapath);
        observed.links.insert(endpoint.ifindex, endpoint);
        datapath.observe(&mut observed).unwrap();
        assert!(!datapath.has_moved());
        let mut other = Stranger::load();
        other.attach_tcx(&device, LinkOrder::last());
        assert!(datapath.has_moved(), "a program came");
        datapath.observe(&mut observed).unwrap();
        assert!(!datapath.has_moved());
        drop(other);
        assert!(datapath.has_moved(), "it went");
    });
}
