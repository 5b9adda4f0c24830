//! A device that carries a program in each direction.

use api::types::{Direction, Mechanism, Position};
use datapath_common::counter::Program;
use loader::bpf::{AttachMode, remove_pins};
use loader::kernel::{Attachment, StepKind};

use crate::world::{add_u32_filter, at, attach, hook, in_each_mode, in_world, run, veth};

#[test]
fn each_direction_has_its_program_and_they_do_not_meet() {
    in_each_mode(|world, mode| {
        let device = veth("eni0");
        let received = hook(&device, Program::FromNetwork);
        let sent = hook(&device, Program::ToNetwork);
        let mut datapath = world.load(mode);
        attach(&mut datapath, sent);
        assert_eq!(at(&mut datapath, received), None);
        attach(&mut datapath, received);

        let mut datapath = world.load(mode);
        for hook in [received, sent] {
            assert_eq!(at(&mut datapath, hook), Some(Attachment::Stale));
        }
        attach(&mut datapath, received);
        assert_eq!(at(&mut datapath, sent), Some(Attachment::Stale));
        attach(&mut datapath, sent);
        assert_eq!(at(&mut datapath, received), Some(Attachment::Current));

        datapath.apply(&StepKind::Detach(sent)).unwrap();
        assert_eq!(at(&mut datapath, sent), None);
        assert_eq!(at(&mut datapath, received), Some(Attachment::Current));
        datapath.apply(&StepKind::Detach(received)).unwrap();
        assert!(!run("tc", &["qdisc", "show", "dev", "eni0"]).contains("clsact"));
    });
}

#[test]
fn what_others_have_on_egress_is_listed_around_ours() {
    in_each_mode(|world, mode| {
        let device = veth("eni0");
        let mut datapath = world.load(mode);
        attach(&mut datapath, hook(&device, Program::FromNetwork));
        attach(&mut datapath, hook(&device, Program::ToNetwork));
        if mode == AttachMode::Tcx {
            run("tc", &["qdisc", "add", "dev", "eni0", "clsact"]);
        }
        add_u32_filter("eni0", "egress", "7");
        let foreign = datapath.foreign_programs([&device]).unwrap();
        let foreign: Vec<_> = foreign
            .iter()
            .filter(|other| other.priority == Some(7))
            .collect();
        assert_eq!(foreign.len(), 1, "{foreign:?}");
        assert_eq!(foreign[0].direction, Direction::Egress);
        assert_eq!(foreign[0].mechanism, Mechanism::Clsact);
        let position = if mode == AttachMode::Tcx {
            Position::After
        } else {
            Position::Before
        };
        assert_eq!(foreign[0].position, position);
    });
}

#[test]
fn a_clean_up_takes_both_directions() {
    in_each_mode(|world, mode| {
        let device = veth("eni0");
        let hooks = [Program::FromNetwork, Program::ToNetwork].map(|p| hook(&device, p));
        let mut datapath = world.load(mode);
        for hook in hooks {
            attach(&mut datapath, hook);
        }
        let removed = remove_pins(&world.options(mode)).unwrap();
        let mut names: Vec<_> = removed.links.iter().chain(&removed.filters).collect();
        names.sort();
        let expected = hooks.map(|hook| format!("{}-{}", hook.program.name(), hook.ifindex));
        assert_eq!(names, expected.iter().collect::<Vec<_>>());
        assert!(datapath.foreign_programs([&device]).unwrap().is_empty());
    });
}

#[test]
fn a_filter_of_our_name_in_the_other_direction_is_not_ours() {
    in_world(|world| {
        let device = veth("eni0");
        let mut datapath = world.load(AttachMode::Clsact);
        let sent = hook(&device, Program::ToNetwork);
        attach(&mut datapath, sent);
        crate::world::Stranger::load().filter_in_our_place("eni0", world.bpffs());
        let error = datapath
            .apply(&StepKind::Attach(hook(&device, Program::FromNetwork)))
            .unwrap_err();
        assert!(error.to_string().contains("foreign bpf"), "{error:#}");
        assert_eq!(at(&mut datapath, sent), Some(Attachment::Current));
        assert_eq!(at(&mut datapath, hook(&device, Program::FromNetwork)), None);
    });
}
