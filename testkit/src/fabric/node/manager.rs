//! The network managers of distributions, run for real in the node's namespace. They are
//! systemd-networkd and NetworkManager, each with a message bus of its own. A DHCP server runs on
//! the VPC's side.
//!
//! Each runs in a mount namespace with a read-only `/sys`, so that it does not wait for udev, and
//! with folders of its own. It neither reads nor writes the machine's configuration.

use std::fmt::Write as _;
use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use anyhow::{Context as _, Result};
use ipam::Family;

use crate::fabric::eventually::{check, eventually};
use crate::fabric::{Fabric, Netns, command};

/// The time that a daemon may take to start.
const START: Duration = Duration::from_secs(20);
/// Path of the daemon in Debian's package.
const NETWORKD: &str = "/lib/systemd/systemd-networkd";

/// Runs systemd-networkd with the files in the folder `$1`.
const NETWORKD_SCRIPT: &str = "\
mount -t sysfs -o ro sysfs /sys
mount -t tmpfs tmpfs /etc/systemd/network
mkdir -p /run/systemd
mount -t tmpfs tmpfs /run/systemd
cp -r \"$1/.\" /run/systemd/
mkdir -p /run/systemd/netif/links /run/systemd/netif/leases /run/systemd/netif/lldp
chown -R systemd-network:systemd-network /run/systemd/netif
exec /lib/systemd/systemd-networkd";

/// Runs NetworkManager, `$2`, with the files in the folder `$1`. `--debug` makes it log to the file
/// that we read.
const NETWORK_MANAGER_SCRIPT: &str = "\
mount --bind \"$1\" /mnt
mount -t sysfs -o ro sysfs /sys
mount -t tmpfs tmpfs /var/lib
mount -t tmpfs tmpfs /run
mkdir -p /run/NetworkManager /var/lib/NetworkManager
exec \"$2\" --debug --config=/mnt/NetworkManager.conf --config-dir=/mnt/conf.d";

/// Makes udev set up the device `$2` with the files in the folder `$1` in addition to its own.
const UDEV_SCRIPT: &str = "\
mount -t tmpfs tmpfs /etc/systemd/network
cp -r \"$1/.\" /etc/systemd/network/
mount -t sysfs sysfs /sys
mount -t tmpfs tmpfs /run
exec udevadm test-builtin net_setup_link \"/sys/class/net/$2\"";

/// NetworkManager's main configuration: it touches neither names nor resolvers of the machine.
const NETWORK_MANAGER_CONF: &str = "\
[main]
plugins=keyfile
dns=none
hostname-mode=none
no-auto-default=*
[logging]
level=INFO
[keyfile]
path=/mnt/system-connections
";

/// Processes that end with this value, the youngest first.
#[derive(Debug, Default)]
struct Processes(Vec<Child>);

impl Drop for Processes {
    fn drop(&mut self) {
        for mut child in self.0.drain(..).rev() {
            let _ended = child.kill();
            let _ended = child.wait();
        }
    }
}

/// A running network manager on a node.
#[derive(Debug)]
pub struct Manager {
    processes: Processes,
    folder: PathBuf,
    bus: String,
}

impl Manager {
    /// Starts systemd-networkd. `files` are put below `/run/systemd`: `network/…`,
    /// `networkd.conf.d/…`.
    ///
    /// # Errors
    /// When it is not installed, or does not come up.
    pub fn networkd(fabric: &Fabric, files: &[(&str, String)]) -> Result<Self> {
        anyhow::ensure!(
            Path::new(NETWORKD).exists(),
            "{NETWORKD} is missing: install it with `apt-get install systemd`"
        );
        let mut manager = Self::prepare(fabric, "networkd")?;
        write_files(&manager.folder.join("run"), files)?;
        let run = manager.folder.join("run");
        manager.spawn(&fabric.node, NETWORKD_SCRIPT, &[&run])?;
        eventually(START, "systemd-networkd answers", || {
            let list = ["--no-legend", "--no-pager", "list"];
            command::run(manager.command(&fabric.node, "networkctl").args(list))
        })
        .with_context(|| manager.log())?;
        Ok(manager)
    }

