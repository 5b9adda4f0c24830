//! The eBPF side of the agent: loads the object, keeps its maps and attachments under a pin folder,
//! and applies the steps of a plan for them.
//!
//! Everything that must outlive the agent is pinned. The state is read only from the pins and the
//! kernel. Maps and links that lose their pins while the agent runs are pinned again
//! (`pins/upkeep.rs`). Links, filters and devices are those of the calling thread's network
//! namespace.

mod attach;
#[cfg(feature = "debug-log")]
mod debug_log;
mod features;
mod flow_maps;
mod jiffies;
mod maps;
mod object;
mod pins;
mod settings;
mod signals;
mod sys;

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::path::PathBuf;

use anyhow::{Result, bail};
use api::types::{Direction, ForeignProgram};
use aya::include_bytes_aligned;
use datapath_common::counter::{Counter, Program};
use datapath_common::outcome::Outcome;
use serde::{Deserialize, Serialize};

pub use attach::foreign::{BpfProgram, programs_on};
pub use features::Features;
pub use flow_maps::nat::{NatSwitch, NatTables};
pub use flow_maps::notes::StackNotes;
pub use jiffies::jiffies_per_second;
pub use object::skip_kernel_btf::loader;
pub use pins::bpffs::prepare;
pub use pins::cleanup::{Removed, remove_pins};
pub use settings::{DatapathMode, DatapathSettings, FlowPorts, Globals, LEAST_NOTES};
pub use signals::BlockedSignals;

use crate::kernel::{Link, MapEntry, MapKey, Observed, StepKind};
use crate::observation::gateways::Gateway;
use crate::observation::ownership::endpoint_device;
use crate::stamp::Stamp;
use attach::Revisions;
use flow_maps::flow_groups::Groups;

/// The object with all programs and maps, as `datapath-build` made it.
pub static OBJECT: &[u8] = include_bytes_aligned!(env!("TOWPATH_DATAPATH_OBJECT"));

/// Open files that are left for everything but links.
const FILES: u64 = 256;

/// Settings of the eBPF side.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BpfOptions {
    /// Folder on a BPF filesystem that holds our pins, such as `/sys/fs/bpf/towpath`.
    pub pin_root: PathBuf,
    /// The mechanism for attaching programs.
    pub attach: AttachMode,
}

/// The mechanism for attaching programs.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum AttachMode {
    /// TCX where the kernel has it, else clsact.
    #[default]
    Auto,
    /// As `auto` for ENIs, and clsact for endpoints' devices: a pod's device is made faster, but
    /// the CNI bandwidth plugin refuses it.
    Mixed,
    /// TCX, or nothing.
    Tcx,
    /// clsact on any kernel, so that a policy agent's filters can run before ours.
    Clsact,
}

/// The parts of the datapath that the care for flows needs.
pub struct ForNat {
    /// The maps of translation.
    pub tables: NatTables,
    /// The switch for exempt packets.
    pub switch: NatSwitch,
    /// The notes of the host's stack.
    pub notes: StackNotes,
}

/// The loaded datapath.
///
/// Dropping it changes nothing in the kernel: attached programs keep running with their maps.
pub struct Datapath {
    maps: maps::Maps,
    gateways: maps::gateways::Gateways,
    nat: Option<ForNat>,
    stack: flow_maps::stack_flows::SharedStack,
    settings: DatapathSettings,
    attachments: attach::Attachments,
    upkeep: pins::upkeep::Upkeep,
    features: Features,
    seen: Seen,
    #[cfg(feature = "debug-log")]
    log: debug_log::DebugLog,
}

/// The last observed state for which the kernel sends no event.
#[derive(Default)]
struct Seen {
    maps: BTreeMap<MapKey, MapEntry>,
    /// Of the TCX hooks with programs: those of our links, and of endpoints' devices those with
    /// programs of others.
    taken: Revisions,
    /// Of the other TCX hooks of endpoints' devices.
    free: Revisions,
    /// The highest id of a link of any owner.
    link: u32,
    pins: Vec<Stamp>,
}

