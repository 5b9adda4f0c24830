//! Kills under a real runtime. containerd runs the plugin while the agent or the plugin is killed,
//! reverts what it can, and is called again as by a kubelet.

use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::time::Instant;

use anyhow::{Context as _, Result, ensure};
use testkit::cri::{Bed, Containerd, Plugins, PodRequest, Sandbox, Setup};
use testkit::fabric::eventually::eventually;
use testkit::fabric::traffic::Protocol;

use crate::census::{Census, exactly, unchanged};
use crate::driver::PLUGIN_FAULT;
use crate::points::{Case, TRIES, Verb, Victim};
use crate::scene::{Reach, Scene};
use crate::wait::{RETRY, by_length};

/// Fraction of the cases that an ordinary run takes, and a full one.
const ONE_OF: (usize, usize) = (4, 1);
/// Repetitions of each case, in an ordinary run and in a full one.
const ROUNDS: (usize, usize) = (1, 2);

struct Stage {
    scene: Scene,
    bed: Bed,
    /// Files that name the point at which the agent, or the plugin, must die.
    agent_fault: PathBuf,
    plugin_fault: PathBuf,
    /// Exists once the plugin has died.
    plugin_died: PathBuf,
    /// A pod that stays.
    resident: Option<Sandbox>,
    made: usize,
}

impl Stage {
    fn new(containerd: Containerd, plugins: Plugins, version: &str) -> Result<(Self, Census)> {
        let mut scene = Scene::create()?;
        let agent_fault = scene.fabric.file("fault");
        scene.start_armed_by(&agent_fault)?;
        let census = Census::of_empty(&scene)?;
        let (plugin_fault, plugin_died) = (
            scene.fabric.file("plugin-fault"),
            scene.fabric.file("plugin-died"),
        );
        let plugin = armed_plugin(&scene, &plugin_fault, &plugin_died)?;
        let network = scene.network(version, Vec::new())?;
        let setup = Setup {
            containerd,
            plugins,
            own_plugins: vec![plugin],
            networks: &[("runc", network.list())],
        };
        let bed = Bed::start(&scene.fabric, &setup)?;
        let resident = bed.cri.run_pod(&PodRequest::new("resident"))?;
        let stage = Self {
            scene,
            bed,
            agent_fault,
            plugin_fault,
            plugin_died,
            resident: Some(resident),
            made: 0,
        };
        Ok((stage, census))
    }

    /// The pods that stay, and possibly one more.
    fn with<'a>(&'a self, more: Option<&'a Sandbox>) -> Vec<&'a Sandbox> {
        self.resident.iter().chain(more).collect()
    }

    /// Checks that the resident is unchanged, with one more pod or none, and that the runtime
    /// agrees.
    fn look(&self, more: Option<&Sandbox>) -> Result<()> {
        let pods = self.with(more);
        let ids: Vec<_> = pods.iter().map(|pod| pod.id.as_str()).collect();
        let known = self.bed.cri.known_pods()?;
        ensure!(known.len() == pods.len(), "{known:?}, not {ids:?}");
        exactly(&self.scene, &ids)?;
        for pod in pods {
            let path = format!("/v1/endpoints/{}/eth0", pod.id);
            unchanged(&self.scene, &path, &pod.addresses)?;
        }
        Ok(())
    }

    /// Removes every pod but the resident, which may need more than one call.
    fn clear(&self) -> Result<()> {
        let resident = self.with(None);
        let cleared = eventually(RETRY, "the runtime removes the pod", || {
            self.bed.cri.keep_only(&resident)
        });
        cleared.map(drop)
    }

