//! The maps of loaded programs byte by byte, and test runs with every property that the kernel
//! accepts for a packet. aya's typed maps cost an allocation or two per call, which is too slow for
//! ten million packets.

use std::collections::BTreeMap;
use std::io;
use std::marker::PhantomData;
use std::ops::Range;
use std::os::fd::{AsFd as _, AsRawFd as _, RawFd};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use anyhow::{Context as _, Result, anyhow, bail};
use aya::maps::Map;
use aya::programs::SchedClassifier;
use datapath_common::abi::map;
use datapath_common::counter::{Counter, NatStat, Program, nat_at_once_slot};
use loader::bpf::{BlockedSignals, DatapathSettings, Globals, loader};
use zerocopy::{FromBytes, FromZeros, Immutable, IntoBytes};

use super::{Programs, classifier, context};

/// Commands of `bpf(2)`: `enum bpf_cmd` of `include/uapi/linux/bpf.h`.
pub(super) mod command {
    pub(in super::super) const CREATE: i32 = 0;
    pub(in super::super) const LOOKUP: i32 = 1;
    pub(in super::super) const UPDATE: i32 = 2;
    pub(in super::super) const DELETE: i32 = 3;
    pub(in super::super) const NEXT_KEY: i32 = 4;
    pub(in super::super) const LOAD: i32 = 5;
    pub(in super::super) const TEST_RUN: i32 = 10;
}

/// `BPF_F_TEST_SKB_CHECKSUM_COMPLETE`: the device has summed up the packet, and the sum must be
/// right afterwards, too.
const CHECKSUM_COMPLETE: u32 = 1 << 2;

/// The kernel's attributes of commands on an element of a map.
#[repr(C)]
pub(super) struct Element {
    pub(super) map: u32,
    pub(super) padding: u32,
    pub(super) key: u64,
    pub(super) value: u64,
    pub(super) flags: u64,
}

/// The kernel's attributes of a test run.
#[repr(C)]
#[derive(Default)]
pub(super) struct TestRun {
    pub(super) program: u32,
    pub(super) code: u32,
    pub(super) length_in: u32,
    pub(super) length_out: u32,
    pub(super) data_in: u64,
    pub(super) data_out: u64,
    pub(super) repeat: u32,
    pub(super) duration: u32,
    pub(super) context_length_in: u32,
    pub(super) context_length_out: u32,
    pub(super) context_in: u64,
    pub(super) context_out: u64,
    pub(super) flags: u32,
    pub(super) cpu: u32,
    pub(super) batch_size: u32,
    pub(super) padding: u32,
}

/// Calls `bpf(2)`.
pub(super) fn bpf<T>(command: i32, attributes: &mut T) -> io::Result<i32> {
    // SAFETY: the attributes have the given size, and every pointer in them leads to as many bytes
    // as the command reads or writes: the callers hold the buffers while this runs.
    let result = unsafe {
        libc::syscall(
            libc::SYS_bpf,
            command,
            std::ptr::from_mut(attributes),
            size_of::<T>(),
        )
    };
    i32::try_from(result)
        .ok()
        .filter(|result| *result >= 0)
        .ok_or_else(io::Error::last_os_error)
}

/// A pointer in the kernel's form.
pub(super) fn pointer<T: ?Sized>(to: *const T) -> u64 {
    to.cast::<()>() as u64
}

/// Keys and values: bytes.
pub trait Plain: FromBytes + FromZeros + IntoBytes + Immutable + Copy {}

impl<T: FromBytes + FromZeros + IntoBytes + Immutable + Copy> Plain for T {}

/// A map with keys `K` and values `V`. It must not outlive the programs.
#[derive(Debug)]
pub struct Table<K, V> {
    map: RawFd,
    /// Map of the flow cache's generation, which every write must change.
    control: RawFd,
    types: PhantomData<(K, V)>,
}

