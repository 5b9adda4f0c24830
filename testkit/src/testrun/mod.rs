//! Runs the programs on single packets (`BPF_PROG_TEST_RUN`).
//!
//! The object is loaded into maps of its own without pins, so that tests affect neither each other
//! nor an agent on the machine.

pub mod asm;
pub mod assembled;
pub mod assembler;
pub mod pool;
pub mod reaper;
pub mod repeat;
pub mod scene;
pub mod snapshot;
pub mod tables;

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::process::Command;

use anyhow::{Context as _, Result, bail, ensure};
use aya::Ebpf;
use aya::maps::lpm_trie::Key;
use aya::maps::{Array, HashMap, LpmTrie};
use aya::programs::tc::{self, SchedClassifierLink, TcAttachType};
use aya::programs::{SchedClassifier, TestRun as _, TestRunOptions};
use aya::util::KernelVersion;
use datapath_common::abi::{Addr, AddressEntry, DestinationClass, EniEntry, map};
use datapath_common::counter::{self, Counter, Program};
use datapath_common::mark::MarkLayout;
use datapath_common::outcome::Outcome;
use ipnet::IpNet;
use loader::bpf::{BlockedSignals, DatapathSettings, Globals, loader};
use nix::sched::{CloneFlags, unshare};

use crate::fabric::command;

/// `TC_ACT_UNSPEC` of `include/uapi/linux/pkt_cls.h`: continue with the next program, then the
/// stack.
pub const PASS: i32 = -1;
/// `TC_ACT_SHOT`: dropped.
pub const DROP: i32 = 2;
/// `TC_ACT_REDIRECT`: to the target of a redirect helper.
pub const REDIRECT: i32 = 7;

/// Offsets into `struct __sk_buff` of `include/uapi/linux/bpf.h`, and its size.
mod context {
    pub(super) const MARK: usize = 8;
    pub(super) const INGRESS_IFINDEX: usize = 36;
    pub(super) const IFINDEX: usize = 40;
    pub(super) const GSO_SIZE: usize = 176;
    pub(super) const SIZE: usize = 192;
}

/// A packet and its metadata.
#[derive(Clone, Debug)]
pub struct Input {
    /// The frame.
    pub frame: Vec<u8>,
    /// Device of the packet. It must exist in the current network namespace, where its MAC decides
    /// if the frame is for this host.
    pub ifindex: u32,
    /// Device that received it; 0 for a packet of the host.
    pub ingress_ifindex: u32,
    /// Its mark.
    pub mark: u32,
    /// Payload of each packet that it aggregates, or 0.
    pub gso_size: u32,
}

/// Result of a program for a packet.
#[derive(Clone, Debug)]
pub struct Output {
    /// The program's return code.
    pub code: i32,
    /// The frame afterwards.
    pub frame: Vec<u8>,
    /// The mark afterwards.
    pub mark: u32,
}

/// The loaded programs and their maps.
pub struct Programs {
    ebpf: Ebpf,
}

impl Programs {
    /// Loads the programs with a layout of the mark, and defaults for other settings.
    ///
    /// # Errors
    /// As [`Self::load_with`].
    pub fn load(layout: MarkLayout) -> Result<Self> {
        Self::load_with(&DatapathSettings::with_mark(layout))
    }

    /// Loads the programs as an agent with these settings does.
    ///
    /// # Errors
    /// When the kernel refuses a program; the error holds the verifier's log.
    pub fn load_with(settings: &DatapathSettings) -> Result<Self> {
        let _blocked = BlockedSignals::new()?;
        let globals = Globals::new(settings, loader::bpf::jiffies_per_second()?);
        let mut loader = loader();
        globals.put(&mut loader);
        let mut ebpf = loader
            .load(loader::bpf::OBJECT)
            .context("the eBPF object; loading it needs root")?;
        for program in Program::ALL {
            classifier(&mut ebpf, program)?
                .load()
                .with_context(|| format!("program {}", program.name()))?;
        }
        Ok(Self { ebpf })
    }

    /// Attaches a program to its hook of a device, for the lifetime of the link.
    ///
    /// It uses TCX, or clsact on kernels without TCX.
    ///
    /// # Errors
    /// When the kernel refuses.
    pub fn attach(&mut self, program: Program, device: &str) -> Result<SchedClassifierLink> {
        if KernelVersion::current()? < KernelVersion::new(6, 6, 0) {
            tc::qdisc_add_clsact(device).with_context(|| format!("clsact on {device}"))?;
        }
        let hook = match program {
            Program::FromEndpoint | Program::FromNetwork => TcAttachType::Ingress,
            Program::ToNetwork | Program::ToEndpoint => TcAttachType::Egress,
        };
        let classifier = classifier(&mut self.ebpf, program)?;
        let link = classifier
            .attach(device, hook)
            .with_context(|| format!("{} on {device}", program.name()))?;
        Ok(classifier.take_link(link)?)
    }

    /// Writes an entry of `ADDRESSES`.
    ///
    /// # Errors
    /// When the kernel refuses it.
    pub fn put_address(&mut self, address: IpAddr, entry: AddressEntry) -> Result<()> {
        let mut map: HashMap<_, Addr, AddressEntry> = self.map(map::ADDRESSES)?.try_into()?;
        map.insert(Addr::from(address), entry, 0)?;
        self.invalidate()
    }

