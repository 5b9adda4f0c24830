//! The plugin's installation, kept as it should be while the agent comes and goes.

use std::convert::Infallible;
use std::fs;
use std::os::unix::fs::MetadataExt as _;
use std::path::Path;
use std::time::Duration;

use anyhow::{Context as _, Result};
use towpath_cni::agent::Agent;
use towpath_cni::config::{IPAM_PLUGIN, PLUGIN};

use super::conflist::PORTMAP;
use super::files::Folder;
use super::{CONFLIST, Install, PATIENCE, Report, install};

/// In the plugin's state folder, which a reboot empties: says that the list is of this boot.
const MARKER: &str = "installed";
/// How often the files are looked at.
const INTERVAL: Duration = Duration::from_secs(1);

/// Installs the plugin as soon as the agent is ready, and again whenever a file is not as it was
/// left. A list of an earlier boot, which has the runtime call the network ready before the agent is,
/// goes first. It never ends by itself.
///
/// # Errors
/// When there is nothing to install, or that list cannot be removed.
pub async fn keep(what: &Install) -> Result<Infallible> {
    remove_old(what)?;
    let mut left = None;
    let mut said = String::new();
    loop {
        if left.is_none() || left != Some(Files::look(what)) {
            let outcome = install(what).and_then(|report| mark(what).map(|()| report));
            left = outcome.is_ok().then(|| Files::look(what));
            tell(outcome, &mut said);
        }
        tokio::time::sleep(INTERVAL).await;
    }
}

/// Removes a list that was there before this boot, unless an agent is ready already.
fn remove_old(what: &Install) -> Result<()> {
    let list = what.place.conf_dir.join(CONFLIST);
    let of_this_boot = what.state_dir.join(MARKER).exists();
    if of_this_boot || !list.exists() {
        return Ok(());
    }
    let agent = Agent::new(what.socket.clone(), PATIENCE);
    if agent.has_network().is_ok() {
        return Ok(());
    }
    let mut report = Report::default();
    Folder::open(&what.place.conf_dir, &mut report)?.remove(CONFLIST, &mut report)?;
    tracing::info!("{} was of an earlier boot: removed", list.display());
    Ok(())
}

fn mark(what: &Install) -> Result<()> {
    let marker = what.state_dir.join(MARKER);
    fs::create_dir_all(&what.state_dir)
        .and_then(|()| fs::write(&marker, ""))
        .with_context(|| format!("write {}", marker.display()))
}

/// Logs what was done, and once what stands in the way.
fn tell(outcome: Result<Report>, said: &mut String) {
    match outcome {
        Ok(report) => {
            said.clear();
            for note in &report.notes {
                tracing::warn!("{note}");
            }
            tracing::info!(files = ?report.changed, "installed");
        }
        Err(error) => {
            let error = format!("{error:#}");
            if error != *said {
                tracing::info!("not installed yet: {error}");
                *said = error;
            }
        }
    }
}

/// The files of an installation, as far as a look at them tells that somebody changed one.
#[derive(Debug, PartialEq, Eq)]
struct Files(Vec<Option<Seen>>);

#[derive(Debug, PartialEq, Eq)]
struct Seen {
    inode: u64,
    mode: u32,
    size: u64,
    changed: (i64, i64),
}

impl Files {
    fn look(what: &Install) -> Self {
        let bin = &what.place.bin_dir;
        // What the list has behind our plugin may come later.
        let files = [
            bin.join(PLUGIN),
            bin.join(IPAM_PLUGIN),
            bin.join(PORTMAP),
            what.place.conf_dir.join(CONFLIST),
        ];
        Self(files.iter().map(|file| Seen::of(file)).collect())
    }
}

impl Seen {
    fn of(file: &Path) -> Option<Self> {
        let meta = file.symlink_metadata().ok()?;
        Some(Self {
            inode: meta.ino(),
            mode: meta.mode(),
            size: meta.size(),
            changed: (meta.ctime(), meta.ctime_nsec()),
        })
    }
}
