//! A clean-up takes what is ours and nothing else.

use std::collections::BTreeSet;

use aya::programs::LinkOrder;
use datapath_common::abi;
use datapath_common::counter::Program;
use loader::bpf::{AttachMode, remove_pins};

use crate::world::{Stranger, attach, hook, in_each_mode, in_world, run, veth};

#[test]
fn everything_of_ours_goes_and_nothing_else() {
    in_each_mode(|world, mode| {
        let (ours, shared) = (veth("own0"), veth("shr0"));
        let hooks = [
            hook(&ours, Program::FromEndpoint),
            hook(&shared, Program::FromNetwork),
        ];
        run("tc", &["qdisc", "add", "dev", "shr0", "clsact"]);
        let mut stranger = Stranger::load();
        stranger.attach_filter(&shared, 3);
        if mode == AttachMode::Tcx {
            stranger.attach_tcx(&shared, LinkOrder::first());
        }
        let mut datapath = world.load(mode);
        let before = datapath.foreign_programs([&ours, &shared]).unwrap();
        for hook in hooks {
            attach(&mut datapath, hook);
        }
        let options = world.options(mode);
        std::fs::create_dir(options.pin_root.join("other")).unwrap();

        let removed = remove_pins(&options).unwrap();
        let names: BTreeSet<_> = removed.links.iter().chain(&removed.filters).collect();
        let expected = hooks.map(|hook| format!("{}-{}", hook.program.name(), hook.ifindex));
        assert_eq!(names, expected.iter().collect());
        match mode {
            AttachMode::Clsact => assert_eq!(removed.qdiscs, [ours.ifindex]),
            AttachMode::Auto | AttachMode::Mixed | AttachMode::Tcx => {
                assert!(removed.qdiscs.is_empty());
            }
        }
        assert!(
            removed
                .pins
                .contains(&format!("v{}/maps/ADDRESSES", abi::VERSION))
        );

        assert!(!options.pin_root.join(format!("v{}", abi::VERSION)).exists());
        assert!(options.pin_root.join("other").exists());
        assert!(!run("tc", &["qdisc", "show", "dev", "own0"]).contains("clsact"));
        assert!(run("tc", &["qdisc", "show", "dev", "shr0"]).contains("clsact"));
        let left = datapath.foreign_programs([&ours, &shared]).unwrap();
        assert_eq!(left, before);
        assert!(remove_pins(&options).unwrap().is_empty());
    });
}

#[test]
fn a_node_without_anything_of_ours_is_clean() {
    in_world(|world| {
        let options = world.options(AttachMode::Auto);
        assert!(remove_pins(&options).unwrap().is_empty());
        assert!(!options.pin_root.exists());
    });
}
