//! Programs and filters of others on the devices that carry ours.

use std::cell::LazyCell;
use std::collections::{BTreeMap, BTreeSet};

use anyhow::{Context, Result};
use api::types::Direction;
use api::types::ForeignProgram;
use api::types::Mechanism;
use api::types::Position;
use aya::programs::loaded_programs;

use crate::bpf::attach::tc::{Filter, TcSocket};
use crate::bpf::attach::{Filters, Revisions, directions, is_ours};
use crate::bpf::sys::{TcxProgram, query_tcx};
use crate::kernel::Link;

/// A program on a device, of any owner.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BpfProgram {
    /// The device's name.
    pub device: String,
    /// The program's name, which the kernel cuts to 15 bytes; of a filter the filter's.
    pub name: String,
}

/// Lists the programs of tc and TCX, and those of XDP by the ids that `xdp` has, on these devices.
///
/// # Errors
/// When the kernel does not let itself be read.
pub fn programs_on<'a>(
    devices: impl IntoIterator<Item = &'a Link>,
    xdp: &BTreeMap<u32, Vec<u32>>,
) -> Result<Vec<BpfProgram>> {
    let socket = TcSocket::open()?;
    let qdiscs = socket.ingress_qdiscs()?;
    let mut ids: Vec<(u32, &Link)> = Vec::new();
    let mut programs = Vec::new();
    for device in devices {
        let of_xdp = xdp.get(&device.ifindex).into_iter().flatten();
        ids.extend(of_xdp.map(|id| (*id, device)));
        let qdisc = qdiscs.iter().find(|one| one.ifindex == device.ifindex);
        let with_filters = qdisc.map_or(&[][..], |one| directions(&one.kind));
        for direction in Direction::ALL {
            match query_tcx(device.ifindex, direction) {
                // The device has gone, or the kernel is older than TCX.
                Err(error)
                    if [libc::ENODEV, libc::EINVAL]
                        .map(Some)
                        .contains(&error.raw_os_error()) => {}
                other => ids.extend(other?.0.into_iter().map(|one| (one.program, device))),
            }
            if !with_filters.contains(&direction) {
                continue;
            }
            for filter in socket.filters(device.ifindex, direction)? {
                ids.extend(filter.program.map(|id| (id, device)));
                programs.extend(filter.name.map(|name| BpfProgram {
                    device: device.kernel_name().to_owned(),
                    name,
                }));
            }
        }
    }
    let names = program_names();
    let named = ids.into_iter().filter_map(|(id, device)| {
        Some(BpfProgram {
            device: device.kernel_name().to_owned(),
            name: names.get(&id)?.clone(),
        })
    });
    programs.extend(named);
    Ok(programs)
}

/// One entry of a hook in the order of running: a foreign one, or ours.
enum Entry {
    Ours,
    Foreign(ForeignProgram),
}

/// Programs of others, and the revisions of the TCX hooks that were read for them.
#[derive(Default)]
pub(in crate::bpf) struct Foreign {
    pub(in crate::bpf) programs: Vec<ForeignProgram>,
    /// Of hooks with programs of any owner.
    pub(in crate::bpf) taken: Revisions,
    /// Of hooks without one.
    pub(in crate::bpf) free: Revisions,
}

/// Foreign programs on both directions of the devices. `tcx` are our links, where the kernel has
/// any.
pub(in crate::bpf) fn list<'a>(
    filters: &Filters,
    tcx: Option<&BTreeSet<u32>>,
    devices: impl IntoIterator<Item = &'a Link>,
) -> Result<Foreign> {
    let names = LazyCell::new(program_names as fn() -> _);
    let mut foreign = Foreign::default();
    for device in devices {
        for direction in Direction::ALL {
            let mut entries = Vec::new();
            if let Some(links) = tcx {
                let (programs, revision) = tcx_programs(device, direction)?;
                let hook = (device.ifindex, direction);
                let is_free = programs.is_empty();
                let revisions = if is_free {
                    &mut foreign.free
                } else {
                    &mut foreign.taken
                };
                revisions.insert(hook, revision);
                let programs = programs.into_iter();
                entries
                    .extend(programs.map(|one| tcx_entry(one, (device, direction), links, &names)));
            }
            entries.extend(filter_entries(filters, device, direction));
            foreign.programs.extend(place(entries));
        }
    }
    Ok(foreign)
}

/// The TCX programs of a hook, which run before all filters, and its revision; no revision where
/// there is no such device.
fn tcx_programs(device: &Link, direction: Direction) -> Result<(Vec<TcxProgram>, Option<u64>)> {
    match query_tcx(device.ifindex, direction) {
        Err(error) if error.raw_os_error() == Some(libc::ENODEV) => Ok((Vec::new(), None)),
        other => {
            let (programs, revision) = other
                .with_context(|| format!("cannot list the TCX programs of {}", device.name))?;
            Ok((programs, Some(revision)))
        }
    }
}

fn tcx_entry(
    program: TcxProgram,
    (device, direction): (&Link, Direction),
    links: &BTreeSet<u32>,
    names: &LazyCell<BTreeMap<u32, String>>,
) -> Entry {
    if links.contains(&program.link) {
        return Entry::Ours;
    }
    Entry::Foreign(ForeignProgram {
        device: device.kernel_name().to_owned(),
        ifindex: device.ifindex,
        direction,
        mechanism: Mechanism::Tcx,
        kind: "bpf".to_owned(),
        name: names.get(&program.program).cloned(),
        id: Some(program.program),
        priority: None,
        position: Position::Alone,
    })
}

fn filter_entries(filters: &Filters, device: &Link, direction: Direction) -> Vec<Entry> {
    let entry = |filter: &Filter| {
        if is_ours(filter, direction).is_some() {
            return Entry::Ours;
        }
        Entry::Foreign(ForeignProgram {
            device: device.kernel_name().to_owned(),
            ifindex: device.ifindex,
            direction,
            mechanism: Mechanism::Clsact,
            kind: filter.kind.clone(),
            name: filter.name.clone(),
            id: filter.program,
            priority: Some(filter.priority),
            position: Position::Alone,
        })
    };
    let filters = filters.at(device.ifindex, direction);
    filters.iter().map(entry).collect()
}

/// The foreign entries with their position.
fn place(entries: Vec<Entry>) -> Vec<ForeignProgram> {
    let ours = entries.iter().position(|e| matches!(e, Entry::Ours));
    entries
        .into_iter()
        .enumerate()
        .filter_map(|(index, entry)| match entry {
            Entry::Ours => None,
            Entry::Foreign(mut foreign) => {
                foreign.position = match ours {
                    None => Position::Alone,
                    Some(own) if index < own => Position::Before,
                    Some(_) => Position::After,
                };
                Some(foreign)
            }
        })
        .collect()
}

/// Names of all programs in the kernel by id. One that goes while they are listed has no name.
fn program_names() -> BTreeMap<u32, String> {
    loaded_programs()
        .filter_map(Result::ok)
        .filter_map(|info| Some((info.id(), info.name_as_str()?.to_owned())))
        .collect()
}
