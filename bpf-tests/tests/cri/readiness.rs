//! What a runtime says of its network. containerd 2 asks the plugin's STATUS for it (CNI 1.1), so that
//! a node takes no pods that it could not serve.

use std::fs;
use std::path::PathBuf;
use std::time::Duration;

use bpf_tests::cri::{Bed, Containerd, Plugins, PodRequest, Setup};
use bpf_tests::fabric::eventually::{check, eventually};

use crate::census::{Census, exactly};
use crate::containers::{Container, Containers};
use crate::driver::refusal;
use crate::scene::Scene;

/// Prefixes of ENIs 0, 1 and 2, and how many addresses the first two so have: the default pool.
const PREFIXES: [u8; 3] = [1, 1, 1];
const ADDRESSES: usize = 32;
/// How long a runtime may take to see a file, or an address to cool down.
const PATIENCE: Duration = Duration::from_secs(20);

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
        let (said, _) = eventually(PATIENCE, &what, || {
            let (is_ready, said) = self.bed.cri.network_ready()?;
            check(is_ready == ready && said.contains(reason), || said.clone())?;
            Ok(said)
        })
        .unwrap();
        println!("ready {ready}: {said}");
    }
}

#[test]
fn containerd_2_tells_why_it_takes_no_pods() {
    let mut stage = Stage::new();
    stage.says(false, "cni plugin not initialized");
    let error = stage.install(&[]).unwrap_err();
    assert!(error.contains("is not installed"), "{error}");
    stage.says(false, "cni plugin not initialized");
    stage.scene.fabric.start_agent().unwrap();
    let census = Census::of_empty(&stage.scene).unwrap();
    stage.install(&["--wait-ready"]).unwrap();
    stage.says(true, "");

    stage.scene.fabric.agent.kill().unwrap();
    stage.says(false, "no agent answers");
    let document = fs::read_to_string(stage.scene.fabric.agent.document_path()).unwrap();
    let fabric = &mut stage.scene.fabric;
    fabric.agent.write_document_text("nonsense").unwrap();
    fabric.agent.start(&fabric.node, &[]).unwrap();
    stage.says(false, "the agent is not ready");
    let fabric = &mut stage.scene.fabric;
    fabric.agent.write_document_text(&document).unwrap();
    fabric.wait_until_ready().unwrap();
    stage.says(true, "");

    let network = stage.scene.network("1.1.0", Vec::new()).unwrap();
    let (node, containers) = (&stage.scene.fabric.node, Containers::new(&stage.scene));
    let mut held = Vec::new();
    for _ in 0..ADDRESSES {
        stage.says(true, "");
        let container = containers.take().unwrap();
        network.add(node, &container.attachment).unwrap();
        held.push(container);
    }
    stage.says(false, "no addresses left");
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
    stage.says(true, "");
    let pod = stage.bed.cri.run_pod(&request).unwrap();
    assert_eq!(pod.addresses.len(), 2, "{pod:?}");
    stage.says(false, "no addresses left");
    stage.bed.cri.keep_only(&[]).unwrap();
    for container in &held {
        network.del(node, &container.attachment, None).unwrap();
    }
    stage.says(true, "");
    census.nothing_left(&stage.scene).unwrap();

    stage.cni(&["uninstall"]).unwrap();
    stage.says(false, "cni plugin not initialized");
    let Stage { scene, bed, .. } = stage;
    drop(bed);
    scene.fabric.finish().unwrap();
}
