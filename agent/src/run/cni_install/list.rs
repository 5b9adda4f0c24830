//! The configuration list on disk, of which our entry is ours and the others belong to other
//! programs.

use std::fs;
use std::path::Path;

use anyhow::{Context as _, Result, bail};
use serde_json::Value;

use super::conflist::Wanted;
use super::files::Folder;
use super::merge::{Merged, merge, with_plugins, without_ours};
use super::{Install, Report, wait};
use crate::host::other_cni::CONFLIST;

/// In the plugin's state folder, which a reboot empties: the list of this boot as it was wanted.
pub(super) const MARKER: &str = "installed";
/// A list of an earlier boot that other programs added to. Runtimes do not read it.
const EARLIER: &str = "10-towpath.conflist.earlier-boot";
/// Name of a damaged list, which is kept for analysis.
const DAMAGED: &str = "10-towpath.conflist.damaged";
/// A list of ours alone is for the runtime, which is root.
const MODE: u32 = 0o600;
/// Only the owner may write it.
const WRITERS: u32 = 0o022;
/// Another program may change the list while it is read. A program that does so each time is in
/// conflict with ours.
const ATTEMPTS: u32 = 10;

/// Writes our part of the list if it differs; waits for the agent in that case.
pub(super) fn put(
    folder: &Folder,
    wanted: &Wanted,
    install: &Install,
    report: &mut Report,
) -> Result<()> {
    let before = before(&install.state_dir);
    for attempt in 0..ATTEMPTS {
        let there = folder.read(CONFLIST)?;
        let text = there.as_ref().map(|(text, _)| text.as_slice());
        let (merged, is_damaged) = match text {
            Some(text) => of_the_list(text, wanted, before.as_ref()),
            None => (of_earlier(folder, wanted, install)?, false),
        };
        let mode = mode(there.as_ref().map(|(_, mode)| *mode), &merged);
        if there == Some((merged.text.clone(), mode)) {
            report.unchanged.push(folder.file(CONFLIST));
            report.others = merged.others;
            return Ok(());
        }
        if attempt == 0 {
            wait(&install.socket, install.wait)?;
        }
        if is_damaged {
            set_aside(folder, text.unwrap_or_default(), report)?;
        }
        if text == Some(&merged.text) {
            folder.set_mode(CONFLIST, mode)?;
        } else if !folder.replace(CONFLIST, text, &merged.text, mode)? {
            continue;
        }
        forget_earlier(folder, &mut Report::default())?;
        report.changed.push(folder.file(CONFLIST));
        report.others = merged.others;
        return Ok(());
    }
    bail!(fought_over(folder))
}

/// Takes our part out of the list, and the list away where nothing else is in it.
pub(super) fn take_out(folder: &Folder, state_dir: &Path, report: &mut Report) -> Result<()> {
    let before = before(state_dir);
    for _ in 0..ATTEMPTS {
        let there = folder.read(CONFLIST)?;
        let rest = there
            .as_ref()
            .and_then(|(text, _)| without_ours(text, before.as_ref()));
        let (Some((text, mode)), Some(rest)) = (there, rest) else {
            folder.remove(CONFLIST, report)?;
            return forget_earlier(folder, report);
        };
        let path = folder.file(CONFLIST);
        if folder.replace(CONFLIST, Some(&text), &rest, mode)? {
            report.notes.push(format!(
                "{} stays with foreign entries; it gives pods no network",
                path.display()
            ));
            report.changed.push(path);
            return forget_earlier(folder, report);
        }
    }
    bail!(fought_over(folder))
}

fn fought_over(folder: &Folder) -> String {
    format!(
        "{} changes at each read: another program keeps writing it",
        folder.file(CONFLIST).display()
    )
}

fn forget_earlier(folder: &Folder, report: &mut Report) -> Result<()> {
    match folder.read(EARLIER)? {
        Some(_) => folder.remove(EARLIER, report),
        None => Ok(()),
    }
}

/// Hides a list of an earlier boot from the runtime. Foreign entries come back with the list: a pod
/// that starts before those programs check again would lack them.
pub(super) fn set_earlier_aside(folder: &Folder) -> Result<()> {
    let there = folder.read(CONFLIST)?;
    match there.and_then(|(text, _)| without_ours(&text, None)) {
        Some(_) => folder.rename(CONFLIST, EARLIER),
        None => folder.remove(CONFLIST, &mut Report::default()),
    }
}

/// A list that is there but that no runtime could use. It may be half written.
pub(super) fn is_damaged(path: &Path) -> bool {
    fs::read(path).is_ok_and(|text| serde_json::from_slice::<Value>(&text).is_err())
}

/// The list that was wanted last in this boot.
fn before(state_dir: &Path) -> Option<Value> {
    serde_json::from_slice(&fs::read(state_dir.join(MARKER)).ok()?).ok()
}

/// Notes the list that is wanted, by which it is of this boot.
///
/// # Errors
/// When the file cannot be written.
pub(super) fn mark(state_dir: &Path, wanted: &Wanted) -> Result<()> {
    let marker = state_dir.join(MARKER);
    if fs::read(&marker).is_ok_and(|text| text == wanted.text) {
        return Ok(());
    }
    fs::create_dir_all(state_dir)
        .and_then(|()| fs::write(&marker, &wanted.text))
        .with_context(|| format!("write {}", marker.display()))
}

fn alone(wanted: &Wanted) -> Merged {
    Merged {
        text: wanted.text.clone(),
        others: Vec::new(),
    }
}

/// The list to write; true if the present one has to be moved aside for it.
fn of_the_list(there: &[u8], wanted: &Wanted, before: Option<&Value>) -> (Merged, bool) {
    match merge(there, wanted, before) {
        Ok(merged) => (merged, false),
        Err(_) => (alone(wanted), true),
    }
}

/// A new list, with the foreign entries of the one of an earlier boot whose plugins still exist.
fn of_earlier(folder: &Folder, wanted: &Wanted, install: &Install) -> Result<Merged> {
    let bin_dir = &install.place.bin_dir;
    let earlier = folder.read(EARLIER)?.map(|(text, _)| text);
    let earlier = earlier.and_then(|text| with_plugins(&text, |kind| bin_dir.join(kind).exists()));
    let merged = earlier.and_then(|text| merge(&text, wanted, None).ok());
    Ok(merged.unwrap_or_else(|| alone(wanted)))
}

fn mode(is: Option<u32>, merged: &Merged) -> u32 {
    match is {
        // Others read it, and write it with permissions of their own.
        Some(mode) if !merged.others.is_empty() => mode & !WRITERS,
        _ => MODE,
    }
}

fn set_aside(folder: &Folder, text: &[u8], report: &mut Report) -> Result<()> {
    folder.put(DAMAGED, text, MODE, &mut Report::default())?;
    report.notes.push(format!(
        "{CONFLIST} was not a configuration list that runtimes can use; a copy of it is {}",
        folder.file(DAMAGED).display()
    ));
    Ok(())
}
