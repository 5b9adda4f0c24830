//! clsact: what others do to our filter, and what we do not do to theirs.

use api::types::{Direction, Position};
use datapath_common::counter::Program;
use loader::bpf::AttachMode;
use loader::constants;
use loader::kernel::{Attachment, StepKind};

use crate::world::{Stranger, add_u32_filter, at, attach, hook, in_world, observe, run, veth};

#[test]
fn a_filter_or_qdisc_that_someone_removed_is_made_anew() {
    in_world(|world| {
        let device = veth("eni0");
        let hook = hook(&device, Program::FromNetwork);
        let mut datapath = world.load(AttachMode::Clsact);
        attach(&mut datapath, hook);
        run("tc", &["filter", "del", "dev", "eni0", "ingress"]);
        assert_eq!(at(&mut datapath, hook), None);
        attach(&mut datapath, hook);
        run("tc", &["qdisc", "del", "dev", "eni0", "clsact"]);
        assert_eq!(at(&mut datapath, hook), None);
        attach(&mut datapath, hook);
        run("ip", &["link", "del", "eni0"]);
        assert_eq!(at(&mut datapath, hook), None);
        datapath.apply(&StepKind::Detach(hook)).unwrap();
    });
}

#[test]
fn filters_of_others_stay_and_are_listed_in_their_place() {
    in_world(|world| {
        let device = veth("eni0");
        let hook = hook(&device, Program::FromNetwork);
        run("tc", &["qdisc", "add", "dev", "eni0", "clsact"]);
        let (mut early, mut late) = (Stranger::load(), Stranger::load());
        early.attach_filter(&device, constants::TC_PRIORITY - 1);
        late.attach_filter(&device, constants::TC_PRIORITY + 1);
        for _restart in 0..2 {
            let mut datapath = world.load(AttachMode::Clsact);
            attach(&mut datapath, hook);
            let found: Vec<_> = datapath
                .foreign_programs([&device])
                .unwrap()
                .into_iter()
                .map(|f| (f.id, f.priority, f.position))
                .collect();
            let expected = [
                (
                    Some(early.id()),
                    Some(constants::TC_PRIORITY - 1),
                    Position::Before,
                ),
                (
                    Some(late.id()),
                    Some(constants::TC_PRIORITY + 1),
                    Position::After,
                ),
            ];
            assert_eq!(found, expected);
        }
        let mut datapath = world.load(AttachMode::Clsact);
        assert_eq!(at(&mut datapath, hook), Some(Attachment::Stale));
        datapath.apply(&StepKind::Detach(hook)).unwrap();
        assert_eq!(datapath.foreign_programs([&device]).unwrap().len(), 2);
        assert!(run("tc", &["qdisc", "show", "dev", "eni0"]).contains("clsact"));
    });
}

#[test]
fn a_foreign_filter_in_our_place_is_named_and_left() {
    for kind in ["u32", "bpf"] {
        in_world(move |world| {
            let device = veth("eni0");
            let hook = hook(&device, Program::FromNetwork);
            run("tc", &["qdisc", "add", "dev", "eni0", "clsact"]);
            if kind == "u32" {
                let priority = constants::TC_PRIORITY.to_string();
                add_u32_filter("eni0", "ingress", &priority);
            } else {
                Stranger::load().filter_in_our_place("eni0", world.bpffs());
            }
            let show = || run("tc", &["filter", "show", "dev", "eni0", "ingress"]);
            let before = show();
            let mut datapath = world.load(AttachMode::Clsact);
            assert_eq!(at(&mut datapath, hook), None);
            let error = datapath.apply(&StepKind::Attach(hook)).unwrap_err();
            let expected = format!("a foreign {kind} filter");
            assert!(error.to_string().contains(&expected), "{error:#}");
            datapath.apply(&StepKind::Detach(hook)).unwrap();
            assert_eq!(show(), before);
        });
    }
}

#[test]
fn an_ingress_qdisc_of_somebody_takes_our_filter_and_has_no_egress() {
    in_world(|world| {
        let device = veth("eni0");
        let received = hook(&device, Program::FromNetwork);
        let sent = hook(&device, Program::ToNetwork);
        run("tc", &["qdisc", "add", "dev", "eni0", "ingress"]);
        let mut datapath = world.load(AttachMode::Clsact);
        assert_eq!(datapath.displaced().unwrap(), [device.ifindex].into());
        attach(&mut datapath, received);
        add_u32_filter("eni0", "ingress", "7");

        let show = || run("tc", &["filter", "show", "dev", "eni0", "ingress"]);
        let before = show();
        let error = datapath.apply(&StepKind::Attach(sent)).unwrap_err();
        let expected = "has a foreign ingress qdisc";
        assert!(error.to_string().contains(expected), "{error:#}");
        assert_eq!(show(), before, "the kernel would run it at the ingress");
        assert_eq!(at(&mut datapath, sent), None);
        assert_eq!(at(&mut datapath, received), Some(Attachment::Current));
        let foreign = datapath.foreign_programs([&device]).unwrap();
        let foreign: Vec<_> = foreign.iter().map(|f| (f.direction, f.position)).collect();
        assert_eq!(foreign, [(Direction::Ingress, Position::Before)]);

        for hook in [received, sent] {
            datapath.apply(&StepKind::Detach(hook)).unwrap();
        }
        assert!(run("tc", &["qdisc", "show", "dev", "eni0"]).contains("ingress"));
        assert!(show().contains("u32"), "{}", show());
        run("tc", &["qdisc", "del", "dev", "eni0", "ingress"]);
        for hook in [received, sent] {
            attach(&mut datapath, hook);
        }
        assert_eq!(datapath.displaced().unwrap(), [].into());
    });
}

#[test]
fn our_qdisc_goes_with_our_filter_unless_others_use_it() {
    in_world(|world| {
        let device = veth("eni0");
        let hook = hook(&device, Program::FromNetwork);
        let mut datapath = world.load(AttachMode::Clsact);
        attach(&mut datapath, hook);
        let mut stranger = Stranger::load();
        stranger.attach_filter(&device, 5);
        datapath.apply(&StepKind::Detach(hook)).unwrap();
        assert!(run("tc", &["qdisc", "show", "dev", "eni0"]).contains("clsact"));
        drop(stranger);
        attach(&mut datapath, hook);
        datapath.apply(&StepKind::Detach(hook)).unwrap();
        assert!(!run("tc", &["qdisc", "show", "dev", "eni0"]).contains("clsact"));
    });
}

#[test]
fn nothing_is_kept_for_devices_that_went() {
    in_world(|world| {
        let mut datapath = world.load(AttachMode::Clsact);
        let version = datapath_common::abi::VERSION;
        let marks = world.bpffs().join(format!("towpath/v{version}/qdiscs"));
        for number in 0..3 {
            let device = veth(&format!("pod{number}"));
            attach(&mut datapath, hook(&device, Program::FromEndpoint));
            observe(&mut datapath);
            assert!(marks.join(device.ifindex.to_string()).exists());
            assert_eq!(std::fs::read_dir(&marks).unwrap().count(), 1);
            run("ip", &["link", "del", &device.name]);
        }
        observe(&mut datapath);
        assert_eq!(std::fs::read_dir(&marks).unwrap().count(), 0);
    });
}
