//! The node of the program tests, with its settings, and marks of its packets.

use datapath_common::mark::MarkLayout;
use loader::bpf::DatapathSettings;
use testkit::testrun::pool::{Lease, Pool};
pub(crate) use testkit::testrun::scene::*;
use testkit::testrun::{self, Programs};

/// A mark of an incoming packet: foreign bits, and all of ours, which only we may set.
pub(crate) const MARK_IN: u32 = 0xff00_4880;
/// The part of it that must stay in any case.
pub(crate) const OTHERS: u32 = 0x0000_4880;

/// `OTHERS` and the mark of an ENI.
pub(crate) fn marked(eni: u32) -> u32 {
    OTHERS | MarkLayout::DEFAULT.eni(eni).expect("a small number")
}

/// `OTHERS` and the bit of packets that need no more work at an ENI's egress.
pub(crate) fn done() -> u32 {
    OTHERS | MarkLayout::DEFAULT.done()
}

/// The exception bit.
pub(crate) fn exception() -> u32 {
    MarkLayout::DEFAULT.exception()
}

/// The settings of this node: both families are masqueraded.
pub(crate) fn settings() -> DatapathSettings {
    DatapathSettings {
        masquerade_v6: true,
        ..DatapathSettings::default()
    }
}

/// The programs with this node's maps and no flow, in a namespace with this node's devices.
pub(crate) fn node() -> Lease<Programs> {
    node_with(&settings())
}

/// The programs with this node's maps, no flow, an empty cache, and counted entries. Their counters are not reset.
pub(crate) fn programs(settings: &DatapathSettings) -> Lease<Programs> {
    static POOL: Pool<Programs> = Pool::new();
    let make_fresh = |programs: Programs| {
        programs.forget_flows()?;
        programs.forget_cache()?;
        Ok(programs)
    };
    let programs = POOL.lease(settings, Programs::load_with, make_fresh);
    let mut programs = programs.unwrap();
    fill(&mut programs).unwrap();
    programs.count_notes().unwrap();
    programs
}

/// The programs with this node's maps and no flow, in a namespace with this node's devices, with
/// other settings.
pub(crate) fn node_with(settings: &DatapathSettings) -> Lease<Programs> {
    testrun::private_namespace().unwrap();
    make_devices().unwrap();
    programs(settings)
}
