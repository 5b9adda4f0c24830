//! containerd on the node, with everything that it writes below the fabric's folder.

use std::fmt::Write as _;
use std::fs::{self, File};
use std::os::unix::fs::symlink;
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use anyhow::{Context as _, Result, bail};
use serde_json::Value;

use super::client::Cri;
use super::private::{self, Shared};
use super::runtimes::{self, Containerd, Plugins};
use super::{IMAGE, Image};
use crate::fabric::eventually::eventually;
use crate::fabric::reboot;
use crate::fabric::{Fabric, Netns, command, record};

/// The time that containerd may take to start, and to import its image.
const START: Duration = Duration::from_secs(30);

/// Properties of a bed.
#[derive(Clone, Debug)]
pub struct Setup<'a> {
    /// The release of containerd.
    pub containerd: Containerd,
    /// The release of the reference plugins.
    pub plugins: Plugins,
    /// More CNI plugins.
    pub own_plugins: Vec<PathBuf>,
    /// CNI networks: configuration lists by the runtime handler whose pods get them. Pods without a
    /// handler get that of `runc`. Null: there is no list yet.
    pub networks: &'a [(&'a str, Value)],
}

/// A running containerd. Dropping it ends it; its remains go with the fabric.
#[derive(Debug)]
pub struct Bed {
    /// The client.
    pub cri: Cri,
    shared: Shared,
    folder: PathBuf,
    node: Netns,
    child: Option<Child>,
    programs: PathBuf,
}

impl Bed {
    /// Starts containerd in the node's network namespace, and waits until it can run pods.
    ///
    /// # Errors
    /// When it was not fetched, or does not start: its log.
    pub fn start(fabric: &Fabric, setup: &Setup) -> Result<Self> {
        let shared = Shared::make(&fabric.file("containerd"))?;
        Self::start_in(fabric, setup, shared)
    }

    /// Starts one for a kubelet: plugins, networks, namespaces and the agent's files have the paths
    /// of distributions and of our manifests. The files themselves are below the fabric's folder.
    /// There is no network yet.
    ///
    /// # Errors
    /// As [`Self::start`].
    pub fn start_node(fabric: &Fabric) -> Result<Self> {
        let shared = Shared::make(&fabric.file("containerd"))?;
        let inside = |name: &str| shared.folder().join(name);
        let places = [
            ("/etc/cni/net.d", networks(shared.folder(), DEFAULT_HANDLER)),
            ("/opt/cni/bin", inside("cni/bin")),
            (NAMESPACES, inside("netns")),
            ("/run/towpath", fabric.file("")),
            ("/sys/fs/bpf", fabric.file("bpf")),
            ("/var/log/containers", inside("var-log-containers")),
            ("/var/log/pods", inside("var-log-pods")),
        ];
        let places = places.map(|(place, instead)| (place.into(), instead));
        let setup = Setup {
            containerd: Containerd::Two,
            plugins: Plugins::New,
            own_plugins: Vec::new(),
            networks: &[(DEFAULT_HANDLER, Value::Null)],
        };
        Self::start_in(fabric, &setup, shared.with(places))
    }

    fn start_in(fabric: &Fabric, setup: &Setup, shared: Shared) -> Result<Self> {
        let folder = shared.folder().to_owned();
        let plugins = folder.join("cni/bin");
        for path in [&plugins, &folder.join("image")] {
            fs::create_dir_all(path)?;
        }
        let mut programs: Vec<_> = fs::read_dir(setup.plugins.folder()?)?
            .map(|entry| Ok(entry?.path()))
            .collect::<Result<_>>()?;
        programs.extend(setup.own_plugins.iter().cloned());
        for program in &programs {
            let name = program.file_name().context("a plugin has a name")?;
            symlink(program, plugins.join(name))?;
        }
        for (handler, network) in setup.networks {
            let networks = networks(&folder, handler);
            fs::create_dir_all(&networks)?;
            if !network.is_null() {
                fs::write(networks.join("10-test.conflist"), network.to_string())?;
            }
        }
        let handlers = setup.networks.iter().map(|(handler, _)| *handler);
        let config = folder.join("config.toml");
        let own_namespaces = !shared.covers(Path::new(NAMESPACES));
        fs::write(&config, configuration(&folder, own_namespaces, handlers)?)?;
        let mut bed = Self {
            cri: Cri::new(&folder.join("socket"), &fabric.cgroup())?,
            shared,
            folder,
            node: Netns::foreign(&fabric.node.path())?,
            child: None,
            programs: setup.containerd.folder()?,
        };
        bed.resume()?;
        bed.import(&Image::busybox().write(&bed.folder.join("image"))?)?;
        let known = eventually(START, IMAGE, || bed.cri.has_image());
        known.map(drop).with_context(|| bed.log())?;
        Ok(bed)
    }

