//! One agent a network namespace, whatever its folders.

use std::fs;
use std::os::linux::net::SocketAddrExt as _;
use std::os::unix::net::{SocketAddr, UnixListener};
use std::path::{Path, PathBuf};

use anyhow::{Result, ensure};
use bpf_tests::fabric::traffic::Stream;
use bpf_tests::fabric::{Fabric, Spec, agent, command};
use serde_json::{Value, json};
use towpath::intent::Family;

use crate::support::{End, PEER, carry_all};

/// The configuration of another agent: nothing of the first one's is in it.
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

/// Runs the agent's binary with another configuration until it ends; what it says.
fn run(fabric: &Fabric, config: &Path, words: &[&str]) -> Result<String> {
    let mut towpath = fabric.node.command(&agent::binary()?.display().to_string());
    towpath.arg("--config").arg(config).args(words);
    command::run(&mut towpath)
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
        let said = format!("{:#}", run(&fabric, &config, words).unwrap_err());
        for part in ["another agent is running", &id, &state, &pins] {
            assert!(said.contains(part), "{part} is not in {said}");
        }
    }
    assert!(
        !fabric.pin_root().with_file_name("other").exists(),
        "nothing is made"
    );
    // Whoever comes right behind one that was killed finds nobody.
    for _ in 0..3 {
        fabric.agent.kill().unwrap();
        fabric.start_agent().unwrap();
    }
    let report = stream.finish().unwrap();
    assert!(report.lost.is_empty(), "{report}");
    fabric.finish().unwrap();
}

/// Becomes nobody, in the calling thread alone.
fn become_nobody() -> Result<()> {
    const NOBODY: libc::c_long = 65534;
    // SAFETY: three numbers, and no pointer. The system call itself changes this thread only.
    let done = unsafe { libc::syscall(libc::SYS_setresuid, NOBODY, NOBODY, NOBODY) };
    ensure!(done == 0, "{}", std::io::Error::last_os_error());
    Ok(())
}

#[test]
fn somebody_without_privileges_stops_nobody() {
    let mut fabric = Fabric::create(&Spec::default()).unwrap();
    let squat = |number: usize| {
        let name = format!("towpath-agent-{number}");
        fabric.node.enter(|| {
            become_nobody()?;
            Ok(UnixListener::bind_addr(&SocketAddr::from_abstract_name(
                name,
            )?)?)
        })
    };
    let _some = [squat(0).unwrap(), squat(1).unwrap()];
    fabric.start_agent().unwrap();
    let pod = fabric.add_pod(1, 0).unwrap();
    carry_all(&fabric, End::Pod(&pod), PEER, &[1]);
    let config = other_config(&fabric);
    let said = format!("{:#}", run(&fabric, &config, &["run"]).unwrap_err());
    let id = fabric.agent.id().unwrap().to_string();
    assert!(
        said.contains("another agent is running") && said.contains(&id),
        "{said}"
    );
    fabric.finish().unwrap();
}
