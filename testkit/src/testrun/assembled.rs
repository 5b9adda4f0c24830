//! Programs written by hand, with the maps that they need.

use std::io;
use std::os::fd::{AsRawFd as _, FromRawFd as _, OwnedFd};

use anyhow::{Context as _, Result, anyhow};
use aya::util::nr_cpus;

use super::asm;
use super::tables::{Element, Runner, bpf, command, pointer};

/// `BPF_PROG_TYPE_SCHED_CLS`.
const CLASSIFIER: u32 = 3;

/// Kinds of maps: `enum bpf_map_type`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
pub enum Kind {
    /// A hash table.
    Hash = 1,
    /// An array.
    Array = 2,
    /// Programs to go on with.
    Programs = 3,
    /// An array of each CPU.
    PerCpuArray = 6,
    /// Prefixes.
    Prefixes = 11,
}

/// `BPF_F_NO_PREALLOC`.
const NO_PREALLOC: u32 = 1;

#[repr(C)]
struct Create {
    kind: u32,
    key_size: u32,
    value_size: u32,
    max_entries: u32,
    flags: u32,
}

#[repr(C)]
struct Load {
    kind: u32,
    count: u32,
    instructions: u64,
    license: u64,
    log_level: u32,
    log_size: u32,
    log: u64,
}

/// The size of a map's entries, in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct EntrySize {
    /// The size of a key.
    pub key: usize,
    /// The size of a value.
    pub value: usize,
}

impl EntrySize {
    /// The size of entries with these keys and values.
    #[must_use]
    pub const fn new(key: usize, value: usize) -> Self {
        Self { key, value }
    }
}

/// A map.
#[derive(Debug)]
pub struct OwnMap {
    fd: OwnedFd,
    kind: Kind,
    size: EntrySize,
}

fn new_fd<T>(command: i32, attributes: &mut T) -> io::Result<OwnedFd> {
    let fd = bpf(command, attributes)?;
    // SAFETY: the kernel has just returned this descriptor, and nothing else owns it.
    Ok(unsafe { OwnedFd::from_raw_fd(fd) })
}

impl OwnMap {
    /// A map of so many entries of a size. Hash tables and prefixes take memory with each entry.
    ///
    /// # Errors
    /// Without root.
    pub fn new(kind: Kind, size: EntrySize, entries: usize) -> Result<Self> {
        let flags = match kind {
            Kind::Hash | Kind::Prefixes => NO_PREALLOC,
            Kind::Array | Kind::Programs | Kind::PerCpuArray => 0,
        };
        Self::with_flags(kind, size, entries, flags)
    }

    /// A hash table that takes the memory of all its entries at once.
    ///
    /// # Errors
    /// As [`Self::new`].
    pub fn preallocated(size: EntrySize, entries: usize) -> Result<Self> {
        Self::with_flags(Kind::Hash, size, entries, 0)
    }

    fn with_flags(kind: Kind, size: EntrySize, entries: usize, flags: u32) -> Result<Self> {
        let mut attributes = Create {
            kind: kind as u32,
            key_size: u32::try_from(size.key)?,
            value_size: u32::try_from(size.value)?,
            max_entries: u32::try_from(entries)?,
            flags,
        };
        let fd = new_fd(command::CREATE, &mut attributes);
        let fd = fd.with_context(|| format!("a map of kind {kind:?}"))?;
        Ok(Self { fd, kind, size })
    }

    /// The descriptor, for [`asm::map`].
    #[must_use]
    pub fn fd(&self) -> i32 {
        self.fd.as_raw_fd()
    }

    /// Writes an entry.
    ///
    /// # Errors
    /// When the kernel refuses.
    ///
    /// # Panics
    /// When key or value have another length than the map's.
    pub fn put(&self, key: &[u8], value: &[u8]) -> Result<()> {
        let size = EntrySize::new(key.len(), value.len());
        assert_eq!(size, self.size, "lengths of an entry");
        let mut element = self.element(key, value.as_ptr());
        bpf(command::UPDATE, &mut element).context("an entry")?;
        Ok(())
    }

    /// The values of a key: one, or one of each CPU that the system may have. Without such a key there are
    /// none.
    ///
    /// # Errors
    /// When the kernel refuses.
    ///
    /// # Panics
    /// When the key has another length than the map's.
    pub fn get(&self, key: &[u8]) -> Result<Vec<Vec<u8>>> {
        assert_eq!(key.len(), self.size.key, "length of a key");
        // The kernel writes each CPU's value from a multiple of 8 on.
        let (copies, step) = match self.kind {
            Kind::PerCpuArray => {
                let cpus = nr_cpus().map_err(|(file, error)| anyhow!("{file}: {error}"))?;
                (cpus, self.size.value.next_multiple_of(8))
            }
            Kind::Hash | Kind::Array | Kind::Programs | Kind::Prefixes => (1, self.size.value),
        };
        let mut values = vec![0; copies * step];
        match bpf(command::LOOKUP, &mut self.element(key, values.as_mut_ptr())) {
            Ok(_) => {}
            Err(error) if error.raw_os_error() == Some(libc::ENOENT) => return Ok(Vec::new()),
            Err(error) => return Err(error).context("a look-up"),
        }
        let values = values.chunks_exact(step);
        Ok(values
            .map(|value| value[..self.size.value].to_vec())
            .collect())
    }

    fn element(&self, key: &[u8], value: *const u8) -> Element {
        Element {
            map: self.fd().cast_unsigned(),
            padding: 0,
            key: pointer(key.as_ptr()),
            value: pointer(value),
            flags: 0,
        }
    }
}

/// A loaded program.
#[derive(Debug)]
pub struct OwnProgram(OwnedFd);

impl OwnProgram {
    /// Loads a classifier.
    ///
    /// # Errors
    /// When the verifier refuses it; the error holds its log.
    pub fn load(instructions: &[u64]) -> Result<Self> {
        let mut log = vec![0_u8; 1 << 18];
        let mut attributes = Load {
            kind: CLASSIFIER,
            count: u32::try_from(instructions.len())?,
            instructions: pointer(instructions.as_ptr()),
            license: pointer(c"GPL".as_ptr()),
            log_level: 1,
            log_size: u32::try_from(log.len())?,
            log: pointer(log.as_mut_ptr()),
        };
        let fd = new_fd(command::LOAD, &mut attributes).with_context(|| {
            let end = log.iter().position(|byte| *byte == 0).unwrap_or(0);
            let log = String::from_utf8_lossy(&log[..end]);
            format!("a program by hand: {log}")
        })?;
        Ok(Self(fd))
    }

    /// A program that only returns `TC_ACT_UNSPEC`.
    ///
    /// # Errors
    /// As [`Self::load`].
    pub fn noop() -> Result<Self> {
        Self::load(&[asm::mov_imm(0, super::PASS), asm::EXIT])
    }

    /// It, ready to be run. The runner must not outlive the program.
    #[must_use]
    pub fn runner(&self) -> Runner {
        Runner {
            program: self.0.as_raw_fd(),
        }
    }
}
