//! Pinned TCX links (Linux 6.6).

use std::collections::BTreeMap;
use std::io;
use std::os::fd::BorrowedFd;
use std::path::Path;

use anyhow::{Context, Result};
use api::types::Mechanism;
use datapath_common::abi;

use super::Found;
use crate::bpf::object::Programs;
use crate::bpf::pins::{self, LinkPin, Pins};
use crate::bpf::sys::{TcxLink, TcxLinkInfo, query_tcx};
use crate::kernel::Hook;

/// A link of ours that runs at its hook.
#[derive(Clone, Copy)]
struct Running {
    link: TcxLinkInfo,
    /// The hook's revision when its programs were listed.
    revision: u64,
}

/// Our pinned links.
pub(super) fn found(links: Vec<LinkPin>) -> Result<Vec<Found>> {
    links
        .into_iter()
        .map(|pin| {
            let running = running(&pin)?;
            Ok(Found {
                hook: pin.hook,
                mechanism: Mechanism::Tcx,
                same_version: pin.version == abi::VERSION,
                program: running.map(|running| running.link.program),
                link: running.map(|running| running.link.id),
                revision: running.map(|running| running.revision),
            })
        })
        .collect()
}

/// The link of a pin, if it runs at the hook that the pin is for.
fn running(pin: &LinkPin) -> Result<Option<Running>> {
    match TcxLink::open(&pin.path) {
        Ok(link) => running_at(&link, pin.hook),
        // Removed since the folder was read, or nothing that can be opened: nothing runs.
        Err(error) if pins::is_missing(&error) || is_no_link(&error) => Ok(None),
        Err(error) => Err(error).with_context(|| opening(&pin.path)),
    }
}

/// The link, if it runs at the hook. The device's own list of links is checked, too: only that
/// distinguishes a device of this network namespace from one with the same index in another one.
fn running_at(held: &TcxLink, hook: Hook) -> Result<Option<Running>> {
    let Some(link) = held.info().context("cannot examine a pinned link")? else {
        return Ok(None);
    };
    let direction = hook.direction();
    if link.ifindex != hook.ifindex || link.direction != Some(direction) {
        return Ok(None);
    }
    match query_tcx(hook.ifindex, direction) {
        Ok((programs, revision)) => {
            let is_there = programs.iter().any(|program| program.link == link.id);
            Ok(is_there.then_some(Running { link, revision }))
        }
        Err(error) if is_no_device(&error) => Ok(None),
        Err(error) => Err(error)
            .with_context(|| format!("cannot list the TCX programs of device {}", hook.ifindex)),
    }
}

/// The ids of held links that have lost their pins, by hook.
pub(super) fn unpinned(pins: &Pins, held: &BTreeMap<Hook, TcxLink>) -> Result<BTreeMap<Hook, u32>> {
    let mut unpinned = BTreeMap::new();
    for (hook, link) in held {
        if !pins.link(*hook).exists()
            && let Some(running) = running_at(link, *hook)?
        {
            unpinned.insert(*hook, running.link.id);
        }
    }
    Ok(unpinned)
}

/// Puts the program into the place of the one that the hook's link runs, atomically; makes a new
/// link where there is none, or where it runs nowhere or elsewhere. The link, pinned.
pub(super) fn attach(
    pins: &Pins,
    programs: &Programs,
    hook: Hook,
    held: Option<&TcxLink>,
) -> Result<Option<TcxLink>> {
    let path = pins.link(hook);
    let program = programs.fd(hook.program)?;
    if let Some(link) = held
        && update(link, program, hook)?
    {
        return pin_again(link, &path).map(|()| None);
    }
    if let Some(link) = replace(&path, program, hook)? {
        return Ok(Some(link));
    }
    remove(&path)?;
    let direction = hook.direction();
    let attached = match TcxLink::attach_last(program, hook.ifindex, direction) {
        Err(error) if error.raw_os_error() == Some(libc::EEXIST) => {
            unpinned_of(programs, program, hook)
        }
        other => other,
    };
    let link = attached.with_context(|| {
        format!(
            "cannot attach {} to device {} by TCX",
            hook.program.name(),
            hook.ifindex
        )
    })?;
    // Dropping the link on an error detaches it again: nothing runs without a pin.
    pin(&link, &path)?;
    Ok(Some(link))
}

fn pin(link: &TcxLink, path: &Path) -> Result<()> {
    link.pin(path)
        .with_context(|| format!("cannot pin the link {}", path.display()))
}

/// Pins a held link where it is not pinned.
fn pin_again(link: &TcxLink, path: &Path) -> Result<()> {
    let id = |link: &TcxLink| link.info().ok().flatten().map(|info| info.id);
    match TcxLink::open(path) {
        Ok(there) if id(&there) == id(link) => return Ok(()),
        Ok(_) => pins::remove(path)?,
        Err(error) if pins::is_missing(&error) => {}
        Err(error) if is_no_link(&error) => pins::remove(path)?,
        Err(error) => return Err(error).with_context(|| opening(path)),
    }
    pin(link, path)
}

/// Our program's link that lost its pin. The kernel detaches it only after a while, and never while
/// a process holds it. Until then it refuses to attach the program again.
fn unpinned_of(programs: &Programs, program: BorrowedFd<'_>, hook: Hook) -> io::Result<TcxLink> {
    let direction = hook.direction();
    let (programs_there, _revision) = query_tcx(hook.ifindex, direction)?;
    let there = programs_there
        .into_iter()
        .find(|one| programs.is(hook.program, one.program));
    match there {
        Some(one) => TcxLink::by_id(one.link),
        None => TcxLink::attach_last(program, hook.ifindex, direction),
    }
}

/// The pinned link, updated, where it runs at the hook.
fn replace(path: &Path, program: BorrowedFd<'_>, hook: Hook) -> Result<Option<TcxLink>> {
    let link = match TcxLink::open(path) {
        Ok(link) => link,
        Err(error) if pins::is_missing(&error) || is_no_link(&error) => return Ok(None),
        Err(error) => return Err(error).with_context(|| opening(path)),
    };
    Ok(update(&link, program, hook)?.then_some(link))
}

/// True if the link runs at the hook; then it runs the program from now on.
fn update(link: &TcxLink, program: BorrowedFd<'_>, hook: Hook) -> Result<bool> {
    if running_at(link, hook)?.is_none() {
        return Ok(false);
    }
    match link.update(program) {
        Ok(()) => Ok(true),
        // Since the check the device was removed, or the link was detached.
        Err(error) if error.raw_os_error() == Some(libc::ENOLINK) => Ok(false),
        Err(error) => {
            Err(error).with_context(|| format!("cannot update the link of {}", hook.program.name()))
        }
    }
}

/// Detaches a pinned link and removes its pin; one that is not there is success.
pub(in crate::bpf) fn remove(path: &Path) -> Result<()> {
    if let Ok(link) = TcxLink::open(path)
        && let Err(error) = link.detach()
    {
        tracing::warn!("cannot detach the link {}: {error}", path.display());
    }
    pins::remove(path)
}

fn opening(path: &Path) -> String {
    format!("cannot open the pinned link {}", path.display())
}

/// A file that is no pin cannot be opened as one (`EACCES` from `bpf_inode_type`).
fn is_no_link(error: &io::Error) -> bool {
    matches!(error.raw_os_error(), Some(libc::EACCES | libc::EINVAL))
}

fn is_no_device(error: &io::Error) -> bool {
    // A kernel without TCX has no links at all, and says EINVAL.
    matches!(error.raw_os_error(), Some(libc::ENODEV | libc::EINVAL))
}
