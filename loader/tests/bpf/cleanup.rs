//! A clean-up takes what is ours and nothing else.

use aya::programs::LinkOrder;
use datapath_common::counter::Program;
use towpath::bpf::{AttachMode, remove_pins};

use crate::world::{Stranger, attach, hook, in_world, run, veth};

#[test]
fn everything_of_ours_goes_and_nothing_else() {
    in_world(|world| {
        let (tcx, ours, shared) = (veth("tcx0"), veth("own0"), veth("shr0"));
        let mut stranger = Stranger::load();
        stranger.attach_tcx(&tcx, LinkOrder::first());
        run("tc", &["qdisc", "add", "dev", "shr0", "clsact"]);
        stranger.attach_filter(&shared, 3);

        let mut datapath = world.load(AttachMode::Tcx);
        let by_link = hook(&tcx, Program::FromNetwork);
        attach(&mut datapath, by_link);
        let mut filters = world.load(AttachMode::Clsact);
        attach(&mut filters, hook(&ours, Program::FromEndpoint));
        attach(&mut filters, hook(&shared, Program::FromNetwork));
        let root = world.bpffs().join("towpath");
        std::fs::create_dir(root.join("other")).unwrap();
        let options = world.options(AttachMode::Auto);
        drop(filters);

        let removed = remove_pins(&options).unwrap();
        let mut names = removed.filters.clone();
        names.sort();
        assert_eq!(
            names,
            [
                format!("from_endpoint-{}", ours.ifindex),
                format!("from_network-{}", shared.ifindex)
            ]
        );
        assert_eq!(removed.qdiscs, [ours.ifindex]);
        assert_eq!(removed.links, [format!("from_network-{}", tcx.ifindex)]);
        assert!(removed.pins.contains(&"v1/maps/ADDRESSES".to_owned()));

        assert!(!root.join("v1").exists());
        assert!(root.join("other").exists());
        assert!(!run("tc", &["qdisc", "show", "dev", "own0"]).contains("clsact"));
        assert!(run("tc", &["qdisc", "show", "dev", "shr0"]).contains("clsact"));
        let left = datapath.foreign_programs([&tcx, &ours, &shared]).unwrap();
        assert_eq!(left.len(), 2, "{left:?}");
        assert!(left.iter().all(|f| f.id == Some(stranger.id())));
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