impl<K: Plain, V: Plain> Table<K, V> {
    fn element(&self, key: *const K, value: *const V) -> Element {
        Element {
            map: self.map.cast_unsigned(),
            padding: 0,
            key: pointer(key),
            value: pointer(value),
            flags: 0,
        }
    }

    /// The value of a key.
    ///
    /// # Errors
    /// When the kernel refuses.
    pub fn get(&self, key: &K) -> Result<Option<V>> {
        let mut value = V::new_zeroed();
        let mut element = self.element(key, &raw mut value);
        match bpf(command::LOOKUP, &mut element) {
            Ok(_) => Ok(Some(value)),
            Err(error) if error.raw_os_error() == Some(libc::ENOENT) => Ok(None),
            Err(error) => Err(error).context("a look-up"),
        }
    }

    /// Writes an entry.
    ///
    /// # Errors
    /// When the kernel refuses.
    pub fn put(&self, key: &K, value: &V) -> Result<()> {
        bpf(command::UPDATE, &mut self.element(key, value)).context("an entry")?;
        invalidate(self.control)
    }

    /// Removes an entry.
    ///
    /// # Errors
    /// When the kernel refuses.
    pub fn remove(&self, key: &K) -> Result<()> {
        bpf(command::DELETE, &mut self.element(key, std::ptr::null())).context("a removal")?;
        invalidate(self.control)
    }

    /// Removes an entry without invalidating the flow cache, so that only cached flows still have
    /// it.
    ///
    /// # Errors
    /// When the kernel refuses.
    pub fn lose(&self, key: &K) -> Result<()> {
        bpf(command::DELETE, &mut self.element(key, std::ptr::null())).context("a removal")?;
        Ok(())
    }

    /// Every entry, if there are no writes at the same time.
    ///
    /// # Errors
    /// When the kernel refuses.
    pub fn entries(&self) -> Result<Vec<(K, V)>> {
        let mut entries: Vec<(K, V)> = Vec::new();
        let mut next = K::new_zeroed();
        loop {
            let last = entries
                .last()
                .map_or(std::ptr::null(), |(key, _)| std::ptr::from_ref(key));
            let mut element = self.element(last, std::ptr::null());
            element.value = pointer(&raw mut next);
            match bpf(command::NEXT_KEY, &mut element) {
                Ok(_) => {}
                Err(error) if error.raw_os_error() == Some(libc::ENOENT) => return Ok(entries),
                Err(error) => return Err(error).context("the next key"),
            }
            let value = self.get(&next)?.context("an entry that went away")?;
            entries.push((next, value));
        }
    }

    /// Removes every entry.
    ///
    /// # Errors
    /// When the kernel refuses.
    pub fn clear(&self) -> Result<()> {
        for (key, _) in self.entries()? {
            self.remove(&key)?;
        }
        Ok(())
    }
}

/// Invalidates the flow cache of programs, as the agent does with each of its writes.
fn invalidate(control: RawFd) -> Result<()> {
    static NEXT: AtomicU32 = AtomicU32::new(1);
    let slot = 0_u32;
    let generation = NEXT.fetch_add(1, Ordering::Relaxed);
    let mut element = Element {
        map: control.cast_unsigned(),
        padding: 0,
        key: pointer(&raw const slot),
        value: pointer(&raw const generation),
        flags: 0,
    };
    bpf(command::UPDATE, &mut element).context("the flow cache")?;
    Ok(())
}

/// A program, ready to be run. It must not outlive the programs.
#[derive(Clone, Copy, Debug)]
pub struct Runner {
    pub(super) program: RawFd,
}

/// A packet, with every property that the kernel accepts for it.
#[derive(Clone, Copy, Debug)]
pub struct Given<'a> {
    /// The frame.
    pub frame: &'a [u8],
    /// Device of the packet.
    pub ifindex: u32,
    /// Device that received it, or 0.
    pub ingress_ifindex: u32,
    /// Its mark.
    pub mark: u32,
    /// Payload of each packet that it aggregates, or 0.
    pub gso_size: u32,
    /// True if the device has computed its checksum.
    pub is_summed: bool,
}

