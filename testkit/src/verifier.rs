//! Statistics of the kernel's verifier for programs that it accepts.
//!
//! aya shows the verifier's log of refused programs only. This module loads each program once, as
//! aya does, and keeps the statistics of the log.

use std::collections::{BTreeMap, HashSet};
use std::os::fd::{AsFd as _, AsRawFd as _, BorrowedFd, FromRawFd as _, OwnedFd, RawFd};
use std::{fs, io};

use anyhow::{Context as _, Result, ensure};
use aya::Ebpf;
use aya::maps::Map;
use aya_obj::generated::{bpf_attr, bpf_cmd, bpf_prog_type};
use aya_obj::{Function, Object};
use loader::bpf::{BlockedSignals, DatapathMode, DatapathSettings, Globals, loader};
use nix::sys::resource::{RLIM_INFINITY, Resource, setrlimit};
use serde::Serialize;

/// `BPF_LOG_STATS` of `include/linux/bpf_verifier.h`: a log of a few lines of figures.
const STATISTICS: u32 = 4;
/// Room for the figures, and for the first words of a refusal.
const LOG_SIZE: usize = 64 * 1024;

/// Cost of verifying a program.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct Cost {
    /// Instructions that the verifier walked.
    pub verified_instructions: u64,
    /// States of registers and stack that it kept, in total.
    pub total_states: u64,
    /// The most states that it kept at one time.
    pub peak_states: u64,
    /// The time that it took, in microseconds.
    pub microseconds: u64,
}

impl Cost {
    /// Reads the statistics in the verifier's log (`print_verification_stats` of
    /// `kernel/bpf/verifier.c`).
    fn parse(log: &str) -> Option<Self> {
        let words: Vec<_> = log.split_whitespace().collect();
        let after = |name: &str| {
            let place = words.iter().position(|word| *word == name)?;
            words.get(place + 1)?.parse().ok()
        };
        Some(Self {
            verified_instructions: after("processed")?,
            total_states: after("total_states")?,
            peak_states: after("peak_states")?,
            microseconds: after("time")?,
        })
    }
}

/// The settings with the most code to verify: the verifier skips code that a setting turns off.
fn settings() -> DatapathSettings {
    DatapathSettings {
        masquerade_v6: true,
        path: DatapathMode::ServiceNat,
        ..DatapathSettings::default()
    }
}

/// Makes the kernel verify every program of an object, with all of their code in use.
///
/// # Errors
/// Without root; when the kernel refuses a program: the error holds the verifier's log.
pub fn verify(object: &[u8]) -> Result<BTreeMap<String, Cost>> {
    // Kernels before 5.11 count programs as locked memory. On others a failure does not matter.
    let _lifted = setrlimit(Resource::RLIMIT_MEMLOCK, RLIM_INFINITY, RLIM_INFINITY);
    let _blocked = BlockedSignals::new()?;
    let globals = Globals::new(&settings(), loader::bpf::jiffies_per_second()?);
    let mut loader = loader();
    globals.put(&mut loader);
    let maps = loader
        .load(object)
        .context("the eBPF object; loading it needs root")?;
    let mut object = Object::parse(object)?;
    let types = load_types(&mut object)?;
    link(&mut object, &maps)?;
    let mut costs = BTreeMap::new();
    for (name, program) in &object.programs {
        let function = object
            .functions
            .get(&program.function_key())
            .with_context(|| format!("program {name} has no code"))?;
        let cost = load(function, &object, types.as_ref().map(OwnedFd::as_fd))
            .with_context(|| format!("the kernel refuses program {name}"))?;
        costs.insert(name.clone(), cost);
    }
    Ok(costs)
}

/// Loads the object's types into the kernel.
///
/// By them it recognises global functions, which it verifies separately.
fn load_types(object: &mut Object) -> Result<Option<OwnedFd>> {
    let Some(features) = aya::features().btf() else {
        return Ok(None);
    };
    let Some(types) = object.fixup_and_sanitize_btf(features)? else {
        return Ok(None);
    };
    let bytes = types.to_bytes();
    let mut attribute = empty();
    // SAFETY: every field is a plain number, for which all bits are valid.
    let fields = unsafe { &mut attribute.__bindgen_anon_7 };
    fields.btf = bytes.as_ptr() as u64;
    fields.btf_size = u32::try_from(bytes.len())?;
    let types = bpf(bpf_cmd::BPF_BTF_LOAD, &mut attribute);
    Ok(Some(
        types.context("the kernel refuses the object's types")?,
    ))
}

/// Puts maps and called functions into the programs.
fn link(object: &mut Object, maps: &Ebpf) -> Result<()> {
    let sections: HashSet<_> = object
        .functions
        .keys()
        .map(|(section, _)| *section)
        .collect();
    let descriptions = object.maps.clone();
    let maps = maps
        .maps()
        .filter_map(|(name, map)| Some((name, descriptor(map)?, descriptions.get(name)?)));
    object.relocate_maps(maps, &sections)?;
    object.relocate_calls(&sections)?;
    object.sanitize_functions(aya::features());
    Ok(())
}

