//! Runs batches, and reports the fault of one.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::fmt::Write as _;
use std::time::{Duration, Instant};

use anyhow::{Result, ensure};
use datapath_common::counter::{Counter, NatStat, Program};
use datapath_common::outcome::{Outcome, Verdict};
use testkit::random::Random;
use testkit::testrun::tables::{Made, Runner};
use testkit::testrun::{DROP, PASS, Programs, REDIRECT, ip};

use super::aim::Aim;
use super::clock::Clock;
use super::frame::{given, hex, is_accepted, is_wrong_sum, show};
use super::node::{self, DEVICES};
use super::preload::Preloader;
use super::snapshot::Tables;
use super::variant::Variant;
use crate::model::stack::StackCounts;
use crate::model::state::State;
use crate::model::wire::{fold, sum};
use crate::model::world::World;
use crate::model::{Packet, Way, parse};

/// Number of times that each outcome occurred, by program.
pub type Outcomes = BTreeMap<(Program, Outcome), u64>;

/// Packets of a batch.
pub const PACKETS: usize = 256;

/// One packet in this many is preceded by a change of the pods that are shaped.
const A_CHANGE_IN: usize = 160;

/// Faults of a batch.
#[derive(Debug)]
pub struct Failure {
    /// The batch's seed.
    pub seed: u64,
    /// The packet that showed the fault, if one did.
    pub packet: Option<usize>,
    /// The fault.
    pub what: String,
}

impl fmt::Display for Failure {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "batch {:#x}", self.seed)?;
        if let Some(packet) = self.packet {
            write!(formatter, ", packet {packet}")?;
        }
        write!(formatter, ": {}", self.what)
    }
}

/// Batches in a row on one variant of the node, so that a short run loads one variant only.
const IN_A_ROW: u64 = 16;