/// Result of a program for a packet.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Made {
    /// The program's return code.
    pub code: i32,
    /// The frame.
    pub frame: Vec<u8>,
    /// The mark.
    pub mark: u32,
}

impl Runner {
    /// A program that is loaded.
    pub(super) fn of(program: &SchedClassifier) -> Result<Self> {
        Ok(Self {
            program: program.fd()?.as_fd().as_raw_fd(),
        })
    }

    /// Runs the program.
    ///
    /// # Errors
    /// When the kernel refuses the packet, or finds a wrong checksum afterwards (`EBADMSG`).
    pub fn run(&self, given: &Given<'_>) -> Result<Made> {
        Ok(self.timed(given)?.0)
    }

    /// Runs the program, and also returns the duration.
    ///
    /// # Errors
    /// As [`Self::run`].
    pub fn timed(&self, given: &Given<'_>) -> Result<(Made, Duration)> {
        let mut before = [0; context::SIZE];
        let mut after = [0; context::SIZE];
        for (offset, value) in [
            (context::MARK, given.mark),
            (context::INGRESS_IFINDEX, given.ingress_ifindex),
            (context::IFINDEX, given.ifindex),
            (context::GSO_SIZE, given.gso_size),
        ] {
            before[offset..offset + 4].copy_from_slice(&value.to_ne_bytes());
        }
        let mut frame = vec![0; given.frame.len()];
        let length = u32::try_from(frame.len()).context("a frame that is too long")?;
        let size = u32::try_from(context::SIZE).context("a context")?;
        let mut attributes = TestRun {
            program: self.program.cast_unsigned(),
            length_in: length,
            length_out: length,
            data_in: pointer(given.frame.as_ptr()),
            data_out: pointer(frame.as_mut_ptr()),
            repeat: 1,
            context_length_in: size,
            context_length_out: size,
            context_in: pointer(before.as_ptr()),
            context_out: pointer(after.as_mut_ptr()),
            flags: if given.is_summed {
                CHECKSUM_COMPLETE
            } else {
                0
            },
            ..TestRun::default()
        };
        bpf(command::TEST_RUN, &mut attributes).context("a test run")?;
        if attributes.length_out != length {
            bail!("{length} bytes became {}", attributes.length_out);
        }
        let mark = after[context::MARK..]
            .first_chunk()
            .copied()
            .map(u32::from_ne_bytes)
            .context("a context without a mark")?;
        let made = Made {
            code: attributes.code.cast_signed(),
            frame,
            mark,
        };
        Ok((made, Duration::from_nanos(attributes.duration.into())))
    }
}