impl Seen {
    /// Notes the newest link; true if it is another one. The kernel numbers links upwards until the
    /// numbers are used up (`bpf_link_alloc_id` in `kernel/bpf/syscall.c`).
    fn takes_new_link(&mut self) -> bool {
        let newest = sys::newest_link(self.link);
        let is_new = newest > self.link;
        self.link = newest;
        is_new
    }
}

/// The revision of a TCX hook; none where it cannot be read.
fn revision((ifindex, direction): (u32, Direction)) -> Option<u64> {
    sys::tcx_revision(ifindex, direction).ok()
}

/// True if one of these hooks has another revision now.
fn have_moved(seen: &Revisions) -> bool {
    let mut seen = seen.iter();
    seen.any(|(hook, seen)| revision(*hook) != *seen)
}

impl Datapath {
    /// Opens or creates the pinned maps and loads the programs. Nothing is attached yet, so the
    /// programs of an earlier agent keep running until [`Self::apply`] replaces them.
    ///
    /// A pinned map that does not match the object and the settings is created again, with a
    /// warning.
    ///
    /// # Errors
    /// If this node does not support the `options`, or if the kernel refuses a map or program. The
    /// error then has the verifier's log.
    pub fn load(options: &BpfOptions, settings: &DatapathSettings) -> Result<Self> {
        if let Err(error) = sys::lift_memory_limit() {
            // It matters before Linux 5.11 only, where making a map then fails with EPERM.
            tracing::debug!("cannot lift the limit on locked memory: {error}");
        }
        let files = sys::lift_file_limit().unwrap_or_default();
        let most = usize::try_from(files.saturating_sub(FILES)).unwrap_or(usize::MAX);
        let features = Features::probe(options.attach)?;
        let mechanisms = attach::Mechanisms {
            enis: features.attach,
            endpoints: features.attach_endpoints,
        };
        prepare(&options.pin_root)?;
        let pins = pins::Pins::new(&options.pin_root);
        pins.create()?;
        object::check_adoption(OBJECT, &pins, settings)?;
        let is_new = Groups::will_be_new(&pins);
        let mut ebpf = object::load(OBJECT, &pins, settings)?;
        if is_new {
            Groups::new(&ebpf)?.count()?;
        }
        #[cfg(feature = "debug-log")]
        let log = debug_log::DebugLog::open(&mut ebpf);
        let programs = object::Programs::load(&mut ebpf)?;
        let stack = flow_maps::stack_flows::SharedStack::new(flow_maps::stack_flows::Stack::new(
            &ebpf,
            programs.reaper()?,
        )?);
        let nat = ForNat {
            switch: NatSwitch::new(&ebpf)?,
            notes: StackNotes::new(&ebpf, stack.clone())?,
            tables: NatTables::with(&ebpf, stack.clone(), jiffies_per_second()?)?,
        };
        let gateways = maps::gateways::Gateways::new(&ebpf)?;
        let maps = maps::Maps::take(&mut ebpf)?;
        let upkeep = pins::upkeep::Upkeep::new(&options.pin_root, &pins)?;
        Ok(Self {
            upkeep,
            maps,
            gateways,
            nat: Some(nat),
            stack,
            settings: settings.clone(),
            attachments: attach::Attachments::new(mechanisms, pins, programs, most),
            features,
            seen: Seen::default(),
            #[cfg(feature = "debug-log")]
            log,
        })
    }

    /// Fills in the maps' entries and the attachments.
    ///
    /// # Errors
    /// When the kernel does not let itself be read.
    pub fn observe(&mut self, observed: &mut Observed) -> Result<()> {
        #[cfg(feature = "debug-log")]
        self.log.forward();
        observed.maps = self.maps.entries()?;
        // Before the hooks, so that the next check sees a program that comes in between.
        self.seen.takes_new_link();
        let attached = self.attachments.observe()?;
        self.seen.maps.clone_from(&observed.maps);
        let ours = attached.revisions.into_iter();
        let ours = ours.map(|(hook, at)| ((hook.ifindex, hook.direction()), Some(at)));
        self.seen.taken = ours.collect();
        observed.attachments = attached.hooks;
        observed.unpinned = attached.unpinned;
        let links = observed.links.values();
        let endpoints = links.filter(|link| endpoint_device(link).is_some());
        let tcx = self.features.tcx.then_some(&attached.links);
        let (via_stack, hooks) = attach::via_stack::list(&attached.filters, tcx, endpoints)?;
        observed.via_stack = via_stack;
        // A revision that was read earlier shows more changes.
        for (hook, revision) in hooks.taken {
            self.seen.taken.entry(hook).or_insert(revision);
        }
        self.seen.free = hooks.free;
        Ok(())
    }

