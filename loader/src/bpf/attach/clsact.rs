//! Filters of a clsact qdisc, where TCX is missing or not wanted.

use std::collections::{BTreeMap, BTreeSet};
use std::os::fd::BorrowedFd;

use anyhow::{Context, Result, bail};
use api::types::Direction;
use api::types::Mechanism;
use datapath_common::counter::Program;

use super::Found;
use crate::bpf::attach::tc::{Filter, NewFilter, Place, Qdisc, TcSocket, errno};
use crate::bpf::pins::Pins;
use crate::constants;
use crate::kernel::{self, Hook, Link};

/// Kinds of what can be at a device's ingress: both have the handle `ffff:`, so there is one only.
const CLSACT: &str = "clsact";
const INGRESS: &str = "ingress";

/// The program that a filter of a device's hook is of us for: known by its name at our priority and
/// handle.
pub(in crate::bpf) fn is_ours(filter: &Filter, hook: Direction) -> Option<Program> {
    let name = filter.name.as_deref()?;
    let of = |program: &Program| program.name() == name && kernel::direction(*program) == hook;
    (is_our_place(filter) && filter.kind == "bpf").then(|| Program::ALL.into_iter().find(of))?
}

fn is_our_priority(filter: &Filter) -> bool {
    filter.chain == 0 && filter.priority == constants::TC_PRIORITY
}

fn is_our_place(filter: &Filter) -> bool {
    is_our_priority(filter) && filter.handle == constants::TC_HANDLE
}

/// True if a foreign filter has the place of ours. All filters of a priority are of one kind.
fn conflicts(filter: &Filter, hook: Direction) -> bool {
    is_our_priority(filter)
        && (filter.kind != "bpf" || (is_our_place(filter) && is_ours(filter, hook).is_none()))
}

/// The directions for which a device can have filters, by the kind of the qdisc at its ingress.
///
/// An `ingress` qdisc has one list of filters, those of the ingress. The kernel shows it, and adds
/// to it, under the name of either direction: `ingress_tcf_block` in `net/sched/sch_ingress.c`
/// ignores the requested one.
pub(in crate::bpf) fn directions(kind: &str) -> &'static [Direction] {
    match kind {
        INGRESS => &[Direction::Ingress],
        _clsact => &Direction::ALL,
    }
}

/// Devices with a foreign `ingress` qdisc, which takes the place of our clsact.
pub(in crate::bpf) fn displaced(socket: &TcSocket) -> Result<BTreeSet<u32>> {
    let qdiscs = socket.ingress_qdiscs()?.into_iter();
    let ingress = qdiscs.filter(|qdisc| qdisc.kind == INGRESS);
    Ok(ingress.map(|qdisc| qdisc.ifindex).collect())
}

/// True if a device has a foreign `ingress` qdisc.
pub(super) fn is_displaced(socket: &TcSocket, ifindex: u32) -> Result<bool> {
    Ok(socket.ingress_kind(ifindex)?.as_deref() == Some(INGRESS))
}

/// The qdiscs of all devices, and the filters of the hooks that have any, in the order they run.
pub(in crate::bpf) struct Filters {
    /// Qdiscs, as one dump showed them.
    pub(in crate::bpf) qdiscs: Vec<Qdisc>,
    of_hooks: BTreeMap<(u32, Direction), Vec<Filter>>,
}

impl Filters {
    /// Reads them. Devices with a qdisc of ours are always checked, since a dump may skip a device
    /// while another one is removed.
    ///
    /// The marks of qdiscs that were removed with their devices are removed here, too.
    pub(super) fn read(socket: &TcSocket, pins: &Pins) -> Result<Self> {
        let qdiscs = socket.qdiscs()?;
        let ingress = qdiscs.iter().filter(|qdisc| qdisc.place == Place::Ingress);
        let mut devices: BTreeMap<u32, &[Direction]> = ingress
            .map(|qdisc| (qdisc.ifindex, directions(&qdisc.kind)))
            .collect();
        for ifindex in pins.qdiscs()? {
            if devices.contains_key(&ifindex) {
                continue;
            }
            match socket.ingress_kind(ifindex)? {
                Some(kind) => drop(devices.insert(ifindex, directions(&kind))),
                // A mark that stays only costs another check.
                None => drop(remove_mark(pins, ifindex)),
            }
        }
        let mut filters = Self {
            qdiscs,
            of_hooks: BTreeMap::new(),
        };
        for (ifindex, directions) in devices {
            filters.add(socket, ifindex, directions)?;
        }
        Ok(filters)
    }

    /// Reads those of some devices only.
    pub(in crate::bpf) fn read_of(devices: &[&Link]) -> Result<Self> {
        let socket = &TcSocket::open()?;
        let mut filters = Self {
            qdiscs: socket.qdiscs()?,
            of_hooks: BTreeMap::new(),
        };
        let kinds = filters.qdiscs.iter();
        let kinds = kinds.filter(|qdisc| qdisc.place == Place::Ingress);
        let kinds: BTreeMap<_, _> = kinds.map(|it| (it.ifindex, directions(&it.kind))).collect();
        for ifindex in devices.iter().map(|device| device.ifindex) {
            if let Some(directions) = kinds.get(&ifindex) {
                filters.add(socket, ifindex, directions)?;
            }
        }
        Ok(filters)
    }

    fn add(&mut self, socket: &TcSocket, ifindex: u32, directions: &[Direction]) -> Result<()> {
        for &direction in directions {
            let filters = socket.filters(ifindex, direction)?;
            self.of_hooks.insert((ifindex, direction), filters);
        }
        Ok(())
    }

