//! `towpath cleanup` removes all of our objects, and no others.

use std::fs;
use std::path::PathBuf;

use serde_json::json;
use testkit::fabric::program::{Action, ForeignProgram, Position};
use testkit::fabric::state::{State, difference};
use testkit::fabric::{Fabric, Pod, Spec};

use crate::support::{End, PEER, carry_all};

/// Foreign objects on the node: next to ours, and on our devices. The first rule matches when the
/// kernel gets a request to delete ours, because an omitted selector matches any value.
const FOREIGN: &str = "\
rule add priority 20 from 192.0.2.7 lookup 220
rule add priority 112 from 10.0.1.10 to 192.0.2.9 lookup 11
rule add priority 111 fwmark 0x80/0x80 lookup 98
route add 192.0.2.128/25 via 10.0.0.1 dev eth0
route add 192.0.2.192/26 via 10.0.0.1 dev eth0 onlink table 97
addr add 192.0.2.5/32 dev eth0
link set eth1 up
link add foreign0 type bridge";

/// Sysctls keep the values that forwarding needs, because it is unknown who set them first. With
/// them the kernel keeps its anycast addresses. The rest of the state must be unchanged.
fn without_forwarding(mut state: State) -> State {
    state.remove("sysctls");
    if let Some(routes) = state.get_mut("routes of IPv6") {
        routes.retain(|route| !route.starts_with("anycast "));
    }
    state
}

/// A configuration list to which a mesh has appended, and the files of the plugin.
fn plugin_of(fabric: &Fabric) -> (PathBuf, Vec<PathBuf>) {
    let state = fabric.agent.pending_deletes();
    let state = state.parent().unwrap();
    fs::create_dir_all(state).unwrap();
    let notes = ["was-ready", "installed"].map(|name| state.join(name));
    for note in &notes {
        fs::write(note, "").unwrap();
    }
    let list = fabric.file("net.d").join("10-towpath.conflist");
    fs::create_dir_all(list.parent().unwrap()).unwrap();
    let text = json!({"cniVersion": "1.0.0", "name": "towpath",
        "plugins": [{"type": "towpath-cni"}, {"type": "istio-cni"}]});
    fs::write(&list, text.to_string()).unwrap();
    (list, notes.into())
}

/// Foreign objects on the node, and programs around ours.
fn add_foreign(fabric: &Fabric) -> ForeignProgram {
    fabric.node.ip(FOREIGN).unwrap();
    let mut foreign = ForeignProgram::load(
        "foreign",
        &fabric.pin_root().with_file_name(""),
        Action::Pass,
    )
    .unwrap();
    foreign
        .attach_tcx(&fabric.node, "eth1", Position::First)
        .unwrap();
    fabric.node.run("tc qdisc add dev eth1 clsact").unwrap();
    foreign.attach_filter(&fabric.node, "eth1", 10).unwrap();
    foreign
}

/// A cleanup is refused while the agent runs, and without `--yes` while there are endpoints.
fn is_refused(fabric: &mut Fabric, pod: &Pod) {
    let running = fabric
        .agent
        .cli(&fabric.node, &["cleanup", "--yes"])
        .unwrap();
    assert!(!running.status.success(), "not while the agent runs");
    carry_all(fabric, End::Pod(pod), PEER, &[1]);
    // It would be the ENI's first address, and so the sender of the node's ARP requests.
    fabric.node.ip("addr add 192.0.2.6/32 dev eth1").unwrap();
    fabric.agent.stop().unwrap();
    let refused = fabric.agent.cli(&fabric.node, &["cleanup"]).unwrap();
    assert!(
        !refused.status.success(),
        "not without --yes while there are endpoints"
    );
    carry_all(fabric, End::Pod(pod), PEER, &[1]);
}

fn cleanup_leaves_what_is_not_ours(attach: &str) {
    let spec = Spec {
        settings: json!({"datapath": {"attach": attach}}),
        ..Spec::default()
    };
    let mut fabric = Fabric::create(&spec).unwrap();
    let _foreign = add_foreign(&fabric);
    let before = fabric.state().unwrap();

    fabric.start_agent().unwrap();
    let pods = [fabric.add_pod(0, 0).unwrap(), fabric.add_pod(1, 0).unwrap()];
    carry_all(&fabric, End::Pod(&pods[1]), PEER, &[1]);
    is_refused(&mut fabric, &pods[1]);

    let (list, notes) = plugin_of(&fabric);
    let conf_dir = format!("--conf-dir={}", list.parent().unwrap().display());
    let words = ["cleanup", "--yes", &conf_dir];
    let done = fabric.agent.cli(&fabric.node, &words).unwrap();
    let chain = fs::read_to_string(&list).unwrap();
    assert!(
        !chain.contains("towpath-cni") && chain.contains("istio-cni"),
        "{chain}"
    );
    assert!(notes.iter().all(|note| !note.exists()), "{done:?}");
    assert!(done.status.success(), "{done:?}");
    let left = fabric.node.run("ip -o addr show dev eth1").unwrap();
    assert!(left.contains("192.0.2.6/32"), "{left}");
    fabric.node.ip("addr del 192.0.2.6/32 dev eth1").unwrap();
    let after = fabric.state().unwrap();
    let (before, after) = (without_forwarding(before), without_forwarding(after));
    assert_eq!(difference(&before, &after), "");
    let again = fabric
        .agent
        .cli(&fabric.node, &["cleanup", &conf_dir])
        .unwrap();
    assert!(
        again.status.success(),
        "nothing to do is success: {again:?}"
    );
    fabric.finish().unwrap();
}

#[test]
fn cleanup_leaves_what_is_not_ours_with_tcx() {
    cleanup_leaves_what_is_not_ours("tcx");
}

#[test]
fn cleanup_leaves_what_is_not_ours_with_clsact() {
    cleanup_leaves_what_is_not_ours("clsact");
}
