//! Tests of features that the machine's own kernel may lack and the kernels of the matrix have.
//! They are SCTP between real sockets, locked memory that includes maps, and an interpreter of
//! programs. `cargo xtask test vm` runs this program, and no other suite does; on a kernel without
//! SCTP it fails.

#![expect(
    clippy::unwrap_used,
    reason = "a test ends where something unexpected happens"
)]

use std::fs;
use std::net::{IpAddr, SocketAddr};
use std::path::Path;
use std::process::{Child, Stdio};
use std::sync::Arc;
use std::time::Duration;

use datapath_common::counter::Program;
use ipam::Family;
use serde_json::json;
use testkit::fabric::agent::{self, START};
use testkit::fabric::eventually::{check, eventually};
use testkit::fabric::traffic::{Echo, Session, of_protocol, send_ip};
use testkit::fabric::world::Site;
use testkit::fabric::{Fabric, Netns, POD_INTERFACE, Place, Pod, Spec, counters};

/// IANA, "Protocol Numbers".
const SCTP: u8 = 132;
/// A port of the default range.
const KEPT: u16 = 50_132;
/// A port outside of it.
const LOW: u16 = 20_132;
/// Data that takes many packets in each direction.
const BULK: usize = 100_000;
/// The time that an emulated machine may take for a packet.
const DEADLINE: Duration = Duration::from_secs(5);

/// A node with a world, and a pod on each of its ENIs. No device of pods and the server offloads
/// checksums: senders calculate them, receivers verify them.
fn scene() -> (Fabric, [Arc<Pod>; 2]) {
    let mut fabric = Fabric::ready(&Spec::with_world(json!({}))).unwrap();
    let pods = [0, 1].map(|eni| fabric.add_pod(eni, 0).unwrap());
    let server = server_of(&fabric, Family::V4).netns;
    let ends = pods.iter().map(|pod| (&pod.netns, POD_INTERFACE));
    for (netns, device) in ends.chain([(server, "eth0")]) {
        netns.run(&format!("ethtool -K {device} tx off")).unwrap();
    }
    (fabric, pods)
}

fn server_of(fabric: &Fabric, family: Family) -> Place<'_> {
    fabric.world().unwrap().at(Site::Internet, family)
}

/// A count of a namespace's SCTP.
fn statistic(netns: &Netns, name: &str) -> u64 {
    // Below /proc/net is the namespace of the main thread.
    let read = || Ok(fs::read_to_string("/proc/thread-self/net/sctp/snmp")?);
    let text = netns.enter(read).unwrap();
    let line = text.lines().find_map(|line| line.strip_prefix(name));
    line.unwrap().trim().parse().unwrap()
}

fn wrong_checksums(netns: &Netns) -> u64 {
    statistic(netns, "SctpChecksumErrors")
}

/// Packets that were refused because their SCTP port cannot be kept.
fn refused(fabric: &Fabric) -> u64 {
    let name = ("from_endpoint".to_owned(), "sctp-port-taken".to_owned());
    let counters = counters::read(fabric).unwrap();
    counters.get(&name).copied().unwrap_or_default()
}

/// The sources of SCTP packets that the server has seen.
fn seen(fabric: &Fabric, family: Family) -> Vec<IpAddr> {
    let world = fabric.world().unwrap();
    world.seen(Site::Internet, family, SCTP).unwrap()
}

/// An SCTP packet with a wrong checksum.
fn damaged(from: IpAddr, to: SocketAddr) -> Vec<u8> {
    let mut data = Vec::new();
    for port in [KEPT, to.port()] {
        data.extend(port.to_be_bytes());
    }
    data.extend([0; 28]);
    of_protocol(from, to.ip(), SCTP, &data).unwrap()
}

/// Checks an association from a pod: data both ways, its own port, its ENI's address, right
/// checksums.
fn passes(fabric: &Fabric, from: Place, eni: u8, server: &Echo) {
    let family = Family::of(from.address);
    let to = server_of(fabric, family);
    let translated = fabric.translation_address(eni, family).unwrap();
    let wrong = || [from, to].map(|end| wrong_checksums(end.netns));
    let before = wrong();
    fabric.world().unwrap().forget().unwrap();
    let mut session = Session::open_sctp(from, KEPT, server.address()).unwrap();
    assert_eq!(session.seen(), SocketAddr::new(translated, KEPT));
    session.exchange().unwrap();
    session.bulk(BULK).unwrap();
    assert_eq!(seen(fabric, family), [translated]);
    assert_eq!(wrong(), before, "wrong checksums");
    // A wrong checksum must be detected, or the test proves nothing.
    let packet = damaged(from.address, server.address());
    send_ip(from, to.address, [&packet]).unwrap();
    eventually(DEADLINE, "the server counts a wrong checksum", || {
        check(wrong() == [before[0], before[1] + 1], || {
            format!("{before:?}, then {:?}", wrong())
        })
    })
    .unwrap();
    session.exchange().unwrap();
}