    /// Writes an entry of `DESTINATIONS`.
    ///
    /// # Errors
    /// When the kernel refuses it.
    pub fn put_destination(&mut self, net: IpNet, class: DestinationClass) -> Result<()> {
        let mut map: LpmTrie<_, Addr, DestinationClass> =
            self.map(map::DESTINATIONS)?.try_into()?;
        let (length, address) = Addr::prefix(net);
        map.insert(&Key::new(length, address), class, 0)?;
        self.invalidate()
    }

    /// Writes a slot of `ENIS`, and for a secondary one its entry of `ENI_BY_IFINDEX`.
    ///
    /// # Errors
    /// When the kernel refuses it.
    pub fn put_eni(&mut self, number: u8, entry: EniEntry) -> Result<()> {
        let mut map: Array<_, EniEntry> = self.map(map::ENIS)?.try_into()?;
        map.set(u32::from(number), entry, 0)?;
        if number != 0 && entry.ifindex() != 0 {
            let mut map: HashMap<_, u32, u32> = self.map(map::ENI_BY_IFINDEX)?.try_into()?;
            map.insert(entry.ifindex(), u32::from(number), 0)?;
        }
        self.invalidate()
    }

    /// Runs a program once.
    ///
    /// # Errors
    /// When the kernel refuses the packet.
    pub fn run(&mut self, program: Program, input: &Input) -> Result<Output> {
        let mut context_in = [0; context::SIZE];
        let mut put = |offset: usize, value: u32| {
            context_in[offset..offset + 4].copy_from_slice(&value.to_ne_bytes());
        };
        put(context::MARK, input.mark);
        // Linux 5.10 has no such field; only these programs read it.
        if matches!(program, Program::ToNetwork | Program::ToEndpoint) {
            put(context::INGRESS_IFINDEX, input.ingress_ifindex);
        }
        put(context::IFINDEX, input.ifindex);
        put(context::GSO_SIZE, input.gso_size);
        let mut context_out = [0; context::SIZE];
        let mut frame = vec![0; input.frame.len()];
        let result = classifier(&mut self.ebpf, program)?.test_run(TestRunOptions {
            data_in: Some(&input.frame),
            data_out: Some(&mut frame),
            ctx_in: Some(&context_in),
            ctx_out: Some(&mut context_out),
            ..TestRunOptions::default()
        })?;
        ensure!(
            result.data_size_out as usize == frame.len(),
            "{} made {} bytes of {}",
            program.name(),
            result.data_size_out,
            frame.len()
        );
        let mark = context_out[context::MARK..]
            .first_chunk()
            .copied()
            .map(u32::from_ne_bytes)
            .context("a context without a mark")?;
        Ok(Output {
            code: result.return_value.cast_signed(),
            frame,
            mark,
        })
    }

    /// The counter of one outcome, summed over the CPUs.
    ///
    /// # Errors
    /// When the map cannot be read.
    pub fn counter(&self, program: Program, outcome: Outcome) -> Result<Counter> {
        let slot = program.slot(outcome);
        let sums = self.sums(map::COUNTERS, slot..slot + 1)?;
        Ok(sums.get(&slot).copied().unwrap_or_default())
    }

    /// Every nonzero slot of the counters, including slots without a meaning.
    ///
    /// # Errors
    /// When the map cannot be read.
    pub fn counters(&self) -> Result<BTreeMap<u32, Counter>> {
        self.sums(map::COUNTERS, 0..counter::SLOTS)
    }

    /// The number of instructions that the kernel has kept of a loaded program, without code that
    /// its settings turn off.
    ///
    /// # Errors
    /// When the kernel does not report it.
    pub fn size(&mut self, program: Program) -> Result<u32> {
        /// Bytes of an instruction (`struct bpf_insn` of `include/uapi/linux/bpf.h`).
        const INSTRUCTION: u32 = 8;
        let info = classifier(&mut self.ebpf, program)?.info()?;
        let bytes = info.size_translated();
        Ok(bytes.context("a program without a size")? / INSTRUCTION)
    }

    /// Instructions of a program as the kernel translated them, one in a line, as `bpftool` prints
    /// them.
    ///
    /// # Errors
    /// Without `bpftool`.
    pub fn translated(&mut self, program: Program) -> Result<String> {
        let id = classifier(&mut self.ebpf, program)?.info()?.id();
        let id = id.to_string();
        command::run(Command::new("bpftool").args(["prog", "dump", "xlated", "id", &id]))
    }

    fn map(&mut self, name: &str) -> Result<&mut aya::maps::Map> {
        self.ebpf
            .map_mut(name)
            .with_context(|| format!("the object has no map {name}"))
    }
}

fn classifier(ebpf: &mut Ebpf, program: Program) -> Result<&mut SchedClassifier> {
    let name = program.name();
    let program = ebpf
        .program_mut(name)
        .with_context(|| format!("the object has no program {name}"))?;
    Ok(program.try_into()?)
}

/// Moves this thread into a network namespace of its own, which ends with the thread.
///
/// # Errors
/// Without root.
pub fn private_namespace() -> Result<()> {
    unshare(CloneFlags::CLONE_NEWNET).context("a network namespace of this thread needs root")
}

/// Runs `ip` in this thread's namespace.
///
/// # Errors
/// When it fails; the error holds the command and its errors.
pub fn ip(arguments: &str) -> Result<()> {
    let output = Command::new("ip")
        .args(arguments.split_whitespace())
        .output()
        .context("cannot run ip (package iproute2)")?;
    if !output.status.success() {
        let said = String::from_utf8_lossy(&output.stderr);
        bail!("ip {arguments}: {}", said.trim());
    }
    Ok(())
}
