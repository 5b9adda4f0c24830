//! A network namespace for a test, and what the tests ask of it.

use std::fs;
use std::path::PathBuf;
use std::process::Command;
use std::sync::mpsc;
use std::thread::JoinHandle;

use loader::kernel::{Link, Observed, StepKind};
use loader::netlink::Netlink;
use nix::sched::{CloneFlags, unshare};
use serde_json::Value;

/// Routing protocol of what the tests add (2 = kernel).
pub(crate) const PROTOCOL: u8 = 2;

/// Runs a test on a thread with a network namespace of its own, loopback up.
pub(crate) fn in_netns<T: AsyncFnOnce(&mut Netlink) + Send + 'static>(test: T) {
    let thread = std::thread::spawn(move || {
        unshare(CloneFlags::CLONE_NEWNET).expect("a network namespace needs root");
        ip("link set lo up");
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()
            .expect("a runtime");
        runtime.block_on(async {
            let mut netlink = Netlink::open(PROTOCOL).expect("open netlink");
            test(&mut netlink).await;
        });
    });
    if let Err(panic) = thread.join() {
        std::panic::resume_unwind(panic);
    }
}

/// Runs a command in the calling thread's namespace; its output. Panics when it fails.
pub(crate) fn run(line: &str) -> String {
    let (ok, output) = attempt(line);
    assert!(ok, "`{line}` failed: {output}");
    output
}

/// Runs a command; whether it succeeded, and its output.
pub(crate) fn attempt(line: &str) -> (bool, String) {
    let mut words = line.split_whitespace();
    let program = words.next().expect("a program");
    let output = Command::new(program)
        .args(words)
        .output()
        .unwrap_or_else(|error| panic!("{program} has to be installed: {error}"));
    let mut text = String::from_utf8_lossy(&output.stdout).into_owned();
    text.push_str(&String::from_utf8_lossy(&output.stderr));
    (output.status.success(), text)
}

/// Runs `ip`.
pub(crate) fn ip(arguments: &str) -> String {
    run(&format!("ip {arguments}"))
}

/// Runs `ip -j`; an empty answer is an empty list.
pub(crate) fn ip_json(arguments: &str) -> Vec<Value> {
    let output = ip(&format!("-j -d {arguments}"));
    if output.trim().is_empty() {
        return Vec::new();
    }
    let value: Value = serde_json::from_str(&output).expect("ip -j writes JSON");
    let Value::Array(values) = value else {
        panic!("ip -j writes a list, not {value}");
    };
    values
        .into_iter()
        .filter(|v| *v != serde_json::json!({}))
        .collect()
}

/// The routes of a table as `ip` has them; a table that does not exist has none.
pub(crate) fn ip_routes(family: &str, table: u32) -> Vec<Value> {
    let (ok, _) = attempt(&format!("ip {family} route show table {table}"));
    if !ok {
        return Vec::new();
    }
    ip_json(&format!("{family} route show table {table}"))
}

/// Everything as netlink has it.
pub(crate) async fn observe(netlink: &mut Netlink) -> Observed {
    let mut observed = Observed::default();
    netlink.observe(&mut observed).await.expect("observe");
    observed
}

/// The device of a name.
pub(crate) async fn link(netlink: &mut Netlink, name: &str) -> Link {
    let observed = observe(netlink).await;
    observed
        .links
        .into_values()
        .find(|link| link.name == name)
        .unwrap_or_else(|| panic!("no device {name}"))
}

/// Makes a veth pair, both ends up; the index of the first one.
pub(crate) async fn veth(netlink: &mut Netlink, name: &str) -> u32 {
    ip(&format!("link add {name} type veth peer name {name}p"));
    ip(&format!("link set {name} up"));
    ip(&format!("link set {name}p up"));
    link(netlink, name).await.ifindex
}

/// Applies a step that has to succeed, and then once more: twice is as good as once.
pub(crate) async fn apply_twice(netlink: &mut Netlink, step: StepKind) {
    for _ in 0..2 {
        if let Err(error) = netlink.apply(&step).await {
            panic!("{step:?}: {error:#}");
        }
    }
}

/// The error of a step that has to fail.
pub(crate) async fn refused(netlink: &mut Netlink, step: StepKind) -> String {
    match netlink.apply(&step).await {
        Ok(()) => panic!("{step:?} should fail"),
        Err(error) => format!("{error:#}"),
    }
}

/// A second network namespace, held by a thread.
pub(crate) struct Pod {
    /// Where the namespace is.
    pub(crate) path: PathBuf,
    release: Option<mpsc::Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

impl Pod {
    /// Makes a namespace.
    pub(crate) fn new() -> Self {
        let (tell, path) = mpsc::channel();
        let (release, wait) = mpsc::channel::<()>();
        let thread = std::thread::spawn(move || {
            unshare(CloneFlags::CLONE_NEWNET).expect("a network namespace needs root");
            let own = fs::read_link("/proc/thread-self").expect("procfs");
            tell.send(PathBuf::from("/proc").join(own).join("ns/net"))
                .expect("the test waits for it");
            // Ends when the sender goes.
            wait.recv().ok();
        });
        Self {
            path: path.recv().expect("the namespace's path"),
            release: Some(release),
            thread: Some(thread),
        }
    }

    /// Runs a command inside.
    pub(crate) fn run(&self, line: &str) -> String {
        run(&self.line(line))
    }

    /// Runs a command inside that may fail.
    pub(crate) fn attempt(&self, line: &str) -> (bool, String) {
        attempt(&self.line(line))
    }

    /// Runs `ip -j` inside.
    pub(crate) fn ip_json(&self, arguments: &str) -> Vec<Value> {
        let output = self.run(&format!("ip -j -d {arguments}"));
        let value: Value = serde_json::from_str(&output).expect("ip -j writes JSON");
        value.as_array().expect("a list").clone()
    }

    fn line(&self, line: &str) -> String {
        format!("nsenter --net={} {line}", self.path.display())
    }
}

impl Drop for Pod {
    fn drop(&mut self) {
        drop(self.release.take());
        if let Some(thread) = self.thread.take() {
            drop(thread.join());
        }
    }
}
