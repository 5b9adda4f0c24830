//! Memory of the maps, as the kernel accounts it.
//!
//! The source is `memlock` in a map's fdinfo: buckets, entries, the map itself. From Linux 6.4 on
//! it counts the existing entries. It does not count the slab's overhead for an entry, so the
//! growth of the kernel's memory is measured too.

use std::collections::BTreeSet;
use std::fs;
use std::os::fd::{AsFd as _, AsRawFd as _, BorrowedFd};

use anyhow::{Context as _, Result};
use aya::maps::MapInfo;
use aya::programs::loaded_programs;

use super::figures::{against, mebibytes, row};
use super::process::field;
use super::scene::Scene;
use crate::report::{Row, Unit};

/// Target for the memory of the maps on a node without flows, in mebibytes.
const AT_REST: f64 = 16.0;

/// The maps of a node without endpoints and flows.
pub(super) fn at_rest(scene: &Scene) -> Result<Vec<Row>> {
    let used = mebibytes(maps(scene)?);
    let used = row("BPF maps, at rest", used, Unit::Mebibytes);
    Ok(vec![against(AT_REST, used)])
}

/// Bytes of all maps of the programs that the agent holds.
pub(super) fn maps(scene: &Scene) -> Result<u64> {
    let programs = programs_of(scene.agent()?)?;
    let mut maps = BTreeSet::new();
    for program in loaded_programs() {
        // Other processes load and unload programs at any time.
        let Ok(program) = program else { continue };
        if programs.contains(&program.id()) {
            maps.extend(program.map_ids()?.context("the kernel tells no maps")?);
        }
    }
    let mut sum = 0;
    for id in maps {
        sum += memlock(MapInfo::from_id(id)?.fd()?.as_fd())?;
    }
    Ok(sum)
}

/// The ids of the programs that a process has open.
fn programs_of(process: u32) -> Result<BTreeSet<u32>> {
    let mut ids = BTreeSet::new();
    for descriptor in fs::read_dir(format!("/proc/{process}/fdinfo"))? {
        // The descriptor may be closed at any time.
        let text = fs::read_to_string(descriptor?.path()).unwrap_or_default();
        let id = text.lines().find_map(|line| line.strip_prefix("prog_id:"));
        ids.extend(id.map(|id| id.trim().parse::<u32>()).transpose()?);
    }
    Ok(ids)
}

/// Bytes of a map.
pub(super) fn memlock(map: BorrowedFd<'_>) -> Result<u64> {
    let text = fs::read_to_string(format!("/proc/self/fdinfo/{}", map.as_raw_fd()))?;
    let line = text.lines().find_map(|line| line.strip_prefix("memlock:"));
    Ok(line.context("a map's memory")?.trim().parse()?)
}

/// Bytes of the kernel's memory that includes entries of maps.
pub(super) fn kernel() -> Result<u64> {
    let text = fs::read_to_string("/proc/meminfo")?;
    Ok(field(&text, "SUnreclaim:")? + field(&text, "Percpu:")?)
}
