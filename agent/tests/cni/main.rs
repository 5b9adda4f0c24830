//! The plugin's installation: what is there afterwards, and after a kill at each step.

#![expect(
    clippy::unwrap_used,
    reason = "a failure of a helper is a failure of the test"
)]

mod mesh;

use std::collections::BTreeMap;
use std::fs;
use std::io::{BufRead as _, BufReader, Write as _};
use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _};
use std::os::unix::net::UnixListener;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use api::ids::{EndpointId, Owner};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use serde_json::{Value, json};
use tempfile::TempDir;

const PLUGIN: &[u8] = b"\x7fELF the plugin";

/// A node's folders, and who answers at the agent's socket.
struct Node {
    folder: TempDir,
}

impl Node {
    fn new() -> Self {
        let node = Self {
            folder: tempfile::tempdir().unwrap(),
        };
        fs::write(node.path("plugin"), PLUGIN).unwrap();
        for folder in ["bin", "conf"] {
            fs::create_dir(node.path(folder)).unwrap();
            fs::write(node.path(folder).join("other"), "somebody else's").unwrap();
        }
        node
    }

    fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    /// An agent that is not ready for the first `times` questions; counts them.
    fn agent(&self, times: usize, code: &'static str) -> Arc<AtomicUsize> {
        let listener = UnixListener::bind(self.path("agent.sock")).unwrap();
        let requests = Arc::new(AtomicUsize::new(0));
        let count = Arc::clone(&requests);
        // It ends with the test's process.
        std::thread::spawn(move || {
            for stream in listener.incoming() {
                let mut stream = stream.unwrap();
                let mut lines = BufReader::new(&stream).lines();
                let request = lines.next().unwrap().unwrap();
                assert!(request.starts_with("GET /v1/ready "), "{request}");
                while lines.next().is_some_and(|line| !line.unwrap().is_empty()) {}
                let (status, body) = if count.fetch_add(1, Ordering::SeqCst) < times {
                    let error = json!({"code": code, "message": "no document", "retry": true});
                    (503, json!({"error": error}))
                } else {
                    (200, json!({"ready": true}))
                };
                write!(stream, "HTTP/1.0 {status} X\r\n\r\n{body}").unwrap();
            }
        });
        requests
    }

    fn run(&self, command: &str, more: &[&str], fault: Option<&str>) -> Output {
        let mut command = self.command(command, &[&["--output=json"], more].concat());
        command
            .envs(fault.map(|point| ("TOWPATH_FAULT", point)))
            .output()
            .unwrap()
    }

    fn command(&self, command: &str, more: &[&str]) -> Command {
        let path = |name| self.path(name).display().to_string();
        let mut args = vec![
            "--socket".to_owned(),
            path("agent.sock"),
            "cni".to_owned(),
            command.to_owned(),
            format!("--bin-dir={}", path("bin")),
            format!("--conf-dir={}", path("conf")),
        ];
        if command != "uninstall" {
            args.push(format!("--plugin={}", path("plugin")));
        }
        let mut command = Command::new(env!("CARGO_BIN_EXE_towpath"));
        command
            .args(args)
            .args(more)
            .env_remove("TOWPATH_CONFIG")
            .env_remove("TOWPATH_SOCKET");
        command
    }

    fn install(&self) -> Value {
        report(&self.run("install", &[], None))
    }

    /// The argument that has the plugin's state in this node's folder.
    fn config(&self) -> String {
        let config = self.path("config.yaml");
        let folder = self.path("state").join("pending-deletes");
        let text = format!("cni: {{pending-deletes: {}}}", folder.display());
        fs::write(&config, text).unwrap();
        format!("--config={}", config.display())
    }

    /// Each file with its mode, of both folders.
    fn files(&self) -> BTreeMap<String, u32> {
        let mut files = BTreeMap::new();
        for folder in ["bin", "conf"] {
            for entry in fs::read_dir(self.path(folder)).unwrap() {
                let entry = entry.unwrap();
                let name = format!("{folder}/{}", entry.file_name().display());
                let mode = entry.metadata().unwrap().permissions().mode() & 0o7777;
                files.insert(name, mode);
            }
        }
        assert_eq!(files.remove("bin/other"), Some(0o644));
        assert_eq!(files.remove("conf/other"), Some(0o644));
        for folder in ["bin", "conf"] {
            let text = fs::read(self.path(folder).join("other")).unwrap();
            assert_eq!(text, b"somebody else's");
        }
        files
    }