    /// Ends it, as a crash does; pods continue to run.
    pub fn stop(&mut self) {
        if let Some(mut child) = self.child.take() {
            // It may have ended by itself.
            let _ended = child.kill().and_then(|()| child.wait());
        }
    }

    /// Starts it again with what it has on disk, and waits until it answers.
    ///
    /// # Errors
    /// When it does not start: its log.
    pub fn resume(&mut self) -> Result<()> {
        self.stop();
        let path = std::env::var("PATH").unwrap_or_default();
        let path = format!(
            "{}:{}:{path}",
            self.programs.display(),
            runtimes::runc()?.display()
        );
        let log = File::options()
            .create(true)
            .append(true)
            .open(self.folder.join("log"))?;
        let program = self.programs.join("containerd");
        let mut start = self.node.command(&program.to_string_lossy());
        start
            .arg("--config")
            .arg(self.folder.join("config.toml"))
            .env("PATH", path)
            .stdin(Stdio::null())
            .stdout(log.try_clone()?)
            .stderr(log)
            // Ctrl-C of the terminal is for the owner of the fabric.
            .process_group(0);
        let child = self.child.insert(private::spawn(&self.shared, &mut start)?);
        let (mut ended, cri) = (None, &self.cri);
        let started = eventually(START, "containerd answers", || {
            ended = child.try_wait()?;
            if ended.is_some() {
                return Ok(());
            }
            cri.network_ready().map(drop)
        });
        started.map(drop).with_context(|| self.log())?;
        if let Some(status) = ended {
            bail!("containerd ended with {status}: {}", self.log());
        }
        Ok(())
    }

    /// Removes everything that a reboot of the machine removes; the processes of pods must be gone.
    /// Files on disk stay.
    ///
    /// # Errors
    /// When something cannot be removed.
    pub fn reboot(&mut self) -> Result<()> {
        self.stop();
        let lost = [
            "state",
            "run-containerd",
            "run-cni",
            "netns",
            "kubelet/pods",
            "runc",
        ];
        let [state, containerd, cni, netns, pods, runc] = lost.map(|name| self.folder.join(name));
        // The kubelet's volumes were mounts; their folders stay.
        record::unmount_inside(&pods)?;
        reboot::empty(&[&state, &containerd, &cni, &netns, &runc])
    }

    /// Imports the images of an archive.
    ///
    /// # Errors
    /// When it refuses.
    pub fn import(&self, archive: &Path) -> Result<()> {
        let mut import = Command::new(self.programs.join("ctr"));
        import
            .arg("--address")
            .arg(self.socket())
            .args(["--namespace", "k8s.io", "images", "import"])
            .arg(archive);
        command::run(&mut import).map(drop)
    }

    /// Its socket.
    #[must_use]
    pub fn socket(&self) -> PathBuf {
        self.folder.join("socket")
    }

    /// Logs of the containers of a kubelet's pods.
    #[must_use]
    pub fn logs_of_pods(&self) -> String {
        let mut find = Command::new("find");
        find.arg(self.folder.join("var-log-pods"))
            .args(["-name", "*.log"]);
        let files = command::run(&mut find).unwrap_or_default();
        let mut logs = String::new();
        for file in files.lines() {
            let text = fs::read_to_string(file).unwrap_or_default();
            logs.extend([file, ":\n", &text]);
        }
        logs
    }

