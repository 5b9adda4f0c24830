//! Our programs on their hooks, by TCX or by clsact.
//!
//! Attachments are read from the kernel each time: links by their pins, filters by a dump. Links
//! that were attached are held open as well: a program stays where its pin goes, and is pinned
//! again.

mod clsact;
pub(in crate::bpf) mod foreign;
pub(in crate::bpf) mod tc;
mod tcx;
pub(in crate::bpf) mod via_stack;

use std::collections::{BTreeMap, BTreeSet};

use anyhow::Result;
use api::types::Direction;
use api::types::Mechanism;
use datapath_common::abi;
use datapath_common::counter::Program;

pub(super) use clsact::{Filters, directions, is_ours, remove_unused_qdisc};
pub(super) use tcx::remove;

use crate::bpf::attach::tc::TcSocket;
use crate::bpf::object::Programs;
use crate::bpf::pins::Pins;
use crate::bpf::sys::TcxLink;
use crate::kernel::{Attachment, Hook};

/// Revisions of TCX hooks, by device and direction; none where there is no such device.
pub(super) type Revisions = BTreeMap<(u32, Direction), Option<u64>>;

/// The mechanisms by which programs are attached to both kinds of devices.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Mechanisms {
    /// To ENIs.
    pub(super) enis: Mechanism,
    /// To endpoints' devices. Where ENIs have TCX, a link that is there already does as well.
    pub(super) endpoints: Mechanism,
}

impl Mechanisms {
    /// The mechanism of a program.
    fn of(self, program: Program) -> Mechanism {
        match program {
            Program::FromEndpoint | Program::ToEndpoint => self.endpoints,
            Program::FromNetwork | Program::ToNetwork => self.enis,
        }
    }

    /// True if a program may stay as it is attached.
    fn allow(self, mechanism: Mechanism, program: Program) -> bool {
        mechanism == self.of(program) || mechanism == self.enis
    }
}

/// One thing of ours that was found for a hook.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Found {
    /// The hook.
    hook: Hook,
    /// Its mechanism.
    mechanism: Mechanism,
    /// True if its pin is of this agent's ABI version.
    same_version: bool,
    /// The id of the program that runs; none when nothing runs.
    program: Option<u32>,
    /// The id of the link by which it runs, where it does by one.
    link: Option<u32>,
    /// The revision of its TCX hook, where it runs by a link.
    revision: Option<u64>,
}

/// Our attachments.
pub(super) struct Attached {
    /// The attachment at each hook.
    pub(super) hooks: BTreeMap<Hook, Attachment>,
    /// The ids of the links by which it runs.
    pub(super) links: BTreeSet<u32>,
    /// Hooks whose program runs by a link that has lost its pin.
    pub(super) unpinned: BTreeSet<Hook>,
    /// The revisions of the TCX hooks where pinned links run.
    pub(super) revisions: BTreeMap<Hook, u64>,
    /// The filters of all devices, whoever added them.
    pub(super) filters: Filters,
}

/// The ids of links that are pinned, and of those that are not.
fn ids(pinned: &[Found], unpinned: &BTreeMap<Hook, u32>) -> BTreeSet<u32> {
    let pinned = pinned.iter().filter_map(|one| one.link);
    pinned.chain(unpinned.values().copied()).collect()
}

/// The attachments: how to make them, and with what.
pub(super) struct Attachments {
    mechanisms: Mechanisms,
    pins: Pins,
    programs: Programs,
    /// The links of the hooks, held open.
    held: BTreeMap<Hook, TcxLink>,
    /// Number of links that may be held open: each takes a file descriptor.
    most: usize,
}

impl Attachments {
    pub(super) fn new(mechanisms: Mechanisms, pins: Pins, programs: Programs, most: usize) -> Self {
        Self {
            mechanisms,
            pins,
            programs,
            held: BTreeMap::new(),
            most,
        }
    }

    /// Puts other programs in the place of those that were loaded.
    pub(super) fn replace(&mut self, programs: Programs) {
        self.programs = programs;
    }

    pub(super) fn programs(&self) -> &Programs {
        &self.programs
    }

    pub(super) fn pins(&self) -> &Pins {
        &self.pins
    }

    /// Everything.
    pub(super) fn observe(&self) -> Result<Attached> {
        let filters = Filters::read(&TcSocket::open()?, &self.pins)?;
        let found = tcx::found(self.pins.links()?)?;
        let unpinned = tcx::unpinned(&self.pins, &self.held)?;
        let revisions = found
            .iter()
            .filter_map(|one| Some((one.hook, one.revision?)));
        Ok(Attached {
            revisions: revisions.collect(),
            links: ids(&found, &unpinned),
            unpinned: unpinned.into_keys().collect(),
            hooks: self.judge_all(found.into_iter().chain(filters.ours())),
            filters,
        })
    }

    /// The ids of the links by which our programs run.
    pub(super) fn links(&self) -> Result<BTreeSet<u32>> {
        let found = tcx::found(self.pins.links()?)?;
        Ok(ids(&found, &tcx::unpinned(&self.pins, &self.held)?))
    }