/// Checks that there is no association from a port that is not for translation, and that no packet
/// of it leaves.
fn is_refused(fabric: &Fabric, from: Place, server: &Echo) {
    let family = Family::of(from.address);
    fabric.world().unwrap().forget().unwrap();
    let before = refused(fabric);
    Session::open_sctp(from, LOW, server.address()).unwrap_err();
    let after = refused(fabric);
    assert!(after > before, "{family:?}: {before}, then {after}");
    assert_eq!(seen(fabric, family), [] as [IpAddr; 0]);
}

// One test, as an emulated machine takes long to make a fabric.
#[test]
fn associations_pass_with_their_port_or_are_refused_and_counted() {
    let (fabric, pods) = scene();
    for (refused, family) in pods.iter().zip(Family::ALL) {
        let server = Echo::telling_sctp(server_of(&fabric, family), 0).unwrap();
        is_refused(&fabric, refused.at(family), &server);
        for (pod, eni) in pods.iter().zip([0, 1]) {
            passes(&fabric, pod.at(family), eni, &server);
        }
    }
    fabric.finish().unwrap();
}

/// Starts an agent as a container runtime does, with these capabilities and the usual limit on
/// locked memory.
fn confined(fabric: &Fabric, capabilities: &str, log: &Path) -> Child {
    let log = fs::File::create(log).unwrap();
    // Entering the namespace takes capabilities that the agent goes without, so it comes first.
    let mut shell = fabric.node.command("sh");
    shell
        .args(["-c", "ulimit -l 64; exec /usr/bin/setpriv \"$@\"", "sh"])
        .arg(format!("--bounding-set=-all,{capabilities}"))
        .args(["--inh-caps=-all", "--no-new-privs"])
        .arg(agent::binary().unwrap())
        .arg("--config")
        .arg(fabric.agent.config_path())
        .arg("run")
        .stdout(Stdio::null())
        .stderr(log);
    shell.spawn().unwrap()
}

/// Linux before 5.11 counts maps as locked memory. Lifting the limit needs a capability that
/// nothing else needs, which is why the `DaemonSet` has it.
#[test]
fn locked_memory_takes_a_capability_where_it_counts_maps() {
    let release = fs::read_to_string("/proc/sys/kernel/osrelease").unwrap();
    let mut numbers = release.split('.').map(|part| part.parse::<u32>().ok());
    let version = (numbers.next().flatten(), numbers.next().flatten());
    let is_counted = version < (Some(5), Some(11));
    let fabric = Fabric::create(&Spec::default()).unwrap();
    let (log, least) = (fabric.file("confined.log"), "+sys_admin,+net_admin");
    let said = |part: &str| {
        let text = fs::read_to_string(&log)?;
        check(text.contains(part), || text.clone())
    };
    let mut agent = confined(&fabric, least, &log);
    let expected = if is_counted {
        "Operation not permitted"
    } else {
        "agent runs"
    };
    eventually(START, &format!("{release}: {expected}"), || said(expected)).unwrap();
    agent.kill().unwrap();
    agent.wait().unwrap();
    if is_counted {
        let mut agent = confined(&fabric, &format!("{least},+sys_resource"), &log);
        eventually(START, "with the capability it runs", || said("agent runs")).unwrap();
        agent.kill().unwrap();
        agent.wait().unwrap();
    }
    fabric.finish().unwrap();
}

/// The switch of the kernel's compiler (JIT). A kernel without an interpreter refuses 0.
const JIT: &str = "/proc/sys/net/core/bpf_jit_enable";

/// The compiler off; it is on again when this is dropped.
struct JitOff;

impl JitOff {
    /// None where the kernel has no interpreter.
    fn new() -> Option<Self> {
        fs::write(JIT, "0").ok().map(|()| Self)
    }
}

impl Drop for JitOff {
    fn drop(&mut self) {
        fs::write(JIT, "1").unwrap();
    }
}

/// The reasons of the health, as far as they are of interpreted programs.
fn interpreted(fabric: &Fabric) -> Vec<String> {
    let status = fabric.agent.ask("GET", "/v1/status", None).unwrap();
    let health = status["health"].as_object().unwrap();
    let reasons = health["reasons"].as_array().unwrap().iter();
    let reasons = reasons.map(|reason| reason.as_str().unwrap().to_owned());
    let reasons: Vec<_> = reasons
        .filter(|reason| reason.contains("the kernel interprets"))
        .collect();
    assert!(reasons.is_empty() || health["state"] == "degraded");
    reasons
}

/// Programs are compiled when they are loaded, so a restart of the agent helps.
#[test]
fn programs_that_the_kernel_interprets_are_named_until_a_restart_after_the_remedy() {
    let off = JitOff::new();
    let has_interpreter = off.is_some();
    let mut fabric = Fabric::ready(&Spec::default()).unwrap();
    drop(off);
    let told = interpreted(&fabric);
    assert_eq!(told.len(), usize::from(has_interpreter), "{told:?}");
    for name in Program::ALL.map(Program::name) {
        assert!(told.iter().all(|reason| reason.contains(name)), "{told:?}");
    }
    println!("has an interpreter: {has_interpreter}");
    fabric.agent.kill().unwrap();
    fabric.start_agent().unwrap();
    fabric.wait_until_ready().unwrap();
    assert_eq!(interpreted(&fabric), Vec::<String>::new());
    fabric.finish().unwrap();
}
