//! A runtime's word on its network, for which containerd 2 asks the plugin's STATUS (CNI 1.1). A
//! node takes no pods before its agent was ready, and keeps those that it has from then on.

use std::fs;
use std::path::PathBuf;
use std::time::Duration;

use testkit::cri::{Bed, Containerd, Plugins, PodRequest, Setup};
use testkit::fabric::eventually::{check, eventually};

use crate::census::{Census, exactly};
use crate::containers::{Container, Containers};
use crate::driver::refusal;
use crate::scene::Scene;

/// Prefixes of ENIs 0, 1 and 2, and how many addresses the first two so have: the default pool.
const PREFIXES: [u8; 3] = [1, 1, 1];
const ADDRESSES: usize = 32;
/// State of a node without a free address, and a part of the reason.
const FULL: (&str, &str) = ("degraded", "pool default has no IPv4 address left");
/// The time that a runtime may take to see a file, or an address to cool down.
const DEADLINE: Duration = Duration::from_secs(20);

/// A node whose default pool is small, its agent not started, and a runtime without a network.
struct Stage {
    scene: Scene,
    bed: Bed,
    conflist: PathBuf,
}

impl Stage {
    fn new() -> Self {
        let scene = Scene::with_prefixes(PREFIXES).unwrap();
        let network = scene.network("1.1.0", Vec::new()).unwrap().list();
        let conflist = scene.fabric.file("own.conflist");
        fs::write(&conflist, network.to_string()).unwrap();
        let setup = Setup {
            containerd: Containerd::Two,
            plugins: Plugins::New,
            own_plugins: Vec::new(),
            networks: &[("runc", network)],
        };
        let bed = Bed::start(&scene.fabric, &setup).unwrap();
        for file in fs::read_dir(bed.networks()).unwrap() {
            fs::remove_file(file.unwrap().path()).unwrap();
        }
        Self {
            scene,
            bed,
            conflist,
        }
    }

    /// `towpath cni` with the runtime's folders.
    fn cni(&self, words: &[&str]) -> Result<String, String> {
        let fabric = &self.scene.fabric;
        let (plugins, networks) = (self.bed.plugins(), self.bed.networks());
        let mut command = fabric.agent.command(&fabric.node, &["cni"]);
        command
            .args(words)
            .arg("--bin-dir")
            .arg(plugins)
            .arg("--conf-dir")
            .arg(networks);
        let output = command.output().unwrap();
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
        if output.status.success() {
            Ok(text(&output.stdout))
        } else {
            Err(text(&output.stderr))
        }
    }

    fn install(&self, more: &[&str]) -> Result<String, String> {
        let conflist = self.conflist.to_string_lossy();
        self.cni(&[&["install", "--conflist", &conflist], more].concat())
    }

    /// Waits until the runtime calls its network ready, or not, for a reason that has this in it.
    fn says(&self, ready: bool, reason: &str) {
        let what = format!("ready {ready}: {reason}");
        let (said, _) = eventually(DEADLINE, &what, || {
            let (is_ready, said) = self.bed.cri.network_ready()?;
            check(is_ready == ready && said.contains(reason), || said.clone())?;
            Ok(said)
        })
        .unwrap();
        println!("ready {ready}: {said}");
    }

    /// The runtime calls its network ready now: by one "no" the node's pods leave their Services.
    fn stays_ready(&self) {
        let (is_ready, said) = self.bed.cri.network_ready().unwrap();
        assert!(is_ready, "{said}");
    }

    /// Waits until the agent's status is this, or a better one where it is `None`. The runtime's
    /// network is ready all the while.
    fn agent_says(&self, wanted: Option<(&str, &str)>) {
        let what = format!("the agent says {wanted:?}");
        let is_said = || {
            self.stays_ready();
            let (_, status) = self.scene.fabric.agent.request("GET", "/v1/status", None)?;
            let health = &status["health"];
            let reasons = health["reasons"].to_string();
            let fits = match wanted {
                Some((state, reason)) => health["state"] == state && reasons.contains(reason),
                None => health["state"] != "not-ready" && !reasons.contains(FULL.1),
            };
            check(fits, || health.to_string())
        };
        eventually(DEADLINE, &what, is_said).unwrap();
        self.stays_ready();
    }

