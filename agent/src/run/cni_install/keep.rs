//! The plugin's installation, kept in the desired state while the agent comes and goes.

use std::collections::BTreeSet;
use std::convert::Infallible;
use std::os::unix::fs::MetadataExt as _;
use std::path::Path;
use std::time::Duration;

use anyhow::Result;
use towpath_cni::agent::Agent;
use towpath_cni::request::config::{IPAM_PLUGIN, PLUGIN};

use super::conflist::PORTMAP;
use super::files::Folder;
use super::list::{self, MARKER};
use super::pace::Pace;
use super::{Install, REPLY_TIMEOUT, Report, install_wanted};
use crate::host::other_cni::CONFLIST;

/// Installs the plugin as soon as the agent is ready, and again whenever a file has changed. A list
/// of an earlier boot, by which the runtime would report the network ready before the agent is, is
/// removed first. Entries of other programs stay in the list. If another program repeatedly undoes
/// the repairs, they become less frequent. It never ends by itself.
///
/// # Errors
/// When there is nothing to install, or that list cannot be removed.
pub(crate) async fn keep(what: &Install) -> Result<Infallible> {
    remove_old(what)?;
    let list = what.place.conf_dir.join(CONFLIST);
    let mut left = None;
    let mut damaged = None;
    let mut log = Log::default();
    let mut pace = Pace::default();
    loop {
        let mut has_written = false;
        let seen = Files::look(what);
        // A list that is half written will be complete at the next check.
        let is_new_damage = list::is_damaged(&list) && damaged.as_ref() != Some(&seen);
        if is_new_damage {
            damaged = Some(seen);
        } else if left.as_ref() != Some(&seen) {
            let outcome = install_wanted(what).and_then(|(report, wanted)| {
                list::mark(&what.state_dir, &wanted)?;
                Ok(report)
            });
            // A later write of another program differs from `seen`, and is checked again.
            let is_right = |report: &Report| report.changed.is_empty();
            has_written = outcome.as_ref().is_ok_and(|report| !is_right(report));
            left = outcome.as_ref().is_ok_and(is_right).then_some(seen);
            log.tell(outcome);
        }
        let wait = pace.looked(has_written);
        log.fight(pace.slowed());
        tokio::time::sleep(wait).await;
    }
}

/// Removes a list that was there before this boot, unless an agent is ready already.
fn remove_old(what: &Install) -> Result<()> {
    let list = what.place.conf_dir.join(CONFLIST);
    let of_this_boot = what.state_dir.join(MARKER).exists();
    if of_this_boot || !list.exists() {
        return Ok(());
    }
    let agent = Agent::new(what.socket.clone(), REPLY_TIMEOUT);
    if agent.has_network().is_ok() {
        return Ok(());
    }
    let folder = Folder::open(&what.place.conf_dir, &mut Report::default())?;
    list::set_earlier_aside(&folder)?;
    tracing::info!("{} was of an earlier boot: removed", list.display());
    Ok(())
}

/// Messages that are in the log already.
#[derive(Default)]
struct Log {
    error: String,
    notes: Vec<String>,
    others: BTreeSet<String>,
    is_fought: bool,
}

impl Log {
    /// Logs once that another program interferes, and that it has stopped.
    fn fight(&mut self, slowed: Option<Duration>) {
        if slowed.is_some() && !self.is_fought {
            tracing::warn!(
                "another program keeps changing {CONFLIST} or the plugin: ours is repaired at growing intervals, up to a minute; find the program that writes there"
            );
        } else if slowed.is_none() && self.is_fought {
            tracing::info!("{CONFLIST} and the plugin are stable again");
        }
        self.is_fought = slowed.is_some();
    }

    /// Logs what was done, and once what prevents it and which other plugins are in the list.
    fn tell(&mut self, outcome: Result<Report>) {
        match outcome {
            Ok(report) => {
                self.error.clear();
                self.say(report);
            }
            Err(error) => {
                let error = format!("{error:#}");
                if error != self.error {
                    tracing::info!("not installed yet: {error}");
                    self.error = error;
                }
            }
        }
    }

    fn say(&mut self, report: Report) {
        for note in &report.notes {
            if !self.notes.contains(note) {
                tracing::warn!("{note}");
            }
        }
        self.notes = report.notes;
        for plugin in report.others {
            if !self.others.contains(&plugin) {
                tracing::warn!("{CONFLIST} has a foreign entry, which stays: {plugin}");
                self.others.insert(plugin);
            }
        }
        if !report.changed.is_empty() {
            tracing::info!(files = ?report.changed, "installed");
        }
    }
}

/// Stamps of an installation's files, by which changes are detected.
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
        // The plugins after ours in the list may come later.
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