/// Descriptor of a map; `None` for a type that we do not use.
fn descriptor(map: &Map) -> Option<RawFd> {
    match map {
        Map::Array(map)
        | Map::HashMap(map)
        | Map::LpmTrie(map)
        | Map::LruHashMap(map)
        | Map::PerCpuArray(map)
        | Map::PerfEventArray(map)
        | Map::RingBuf(map) => Some(map.fd().as_fd().as_raw_fd()),
        _other => None,
    }
}

fn load(function: &Function, object: &Object, types: Option<BorrowedFd<'_>>) -> Result<Cost> {
    let functions = function.func_info.func_info_bytes();
    let mut log = vec![0; LOG_SIZE];
    let mut attribute = empty();
    // SAFETY: every field is a plain number, for which all bits are valid.
    let fields = unsafe { &mut attribute.__bindgen_anon_3 };
    fields.prog_type = bpf_prog_type::BPF_PROG_TYPE_SCHED_CLS as u32;
    fields.insns = function.instructions.as_ptr() as u64;
    fields.insn_cnt = u32::try_from(function.instructions.len())?;
    fields.license = object.license.as_ptr() as u64;
    fields.log_level = STATISTICS;
    fields.log_buf = log.as_mut_ptr() as u64;
    fields.log_size = u32::try_from(log.len())?;
    if let Some(types) = types {
        fields.prog_btf_fd = types.as_raw_fd().cast_unsigned();
        fields.func_info = functions.as_ptr() as u64;
        fields.func_info_rec_size = u32::try_from(function.func_info_rec_size)?;
        fields.func_info_cnt = u32::try_from(function.func_info.len())?;
    }
    let loaded = bpf(bpf_cmd::BPF_PROG_LOAD, &mut attribute);
    let log = String::from_utf8_lossy(&log);
    let log = log.trim_end_matches('\0').trim_end();
    let program = loaded.with_context(|| log.to_owned())?;
    ensure_compiled(&program)?;
    Cost::parse(log).with_context(|| format!("the verifier's statistics are unknown: {log}"))
}

/// Fails for a program that the kernel's compiler (JIT) gave up. Such a program runs by the
/// interpreter, and kernels without one refuse it.
fn ensure_compiled(program: &OwnedFd) -> Result<()> {
    let enabled = fs::read_to_string("/proc/sys/net/core/bpf_jit_enable")?;
    let facts = fs::read_to_string(format!("/proc/self/fdinfo/{}", program.as_raw_fd()))?;
    let is_compiled = facts
        .lines()
        .any(|line| line.split_whitespace().eq(["prog_jited:", "1"]));
    ensure!(
        is_compiled || enabled.trim() == "0",
        "the kernel's compiler (JIT) gave it up, see dmesg"
    );
    Ok(())
}

/// An attribute of bpf(2) with all fields zero.
fn empty() -> bpf_attr {
    // SAFETY: every part of it is plain numbers, for which zeros are valid.
    unsafe { std::mem::zeroed() }
}

/// Calls bpf(2) for a new descriptor. The caller keeps alive the buffers that the attribute points
/// to.
fn bpf(command: bpf_cmd, attribute: &mut bpf_attr) -> io::Result<OwnedFd> {
    // SAFETY: the attribute is whole and live, and callers fill it from live buffers.
    let result = unsafe {
        libc::syscall(
            libc::SYS_bpf,
            command,
            std::ptr::from_mut(attribute),
            size_of::<bpf_attr>(),
        )
    };
    match RawFd::try_from(result) {
        // SAFETY: the commands that are used here return a new descriptor, which nothing else owns.
        Ok(descriptor) if descriptor >= 0 => Ok(unsafe { OwnedFd::from_raw_fd(descriptor) }),
        _error => Err(io::Error::last_os_error()),
    }
}

#[cfg(test)]
mod tests {
    use super::Cost;

    #[test]
    fn reads_the_statistics_of_old_and_new_kernels() {
        let log = "verification time 1234 usec\nstack depth 96+0+32\nprocessed 5000 insns (limit \
                   1000000) max_states_per_insn 4 total_states 320 peak_states 90 mark_read 12\n";
        let expected = Cost {
            verified_instructions: 5000,
            total_states: 320,
            peak_states: 90,
            microseconds: 1234,
        };
        assert_eq!(Cost::parse(log), Some(expected));
        assert_eq!(
            Cost::parse(&log.replace(" mark_read 12", "")),
            Some(expected)
        );
        assert_eq!(Cost::parse("processed 5000 insns"), None);
    }
}