    /// Filters of a hook.
    pub(super) fn at(&self, ifindex: u32, direction: Direction) -> &[Filter] {
        let found = self.of_hooks.get(&(ifindex, direction));
        found.map_or(&[], Vec::as_slice)
    }

    /// Our filters.
    pub(super) fn ours(&self) -> Vec<Found> {
        let hooks = self.of_hooks.iter();
        let found = hooks.flat_map(|((ifindex, direction), filters)| {
            filters
                .iter()
                .filter_map(|filter| ours(filter, *ifindex, *direction))
        });
        found.collect()
    }
}

/// A filter on a device, if it is ours.
fn ours(filter: &Filter, ifindex: u32, direction: Direction) -> Option<Found> {
    let program = is_ours(filter, direction)?;
    Some(Found {
        hook: Hook { ifindex, program },
        mechanism: Mechanism::Clsact,
        same_version: true,
        program: filter.program,
        link: None,
        revision: None,
    })
}

/// Our filters on a device.
pub(super) fn found_on(
    socket: &TcSocket,
    ifindex: u32,
    directions: &[Direction],
) -> Result<Vec<Found>> {
    let mut found = Vec::new();
    for &direction in directions {
        let filters = socket.filters(ifindex, direction)?;
        let filters = filters.iter();
        found.extend(filters.filter_map(|filter| ours(filter, ifindex, direction)));
    }
    Ok(found)
}

/// Puts our filter on a device, in one step with the removal of the one that is there.
pub(super) fn attach(
    socket: &TcSocket,
    pins: &Pins,
    program: BorrowedFd<'_>,
    hook: Hook,
) -> Result<()> {
    let direction = hook.direction();
    // The kernel would take the filter, and run it at the ingress.
    if direction == Direction::Egress && is_displaced(socket, hook.ifindex)? {
        bail!(no_egress(hook));
    }
    let filters = socket.filters(hook.ifindex, direction)?;
    if let Some(other) = filters.iter().find(|filter| conflicts(filter, direction)) {
        bail!(
            "device {} has a foreign {} filter {:?} with handle {:#x} at our priority {}",
            hook.ifindex,
            other.kind,
            other.name.as_deref().unwrap_or_default(),
            other.handle,
            other.priority
        );
    }
    if !filters
        .iter()
        .any(|filter| is_ours(filter, direction).is_some())
    {
        ensure_qdisc(socket, pins, hook)?;
    }
    socket
        .put_filter(&NewFilter {
            ifindex: hook.ifindex,
            direction,
            priority: constants::TC_PRIORITY,
            handle: constants::TC_HANDLE,
            name: hook.program.name(),
            program,
        })
        .with_context(|| {
            format!(
                "cannot attach {} to device {} by clsact",
                hook.program.name(),
                hook.ifindex
            )
        })
}

/// Adds a clsact qdisc if there is none. A foreign `ingress` qdisc is sufficient for an ingress
/// program: its filters run at the same hook, and one more filter does not change it.
fn ensure_qdisc(socket: &TcSocket, pins: &Pins, hook: Hook) -> Result<()> {
    let ifindex = hook.ifindex;
    match socket.add_clsact(ifindex) {
        Ok(()) => pins.mark(ifindex),
        Err(error) if errno(&error) == Some(libc::EEXIST) => {
            let is_egress = hook.direction() == Direction::Egress;
            if is_egress && is_displaced(socket, ifindex)? {
                bail!(no_egress(hook));
            }
            Ok(())
        }
        Err(error) => {
            Err(error).with_context(|| format!("cannot add a clsact qdisc to device {ifindex}"))
        }
    }
}

/// Why a program of the egress cannot be attached, and what to do.
fn no_egress(hook: Hook) -> String {
    format!(
        "device {} has a foreign ingress qdisc (the CNI bandwidth plugin makes one) in the \
         place of clsact, and so no egress for {}: remove the qdisc, or use TCX (attach: \"auto\" on \
         Linux 6.6 or later)",
        hook.ifindex,
        hook.program.name()
    )
}

fn remove_mark(pins: &Pins, ifindex: u32) -> Result<()> {
    let mark = pins.qdisc(ifindex);
    std::fs::remove_dir(&mark).with_context(|| format!("cannot remove the mark {}", mark.display()))
}

/// Takes our filter off a device, and the qdisc if it is ours and holds nothing else.
pub(super) fn detach(socket: &TcSocket, pins: &Pins, hook: Hook) -> Result<()> {
    let direction = hook.direction();
    let filters = socket.filters(hook.ifindex, direction)?;
    if !filters
        .iter()
        .any(|f| is_ours(f, direction) == Some(hook.program))
    {
        return remove_unused_qdisc(socket, pins, hook.ifindex).map(drop);
    }
    socket.delete_filter(
        hook.ifindex,
        direction,
        constants::TC_PRIORITY,
        constants::TC_HANDLE,
    )?;
    remove_unused_qdisc(socket, pins, hook.ifindex).map(drop)
}

/// Removes a device's clsact qdisc if we made it and no filter is left on it; whether it did.
pub(in crate::bpf) fn remove_unused_qdisc(
    socket: &TcSocket,
    pins: &Pins,
    ifindex: u32,
) -> Result<bool> {
    if !pins.qdisc(ifindex).exists() {
        return Ok(false);
    }
    let removed = socket.ingress_kind(ifindex)?.as_deref() == Some(CLSACT);
    for direction in Direction::ALL {
        if removed && !socket.filters(ifindex, direction)?.is_empty() {
            return Ok(false);
        }
    }
    if removed {
        socket.delete_clsact(ifindex)?;
    }
    remove_mark(pins, ifindex)?;
    Ok(removed)
}