/// Programs with the node's maps, for every variant of the settings that are fixed at load time.
pub struct Fuzzer {
    object: Vec<u8>,
    extra: Option<(&'static str, u32)>,
    /// Loaded when a batch needs them.
    loaded: [Option<Loaded>; Variant::ALL.len()],
    /// Outcomes that occurred, by program.
    pub outcomes: Outcomes,
}

/// The programs, loaded for one variant.
struct Loaded {
    programs: Programs,
    tables: Tables,
    runners: BTreeMap<Program, Runner>,
    world: World,
    clock: Clock,
    /// Expected counters.
    counted: BTreeMap<u32, Counter>,
}

/// Result of the packets of a batch.
enum Ran {
    /// No fault.
    Well,
    /// The kernel reports a wrong checksum for this packet.
    WrongSum(usize),
    /// Another fault.
    Badly(Failure),
}

/// Makes the node's devices in this thread's namespace.
///
/// # Errors
/// Without root.
pub fn make_devices() -> Result<()> {
    let text = |mac: [u8; 6]| mac.map(|byte| format!("{byte:02x}")).join(":");
    for pair in DEVICES.chunks(2) {
        let [one, two] = pair else { continue };
        ip(&format!(
            "link add index {} address {} type veth peer index {} address {}",
            one.ifindex,
            text(one.mac),
            two.ifindex,
            text(two.mac),
        ))?;
    }
    Ok(())
}

impl Fuzzer {
    /// Fuzzes the programs of an object, loaded with this global in addition to the settings.
    #[must_use]
    pub fn new(object: Vec<u8>, extra: Option<(&'static str, u32)>) -> Self {
        Self {
            object,
            extra,
            loaded: [const { None }; Variant::ALL.len()],
            outcomes: BTreeMap::new(),
        }
    }

    /// Runs a batch and returns its fault, if any. The devices must exist.
    ///
    /// # Errors
    /// When something fails that is not under test.
    pub fn run(&mut self, seed: u64) -> Result<Option<Failure>> {
        let index = usize::try_from(seed / IN_A_ROW % self.loaded.len() as u64)?;
        let slot = &mut self.loaded[index];
        let loaded = match slot {
            Some(loaded) => loaded,
            None => slot.insert(Loaded::new(&self.object, &Variant::ALL[index], self.extra)?),
        };
        let mut unsummed = BTreeSet::new();
        loop {
            let mut batch = Batch::new(loaded, seed, &unsummed)?;
            let ran = batch.run()?;
            match ran {
                Ran::Well => {
                    for (key, times) in batch.outcomes {
                        *self.outcomes.entry(key).or_default() += times;
                    }
                    return Ok(None);
                }
                Ran::Badly(failure) => return Ok(Some(failure)),
                // The kernel compares checksums as numbers, where two numbers stand for zero. A run
                // without its check returns the packet, which shows if that was the reason.
                Ran::WrongSum(packet) => {
                    ensure!(unsummed.insert(packet), "a sum that was not requested");
                }
            }
        }
    }

    /// Compares every counter at the end of a run.
    ///
    /// # Errors
    /// When one is not what the packets add up to.
    pub fn finish(&self) -> Result<()> {
        for loaded in self.loaded.iter().flatten() {
            let found = loaded.programs.counters()?;
            ensure!(
                found == loaded.counted,
                "counters are {found:?}, not {:?}",
                loaded.counted
            );
        }
        Ok(())
    }
}

impl Loaded {
    fn new(object: &[u8], variant: &Variant, extra: Option<(&'static str, u32)>) -> Result<Self> {
        let mut programs = Programs::load_object(object, &variant.settings()?, extra)?;
        let world = node::world(variant)?;
        node::fill(&mut programs, &world)?;
        let mut runners = BTreeMap::new();
        for program in Program::ALL {
            runners.insert(program, programs.runner(program)?);
        }
        let tables = Tables::of(&programs, variant.is_counted)?;
        let clock = Clock::read(&runners, &tables)?;
        let counted = programs.counters()?;
        Ok(Self {
            programs,
            tables,
            runners,
            world,
            clock,
            counted,
        })
    }
}

/// A seed that does not look like its neighbours, and is not 0: the finaliser of `SplitMix64`
/// (Steele and others, "Fast splittable pseudorandom number generators", 2014).
pub(super) fn mixed(seed: u64) -> u64 {
    let seed = seed.wrapping_add(0x9e37_79b9_7f4a_7c15);
    let seed = (seed ^ (seed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let seed = (seed ^ (seed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    (seed ^ (seed >> 31)) | 1
}

/// A batch that is running.
struct Batch<'a> {
    loaded: &'a mut Loaded,
    seed: u64,
    random: Random,
    /// Packets without the kernel's checksum test.
    unsummed: &'a BTreeSet<usize>,
    state: State,
    begin: u64,
    started: Instant,
    /// Counters of flows through the stack at the beginning of the batch.
    noted: StackCounts,
    outcomes: Outcomes,
}

impl<'a> Batch<'a> {
    /// Makes the node as it is when the batch begins.
    fn new(loaded: &'a mut Loaded, seed: u64, unsummed: &'a BTreeSet<usize>) -> Result<Self> {
        let mut random = Random::new(mixed(seed));
        loaded.tables.clear()?;
        node::choose_policy(&mut loaded.programs, &mut loaded.world, &mut random)?;
        node::choose_shaped(&mut loaded.programs, &mut loaded.world, &mut random)?;
        let (begin, started) = (loaded.clock.now()?, Instant::now());
        let preloader = Preloader {
            world: &loaded.world,
            tables: &loaded.tables,
            random: &mut random,
            state: State::default(),
            now: begin,
        };
        let state = preloader.preload(&loaded.programs)?;
        loaded.tables.count_notes()?;
        let noted = stack_counts(&loaded.programs)?;
        Ok(Self {
            noted,
            loaded,
            seed,
            random,
            unsummed,
            state,
            begin,
            started,
            outcomes: BTreeMap::new(),
        })
    }

    fn failure(&self, packet: Option<usize>, what: String) -> Ran {
        Ran::Badly(Failure {
            seed: self.seed,
            packet,
            what,
        })
    }

    fn run(&mut self) -> Result<Ran> {
        for number in 0..PACKETS {
            if self.random.below(A_CHANGE_IN) == 0 {
                let Loaded {
                    programs, world, ..
                } = &mut *self.loaded;
                node::choose_shaped(programs, world, &mut self.random)?;
            }
            let mut aim = Aim {
                world: &self.loaded.world,
                state: &self.state,
                random: &mut self.random,
            };
            let (program, packet) = aim.packet();
            let wants_sum = self.random.below(2) == 0;
            if !is_accepted(&packet.frame) {
                continue;
            }
            let is_summed = wants_sum && !self.unsummed.contains(&number);
            let made = match self.loaded.runners[&program].run(&given(&packet, is_summed)) {
                Ok(made) => made,
                Err(error) if is_summed && is_wrong_sum(&error) => {
                    self.loaded.counted = self.loaded.programs.counters()?;
                    return Ok(Ran::WrongSum(number));
                }
                Err(error) => return Err(error),
            };
            if let Some(what) = self.judge(program, &packet, &made, number)? {
                self.loaded.counted = self.loaded.programs.counters()?;
                return Ok(self.failure(Some(number), what));
            }
        }
        // A flow of this batch is no stream yet, unless another process had the processor.
        let is_slow = self.started.elapsed() > Duration::from_secs(1);
        let tables = &mut self.loaded.tables;
        let mut differences = tables.compare(&self.state, self.begin, is_slow)?;
        differences.extend(self.compare_counters()?);
        differences.extend(self.compare_noted()?);
        if differences.is_empty() {
            return Ok(Ran::Well);
        }
        Ok(self.failure(None, differences.join("\n")))
    }

    /// The fault of a packet's result, if any.
    fn judge(
        &mut self,
        program: Program,
        packet: &Packet,
        made: &Made,
        number: usize,
    ) -> Result<Option<String>> {
        let world = &self.loaded.world;
        let predicted = match self.state.predict(world, program, packet, &made.frame) {
            Ok(predicted) => predicted,
            Err(what) => return Ok(Some(self.describe(program, packet, made, &what)?)),
        };
        let code = match predicted.next {
            Way::Pass => PASS,
            Way::Redirect => REDIRECT,
            Way::Drop => DROP,
        };
        let wanted = Made {
            code,
            frame: predicted.frame,
            mark: predicted.mark,
        };
        // Contents of a dropped packet do not matter.
        let is_same = made.code == code
            && (code == DROP || made.frame == wanted.frame && made.mark == wanted.mark);
        if !is_same {
            let outcome = predicted.outcome.map_or("nothing", Outcome::name);
            let what = format!("wanted {outcome}: {}", show(&wanted));
            return Ok(Some(self.describe(program, packet, made, &what)?));
        }
        let is_zero = || matches!(fold(sum(&made.frame[parse::ETHERNET..])), 0 | 0xffff);
        if self.unsummed.contains(&number) && !is_zero() {
            let what = "the sum of the whole packet was not kept".to_owned();
            return Ok(Some(self.describe(program, packet, made, &what)?));
        }
        if let Some(outcome) = predicted.outcome {
            *self.outcomes.entry((program, outcome)).or_default() += 1;
            let counter = self
                .loaded
                .counted
                .entry(program.slot(outcome))
                .or_default();
            counter.packets += 1;
            counter.bytes += packet.frame.len() as u64;
        }
        Ok(None)
    }

    fn compare_counters(&mut self) -> Result<Vec<String>> {
        let mut differences = Vec::new();
        for (program, outcome) in self.outcomes.keys() {
            let found = self.loaded.programs.counter(*program, *outcome)?;
            let wanted = self.loaded.counted[&program.slot(*outcome)];
            if found != wanted {
                let (program, outcome) = (program.name(), outcome.name());
                differences.push(format!("{program} {outcome}: {found:?}, not {wanted:?}"));
            }
        }
        if !differences.is_empty() {
            self.loaded.counted = self.loaded.programs.counters()?;
        }
        Ok(differences)
    }

    /// Compares the numbers of flows through the stack that were stored, and that could not be.
    fn compare_noted(&self) -> Result<Option<String>> {
        let since = |now: [u64; 2], begin: [u64; 2]| [now[0] - begin[0], now[1] - begin[1]];
        let (now, begin) = (stack_counts(&self.loaded.programs)?, self.noted);
        let found = StackCounts {
            noted: since(now.noted, begin.noted),
            failed: since(now.failed, begin.failed),
        };
        let wanted = self.state.stack_counts;
        Ok((found != wanted).then(|| format!("{found:?}, not {wanted:?}")))
    }

    /// The counters that the last packet moved.
    fn counted(&self, program: Program) -> Result<String> {
        let counted = &self.loaded.counted;
        let moved: Vec<String> = self
            .loaded
            .programs
            .counters()?
            .into_iter()
            .filter(|(slot, counter)| counted.get(slot) != Some(counter))
            .map(|(slot, _)| {
                let first = program.slot(Outcome::Passed(Verdict::Local));
                slot.checked_sub(first)
                    .and_then(|code| u8::try_from(code).ok())
                    .and_then(Outcome::from_code)
                    .map_or(format!("slot {slot}"), |outcome| outcome.name().to_owned())
            })
            .collect();
        Ok(moved.join(", "))
    }

    /// All data needed to reproduce a packet.
    fn describe(
        &self,
        program: Program,
        packet: &Packet,
        made: &Made,
        what: &str,
    ) -> Result<String> {
        let mut text = format!("{}: {what}\n", program.name());
        writeln!(text, "  made   {}", show(made))?;
        writeln!(text, "  counted {}", self.counted(program)?)?;
        writeln!(
            text,
            "  of     device {} from {} mark {:#x} gso {} frame {}",
            packet.ifindex,
            packet.ingress_ifindex,
            packet.mark,
            packet.gso_size,
            hex(&packet.frame)
        )?;
        writeln!(text, "  settings {:?}", self.loaded.world.settings)?;
        for (outside, flow) in &self.state.flows {
            writeln!(text, "  {outside:?} {flow:?}")?;
        }
        for (datagram, ports) in &self.state.datagrams {
            writeln!(text, "  {datagram:?} {ports:?}")?;
        }
        for inside in self.state.inbound.keys() {
            writeln!(text, "  inbound {inside:?}")?;
        }
        for (inside, flow) in &self.state.stack {
            writeln!(text, "  of the stack {inside:?} {flow:?}")?;
        }
        writeln!(text, "  quota {:?}", self.state.quota)?;
        Ok(text)
    }
}

/// Counters of flows through the stack.
fn stack_counts(programs: &Programs) -> Result<StackCounts> {
    let of = |stat| {
        Ok([
            programs.nat_stat(stat, true)?,
            programs.nat_stat(stat, false)?,
        ])
    };
    let (noted, failed): (Result<_>, _) = (of(NatStat::StackNoted), of(NatStat::StackFailed));
    Ok(StackCounts {
        noted: noted?,
        failed: failed?,
    })
}