    /// Starts NetworkManager. `files` are put below its configuration: `conf.d/…`,
    /// `system-connections/…`.
    ///
    /// # Errors
    /// When it is not installed, or does not come up.
    pub fn network_manager(fabric: &Fabric, files: &[(&str, String)]) -> Result<Self> {
        let daemon = network_manager_binary()?;
        let mut manager = Self::prepare(fabric, "NetworkManager")?;
        let run = manager.folder.join("run");
        write_files(
            &run,
            &[("NetworkManager.conf", NETWORK_MANAGER_CONF.into())],
        )?;
        write_files(&run, files)?;
        manager.spawn(&fabric.node, NETWORK_MANAGER_SCRIPT, &[&run, &daemon])?;
        eventually(START, "NetworkManager is up", || {
            let log = manager.log();
            check(log.contains("startup complete"), || log.clone())
        })?;
        Ok(manager)
    }

    /// A folder for a manager, and a message bus.
    fn prepare(fabric: &Fabric, name: &str) -> Result<Self> {
        let folder = fabric.file(name);
        fs::create_dir_all(folder.join("run"))?;
        // An abstract socket is in the network namespace, whatever is mounted where.
        let bus = format!("unix:abstract=towpath-{name}");
        let configuration = folder.join("bus.conf");
        fs::write(
            &configuration,
            format!(
                "<busconfig><type>system</type><listen>{bus}</listen><auth>EXTERNAL</auth>\
                 <policy context=\"default\"><allow send_destination=\"*\" eavesdrop=\"true\"/>\
                 <allow receive_sender=\"*\"/><allow own=\"*\"/><allow user=\"*\"/></policy>\
                 </busconfig>"
            ),
        )?;
        let mut manager = Self {
            processes: Processes::default(),
            folder,
            bus,
        };
        let mut daemon = fabric.node.command("dbus-daemon");
        daemon
            .args(["--nofork", "--nopidfile", "--config-file"])
            .arg(configuration);
        manager.keep(&mut daemon)?;
        let listening = format!("@towpath-{name}");
        eventually(START, "the message bus listens", || {
            let sockets = fabric.node.run("ss -Hlx")?;
            check(sockets.contains(&listening), || sockets.clone())
        })?;
        Ok(manager)
    }

    fn spawn(&mut self, node: &Netns, script: &str, arguments: &[&Path]) -> Result<()> {
        let mut shell = self.command(node, "unshare");
        self.keep(with_own_mounts(&mut shell, script).args(arguments))
    }

    /// Starts a process that ends with this value.
    fn keep(&mut self, command: &mut Command) -> Result<()> {
        let log = File::options()
            .create(true)
            .append(true)
            .open(self.folder.join("log"))?;
        command
            .stdin(Stdio::null())
            .stdout(log.try_clone()?)
            .stderr(log);
        let child = command.spawn();
        let program = command.get_program().to_string_lossy().into_owned();
        let child = child.with_context(|| format!("cannot start {program}: is it installed?"))?;
        self.processes.0.push(child);
        Ok(())
    }

    /// A command on the node that connects to the manager.
    #[must_use]
    pub fn command(&self, node: &Netns, program: &str) -> Command {
        let mut command = node.command(program);
        command.env("DBUS_SYSTEM_BUS_ADDRESS", &self.bus);
        command
    }

    /// Makes systemd-networkd configure a device again.
    ///
    /// # Errors
    /// When it refuses.
    pub fn reconfigure(&self, node: &Netns, device: &str) -> Result<()> {
        command::run(
            self.command(node, "networkctl")
                .args(["reconfigure", device]),
        )
        .map(drop)
    }

    /// State of a device in systemd-networkd: `configured`, `unmanaged` …
    ///
    /// # Errors
    /// When it has not seen the device.
    pub fn state_of(&self, node: &Netns, device: &str) -> Result<String> {
        let shown = node.ip_json(&format!("link show dev {device}"))?;
        let process = self.processes.0.last().context("it does not run")?.id();
        // `networkctl list` instead reads the machine's file of this name.
        let path = format!(
            "/proc/{process}/root/run/systemd/netif/links/{}",
            shown[0]["ifindex"]
        );
        let text = fs::read_to_string(&path).context(path)?;
        let state = text
            .lines()
            .find_map(|line| line.strip_prefix("ADMIN_STATE="));
        Ok(state.context("a state")?.to_owned())
    }

    /// The manager's log.
    #[must_use]
    pub fn log(&self) -> String {
        fs::read_to_string(self.folder.join("log")).unwrap_or_else(|error| error.to_string())
    }
}

