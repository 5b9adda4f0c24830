//! Loading: which pinned maps may be adopted, and the programs.

pub(in crate::bpf) mod skip_kernel_btf;

use std::collections::BTreeMap;
use std::iter;
use std::num::NonZero;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Mutex;
use std::thread;

use anyhow::{Context, Result};
use aya::Ebpf;
use aya::maps::{MapInfo, MapType};
use aya::programs::{ProgramFd, SchedClassifier};
use datapath_common::abi::map;
use datapath_common::config;
use datapath_common::counter::Program;

use crate::bpf::jiffies::jiffies_per_second;
use crate::bpf::pins::{self, Pins};
use crate::bpf::settings::{DatapathSettings, Globals};
use crate::bpf::signals::BlockedSignals;

/// The properties in which a pinned map must agree with the object. aya opens a pin without
/// checking them, and then relies on the object's sizes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Shape {
    map_type: u32,
    key_size: u32,
    value_size: u32,
    max_entries: u32,
    flags: u32,
}

impl Shape {
    fn of_object(map: &aya_obj::Map, capacity: Option<u32>) -> Self {
        Self {
            map_type: map.map_type(),
            key_size: map.key_size(),
            value_size: map.value_size(),
            max_entries: capacity.unwrap_or_else(|| map.max_entries()),
            flags: map.map_flags(),
        }
    }

    fn of_kernel(info: &MapInfo) -> Self {
        Self {
            // A type that aya does not know is none that we use.
            map_type: info.map_type().unwrap_or(MapType::Unspecified) as u32,
            key_size: info.key_size(),
            value_size: info.value_size(),
            max_entries: info.max_entries(),
            flags: info.map_flags(),
        }
    }

    /// The differences in words; empty when the shapes are equal.
    fn differences(self, wanted: Self) -> Vec<String> {
        [
            ("type", self.map_type, wanted.map_type),
            ("key_size", self.key_size, wanted.key_size),
            ("value_size", self.value_size, wanted.value_size),
            ("max_entries", self.max_entries, wanted.max_entries),
            ("flags", self.flags, wanted.flags),
        ]
        .into_iter()
        .filter(|(_, is, wanted)| is != wanted)
        .map(|(field, is, wanted)| format!("{field} is {is}, wanted {wanted}"))
        .collect()
    }
}

/// Maps that are recreated together with another one, because their entries refer to its entries.
const TOGETHER: [(&str, &str); 2] = [
    (map::FLOWS_V4, map::MOVED_V4),
    (map::FLOWS_V6, map::MOVED_V6),
];

/// The loss with a map that is created again; none where the contents follow from the desired
/// state, and are written again before any program is switched.
fn loss(name: &str) -> Option<&'static str> {
    match name {
        map::FLOWS_V4 | map::FLOWS_V6 => Some("the translated flows of this family break"),
        map::MOVED_V4 | map::MOVED_V6 => Some("translated flows off their own port break"),
        map::INBOUND => {
            Some("answers to connections from the outside may be translated, or dropped")
        }
        map::STACK => Some("connections by service NAT break that conntrack does not tell of"),
        map::COUNTERS | map::NAT_STATS => Some("the counters start at 0"),
        _follows => None,
    }
}

/// Removes the pin of every map whose shape is not that of the object and the settings, so that
/// loading recreates it. Running programs keep their map until they are replaced.
pub(super) fn check_adoption(
    object: &[u8],
    pins: &Pins,
    settings: &DatapathSettings,
) -> Result<()> {
    let pinned = |name: &&str| pins.map(name).exists();
    // To parse the object takes a millisecond or two of a cold start.
    if !map::PINNED.iter().any(pinned) {
        return Ok(());
    }
    let object = aya_obj::Object::parse(object).context("cannot parse the eBPF object")?;
    for name in map::PINNED.into_iter().filter(pinned) {
        let path = pins.map(name);
        let wanted = object
            .maps
            .get(name)
            .with_context(|| format!("the eBPF object has no map {name}"))?;
        let mut wanted = Shape::of_object(wanted, settings.capacity(name));
        let differences = match MapInfo::from_pin(&path) {
            Ok(info) => {
                let is = Shape::of_kernel(&info);
                // A larger map than wanted need not be recreated.
                if name == map::STACK {
                    wanted.max_entries = wanted.max_entries.max(is.max_entries);
                }
                is.differences(wanted)
            }
            Err(error) => vec![format!("it cannot be opened as a map: {error}")],
        };
        if differences.is_empty() {
            continue;
        }
        tracing::warn!(
            map = name,
            lost = loss(name).unwrap_or("nothing"),
            "replacing a pinned map that does not fit: {}",
            differences.join("; ")
        );
        pins::remove(&path)?;
    }
    for (name, about) in TOGETHER {
        if !pins.map(name).exists() {
            pins::remove(&pins.map(about))?;
        }
    }
    Ok(())
}

/// Removes the pin of the map of flow marks if it is smaller than wanted, so that loading recreates
/// it.
pub(super) fn make_room_for_notes(pins: &Pins, room: u32) -> Result<()> {
    let path = pins.map(map::STACK);
    match MapInfo::from_pin(&path) {
        Ok(info) if info.max_entries() < room => pins::remove(&path),
        // Loading reports a pin that cannot be opened.
        Ok(_) | Err(_) => Ok(()),
    }
}