impl Programs {
    /// Loads the programs of an object, with this global in addition to the settings.
    ///
    /// # Errors
    /// As [`Self::load_with`]; also when the object has no such global.
    pub fn load_object(
        object: &[u8],
        settings: &DatapathSettings,
        extra: Option<(&'static str, u32)>,
    ) -> Result<Self> {
        let _blocked = BlockedSignals::new()?;
        let globals = Globals::new(settings, loader::bpf::jiffies_per_second()?);
        let mut loader = loader();
        globals.put(&mut loader);
        if let Some((name, value)) = &extra {
            loader.override_global(name, value, true);
        }
        let mut ebpf = loader.load(object).context("an eBPF object")?;
        for program in Program::ALL {
            classifier(&mut ebpf, program)?
                .load()
                .with_context(|| format!("program {}", program.name()))?;
        }
        Ok(Self { ebpf })
    }

    /// A map by its name.
    ///
    /// # Errors
    /// When the object has no such map.
    pub fn table<K, V>(&self, name: &str) -> Result<Table<K, V>> {
        let map = self
            .ebpf
            .map(name)
            .with_context(|| format!("the object has no map {name}"))?;
        let (Map::Array(data)
        | Map::HashMap(data)
        | Map::LruHashMap(data)
        | Map::LpmTrie(data)
        | Map::PerCpuArray(data)) = map
        else {
            bail!("{name} is of an unexpected kind");
        };
        let info = data.info()?;
        let sizes = (size_of::<K>(), size_of::<V>());
        let wanted = (info.key_size() as usize, info.value_size() as usize);
        if sizes != wanted {
            bail!("{name} has keys and values of {wanted:?} bytes, not {sizes:?}");
        }
        Ok(Table {
            map: data.fd().as_fd().as_raw_fd(),
            control: self.cache_control()?,
            types: PhantomData,
        })
    }

    /// Invalidates the flow cache: for writes to a map without [`Table`].
    pub(super) fn invalidate(&self) -> Result<()> {
        invalidate(self.cache_control()?)
    }

    fn cache_control(&self) -> Result<RawFd> {
        match self.ebpf.map(map::CACHE_CONTROL) {
            Some(Map::Array(data)) => Ok(data.fd().as_fd().as_raw_fd()),
            Some(_) | None => bail!("the object has no array {}", map::CACHE_CONTROL),
        }
    }

    /// A counter of translation, summed over the CPUs.
    ///
    /// # Errors
    /// When the map cannot be read.
    pub fn nat_stat(&self, stat: NatStat, is_v4: bool) -> Result<u64> {
        let at_once = stat.has_those_at_once().then(|| nat_at_once_slot(is_v4));
        let mut sum = 0;
        for slot in [Some(stat.slot(is_v4)), at_once].into_iter().flatten() {
            self.each_cpu(map::NAT_STATS, slot..slot + 1, |_, values: &[u64]| {
                sum += values.iter().sum::<u64>();
            })?;
        }
        Ok(sum)
    }

    /// Passes on the values of each CPU in slots of a map.
    fn each_cpu<V: Plain>(
        &self,
        name: &str,
        slots: Range<u32>,
        mut take: impl FnMut(u32, &[V]),
    ) -> Result<()> {
        let Some(Map::PerCpuArray(data)) = self.ebpf.map(name) else {
            bail!("the object has no counters {name} for each CPU");
        };
        let size = data.info()?.value_size() as usize;
        if size != size_of::<V>() {
            bail!("{name} has values of {size} bytes");
        }
        let cpus = aya::util::nr_cpus().map_err(|(file, error)| anyhow!("{file}: {error}"))?;
        let mut values = vec![V::new_zeroed(); cpus];
        for slot in slots {
            let mut element = Element {
                map: data.fd().as_fd().as_raw_fd().cast_unsigned(),
                padding: 0,
                key: pointer(&raw const slot),
                value: pointer(values.as_mut_ptr()),
                flags: 0,
            };
            bpf(command::LOOKUP, &mut element).context("a counter")?;
            take(slot, &values);
        }
        Ok(())
    }

    /// Nonzero slots of a per-CPU map of counters, summed over the CPUs.
    pub(super) fn sums(&self, name: &str, slots: Range<u32>) -> Result<BTreeMap<u32, Counter>> {
        let mut sums = BTreeMap::new();
        self.each_cpu(name, slots, |slot, values: &[Counter]| {
            let sum = values.iter().fold(Counter::default(), |sum, one| Counter {
                packets: sum.packets + one.packets,
                bytes: sum.bytes + one.bytes,
            });
            if sum != Counter::default() {
                sums.insert(slot, sum);
            }
        })?;
        Ok(sums)
    }

    /// A program, to be run repeatedly.
    ///
    /// # Errors
    /// When it is not loaded.
    pub fn runner(&mut self, program: Program) -> Result<Runner> {
        Runner::of(classifier(&mut self.ebpf, program)?)
    }
}