/// Makes udev treat a device like a new one: udev gives it a name and a MAC. `files` are put into
/// `/etc/systemd/network`.
///
/// # Errors
/// When udev is missing or fails.
pub fn udev(fabric: &Fabric, device: &str, files: &[(&str, String)]) -> Result<()> {
    let folder = fabric.file("udev");
    if folder.exists() {
        fs::remove_dir_all(&folder)?;
    }
    fs::create_dir_all(&folder)?;
    write_files(&folder, files)?;
    let mut shell = fabric.node.command("unshare");
    with_own_mounts(&mut shell, UDEV_SCRIPT)
        .arg(folder)
        .arg(device);
    command::run(&mut shell).map(drop)
}

/// Makes `unshare` run a script with mounts of its own. The script's arguments can follow.
fn with_own_mounts<'a>(unshare: &'a mut Command, script: &str) -> &'a mut Command {
    unshare.args(["--mount", "--propagation", "private"]);
    unshare.args(["sh", "-ec", script, "sh"])
}

/// Writes files below a folder. NetworkManager reads only connections that no other user can read.
fn write_files(folder: &Path, files: &[(&str, String)]) -> Result<()> {
    use std::os::unix::fs::PermissionsExt as _;
    for (name, text) in files {
        let path = folder.join(name);
        if let Some(parent) = path.parent() {
            fs::create_dir_all(parent)?;
        }
        fs::write(&path, text)?;
        let private = name.starts_with("system-connections/");
        let mode = if private { 0o600 } else { 0o644 };
        fs::set_permissions(&path, fs::Permissions::from_mode(mode))?;
    }
    Ok(())
}

/// A file of `deploy/host`, as users install it.
///
/// # Errors
/// When there is no such file.
pub fn shipped(name: &str) -> Result<String> {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../deploy/host");
    let path = path.join(name);
    fs::read_to_string(&path).with_context(|| path.display().to_string())
}

/// `NetworkManager`: the machine's, or the one that `cargo xtask setup` has unpacked. It must not
/// be installed for a test, for its service would start.
fn network_manager_binary() -> Result<PathBuf> {
    let cache = match std::env::var_os("XDG_CACHE_HOME") {
        Some(folder) => PathBuf::from(folder),
        None => PathBuf::from(std::env::var_os("HOME").context("HOME is not set")?).join(".cache"),
    };
    let unpacked = cache.join("towpath/unpacked/network-manager/usr/sbin/NetworkManager");
    [PathBuf::from("/usr/sbin/NetworkManager"), unpacked.clone()]
        .into_iter()
        .find(|path| path.exists())
        .with_context(|| {
            let unpacked = unpacked.display();
            format!("{unpacked} is missing: `cargo xtask setup` unpacks it there")
        })
}

/// The VPC's DHCP server for an ENI. It ends with this value.
#[derive(Debug)]
pub struct DhcpServer(Processes);

impl DhcpServer {
    /// Serves an ENI its own address, the gateway and the subnet.
    ///
    /// # Errors
    /// When busybox is missing or the ENI is not attached.
    pub fn start(fabric: &Fabric, number: u8) -> Result<Self> {
        let eni = fabric.eni(number)?;
        let device = eni.router_device();
        let own = eni.own_address(Family::V4).context("its address")?;
        let leases = fabric.file(&format!("{device}.leases"));
        File::create(&leases)?;
        let mut text = String::new();
        // Writing to a string cannot fail.
        let _infallible = write!(
            text,
            "interface {device}\nstart {own}\nend {own}\nmax_leases 1\nlease_file {}\n\
             pidfile {}\noption subnet {}\noption router {}\noption lease 3600\n\
             static_lease {} {own}\n",
            leases.display(),
            fabric.file(&format!("{device}.pid")).display(),
            eni.subnet().netmask(),
            eni.gateway_v4(),
            eni.mac,
        );
        let configuration = fabric.file(&format!("{device}.udhcpd"));
        fs::write(&configuration, text)?;
        let mut server = fabric.vpc.router.command("busybox");
        let gateway = eni.gateway_v4().to_string();
        server
            .args(["udhcpd", "-f", "-S", "-I", &gateway])
            .arg(configuration)
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::null());
        let child = server
            .spawn()
            .context("busybox is missing: install it with `apt-get install busybox-static`")?;
        let processes = Processes(vec![child]);
        eventually(START, "the DHCP server listens", || {
            let sockets = fabric.vpc.router.run("ss -Hlun")?;
            let bound = format!("%{device}:67");
            check(sockets.contains(&bound) || sockets.contains(":67 "), || {
                sockets.clone()
            })
        })?;
        Ok(Self(processes))
    }

    /// True if it still runs.
    pub fn is_running(&mut self) -> bool {
        let mut children = self.0.0.iter_mut();
        children.all(|child| matches!(child.try_wait(), Ok(None)))
    }
}
