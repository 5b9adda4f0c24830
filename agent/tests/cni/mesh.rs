//! A list that a service mesh adds to, as istio-cni and linkerd-cni do: it looks at the file and
//! appends its entry where that is missing.

use std::fs::{self, File};
use std::path::PathBuf;
use std::process::Stdio;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use crate::{Keeper, Node, report, soon};

const KIND: &str = "istio-cni";

/// The mesh's agent on the node.
struct Mesh {
    appended: Arc<AtomicUsize>,
    ends: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl Mesh {
    fn start(node: &Node) -> Self {
        let (appended, ends) = (Arc::default(), Arc::new(AtomicBool::new(false)));
        let (count, end) = (Arc::clone(&appended), Arc::clone(&ends));
        let (list, new) = (node.conflist(), node.path("conf/.mesh"));
        let run = move || {
            while !end.load(Ordering::SeqCst) {
                append(&list, &new, &count);
                std::thread::sleep(Duration::from_millis(5));
            }
        };
        Self {
            appended,
            ends,
            thread: Some(std::thread::spawn(run)),
        }
    }

    fn appended(&self) -> usize {
        self.appended.load(Ordering::SeqCst)
    }
}

impl Drop for Mesh {
    fn drop(&mut self) {
        self.ends.store(true, Ordering::SeqCst);
        let joined = self.thread.take().map(JoinHandle::join);
        assert!(joined.is_none_or(|outcome| outcome.is_ok()));
    }
}

fn append(list: &PathBuf, new: &PathBuf, count: &AtomicUsize) {
    let Some(mut there) = read(list) else { return };
    let Some(plugins) = there["plugins"].as_array_mut() else {
        return;
    };
    if plugins.iter().all(|plugin| plugin["type"] != KIND) {
        plugins.push(json!({"type": KIND, "log_level": "info"}));
        fs::write(new, there.to_string()).unwrap();
        // First, so that a reader of the list finds it counted.
        count.fetch_add(1, Ordering::SeqCst);
        fs::rename(new, list).unwrap();
    }
}

fn read(list: &PathBuf) -> Option<Value> {
    serde_json::from_slice(&fs::read(list).ok()?).ok()
}

/// Types of the list's plugins, in their order.
fn kinds(node: &Node) -> Vec<String> {
    let list = read(&node.conflist()).unwrap_or_default();
    let plugins = list["plugins"].as_array().into_iter().flatten();
    let kinds = plugins.map(|plugin| plugin["type"].as_str().unwrap().to_owned());
    kinds.collect()
}

fn has(node: &Node, expected: &[&str]) -> impl Fn() -> bool {
    move || kinds(node) == expected
}

/// Looks at the node for longer than the keeper needs for three looks.
fn stays(what: &str, is: impl Fn() -> bool) {
    let end = Instant::now() + Duration::from_millis(3500);
    while Instant::now() < end {
        assert!(is(), "{what}");
        std::thread::sleep(Duration::from_millis(5));
    }
}

fn edit(node: &Node, edit: impl FnOnce(&mut Vec<Value>)) {
    let mut list = read(&node.conflist()).unwrap();
    edit(list["plugins"].as_array_mut().unwrap());
    fs::write(node.path("conf/.edit"), list.to_string()).unwrap();
    fs::rename(node.path("conf/.edit"), node.conflist()).unwrap();
}

/// A keeper whose log is in a file.
fn keeper(node: &Node) -> Keeper {
    let mut command = node.command("keep", &[&node.config()]);
    let log = File::create(node.path("log")).unwrap();
    Keeper(command.stdout(Stdio::null()).stderr(log).spawn().unwrap())
}

#[test]
fn a_mesh_that_comes_later_stays_in_the_list_without_a_war() {
    let node = Node::new();
    let _requests = node.agent(0, "");
    let keeper = keeper(&node);
    soon("the list comes", has(&node, &["towpath-cni"]));
    let mesh = Mesh::start(&node);
    let both = ["towpath-cni", KIND];
    soon("the mesh is in it", has(&node, &both));
    let inode = node.inode("conf/10-towpath.conflist");
    stays("nobody writes it", || {
        kinds(&node) == both && node.inode("conf/10-towpath.conflist") == inode
    });

    edit(&node, |plugins| {
        plugins.insert(0, json!({"type": "tuning"}));
    });
    edit(&node, |plugins| {
        plugins.retain(|one| one["type"] != "towpath-cni");
    });
    soon("our entry is back", || kinds(&node).len() == 3);
    edit(&node, |plugins| {
        for one in plugins
            .iter_mut()
            .filter(|one| one["type"] == "towpath-cni")
        {
            one["socket"] = json!("/elsewhere.sock");
        }
    });
    let socket = node.path("agent.sock").display().to_string();
    soon("our entry is right", || {
        let list = read(&node.conflist()).unwrap_or_default().to_string();
        list.contains(&socket) && !list.contains("elsewhere")
    });
    assert_eq!(kinds(&node), ["towpath-cni", "tuning", KIND]);
    assert_eq!(mesh.appended(), 1, "its entry was never taken away");

    fs::remove_file(node.conflist()).unwrap();
    soon("the list is back", has(&node, &both));
    assert_eq!(mesh.appended(), 2);
    keeper.stop();
    let log = fs::read_to_string(node.path("log")).unwrap();
    assert_eq!(log.matches("stays: istio-cni").count(), 1, "{log}");
}

#[test]
fn a_program_that_takes_our_entry_away_each_time_is_fought_less_and_less() {
    let node = Node::new();
    let _requests = node.agent(0, "");
    let keeper = keeper(&node);
    let log = || fs::read_to_string(node.path("log")).unwrap();
    let logged = |text: &str| log().matches(text).count();
    // Each time, and for longer than all prompt repairs take.
    soon("the fight is logged", || {
        if has(&node, &["towpath-cni"])() {
            edit(&node, Vec::clear);
        }
        logged("another program keeps changing") == 1
    });
    let ours = logged("installed");
    stays("no war", || {
        if has(&node, &["towpath-cni"])() {
            edit(&node, Vec::clear);
        }
        logged("installed") <= ours + 1
    });
    keeper.stop();
}

/// A pod that starts before the mesh looks again would be without it.
#[test]
fn a_mesh_that_was_there_before_the_boot_is_in_the_list_from_the_start() {
    let node = Node::new();
    fs::write(node.path("bin").join(KIND), "a plugin").unwrap();
    let list = json!({"cniVersion": "1.0.0", "name": "towpath", "plugins":
        [{"type": "towpath-cni"}, {"type": "gone"}, {"type": KIND, "log_level": "info"}]});
    fs::write(node.conflist(), list.to_string()).unwrap();
    let keeper = keeper(&node);
    let mesh = Mesh::start(&node);
    soon("the binaries come", || {
        node.path("bin/towpath-ipam").exists()
    });
    assert!(!node.conflist().exists(), "no agent is ready");
    let _requests = node.agent(1, "not-ready");
    soon("the list comes", has(&node, &["towpath-cni", KIND]));
    stays("nobody writes it", has(&node, &["towpath-cni", KIND]));
    assert_eq!(mesh.appended(), 0);
    keeper.stop();
    let list = node.path("conf/10-towpath.conflist.earlier-boot");
    assert!(!list.exists());
}

#[test]
fn a_list_that_nobody_can_use_is_written_again_and_a_copy_stays() {
    let node = Node::new();
    let _requests = node.agent(0, "");
    let keeper = keeper(&node);
    soon("the list comes", has(&node, &["towpath-cni"]));
    for text in ["{\"plugins\": [", "[]", ""] {
        fs::write(node.conflist(), text).unwrap();
        soon("the list is right", has(&node, &["towpath-cni"]));
        let copy = fs::read_to_string(node.path("conf/10-towpath.conflist.damaged"));
        assert_eq!(copy.unwrap(), text);
    }
    keeper.stop();
}

#[test]
fn uninstall_leaves_entries_of_others() {
    let node = Node::new();
    let _requests = node.agent(0, "");
    node.install();
    edit(&node, |plugins| plugins.push(json!({"type": KIND})));
    let again = node.install();
    assert_eq!(again["others"], json!([KIND]));
    assert_eq!(again["changed"], json!([]));
    report(&node.run("uninstall", &[], None));
    assert_eq!(kinds(&node), [KIND]);
    assert!(!node.path("bin/towpath-cni").exists());
    edit(&node, Vec::clear);
    report(&node.run("uninstall", &[], None));
    assert!(!node.conflist().exists());
}
