//! Faults of the pin folder while the agent runs: no flow is lost, and no other work waits.

use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context as _, Result};
use ipam::Family;
use nix::mount::{MntFlags, MsFlags, mount, umount2};
use serde_json::{Value, json};
use testkit::fabric::eventually::check;
use testkit::fabric::traffic::{Echo, Session};
use testkit::fabric::{Fabric, command};

use crate::masq::{internet, scene};
use crate::support::{CHANGE, End, HEAL, PEER, carry_all, get, nothing_differs, within};

/// The time that pins may be missing.
const PINNED: Duration = Duration::from_secs(2);
/// The source port of both pods: outside of the range, so that one of them finds its candidate
/// taken.
const PORT: u16 = 1000;

/// Fault of the folder.
#[derive(Clone, Copy, Debug)]
enum Accident {
    RemoveFolder,
    Unmount,
    MountOver,
}

impl Accident {
    const ALL: [Self; 3] = [Self::RemoveFolder, Self::Unmount, Self::MountOver];

    fn befall(self, fabric: &Fabric) {
        let bpffs = bpffs(fabric);
        match self {
            Self::RemoveFolder => fs::remove_dir_all(fabric.pin_root()).unwrap(),
            Self::Unmount => umount2(&bpffs, MntFlags::MNT_DETACH).unwrap(),
            Self::MountOver => mount_at(&bpffs, "bpf"),
        }
    }
}

fn bpffs(fabric: &Fabric) -> PathBuf {
    fabric.pin_root().parent().unwrap().to_owned()
}

fn mount_at(folder: &Path, kind: &str) {
    let none: Option<&str> = None;
    mount(Some(kind), folder, Some(kind), MsFlags::empty(), none).unwrap();
}

/// The id of the pinned map.
fn map_id(fabric: &Fabric, name: &str) -> Result<u64> {
    let version = fs::read_dir(fabric.pin_root())?
        .filter_map(|entry| Some(entry.ok()?.path()))
        .find(|path| path.join("maps").is_dir())
        .context("no version is pinned")?;
    let mut bpftool = std::process::Command::new("bpftool");
    bpftool.args(["-j", "map", "show", "pinned"]);
    let shown = command::run(bpftool.arg(version.join("maps").join(name)))?;
    let shown: Value = serde_json::from_str(&shown)?;
    shown["id"].as_u64().context("no id")
}

/// Connections of both pods in both families, with the server of each family.
struct Idle {
    servers: Vec<Echo>,
    sessions: Vec<(usize, Session)>,
}

impl Idle {
    fn open(fabric: &Fabric, pods: [&testkit::fabric::Pod; 2]) -> Self {
        let mut idle = Self {
            servers: Vec::new(),
            sessions: Vec::new(),
        };
        for (number, family) in Family::ALL.into_iter().enumerate() {
            let server = Echo::speaking(internet(fabric, family), 0).unwrap();
            let ports = pods.map(|pod| {
                let session = Session::open(pod.at(family), PORT, server.address()).unwrap();
                let port = session.seen().port();
                idle.sessions.push((number, session));
                port
            });
            assert!(!ports.contains(&PORT), "{ports:?} are displaced");
            assert_ne!(ports[0], ports[1]);
            idle.servers.push(server);
        }
        idle
    }

    /// Makes the servers send first, on every connection.
    fn hear(&mut self, when: &str) {
        for (server, session) in &mut self.sessions {
            self.servers[*server].speak(session.seen()).unwrap();
            if let Err(error) = session.hear().and_then(|()| session.exchange()) {
                panic!("{when}: {error:#}");
            }
        }
    }
}

fn flows_survive(attach: &str) {
    let settings = json!({
        "datapath": {"attach": attach},
        "masquerade": {"external": "primary-eni"},
    });
    let (mut fabric, [one, two]) = scene(settings);
    let mut idle = Idle::open(&fabric, [&one, &two]);
    for accident in Accident::ALL {
        let names = ["FLOWS_V4", "FLOWS_V6", "MOVED_V4", "ADDRESSES"];
        let ids = names.map(|name| map_id(&fabric, name).unwrap());
        accident.befall(&fabric);
        within(PINNED, &format!("{attach}, {accident:?}: pinned"), || {
            let now = names.map(|name| map_id(&fabric, name).ok());
            check(now == ids.map(Some), || format!("{now:?}"))?;
            nothing_differs(&fabric)
        });
        idle.hear(&format!("{attach}, {accident:?}"));
        assert_eq!(get(&fabric, "/v1/status")["health"]["state"], "ready");
        fabric.agent.kill().unwrap();
        idle.hear(&format!("{attach}, {accident:?}: the agent is dead"));
        fabric.start_agent().unwrap();
        idle.hear(&format!("{attach}, {accident:?}: another agent"));
        assert_eq!(ids, names.map(|name| map_id(&fabric, name).unwrap()));
        carry_all(&fabric, End::Pod(&one), PEER, &[0]);
    }
    fabric.agent.stop().unwrap();
    umount2(&bpffs(&fabric), MntFlags::MNT_DETACH).unwrap();
    fabric.finish().unwrap();
}

#[test]
fn flows_survive_accidents_of_the_pins_with_tcx() {
    flows_survive("tcx");
}

#[test]
fn flows_survive_accidents_of_the_pins_with_clsact() {
    flows_survive("clsact");
}

fn reasons(fabric: &Fabric) -> String {
    get(fabric, "/v1/status")["health"]["reasons"].to_string()
}

#[test]
fn pins_that_cannot_be_made_hold_back_no_repair() {
    let settings = json!({"datapath": {"attach": "tcx"}, "http": {"address": "127.0.0.1:9971"}});
    let (fabric, [one, two]) = scene(settings);
    let health = || {
        let line = "curl -sS --fail --max-time 20 http://127.0.0.1:9971/healthz";
        fabric.node.run(line).unwrap()
    };
    assert_eq!(health(), "ok\n");
    let mut idle = Idle::open(&fabric, [&one, &two]);
    let root = fabric.pin_root();
    mount_at(&root, "tmpfs");
    within(PINNED, "it is reported", || {
        let reasons = reasons(&fabric);
        check(reasons.contains("is not on a BPF filesystem"), || reasons)
    });
    let said = health();
    assert!(
        said.starts_with("ok\n") && said.contains("maps are not pinned"),
        "{said}"
    );
    let device = two.host_device();
    let forwarding = format!("ipv4/conf/{device}/send_redirects");
    fabric.node.ip(&format!("link set {device} down")).unwrap();
    fabric.node.sysctls(&[(&forwarding, "1")]).unwrap();
    within(HEAL + HEAL, "device and sysctl are repaired", || {
        let up = fabric.node.run(&format!("ip link show dev {device}"))?;
        let value = fabric.node.sysctl(&forwarding)?;
        check(up.contains(",UP") && value == "0", || {
            format!("{up} {value}")
        })
    });
    carry_all(&fabric, End::Pod(&two), PEER, &[1]);
    idle.hear("without pins");

    umount2(&root, MntFlags::MNT_DETACH).unwrap();
    within(CHANGE, "it is over", || {
        let reasons = reasons(&fabric);
        check(reasons == "[]", || reasons)?;
        nothing_differs(&fabric)
    });
    idle.hear("with pins again");
    assert_eq!(health(), "ok\n");
    fabric.finish().unwrap();
}
