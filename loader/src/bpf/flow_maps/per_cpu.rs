//! Arrays with a value for each CPU.

use std::os::fd::{AsFd as _, OwnedFd};

use anyhow::{Context, Result, bail};
use aya::maps::{Map, MapData, PerCpuArray};
use aya::util::nr_cpus;
use aya::{Ebpf, Pod};

use crate::bpf::sys::table::per_cpu_sums;

/// An array of an object, by a descriptor of its own.
fn hold(ebpf: &Ebpf, name: &str) -> Result<OwnedFd> {
    let fd = match ebpf.map(name) {
        Some(Map::PerCpuArray(data)) => data.fd().as_fd().try_clone_to_owned(),
        Some(_other) => bail!("the map {name} has another type"),
        None => bail!("the eBPF object has no map {name}"),
    };
    fd.with_context(|| format!("cannot hold the map {name}"))
}

/// An array of an object.
pub(super) fn array<V: Pod>(ebpf: &Ebpf, name: &str) -> Result<PerCpuArray<MapData, V>> {
    let map = Map::PerCpuArray(MapData::from_fd(hold(ebpf, name)?)?);
    PerCpuArray::try_from(map).with_context(|| format!("the map {name} has another type"))
}

/// Number of CPUs that the kernel has values for.
pub(super) fn cpus() -> Result<usize> {
    nr_cpus().map_err(|(path, error)| {
        anyhow::Error::new(error).context(format!("cannot read the CPUs from {path}"))
    })
}

/// An array of counters.
pub(super) struct Sums {
    name: &'static str,
    fd: OwnedFd,
    array: PerCpuArray<MapData, u64>,
    cpus: usize,
}

impl Sums {
    /// The array of an object.
    pub(super) fn new(ebpf: &Ebpf, name: &'static str) -> Result<Self> {
        Ok(Self {
            name,
            fd: hold(ebpf, name)?,
            array: array(ebpf, name)?,
            cpus: cpus()?,
        })
    }

    /// Every counter, summed over the CPUs.
    pub(super) fn read(&self) -> Result<Vec<u64>> {
        let failed = || format!("cannot read the map {}", self.name);
        let slots = self.array.len();
        // SAFETY: the array has so many values, each of them a `u64`.
        let sums = unsafe { per_cpu_sums(self.fd.as_fd(), slots, self.cpus) };
        if let Some(sums) = sums.with_context(failed)? {
            return Ok(sums);
        }
        let sum = |slot| -> Result<u64> {
            let values = self.array.get(&slot, 0).with_context(failed)?;
            let sum = |sum: u64, one: &u64| sum.wrapping_add(*one);
            Ok(values.iter().fold(0, sum))
        };
        (0..slots).map(sum).collect()
    }
}