/// Loads the object: opens or makes the pinned maps, fixes the globals.
pub(super) fn load(object: &[u8], pins: &Pins, settings: &DatapathSettings) -> Result<Ebpf> {
    // aya probes the kernel with programs of its own.
    let _blocked = BlockedSignals::new()?;
    let globals = Globals::new(settings, jiffies_per_second()?);
    let mut loader = skip_kernel_btf::loader();
    globals.put(&mut loader);
    for name in map::PINNED {
        loader.map_pin_path(name, pins.map(name));
    }
    loader.load(object).context("cannot load the eBPF object")
}

/// A program in the kernel.
struct Loaded {
    fd: ProgramFd,
    id: u32,
    /// True if the kernel's compiler (JIT) made machine code of it.
    is_compiled: bool,
}

impl Loaded {
    /// Hands a program to the kernel. An error carries the verifier's log.
    fn load(program: &mut aya::programs::Program, name: &str) -> Result<Self> {
        let classifier: &mut SchedClassifier = program
            .try_into()
            .with_context(|| format!("the program {name} is no classifier"))?;
        classifier
            .load()
            .with_context(|| format!("the kernel refuses the program {name}"))?;
        let fd = classifier
            .fd()
            .and_then(|fd| Ok(fd.try_clone()?))
            .with_context(|| format!("cannot hold the program {name}"))?;
        let info = classifier
            .info()
            .with_context(|| format!("cannot read the program {name}"))?;
        Ok(Self {
            fd,
            id: info.id(),
            is_compiled: info.size_jitted() > 0,
        })
    }
}

/// The programs in the order of their verification times, longest first, so that no long one is
/// left at the end, when the other CPUs are idle.
const DEAREST_FIRST: [&str; 5] = [
    Program::FromEndpoint.name(),
    Program::ToNetwork.name(),
    Program::FromNetwork.name(),
    Program::ToEndpoint.name(),
    config::program::REAPER,
];

/// The programs that this agent loaded.
pub(super) struct Programs {
    attached: BTreeMap<Program, Loaded>,
    reaper: ProgramFd,
}

impl Programs {
    /// Loads all programs into the kernel, one on each CPU at a time: the kernel verifies each on
    /// the caller's CPU, which takes most of the time. An error has the verifier's log.
    pub(super) fn load(ebpf: &mut Ebpf) -> Result<Self> {
        let _blocked = BlockedSignals::new()?;
        let programs = ebpf.programs_mut();
        let mut programs: Vec<_> = programs.map(|(name, p)| (name.to_owned(), p)).collect();
        programs.sort_by_key(|(name, _)| DEAREST_FIRST.iter().position(|dear| dear == name));
        let workers = thread::available_parallelism().map_or(1, NonZero::get);
        let workers = workers.min(programs.len());
        let queue = Mutex::new(programs.into_iter());
        let next = || queue.lock().ok()?.next();
        let work = || -> Vec<_> {
            let programs = iter::from_fn(next);
            let loaded = programs.map(|(name, p)| (Loaded::load(p, &name), name));
            loaded.map(|(loaded, name)| (name, loaded)).collect()
        };
        let mut loaded: BTreeMap<String, Result<Loaded>> = thread::scope(|scope| {
            let threads: Vec<_> = (0..workers).map(|_| scope.spawn(work)).collect();
            let ended = threads.into_iter().flat_map(|thread| match thread.join() {
                Ok(loaded) => loaded,
                Err(panic) => std::panic::resume_unwind(panic),
            });
            ended.collect()
        });
        let mut take = |name: &str| {
            let program = loaded.remove(name);
            program.with_context(|| format!("the eBPF object has no program {name}"))?
        };
        let attached = Program::ALL
            .into_iter()
            .map(|program| Ok((program, take(program.name())?)));
        Ok(Self {
            attached: attached.collect::<Result<_>>()?,
            reaper: take(config::program::REAPER)?.fd,
        })
    }

    /// A descriptor of the reaper, which is run and attached nowhere.
    pub(super) fn reaper(&self) -> Result<OwnedFd> {
        let fd = self.reaper.as_fd().try_clone_to_owned();
        fd.context("cannot hold the reaper")
    }

    /// The programs of packets that the kernel interprets.
    pub(super) fn interpreted(&self) -> Vec<Program> {
        let interpreted = self.attached.iter();
        let interpreted = interpreted.filter(|(_, loaded)| !loaded.is_compiled);
        interpreted.map(|(program, _)| *program).collect()
    }

    fn get(&self, program: Program) -> Result<&Loaded> {
        self.attached
            .get(&program)
            .with_context(|| format!("the program {} is not loaded", program.name()))
    }

    /// The program's descriptor.
    pub(super) fn fd(&self, program: Program) -> Result<BorrowedFd<'_>> {
        Ok(self.get(program)?.fd.as_fd())
    }

    /// True if an id is that of the program as this agent loaded it.
    pub(super) fn is(&self, program: Program, id: u32) -> bool {
        self.attached
            .get(&program)
            .is_some_and(|loaded| loaded.id == id)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_field_of_a_shape_is_compared() {
        let wanted = Shape {
            map_type: 1,
            key_size: 16,
            value_size: 28,
            max_entries: 64,
            flags: 0,
        };
        assert!(wanted.differences(wanted).is_empty());
        let other = Shape {
            map_type: 2,
            key_size: 17,
            value_size: 29,
            max_entries: 65,
            flags: 1,
        };
        let differences = other.differences(wanted);
        assert_eq!(differences.len(), 5);
        assert_eq!(differences[0], "type is 2, wanted 1");
    }
}