    fn is_installed(&self) {
        let expected = BTreeMap::from([
            ("bin/towpath-cni".to_owned(), 0o755),
            ("bin/towpath-ipam".to_owned(), 0o755),
            ("conf/10-towpath.conflist".to_owned(), 0o600),
        ]);
        assert_eq!(self.files(), expected);
        assert_eq!(fs::read(self.path("bin/towpath-cni")).unwrap(), PLUGIN);
        assert_eq!(fs::read(self.path("bin/towpath-ipam")).unwrap(), PLUGIN);
        towpath_cni::conflist::check(&fs::read(self.conflist()).unwrap()).unwrap();
    }

    fn conflist(&self) -> PathBuf {
        self.path("conf/10-towpath.conflist")
    }

    fn inode(&self, name: &str) -> u64 {
        self.path(name).metadata().unwrap().ino()
    }
}

fn report(output: &Output) -> Value {
    let error = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{error}");
    serde_json::from_slice(&output.stdout).unwrap()
}

fn fails(output: &Output, word: &str) {
    let error = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(1), "{error}");
    assert!(error.contains(word), "{word:?} is not in {error}");
}

#[test]
fn a_second_install_changes_nothing() {
    let node = Node::new();
    let requests = node.agent(0, "");
    let first = node.install();
    assert_eq!(first["changed"].as_array().unwrap().len(), 3, "{first}");
    node.is_installed();
    let inodes = || ["bin/towpath-cni", "conf/10-towpath.conflist"].map(|name| node.inode(name));
    let before = inodes();
    let second = node.install();
    assert_eq!(second["changed"], json!([]));
    assert_eq!(second["unchanged"].as_array().unwrap().len(), 3, "{second}");
    assert_eq!(inodes(), before);
    assert_eq!(
        requests.load(Ordering::SeqCst),
        1,
        "the list is there already"
    );
}

#[test]
fn what_somebody_changed_is_made_good() {
    let node = Node::new();
    let _asked = node.agent(0, "");
    node.install();
    fs::set_permissions(node.conflist(), fs::Permissions::from_mode(0o644)).unwrap();
    fs::write(node.path("bin/towpath-cni"), "old").unwrap();
    fs::remove_file(node.path("bin/towpath-ipam")).unwrap();
    std::os::unix::fs::symlink("other", node.path("bin/towpath-ipam")).unwrap();
    node.install();
    node.is_installed();
}

#[test]
fn the_list_waits_for_the_agent() {
    let node = Node::new();
    let output = node.run("install", &[], None);
    fails(
        &output,
        "the agent is not ready, so 10-towpath.conflist is not installed: no agent",
    );
    assert!(!node.conflist().exists());
    assert!(node.path("bin/towpath-cni").exists());

    let requests = node.agent(3, "not-ready");
    fails(&node.run("install", &[], None), "no document (not-ready)");
    assert!(!node.conflist().exists());
    report(&node.run("install", &["--wait-ready"], None));
    node.is_installed();
    assert_eq!(requests.load(Ordering::SeqCst), 4);
}

#[test]
fn a_full_node_has_a_network_too() {
    let node = Node::new();
    let _asked = node.agent(usize::MAX, "exhausted");
    node.install();
    node.is_installed();
}

#[test]
fn an_own_list_is_installed_as_it_is() {
    let node = Node::new();
    let _asked = node.agent(0, "");
    let list = r#"{"cniVersion":"0.4.0","name":"own","plugins":[{"type":"towpath-cni"}]}"#;
    let given = node.path("given");
    let argument = format!("--conflist={}", given.display());
    fs::write(&given, list.replace("towpath-cni", "bridge")).unwrap();
    let output = node.run("install", &[&argument], None);
    fails(&output, "none has the type towpath-cni");
    assert!(
        node.files().is_empty(),
        "nothing is changed by what cannot be used"
    );
    fs::write(&given, list).unwrap();
    report(&node.run("install", &[&argument], None));
    assert_eq!(fs::read_to_string(node.conflist()).unwrap(), list);
}