    /// The plugin's list as an earlier boot left it, which stays if the plugin was installed by
    /// hand.
    fn leave_list(&self) {
        let list = self.bed.networks().join("10-towpath.conflist");
        fs::copy(&self.conflist, list).unwrap();
    }
}

/// The runtime is ready from when the agent is.
fn it_is_ready_with_the_agent(stage: &mut Stage, document: &str) {
    stage.leave_list();
    stage.says(false, "no agent answers");
    let fabric = &mut stage.scene.fabric;
    fabric.agent.write_document_text("nonsense").unwrap();
    fabric.agent.start(&fabric.node, &[]).unwrap();
    stage.says(false, "the agent is not ready");
    let fabric = &mut stage.scene.fabric;
    fabric.agent.write_document_text(document).unwrap();
    fabric.wait_until_ready().unwrap();
    stage.says(true, "");
}

/// The runtime stays ready without an agent, and with one that has no document.
fn it_stays_ready_without_the_agent(stage: &mut Stage, document: &str) {
    stage.scene.fabric.agent.kill().unwrap();
    stage.stays_ready();
    let fabric = &mut stage.scene.fabric;
    // Without the document that it keeps, the agent has none.
    fs::remove_file(fabric.agent.state_dir().join("node.json")).unwrap();
    fabric.agent.write_document_text("nonsense").unwrap();
    fabric.agent.start(&fabric.node, &[]).unwrap();
    stage.agent_says(Some(("not-ready", "no valid node document")));
    let fabric = &mut stage.scene.fabric;
    fabric.agent.write_document_text(document).unwrap();
    fabric.wait_until_ready().unwrap();
    stage.stays_ready();
}

/// The runtime stays ready without free addresses, and runs a pod as soon as there is one.
fn it_stays_ready_without_addresses(stage: &Stage) {
    let network = stage.scene.network("1.1.0", Vec::new()).unwrap();
    let (node, containers) = (&stage.scene.fabric.node, Containers::new(&stage.scene));
    let mut held = Vec::new();
    for _ in 0..ADDRESSES {
        stage.stays_ready();
        let container = containers.take().unwrap();
        network.add(node, &container.attachment).unwrap();
        held.push(container);
    }
    stage.agent_says(Some(FULL));
    let request = PodRequest::new("one-more");
    let error = stage.bed.cri.run_pod(&request).unwrap_err();
    println!("a pod without an address: {error:#}");
    stage.bed.cri.keep_only(&[]).unwrap();
    let late = containers.take().unwrap();
    let error = network.add(node, &late.attachment).unwrap_err();
    println!("a container without an address: {}", refusal(&error));
    let ids: Vec<_> = held.iter().map(Container::id).collect();
    exactly(&stage.scene, &ids).unwrap();

    let one = held.pop().unwrap();
    network.del(node, &one.attachment, None).unwrap();
    stage.agent_says(None);
    let pod = stage.bed.cri.run_pod(&request).unwrap();
    assert_eq!(pod.addresses.len(), 2, "{pod:?}");
    stage.agent_says(Some(FULL));
    stage.bed.cri.keep_only(&[]).unwrap();
    for container in &held {
        network.del(node, &container.attachment, None).unwrap();
    }
    stage.stays_ready();
}

#[test]
fn containerd_2_is_ready_from_when_the_agent_was_once() {
    let mut stage = Stage::new();
    stage.says(false, "cni plugin not initialized");
    let error = stage.install(&[]).unwrap_err();
    assert!(error.contains("is not installed"), "{error}");
    stage.says(false, "cni plugin not initialized");
    let document = fs::read_to_string(stage.scene.fabric.agent.document_path()).unwrap();
    it_is_ready_with_the_agent(&mut stage, &document);
    let census = Census::of_empty(&stage.scene).unwrap();
    stage.install(&["--wait-ready"]).unwrap();
    stage.stays_ready();

    it_stays_ready_without_the_agent(&mut stage, &document);
    it_stays_ready_without_addresses(&stage);
    census.nothing_left(&stage.scene).unwrap();

    stage.cni(&["uninstall"]).unwrap();
    stage.says(false, "cni plugin not initialized");
    let Stage { scene, bed, .. } = stage;
    drop(bed);
    scene.fabric.finish().unwrap();
}
