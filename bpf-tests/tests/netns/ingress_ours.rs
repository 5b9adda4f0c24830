//! The agent's own addresses with our own plugins: our IPAM plugin as the delegated one, and a
//! garbage collection that a runtime requests.

use std::fs::{self, Permissions};
use std::io::Write as _;
use std::os::unix::fs::{PermissionsExt as _, symlink};
use std::path::PathBuf;
use std::process::{Command, Stdio};

use anyhow::{Result, ensure};
use serde_json::{Value, json};
use testkit::fabric::Place;
use testkit::fabric::agent;
use testkit::fabric::traffic::Protocol;

use crate::ingress::{SOON, wait_for};
use crate::ingress_delegated::Delegated;
use crate::support::within;

/// Script that records its calls and runs our IPAM plugin, which is in the same folder.
const RECORDED: &str = "#!/bin/sh\n\
    echo \"$CNI_COMMAND $CNI_CONTAINERID\" >> \"$0.calls\"\n\
    exec \"${0%/*}/towpath-ipam\"\n";

fn plugin() -> Result<PathBuf> {
    let plugin = agent::binary()?.with_file_name("towpath-cni");
    ensure!(plugin.is_file(), "{} is missing", plugin.display());
    Ok(plugin)
}

/// Checks that a listener on each of the agent's addresses is reachable from the VPC.
pub(crate) fn are_reached(bed: &Delegated) {
    for (family, address) in wait_for(&bed.fabric, 2) {
        let to = Place {
            netns: &bed.fabric.node,
            address,
        };
        // The lease precedes the address on the host.
        within(SOON, "the listener is reached", || {
            Protocol::Tcp.exchange(bed.fabric.peer(family), to)
        });
    }
}

#[test]
fn our_own_ipam_plugin_is_a_delegated_one_like_any_other() {
    let mut bed = Delegated::fake();
    symlink(plugin().unwrap(), bed.plugins.join("towpath-ipam")).unwrap();
    let recorded = bed.plugins.join("recorded-ipam");
    fs::write(&recorded, RECORDED).unwrap();
    fs::set_permissions(&recorded, Permissions::from_mode(0o755)).unwrap();
    let calls = bed.plugins.join("recorded-ipam.calls");
    for version in ["0.3.1", "1.1.0"] {
        let ipam = json!({
            "type": "recorded-ipam", "socket": bed.fabric.agent.socket(),
            "state-dir": bed.fabric.file("cni")
        });
        bed.delegate(version, &ipam);
        bed.restart("on");
        are_reached(&bed);
        let own = wait_for(&bed.fabric, 2);
        bed.restart("on");
        assert_eq!(wait_for(&bed.fabric, 2), own, "{version}");
        bed.restart("off");
        wait_for(&bed.fabric, 0);
        // The agent's last turn may come after its list is empty. Without it, the DEL is repeated.
        bed.waits_for_record(false);
    }
    let all = fs::read_to_string(calls).unwrap();
    let count = |command: &str| all.lines().filter(|line| line.starts_with(command)).count();
    assert_eq!((count("ADD"), count("DEL")), (2, 2), "{all}");
    assert!(
        all.lines().all(|line| line.contains(" towpath-ingress-")),
        "{all}"
    );
    // Under its own name the plugin is not run: the agent uses its own allocator.
    bed.delegate("1.0.0", &json!({"type": "towpath-ipam"}));
    bed.restart("on");
    are_reached(&bed);
    bed.waits_for_record(false);
    bed.fabric.finish().unwrap();
}

/// Calls GC as a runtime without containers does.
pub(crate) fn collect(bed: &Delegated) -> Result<()> {
    let config = json!({
        "cniVersion": "1.1.0", "name": "pods", "type": "towpath-cni",
        "ipam": {"type": "fake-ipam"}, "socket": bed.fabric.agent.socket(),
        "state-dir": bed.fabric.file("cni"), "cni.dev/valid-attachments": []
    });
    let mut run = Command::new(plugin()?)
        .env_clear()
        .env("PATH", std::env::var_os("PATH").unwrap_or_default())
        .env("CNI_COMMAND", "GC")
        .env("CNI_PATH", &bed.plugins)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()?;
    if let Some(mut stdin) = run.stdin.take() {
        stdin.write_all(config.to_string().as_bytes())?;
    }
    let output = run.wait_with_output()?;
    let printed: Value = serde_json::from_slice(&output.stdout).unwrap_or_default();
    ensure!(output.status.success(), "{printed}");
    Ok(())
}

#[test]
fn a_runtimes_garbage_collection_takes_none_of_them() {
    let mut bed = Delegated::fake();
    bed.delegate("1.1.0", &json!({"type": "fake-ipam"}));
    bed.restart("on");
    let own = wait_for(&bed.fabric, 2);
    let given = bed.given();
    // Address of a container that no runtime knows any more.
    bed.set("given/pods.lost.eth0", "10.0.1.250");
    assert_eq!(bed.given().len(), 2);
    collect(&bed).unwrap();
    assert_eq!(bed.given(), given, "{:?}", bed.calls());
    bed.restart("on");
    assert_eq!(wait_for(&bed.fabric, 2), own);
    are_reached(&bed);
    bed.fabric.finish().unwrap();
}