    /// Adds the map entries of these addresses, and the attachments at endpoints' hooks of the
    /// observed devices.
    ///
    /// # Errors
    /// If the kernel's state cannot be read.
    pub fn observe_endpoints<'a>(
        &self,
        addresses: impl IntoIterator<Item = &'a IpAddr>,
        observed: &mut Observed,
    ) -> Result<()> {
        for address in addresses {
            let entry = self.maps.of_address(*address)?;
            observed
                .maps
                .extend(entry.map(|entry| (entry.key(), entry)));
        }
        for ifindex in observed.links.keys() {
            observed
                .attachments
                .extend(self.attachments.observe_endpoint(*ifindex)?);
        }
        Ok(())
    }

    /// Pins maps again that lost their pins, with their folders and file system; true if there were
    /// any.
    ///
    /// A link gets its pin back when its program is attached ([`Self::apply`]). Until then it runs,
    /// because the agent holds it.
    ///
    /// # Errors
    /// If a map cannot be pinned. It then lives as long as the agent.
    pub fn keep_pins(&mut self) -> Result<bool> {
        self.attachments.forget_severed();
        // The stamps are read before the pins, so the next check sees a change in between.
        self.seen.pins = self.attachments.pins().stamps();
        self.upkeep.keep(self.attachments.pins())
    }

    /// True if TCX hooks or pins have changed since the last observation, for which the kernel sends
    /// no event. Costs one system call for each folder and each hook with a program. The other hooks
    /// are looked at when there is a new link. A program that comes there without a link is seen by
    /// the next observation only.
    #[must_use]
    pub fn has_moved(&mut self) -> bool {
        #[cfg(feature = "debug-log")]
        self.log.forward();
        self.seen.pins != self.attachments.pins().stamps()
            || have_moved(&self.seen.taken)
            || (self.features.tcx && self.seen.takes_new_link() && have_moved(&self.seen.free))
    }

    /// True if entries of maps have changed since the last observation.
    ///
    /// # Errors
    /// If the kernel's state cannot be read.
    pub fn have_maps_changed(&self) -> Result<bool> {
        Ok(self.maps.entries()? != self.seen.maps)
    }

    /// The entries of the maps, now.
    ///
    /// # Errors
    /// When the kernel does not let itself be read.
    pub fn map_entries(&self) -> Result<BTreeMap<MapKey, MapEntry>> {
        self.maps.entries()
    }

    /// Gives the programs these gateways for some seconds, as far as the kernel knows their MACs,
    /// and no others.
    ///
    /// # Errors
    /// When the kernel refuses.
    pub fn know_gateways(&mut self, gateways: &[Gateway]) -> Result<()> {
        self.gateways.know(gateways)
    }

    /// Carries out a step that concerns maps or attachments.
    ///
    /// # Errors
    /// When the kernel refuses, or the step is not for the datapath.
    pub fn apply(&mut self, step: &StepKind) -> Result<()> {
        match step {
            StepKind::PutMapEntry(entry) => self.maps.put(entry),
            StepKind::DeleteMapEntry(key) => self.maps.delete(key),
            StepKind::Attach(hook) => self.attachments.attach(*hook),
            StepKind::Detach(hook) => self.attachments.detach(*hook),
            StepKind::SetSysctl(..)
            | StepKind::ReservePorts(_)
            | StepKind::SetMtu { .. }
            | StepKind::SetUp(_)
            | StepKind::CreateEndpointDevice(_)
            | StepKind::DeleteDevice(_)
            | StepKind::AddAddress(_)
            | StepKind::DeleteAddress(_)
            | StepKind::AddRoute(_)
            | StepKind::DeleteRoute(_)
            | StepKind::AddRule(_)
            | StepKind::DeleteRule(_)
            | StepKind::AddNeighbour(_)
            | StepKind::DeleteNeighbour(_) => bail!("{step:?} is not a step of the datapath"),
        }
    }

    /// Packets and bytes by program and outcome, summed over the CPUs; outcomes that never
    /// happened are there with zeros.
    ///
    /// # Errors
    /// When the map cannot be read.
    pub fn counters(&self) -> Result<BTreeMap<(Program, Outcome), Counter>> {
        maps::counters::read(&self.maps.counters)
    }

    /// Loads programs that keep flow marks of the host's stack, with room for `room` of them. The
    /// running programs go on until [`Self::apply`] replaces them, since the next observation finds
    /// them stale.
    ///
    /// # Errors
    /// If the kernel refuses a program. Then the programs that were loaded before stay.
    pub fn keep_notes(&mut self, room: u32) -> Result<()> {
        let settings = DatapathSettings {
            path: DatapathMode::ServiceNat,
            stack: room,
            ..self.settings.clone()
        };
        let pins = self.attachments.pins();
        // A map without a pin would be created again, and empty.
        self.upkeep.keep(pins)?;
        // Programs without flow marks never read the map, so they may hold another one.
        object::make_room_for_notes(pins, room)?;
        self.reload(settings)
    }

    /// Loads programs that assign these ports to flows, and look up flows at the earlier ports as
    /// well. The running programs go on as with [`Self::keep_notes`].
    ///
    /// # Errors
    /// As [`Self::keep_notes`].
    pub fn take_ports(&mut self, ports: FlowPorts) -> Result<()> {
        self.upkeep.keep(self.attachments.pins())?;
        self.reload(DatapathSettings {
            ports,
            ..self.settings.clone()
        })
    }

    /// Loads programs by these settings with the maps that are pinned.
    fn reload(&mut self, settings: DatapathSettings) -> Result<()> {
        let pins = self.attachments.pins();
        let mut ebpf = object::load(OBJECT, pins, &settings)?;
        let programs = object::Programs::load(&mut ebpf)?;
        let stack = flow_maps::stack_flows::Stack::new(&ebpf, programs.reaper()?)?;
        self.upkeep.take_notes(pins)?;
        self.stack.replace(stack);
        self.attachments.replace(programs);
        self.settings = settings;
        Ok(())
    }

    /// The parts for the care of flows; none the second time.
    pub fn take_nat(&mut self) -> Option<ForNat> {
        self.nat.take()
    }

    /// The settings that the programs were loaded with.
    #[must_use]
    pub fn settings(&self) -> &DatapathSettings {
        &self.settings
    }

    /// The kernel's features, as probed at load.
    #[must_use]
    pub fn features(&self) -> &Features {
        &self.features
    }

    /// The loaded programs that the kernel interprets, because its compiler (JIT) is off or gave
    /// them up. Each packet then costs several times as much.
    #[must_use]
    pub fn interpreted(&self) -> Vec<Program> {
        self.attachments.programs().interpreted()
    }

    /// Devices where a foreign `ingress` qdisc has the place of our clsact. Its filters can take
    /// packets before our ingress programs, and it has no egress. None with TCX.
    ///
    /// # Errors
    /// If the kernel's state cannot be read.
    pub fn displaced(&self) -> Result<BTreeSet<u32>> {
        self.attachments.displaced()
    }

    /// Programs and filters of others on `devices`, in the order they run.
    ///
    /// # Errors
    /// When the kernel does not let itself be read.
    pub fn foreign_programs<'a>(
        &self,
        devices: impl IntoIterator<Item = &'a Link>,
    ) -> Result<Vec<ForeignProgram>> {
        let links = self.attachments.links()?;
        let tcx = self.features.tcx.then_some(&links);
        let devices: Vec<&Link> = devices.into_iter().collect();
        let filters = attach::Filters::read_of(&devices)?;
        Ok(attach::foreign::list(&filters, tcx, devices)?.programs)
    }
}
