//! The process that owns a cluster: started by `up`, ended by `down`.

use std::fs::{self, File};
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use testkit::cluster::{Cluster, ClusterSpec};
use testkit::fabric::record;
use testkit::interrupt;
use testkit::kubernetes::ProxyMode;

use crate::place::{FOLDER, Place};

/// Period at which a state is checked.
const PERIOD: Duration = Duration::from_millis(100);
/// The time that a cluster may take to end.
const END: Duration = Duration::from_mins(1);
/// Prefix of each line of progress.
const STEP: &str = "==> ";

/// Starts a cluster in the background.
pub(crate) fn up(proxy: ProxyMode, workers: u8) -> Result<()> {
    let started = Instant::now();
    if Place::read()?.is_some_and(|place| place.is_alive()) {
        println!("A cluster is up already.");
        return hints(&Place::of_running()?);
    }
    remove()?;
    fs::create_dir_all(FOLDER).with_context(|| format!("make {FOLDER}: needs root"))?;
    let log = File::create(log())?;
    let mut server = Command::new(std::env::current_exe()?);
    server
        .args(["serve", &proxy.to_string(), &workers.to_string()])
        .stdin(Stdio::null())
        .stdout(log.try_clone()?)
        .stderr(log)
        // Ctrl-C of the terminal does not end it.
        .process_group(0);
    let mut server = server.spawn().context("cannot start the cluster")?;
    wait_until_ready(&mut server)?;
    println!(
        "The cluster is ready after {} seconds.",
        started.elapsed().as_secs()
    );
    hints(&Place::of_running()?)
}

/// Waits for the file by which the other verbs find the cluster, and shows the steps until then.
fn wait_until_ready(server: &mut Child) -> Result<()> {
    let mut shown = 0;
    loop {
        let text = fs::read_to_string(log())?;
        let steps: Vec<_> = text.lines().filter(|line| line.starts_with(STEP)).collect();
        for step in steps.iter().skip(shown) {
            eprintln!("{step}");
        }
        shown = steps.len();
        if Place::read()?.is_some() {
            return Ok(());
        }
        if let Some(status) = server.try_wait()? {
            bail!("the cluster did not come up ({status}): {text}");
        }
        thread::sleep(PERIOD);
    }
}

fn hints(place: &Place) -> Result<()> {
    let node = place.nodes.first().context("a cluster has a node")?;
    println!(
        "
Try:
  cargo xtask cluster kubectl -- get nodes,pods -A -o wide
  cargo xtask cluster kubectl -- create deployment web --image localhost/towpath-test:1 --replicas 10
  cargo xtask cluster kubectl -- get ciliumnodes {name} -o yaml
  nsenter --net={netns} target/debug/towpath --config {config} status
  cargo xtask cluster status
  cargo xtask cluster down

Kubeconfig: {kubeconfig} (the API server is reached from the namespace {control})
Log: {log}",
        name = node.name,
        netns = node.netns.display(),
        config = node.config.display(),
        kubeconfig = place.kubeconfig.display(),
        control = place.control.display(),
        log = log().display(),
    );
    Ok(())
}

/// Runs a cluster in this process until it must end.
pub(crate) fn serve(proxy: ProxyMode, workers: u8) -> Result<()> {
    interrupt::watch()?;
    let spec = ClusterSpec {
        workers,
        progress: |step| println!("{STEP}cluster: {step}"),
        ..ClusterSpec::new(proxy)
    };
    let cluster = Cluster::ready(&spec)?;
    Place::of(&cluster)?.write()?;
    while interrupt::check().is_ok() {
        thread::sleep(PERIOD);
    }
    cluster.finish()
}

/// Ends the running cluster.
pub(crate) fn down() -> Result<()> {
    let Some(place) = Place::read()?.filter(Place::is_alive) else {
        remove()?;
        println!("No cluster was up.");
        return Ok(());
    };
    kill(Pid::from_raw(i32::try_from(place.pid)?), Signal::SIGTERM)?;
    let started = Instant::now();
    while place.is_alive() {
        if started.elapsed() > END {
            bail!("process {} does not end: {}", place.pid, log().display());
        }
        thread::sleep(PERIOD);
    }
    let text = fs::read_to_string(log())?;
    let errors: Vec<_> = text
        .lines()
        .filter(|line| line.starts_with("error: "))
        .collect();
    remove()?;
    if !errors.is_empty() {
        bail!("{}", errors.join("\n"));
    }
    println!("The cluster is gone.");
    Ok(())
}

/// Removes the remains of a cluster whose process is gone.
fn remove() -> Result<()> {
    record::sweep()?;
    if Path::new(FOLDER).exists() {
        fs::remove_dir_all(FOLDER)?;
    }
    Ok(())
}

fn log() -> PathBuf {
    Path::new(FOLDER).join("log")
}