/// The agent carries out the deletes that the plugin left: both have to mean one folder.
#[test]
fn the_plugin_leaves_deletes_where_the_agent_looks_for_them() {
    let node = Node::new();
    let _asked = node.agent(0, "");
    let config = node.path("config.yaml");
    fs::write(
        &config,
        "cni: {pending-deletes: /var/lib/x/pending-deletes}",
    )
    .unwrap();
    let config = format!("--config={}", config.display());
    report(&node.run("install", &[&config], None));
    let text = fs::read(node.conflist()).unwrap();
    let installed = towpath_cni::conflist::check(&text).unwrap();
    assert_eq!(installed.state_dir, Path::new("/var/lib/x"));

    let given = node.path("given");
    let list = r#"{"cniVersion":"1.0.0","name":"own","plugins":[{"type":"towpath-cni"}]}"#;
    fs::write(&given, list).unwrap();
    let argument = format!("--conflist={}", given.display());
    let output = node.run("install", &[&config, &argument], None);
    fails(
        &output,
        "state-dir is /run/towpath/cni; allowed: /var/lib/x",
    );
    let agrees = list.replace("cni\"}", "cni\",\"state-dir\":\"/var/lib/x\"}");
    fs::write(&given, agrees).unwrap();
    report(&node.run("install", &[&config, &argument], None));
}

#[test]
fn what_is_no_program_is_not_installed() {
    let node = Node::new();
    fs::write(node.path("plugin"), "#!/bin/sh").unwrap();
    fails(&node.run("install", &[], None), "is no program");
    assert!(node.files().is_empty());
}

#[test]
fn a_configuration_that_comes_first_is_told() {
    let node = Node::new();
    let _asked = node.agent(0, "");
    fs::write(node.path("conf/05-other.conflist"), "{}").unwrap();
    let notes = node.install()["notes"].to_string();
    assert!(
        notes.contains("05-other.conflist, not 10-towpath.conflist"),
        "{notes}"
    );
}

#[test]
fn uninstall_takes_the_list_first_and_nothing_else() {
    let node = Node::new();
    let _asked = node.agent(0, "");
    report(&node.run("uninstall", &[], None));
    node.install();
    let removed = report(&node.run("uninstall", &[], None));
    let names: Vec<_> = removed["changed"]
        .as_array()
        .unwrap()
        .iter()
        .map(|path| {
            Path::new(path.as_str().unwrap())
                .file_name()
                .unwrap()
                .to_str()
                .unwrap()
        })
        .collect();
    assert_eq!(
        names,
        ["10-towpath.conflist", "towpath-cni", "towpath-ipam"]
    );
    assert!(node.files().is_empty());
}

/// At no moment may the list be there without the binaries.
#[test]
fn a_kill_at_any_step_leaves_nothing_that_the_next_run_does_not_make_good() {
    let names = [
        "bin/towpath-cni",
        "bin/towpath-ipam",
        "conf/10-towpath.conflist",
    ];
    for point in ["cni.write", "cni.rename"] {
        for (count, name) in (1..).zip(names) {
            let node = Node::new();
            let _asked = node.agent(0, "");
            let fault = format!("{point}:{count}");
            let output = node.run("install", &[], Some(&fault));
            assert_eq!(output.status.code(), None, "{fault} is not reached");
            assert!(!node.path(name).exists(), "{fault}");
            assert!(!node.conflist().exists(), "{fault}");
            assert_eq!(
                node.install()["leftovers"].as_array().unwrap().len(),
                1,
                "{fault}"
            );
            node.is_installed();
        }
    }
    for count in 1..=3 {
        let node = Node::new();
        let _asked = node.agent(0, "");
        node.install();
        let output = node.run("uninstall", &[], Some(&format!("cni.remove:{count}")));
        assert_eq!(output.status.code(), None);
        assert_eq!(node.conflist().exists(), count == 1, "{count}");
        assert_eq!(node.files().len(), 4 - count, "{count}");
        report(&node.run("uninstall", &[], None));
        assert!(node.files().is_empty());
    }
}