    /// The attachments at the hooks of an endpoint's device.
    pub(super) fn observe_endpoint(&self, ifindex: u32) -> Result<BTreeMap<Hook, Attachment>> {
        let filters = clsact::found_on(&TcSocket::open()?, ifindex, &Direction::ALL)?;
        let hooks = [Program::FromEndpoint, Program::ToEndpoint];
        let hooks = hooks.map(|program| Hook { ifindex, program });
        let links = tcx::found(self.pins.links_of(&hooks)?)?;
        Ok(self.judge_all(links.into_iter().chain(filters)))
    }

    fn judge_all(&self, all: impl Iterator<Item = Found>) -> BTreeMap<Hook, Attachment> {
        let mut found: BTreeMap<Hook, Vec<Found>> = BTreeMap::new();
        for one in all {
            found.entry(one.hook).or_default().push(one);
        }
        found
            .into_iter()
            .map(|(hook, found)| (hook, self.judge(hook, &found)))
            .collect()
    }

    /// Current is a single attachment, by a mechanism that this agent allows, of this agent's
    /// program. A leftover beside it makes the hook stale, so that attaching again clears it.
    fn judge(&self, hook: Hook, found: &[Found]) -> Attachment {
        let current = |one: &Found| {
            self.mechanisms.allow(one.mechanism, hook.program)
                && one.same_version
                && one
                    .program
                    .is_some_and(|id| self.programs.is(hook.program, id))
        };
        match found {
            [one] if current(one) => Attachment::Current,
            all if all.iter().all(|one| one.program.is_none()) => Attachment::Dead,
            _some_run => Attachment::Stale,
        }
    }

    /// Devices where a foreign `ingress` qdisc runs before our programs or leaves them no hook.
    /// None if TCX may be used.
    pub(super) fn displaced(&self) -> Result<BTreeSet<u32>> {
        match self.mechanisms.enis {
            Mechanism::Tcx => Ok(BTreeSet::new()),
            Mechanism::Clsact => clsact::displaced(&TcSocket::open()?),
        }
    }

    /// Attaches our program, or puts it into the place of the one that is there; then takes off
    /// what else of ours is left for the hook: the other mechanism's, other versions'.
    pub(super) fn attach(&mut self, hook: Hook) -> Result<()> {
        match self.mechanism(hook)? {
            Mechanism::Tcx => {
                let held = self.held.get(&hook);
                if let Some(link) = tcx::attach(&self.pins, &self.programs, hook, held)? {
                    self.hold(hook, link);
                }
                clsact::detach(&TcSocket::open()?, &self.pins, hook)?;
                self.remove_pins(hook, |version| version != abi::VERSION)
            }
            Mechanism::Clsact => {
                let program = self.programs.fd(hook.program)?;
                clsact::attach(&TcSocket::open()?, &self.pins, program, hook)?;
                self.let_go(hook);
                self.remove_pins(hook, |_any| true)
            }
        }
    }

    /// The mechanism for a hook of a device. A link or a filter gets its new program in its place.
    /// With a foreign `ingress` qdisc, TCX is used where the kernel has it.
    fn mechanism(&self, hook: Hook) -> Result<Mechanism> {
        let wanted = self.mechanisms.of(hook.program);
        let has_choice = wanted == Mechanism::Clsact && self.mechanisms.enis == Mechanism::Tcx;
        if !has_choice {
            return Ok(wanted);
        }
        if self.pins.link(hook).exists() || self.held.contains_key(&hook) {
            return Ok(Mechanism::Tcx);
        }
        let socket = TcSocket::open()?;
        let directions = [hook.direction()];
        let has_filter = !clsact::found_on(&socket, hook.ifindex, &directions)?.is_empty();
        if !has_filter && clsact::is_displaced(&socket, hook.ifindex)? {
            return Ok(Mechanism::Tcx);
        }
        Ok(Mechanism::Clsact)
    }

    /// Takes everything of ours off a hook; what is not there is success.
    pub(super) fn detach(&mut self, hook: Hook) -> Result<()> {
        self.let_go(hook);
        self.remove_pins(hook, |_any| true)?;
        clsact::detach(&TcSocket::open()?, &self.pins, hook)
    }

    fn hold(&mut self, hook: Hook, link: TcxLink) {
        if self.held.len() < self.most || self.held.contains_key(&hook) {
            self.held.insert(hook, link);
        }
    }

    /// Detaches the held link of a hook, if there is one.
    fn let_go(&mut self, hook: Hook) {
        // One whose device is gone is detached.
        if let Some(link) = self.held.remove(&hook) {
            link.detach().ok();
        }
    }

    /// Lets go of links that run nowhere any more: those of devices that are gone.
    pub(super) fn forget_severed(&mut self) {
        self.held
            .retain(|_, link| !matches!(link.info(), Ok(Some(info)) if info.ifindex == 0));
    }

    fn remove_pins(&self, hook: Hook, which: impl Fn(u32) -> bool) -> Result<()> {
        // By name: a node's other pins are hundreds, and this is done for each of them at a start.
        for version in self.pins.versions()?.into_iter().filter(|v| which(*v)) {
            remove(&self.pins.link_of(version, hook))?;
        }
        self.pins.remove_unused_versions()
    }
}
