//! The CNI plugin's installation on a node: its binaries, then the configuration list by which
//! runtimes find it; away in the other order.

mod conflist;
mod files;
mod keep;
mod list;
mod merge;
mod pace;

use std::path::{Path, PathBuf};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail, ensure};
use serde::Serialize;
use towpath_cni::agent::Agent;
use towpath_cni::request::config::{IPAM_PLUGIN, PLUGIN};

use crate::host::other_cni::CONFLIST;
use conflist::Wanted;
use files::Folder;
pub(crate) use keep::keep;

/// Permissions of the binaries.
const BINARY_MODE: u32 = 0o755;
/// The time limit of the agent's answer on its readiness.
const REPLY_TIMEOUT: Duration = Duration::from_secs(5);
/// The time between requests to an agent that is not ready yet.
const INTERVAL: Duration = Duration::from_millis(200);

/// Where the plugin goes.
#[derive(Clone, Debug)]
pub(crate) struct Place {
    /// Folder of the runtime's plugins.
    pub(crate) bin_dir: PathBuf,
    /// Folder of the runtime's network configurations.
    pub(crate) conf_dir: PathBuf,
}

/// The installation to make.
#[derive(Clone, Debug)]
pub(crate) struct Install {
    /// Where to.
    pub(crate) place: Place,
    /// The plugin's binary; without one, the one beside our own.
    pub(crate) plugin: Option<PathBuf>,
    /// The configuration list; without one, it is made.
    pub(crate) conflist: Option<PathBuf>,
    /// The wait for an agent that is not ready; none: no wait.
    pub(crate) wait: Option<Duration>,
    /// The agent's socket.
    pub(crate) socket: PathBuf,
    /// The plugin's state folder, in which the agent looks for deletes.
    pub(crate) state_dir: PathBuf,
}

/// The result of an installation.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) struct Report {
    /// Files that were written or removed.
    pub(crate) changed: Vec<PathBuf>,
    /// Files that were as they should be.
    pub(crate) unchanged: Vec<PathBuf>,
    /// Leftovers of an interrupted run that were removed.
    pub(crate) leftovers: Vec<PathBuf>,
    /// Plugins that others added to the configuration list, whose entries stay.
    pub(crate) others: Vec<String>,
    /// Notes.
    pub(crate) notes: Vec<String>,
}

/// Installs the plugin: the binaries, then, once the agent is ready, the configuration list. What
/// is as it should be stays untouched; a run that was interrupted at any point is made good by the
/// next.
///
/// # Errors
/// When something is wrong with what is to be installed (nothing is changed then), a file cannot be
/// written, or the agent is not ready (the binaries are there then, the list is as before).
pub(crate) fn install(install: &Install) -> Result<Report> {
    install_wanted(install).map(|(report, _)| report)
}

fn install_wanted(install: &Install) -> Result<(Report, Wanted)> {
    let source = match &install.plugin {
        Some(path) => path.clone(),
        None => beside_us()?,
    };
    let binary =
        std::fs::read(&source).with_context(|| format!("read the plugin {}", source.display()))?;
    ensure!(
        binary.starts_with(b"\x7fELF"),
        "{} is no program",
        source.display()
    );
    let given = match &install.conflist {
        Some(path) => Some(conflist::given(path, &install.state_dir)?),
        None => None,
    };

    let mut report = Report::default();
    let bin_dir = Folder::open(&install.place.bin_dir, &mut report)?;
    for name in [PLUGIN, IPAM_PLUGIN] {
        bin_dir.put(name, &binary, BINARY_MODE, &mut report)?;
    }
    let is_given = given.is_some();
    let text = match given {
        Some(list) => list,
        None => conflist::made(
            &install.place.bin_dir,
            &install.socket,
            &install.state_dir,
            &mut report.notes,
        )?,
    };
    let conf_dir = Folder::open(&install.place.conf_dir, &mut report)?;
    let wanted = Wanted { text, is_given };
    list::put(&conf_dir, &wanted, install, &mut report)?;
    if let Some(first) = conf_dir
        .first_configuration()?
        .filter(|name| name != CONFLIST)
    {
        report.notes.push(format!(
            "runtimes take the first configuration by name, which is {first}, not {CONFLIST}"
        ));
    }
    Ok((report, wanted))
}

/// Removes the plugin: the configuration list first, so that no runtime looks for a binary that is
/// gone. Of a list that others added to, our part goes.
///
/// # Errors
/// When a file cannot be changed or removed.
pub(crate) fn uninstall(place: &Place, state_dir: &Path) -> Result<Report> {
    let mut report = remove_list(&place.conf_dir, state_dir)?;
    if place.bin_dir.exists() {
        let folder = Folder::open(&place.bin_dir, &mut report)?;
        for name in [PLUGIN, IPAM_PLUGIN] {
            folder.remove(name, &mut report)?;
        }
    }
    Ok(report)
}

/// Removes our entries of the configuration list, by which runtimes find the plugin.
fn remove_list(conf_dir: &Path, state_dir: &Path) -> Result<Report> {
    let mut report = Report::default();
    if conf_dir.exists() {
        let folder = Folder::open(conf_dir, &mut report)?;
        list::take_out(&folder, state_dir, &mut report)?;
    }
    Ok(report)
}

/// Removes our entries of the configuration list, and the notes of this boot: a node without an
/// agent is not to look ready. The binaries stay for the DELs of pods that still run.
///
/// # Errors
/// When a file cannot be changed or removed.
pub(crate) fn forget(conf_dir: &Path, state_dir: &Path) -> Result<Report> {
    let mut report = remove_list(conf_dir, state_dir)?;
    if state_dir.exists() {
        Folder::open(state_dir, &mut report)?.remove(list::MARKER, &mut report)?;
    }
    let note = towpath_cni::forget_readiness(state_dir).context("remove the record of STATUS")?;
    report.changed.extend(note);
    Ok(report)
}

/// The plugin beside our own binary.
fn beside_us() -> Result<PathBuf> {
    let own = std::env::current_exe().context("find our own binary")?;
    let path = own.with_file_name(PLUGIN);
    ensure!(
        path.is_file(),
        "{} is not there: name the plugin's binary with --plugin",
        path.display()
    );
    Ok(path)
}

/// Waits until pods can be added, or could be if there were addresses: a full node has a network
/// too.
fn wait(socket: &Path, patience: Option<Duration>) -> Result<()> {
    let agent = Agent::new(socket.to_owned(), REPLY_TIMEOUT);
    let deadline = Instant::now() + patience.unwrap_or_default();
    loop {
        let Err(error) = agent.has_network() else {
            return Ok(());
        };
        if Instant::now() >= deadline {
            bail!(
                "the agent is not ready, so {CONFLIST} is not installed: {error}; --wait-ready \
                 waits for it"
            );
        }
        thread::sleep(INTERVAL);
    }
}