/// `towpath cni keep`, which runs until it is signalled to stop.
struct Keeper(Child);

impl Keeper {
    fn start(node: &Node, more: &[&str]) -> Self {
        let config = node.config();
        let mut command = node.command("keep", &[&[config.as_str()], more].concat());
        Self(command.spawn().unwrap())
    }

    fn stop(mut self) {
        let id = Pid::from_raw(self.0.id().try_into().unwrap());
        kill(id, Signal::SIGTERM).unwrap();
        assert!(self.0.wait().unwrap().success());
    }
}

impl Drop for Keeper {
    fn drop(&mut self) {
        // It may have been stopped.
        let _ended = self.0.kill().and_then(|()| self.0.wait());
    }
}

/// Waits until something is so.
fn soon(what: &str, is: impl Fn() -> bool) {
    let deadline = Instant::now() + Duration::from_secs(20);
    while !is() {
        assert!(Instant::now() < deadline, "{what}");
        std::thread::sleep(Duration::from_millis(20));
    }
}

#[test]
fn a_list_of_an_earlier_boot_waits_for_the_agent_and_one_of_this_boot_stays() {
    let node = Node::new();
    fs::write(node.conflist(), "of an earlier boot").unwrap();
    let keeper = Keeper::start(&node, &[]);
    soon("the binaries come", || {
        node.path("bin/towpath-ipam").exists()
    });
    assert!(!node.conflist().exists(), "no agent is ready");
    let _asked = node.agent(2, "not-ready");
    soon("the list comes", || node.conflist().exists());
    keeper.stop();
    // Installed files stay, also if the next process finds no agent.
    let before = node.inode("conf/10-towpath.conflist");
    fs::remove_file(node.path("agent.sock")).unwrap();
    let keeper = Keeper::start(&node, &[]);
    fs::remove_file(node.path("bin/towpath-cni")).unwrap();
    soon("the binary is back", || {
        node.path("bin/towpath-cni").exists()
    });
    assert_eq!(node.inode("conf/10-towpath.conflist"), before);
    keeper.stop();
    assert_eq!(node.inode("conf/10-towpath.conflist"), before);
}

/// The runtime would call the network not ready in between.
#[test]
fn a_full_node_keeps_its_list() {
    let node = Node::new();
    let requests = node.agent(usize::MAX, "exhausted");
    report(&node.run("install", &[&node.config()], None));
    // While it is open, no new file gets its inode.
    let list = fs::File::open(node.conflist()).unwrap();
    let keeper = Keeper::start(&node, &[]);
    soon("it is looked after", || {
        node.path("state/installed").exists()
    });
    assert_eq!(requests.load(Ordering::SeqCst), 2, "its boot is not known");
    let before = list.metadata().unwrap().ino();
    assert_eq!(node.inode("conf/10-towpath.conflist"), before);
    keeper.stop();
}

#[test]
fn what_somebody_takes_away_comes_back_and_goes_when_it_is_to() {
    let node = Node::new();
    let _asked = node.agent(0, "");
    let keeper = Keeper::start(&node, &["--uninstall-at-end"]);
    let is_there = || node.conflist().exists();
    soon("it is installed", is_there);
    fs::remove_file(node.conflist()).unwrap();
    soon("the list is back", is_there);
    fs::write(node.path("bin/towpath-cni"), "another").unwrap();
    let good = || fs::read(node.path("bin/towpath-cni")).unwrap() == PLUGIN;
    soon("the binary is as it was", good);
    keeper.stop();
    assert!(node.files().is_empty());
}

/// The plugin names an owner's files as the agent names its device.
#[test]
fn the_plugin_and_the_agent_have_one_name_for_an_owner() {
    for (container_id, interface) in [("0a1b2c", "eth0"), ("x", "net1"), ("a.b-c_d", "e")] {
        let ours = Owner {
            container_id: container_id.to_owned(),
            interface: interface.to_owned(),
        };
        let theirs =
            towpath_cni::request::owner::Owner::new(container_id.into(), interface.into()).unwrap();
        assert_eq!(EndpointId::of(&ours).to_string(), theirs.endpoint_id());
    }
}
