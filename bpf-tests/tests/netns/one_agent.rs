//! One agent per network namespace, whatever its folders are.

use std::fs;
use std::io::{BufRead as _, BufReader};
use std::os::linux::net::SocketAddrExt as _;
use std::os::unix::net::{SocketAddr, UnixListener};
use std::path::{Path, PathBuf};
use std::process::{Child, Stdio};

use anyhow::{Result, ensure};
use ipam::Family;
use serde_json::{Value, json};
use testkit::fabric::command::ends;
use testkit::fabric::traffic::Stream;
use testkit::fabric::{Fabric, Spec, agent};

use crate::support::{End, PEER, carry_all};

/// The configuration of another agent, which shares no path with the first one's.
fn other_config(fabric: &Fabric) -> PathBuf {
    let folder = fabric.agent.state_dir().with_extension("other");
    fs::create_dir_all(&folder).unwrap();
    let text = fs::read_to_string(fabric.agent.config_path()).unwrap();
    let mut config: Value = serde_json::from_str(&text).unwrap();
    config["state-dir"] = json!(folder.join("state"));
    config["socket"] = json!(folder.join("socket"));
    config["datapath"]["pin-root"] = json!(fabric.pin_root().with_file_name("other"));
    let path = folder.join("config.json");
    fs::write(&path, config.to_string()).unwrap();
    path
}

/// Runs the agent's binary with another configuration until it ends, and returns its output.
fn refused(fabric: &Fabric, config: &Path, words: &[&str]) -> Result<String> {
    let mut towpath = fabric.node.command(&agent::binary()?.display().to_string());
    towpath.arg("--config").arg(config).args(words);
    let ended = ends(&mut towpath)?;
    ensure!(!ended.status.success(), "{words:?} is not refused");
    Ok(String::from_utf8_lossy(&ended.stderr).into_owned())
}

#[test]
fn a_second_agent_with_folders_of_its_own_is_refused() {
    let mut fabric = Fabric::ready(&Spec::default()).unwrap();
    let (one, two) = (fabric.add_pod(1, 0).unwrap(), fabric.add_pod(0, 0).unwrap());
    carry_all(&fabric, End::Pod(&one), PEER, &[1]);
    let stream = Stream::start(two.at(Family::V4), one.at(Family::V4), 500, "udp").unwrap();
    let config = other_config(&fabric);
    let id = fabric.agent.id().unwrap().to_string();
    let state = fabric.agent.state_dir().display().to_string();
    let pins = fabric.pin_root().display().to_string();
    for words in [&["run"][..], &["cleanup", "--yes"]] {
        let said = refused(&fabric, &config, words).unwrap();
        for part in ["another agent is running", &id, &state, &pins] {
            assert!(said.contains(part), "{part} is not in {said}");
        }
    }
    assert!(
        !fabric.pin_root().with_file_name("other").exists(),
        "nothing is made"
    );
    // An agent that starts right after one was killed finds the lock free.
    for _ in 0..3 {
        fabric.agent.kill().unwrap();
        fabric.start_agent().unwrap();
    }
    let report = stream.finish().unwrap();
    assert!(report.lost.is_empty(), "{report}");
    fabric.finish().unwrap();
}

/// Changes the user of the calling thread alone to the user nobody.
fn become_nobody() -> Result<()> {
    const NOBODY: libc::c_long = 65534;
    // SAFETY: three numbers, and no pointer. The system call itself changes this thread only.
    let done = unsafe { libc::syscall(libc::SYS_setresuid, NOBODY, NOBODY, NOBODY) };
    ensure!(done == 0, "{}", std::io::Error::last_os_error());
    Ok(())
}

/// Takes a name of the lock as the user nobody.
fn squat(fabric: &Fabric, number: usize) -> UnixListener {
    let name = format!("towpath-agent-{number}");
    let taken = fabric.node.enter(|| {
        become_nobody()?;
        Ok(UnixListener::bind_addr(&SocketAddr::from_abstract_name(
            name,
        )?)?)
    });
    taken.unwrap()
}

#[test]
fn somebody_without_privileges_stops_nobody() {
    let mut fabric = Fabric::create(&Spec::default()).unwrap();
    let some = [squat(&fabric, 0), squat(&fabric, 1)];
    fabric.start_agent().unwrap();
    let pod = fabric.add_pod(1, 0).unwrap();
    carry_all(&fabric, End::Pod(&pod), PEER, &[1]);
    let config = other_config(&fabric);
    let said = refused(&fabric, &config, &["run"]).unwrap();
    let id = fabric.agent.id().unwrap().to_string();
    assert!(
        said.contains("another agent is running") && said.contains(&id),
        "{said}"
    );

    // All names: an agent still starts, and the state folder still has one agent.
    fabric.agent.stop().unwrap();
    let all: Vec<_> = (2..8).map(|number| squat(&fabric, number)).collect();
    fabric.start_agent().unwrap();
    carry_all(&fabric, End::Pod(&pod), PEER, &[1]);
    let log = fabric.agent.log();
    assert!(log.contains("every name of the agent's lock"), "{log}");
    let second = ends(&mut fabric.agent.command(&fabric.node, &["run"])).unwrap();
    let said = String::from_utf8_lossy(&second.stderr);
    assert!(said.contains("another agent is running"), "{said}");
    drop((some, all));
    fabric.finish().unwrap();
}

/// Python that takes the lock's first name, reports that, and keeps it.
const SQUATTER: &str = "
import socket, sys
lock = socket.socket(socket.AF_UNIX)
lock.bind(chr(0) + 'towpath-agent-0')
lock.listen()
print('listens', flush=True)
sys.stdin.read()
";

/// A process that has the lock's first name until it is dropped.
struct Squatter(Child);

impl Squatter {
    fn start(fabric: &Fabric, words: &str) -> Self {
        let mut words = words.split_whitespace();
        let mut command = fabric.node.command(words.next().unwrap());
        command
            .args(words)
            .args(["/usr/bin/python3", "-c", SQUATTER]);
        command.stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut child = command.spawn().unwrap();
        let mut line = String::new();
        let said = child.stdout.take().unwrap();
        BufReader::new(said).read_line(&mut line).unwrap();
        assert_eq!(line, "listens\n");
        Self(child)
    }
}

impl Drop for Squatter {
    fn drop(&mut self) {
        drop(self.0.stdin.take());
        self.0.wait().ok();
    }
}

/// Every user may be root of a user namespace, with all capabilities there.
#[test]
fn root_of_a_user_namespace_stops_nobody_and_root_of_the_hosts_does() {
    let mut fabric = Fabric::create(&Spec::default()).unwrap();
    for words in [
        "unshare --user --map-root-user",
        "setpriv --reuid=65534 --regid=65534 --clear-groups unshare --user --map-root-user",
    ] {
        let squatter = Squatter::start(&fabric, words);
        fabric.start_agent().unwrap();
        fabric.agent.stop().unwrap();
        drop(squatter);
    }
    let squatter = Squatter::start(&fabric, "env");
    let said = ends(&mut fabric.agent.command(&fabric.node, &["run"])).unwrap();
    let said = String::from_utf8_lossy(&said.stderr).into_owned();
    let id = squatter.0.id().to_string();
    assert!(
        said.contains("another agent is running") && said.contains(&id),
        "{said}"
    );
    drop(squatter);
    fabric.start_agent().unwrap();
    fabric.finish().unwrap();
}