    /// The network namespace that a pod's details name, at its path on the machine.
    #[must_use]
    pub fn namespace(&self, named: &Path) -> PathBuf {
        match named.file_name() {
            Some(name) if self.shared.covers(Path::new(NAMESPACES)) => {
                self.folder.join("netns").join(name)
            }
            _ => named.to_owned(),
        }
    }

    /// Starts a program in containerd's mount namespace.
    pub(crate) fn spawn_beside(&self, command: &mut Command) -> Result<Child> {
        private::spawn(&self.shared, command)
    }

    /// A folder of its own, whose mounts containerd sees.
    pub(crate) fn file(&self, name: &str) -> PathBuf {
        self.folder.join(name)
    }

    /// The log of containerd.
    #[must_use]
    pub fn log(&self) -> String {
        fs::read_to_string(self.folder.join("log")).unwrap_or_else(|error| error.to_string())
    }

    /// The folder of the network configuration of pods without a handler.
    #[must_use]
    pub fn networks(&self) -> PathBuf {
        networks(&self.folder, DEFAULT_HANDLER)
    }

    /// The folder of the plugins.
    #[must_use]
    pub fn plugins(&self) -> PathBuf {
        self.folder.join("cni/bin")
    }

    /// The folder of the image's archive.
    #[must_use]
    pub fn image(&self) -> PathBuf {
        self.folder.join("image/image.tar")
    }
}

impl Drop for Bed {
    fn drop(&mut self) {
        self.stop();
    }
}

/// The folder of runtimes' network namespaces.
const NAMESPACES: &str = "/run/netns";
/// The section of the CRI plugin.
const CRI: &str = "plugins.\"io.containerd.grpc.v1.cri\"";
/// The runtime handler of pods without one.
const DEFAULT_HANDLER: &str = "runc";

/// The folder of a handler's network configuration.
fn networks(folder: &Path, handler: &str) -> PathBuf {
    folder.join("cni/net.d").join(handler)
}

/// containerd's settings: everything below a folder, without features that a plain test machine
/// lacks.
fn configuration<'a>(
    folder: &Path,
    own_namespaces: bool,
    handlers: impl Iterator<Item = &'a str>,
) -> Result<String> {
    let mut text = String::new();
    let place = |name: &str| serde_json::to_string(&folder.join(name));
    // TOML reads a JSON string as one.
    write!(
        text,
        "version = 2\n\
         root = {root}\n\
         state = {state}\n\
         disabled_plugins = [\"io.containerd.snapshotter.v1.aufs\", \
         \"io.containerd.snapshotter.v1.btrfs\", \"io.containerd.snapshotter.v1.devmapper\", \
         \"io.containerd.snapshotter.v1.zfs\", \"io.containerd.internal.v1.tracing\", \
         \"io.containerd.internal.v1.opt\", \"io.containerd.nri.v1.nri\"]\n\
         [grpc]\n\
         address = {socket}\n\
         [ttrpc]\n\
         address = {ttrpc}\n\
         [{CRI}]\n\
         sandbox_image = \"{IMAGE}\"\n\
         disable_apparmor = true\n\
         disable_tcp_service = true\n\
         restrict_oom_score_adj = true\n\
         tolerate_missing_hugetlb_controller = true\n\
         netns_mounts_under_state_dir = {own_namespaces}\n\
         [{CRI}.cni]\n\
         bin_dir = {plugins}\n\
         conf_dir = {networks}\n",
        root = place("root")?,
        state = place("state")?,
        socket = place("socket")?,
        ttrpc = place("ttrpc")?,
        plugins = place("cni/bin")?,
        networks = serde_json::to_string(&networks(folder, DEFAULT_HANDLER))?,
    )?;
    for handler in handlers {
        write!(
            text,
            "[{CRI}.containerd.runtimes.{handler}]\n\
             runtime_type = \"io.containerd.runc.v2\"\n\
             cni_conf_dir = {networks}\n\
             [{CRI}.containerd.runtimes.{handler}.options]\n\
             SystemdCgroup = false\n\
             Root = {runc}\n",
            networks = serde_json::to_string(&networks(folder, handler))?,
            runc = place("runc")?,
        )?;
    }
    Ok(text)
}