    /// Kills once, acts like a kubelet afterwards, and returns true if the point was reached.
    ///
    /// With `give_up`, it removes a pod that did not start, and makes no other.
    fn kill(&mut self, case: &Case, give_up: bool) -> Result<bool> {
        self.made += 1;
        let request = PodRequest::new(&format!("pod{}", self.made));
        let cri = &self.bed.cri;
        let pod = match case.verb {
            Verb::Add => None,
            Verb::Del => Some(cri.run_pod(&request)?),
        };
        let armed = match case.victim {
            Victim::Agent => &self.agent_fault,
            Victim::Plugin => &self.plugin_fault,
        };
        fs::write(armed, &case.point)?;
        let has_answered = match &pod {
            None => cri.run_pod(&request).is_ok(),
            Some(pod) => cri
                .stop_pods(std::slice::from_ref(pod))
                .iter()
                .all(Result::is_ok),
        };
        let reached = match case.victim {
            Victim::Agent => self.scene.wait_for_fault(has_answered),
            Victim::Plugin => fs::remove_file(&self.plugin_died).is_ok(),
        };
        // The file, if the kill did not remove it.
        let _disarmed = fs::remove_file(&self.plugin_fault);
        if case.victim == Victim::Agent {
            self.scene.start_armed_by(&self.agent_fault)?;
        }
        self.clear()?;
        self.look(None)?;
        if case.verb == Verb::Add && !give_up {
            let pod = self.bed.cri.run_pod(&request)?;
            self.look(Some(&pod))?;
            let reach = Reach::new(&pod.netns, &pod.addresses)?;
            reach.talk(&[Protocol::Udp], |family| {
                Ok(self.scene.fabric.peer(family))
            })?;
            self.clear()?;
            self.look(None)?;
        }
        Ok(reached)
    }

    fn happen(&mut self, case: &Case, give_up: bool) -> Result<()> {
        for _ in 0..TRIES {
            if self.kill(case, give_up)? {
                return Ok(());
            }
        }
        anyhow::bail!("not reached")
    }
}

/// A plugin for the runtime that dies once, at the point that a file names. A variable in the
/// runtime's own environment would make every call die.
fn armed_plugin(scene: &Scene, fault: &Path, died: &Path) -> Result<PathBuf> {
    let [fault, died] = [fault, died].map(Path::display);
    let own = scene.own_plugins();
    let plugin = own.first().context("a plugin")?;
    let name = plugin.file_name().context("a plugin has a name")?;
    let script = scene.fabric.file("armed").join(name);
    fs::create_dir_all(script.parent().context("a folder")?)?;
    let plugin = plugin.display();
    let text = format!(
        "#!/bin/sh\n\
         [ -e '{fault}' ] || exec '{plugin}'\n\
         {PLUGIN_FAULT}=$(cat '{fault}') '{plugin}'\n\
         code=$?\n\
         [ $code != 137 ] || mv '{fault}' '{died}'\n\
         exit $code\n"
    );
    fs::write(&script, text)?;
    fs::set_permissions(&script, fs::Permissions::from_mode(0o755))?;
    Ok(script)
}

/// `first` selects the cases of an ordinary run.
fn outlive_kills(containerd: Containerd, plugins: Plugins, version: &str, first: usize) {
    let begun = Instant::now();
    let (mut stage, census) = Stage::new(containerd, plugins, version).unwrap();
    let one_of = by_length(ONE_OF.0, ONE_OF.1);
    let cases: Vec<_> = Case::all()
        .into_iter()
        .filter(|case| !case.is_of_queue())
        .skip(first % one_of)
        .step_by(one_of)
        .collect();
    let mut counts = BTreeMap::<&Case, usize>::new();
    for round in 0..by_length(ROUNDS.0, ROUNDS.1) {
        for (number, case) in cases.iter().enumerate() {
            let give_up = (round + number) % 2 == 1;
            if let Err(error) = stage.happen(case, give_up) {
                let state = stage.scene.fabric.describe();
                let log = stage.bed.log();
                panic!("{case:?}, give up {give_up}: {error:#}\n{state}\n{log}");
            }
            *counts.entry(case).or_default() += 1;
        }
    }
    println!("kills while containerd {containerd:?} runs pods and stops them:");
    for (case, count) in &counts {
        let who = format!("{:?} {:?}", case.victim, case.verb);
        println!("  {who:<11} {:<32} {count:>4}", case.point);
    }
    let minutes = begun.elapsed().as_secs_f64() / 60.0;
    println!(
        "{} kills, {} pods, {minutes:.1} minutes",
        counts.values().sum::<usize>(),
        stage.made
    );
    stage.resident = None;
    stage.clear().unwrap();
    census.nothing_left(&stage.scene).unwrap();
    println!("nothing leaked");
    let Stage { scene, bed, .. } = stage;
    drop(bed);
    scene.fabric.finish().unwrap();
}

#[test]
fn containerd_1_gets_over_every_kill() {
    outlive_kills(Containerd::One, Plugins::Old, "1.0.0", 0);
}

#[test]
fn containerd_2_gets_over_every_kill() {
    outlive_kills(Containerd::Two, Plugins::New, "1.1.0", 2);
}
