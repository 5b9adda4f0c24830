//! Maps in memory. A value keeps its place while the map lives, so that a program's pointer to it
//! stays valid.

use std::collections::HashMap;

use anyhow::{Result, anyhow, bail, ensure};
use aya_obj::EbpfSectionKind;
use aya_obj::generated::bpf_map_type;
use testkit::testrun::snapshot::Snapshot;

/// Errors of helpers: numbers of `include/uapi/asm-generic/errno-base.h`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Refusal {
    Missing,
    Full,
    Exists,
    Invalid,
}

impl Refusal {
    /// The helper's return value.
    pub(super) fn code(self) -> i64 {
        match self {
            Self::Missing => -2,
            Self::Full => -7,
            Self::Exists => -17,
            Self::Invalid => -22,
        }
    }
}

/// Flags of an update: `BPF_NOEXIST` and `BPF_EXIST` of `include/uapi/linux/bpf.h`.
const NO_EXIST: u64 = 1;
const EXIST: u64 = 2;

/// Lookup method of a map.
#[derive(Clone, Debug)]
enum Kind {
    /// The key is the place. A per-CPU array is the same: there is one CPU.
    Array,
    /// A table; LRU maps never get full here.
    Hash(HashMap<Vec<u8>, usize>),
    /// The longest prefix: length in bits, bytes, place.
    Prefixes(Vec<(u32, Vec<u8>, usize)>),
}

/// A map.
#[derive(Clone, Debug)]
pub(super) struct Map {
    pub(super) name: String,
    kind: Kind,
    key_size: usize,
    value_size: usize,
    /// Distance of two values.
    stride: usize,
    capacity: usize,
    values: Vec<u8>,
    /// Places of values that were removed. They are reused last, so that a pointer to one still
    /// reads the old value.
    free: Vec<usize>,
    read_only: bool,
}

impl Map {
    /// A map with the contents of one of the kernel's.
    pub(super) fn new(name: &str, of: &aya_obj::Map, snapshot: &Snapshot) -> Result<Self> {
        let array = [
            bpf_map_type::BPF_MAP_TYPE_ARRAY,
            bpf_map_type::BPF_MAP_TYPE_PERCPU_ARRAY,
        ];
        let hash = [
            bpf_map_type::BPF_MAP_TYPE_HASH,
            bpf_map_type::BPF_MAP_TYPE_LRU_HASH,
        ];
        let is = |kind: bpf_map_type| of.map_type() == kind as u32;
        let kind = if array.into_iter().any(is) {
            Kind::Array
        } else if hash.into_iter().any(is) {
            Kind::Hash(HashMap::new())
        } else if is(bpf_map_type::BPF_MAP_TYPE_LPM_TRIE) {
            Kind::Prefixes(Vec::new())
        } else {
            bail!(
                "{name} is a map of a kind that is not known: {}",
                of.map_type()
            );
        };
        let value_size = usize::try_from(of.value_size())?;
        let stride = value_size.next_multiple_of(8);
        let capacity = snapshot.capacity;
        let values = match &kind {
            Kind::Array => vec![0; stride * capacity],
            Kind::Hash(_) | Kind::Prefixes(_) => Vec::new(),
        };
        let mut map = Self {
            name: name.to_owned(),
            kind,
            key_size: usize::try_from(of.key_size())?,
            value_size,
            stride,
            capacity,
            values,
            free: Vec::new(),
            read_only: of.section_kind() == EbpfSectionKind::Rodata,
        };
        for (key, value) in &snapshot.entries {
            let put = map.put(key, value, 0);
            put.map_err(|refusal| anyhow!("an entry of {name}: {refusal:?}"))?;
        }
        Ok(map)
    }

    pub(super) fn is_read_only(&self) -> bool {
        self.read_only
    }

    pub(super) fn key_size(&self) -> usize {
        self.key_size
    }

    pub(super) fn value_size(&self) -> usize {
        self.value_size
    }

    /// All values, one after the other.
    pub(super) fn values(&self) -> &[u8] {
        &self.values
    }

    /// All values, to write to.
    pub(super) fn values_mut(&mut self) -> Result<&mut [u8]> {
        ensure!(!self.read_only, "{} is read-only", self.name);
        Ok(&mut self.values)
    }

    /// Offset in [`Self::values`] of the value of a key.
    pub(super) fn find(&self, key: &[u8]) -> Option<usize> {
        let place = match &self.kind {
            Kind::Array => index(key).filter(|place| *place < self.capacity),
            Kind::Hash(places) => places.get(key).copied(),
            Kind::Prefixes(prefixes) => {
                let (most, address) = prefix(key)?;
                let fits = prefixes
                    .iter()
                    .filter(|(length, of, _)| *length <= most && begin_alike(of, address, *length));
                fits.max_by_key(|(length, ..)| *length)
                    .map(|(.., place)| *place)
            }
        };
        place.map(|place| place * self.stride)
    }

    /// Writes a value.
    pub(super) fn put(&mut self, key: &[u8], value: &[u8], flags: u64) -> Result<(), Refusal> {
        let old = match &self.kind {
            Kind::Prefixes(_) => self.same_prefix(key),
            Kind::Array | Kind::Hash(_) => self.find(key).map(|offset| offset / self.stride),
        };
        let place = match (old, &self.kind) {
            (Some(_), _) if flags & NO_EXIST != 0 => return Err(Refusal::Exists),
            (None, Kind::Array) => return Err(Refusal::Full),
            (None, _) if flags & EXIST != 0 => return Err(Refusal::Missing),
            // A table makes a new element, so that a pointer to the old value still reads it.
            (Some(place), Kind::Array) => place,
            (Some(place), _) => {
                self.free.insert(0, place);
                self.new_place()
            }
            (None, _) => {
                if self.len() >= self.capacity {
                    return Err(Refusal::Full);
                }
                self.new_place()
            }
        };
        match &mut self.kind {
            Kind::Array => {}
            Kind::Hash(places) => {
                places.insert(key.to_vec(), place);
            }
            Kind::Prefixes(prefixes) => {
                let (length, address) = prefix(key).ok_or(Refusal::Invalid)?;
                prefixes.retain(|(.., at)| Some(*at) != old);
                prefixes.push((length, address.to_vec(), place));
            }
        }
        let offset = place * self.stride;
        self.values[offset..offset + self.value_size].copy_from_slice(value);
        Ok(())
    }

    /// Removes a key.
    pub(super) fn remove(&mut self, key: &[u8]) -> Result<(), Refusal> {
        let place = match &mut self.kind {
            Kind::Array => return Err(Refusal::Invalid),
            Kind::Hash(places) => places.remove(key),
            Kind::Prefixes(_) => {
                let place = self.same_prefix(key);
                if let Kind::Prefixes(prefixes) = &mut self.kind {
                    prefixes.retain(|(.., at)| Some(*at) != place);
                }
                place
            }
        };
        self.free.insert(0, place.ok_or(Refusal::Missing)?);
        Ok(())
    }

    /// The number of keys.
    fn len(&self) -> usize {
        match &self.kind {
            Kind::Array => self.capacity,
            Kind::Hash(places) => places.len(),
            Kind::Prefixes(prefixes) => prefixes.len(),
        }
    }

    fn same_prefix(&self, key: &[u8]) -> Option<usize> {
        let (length, address) = prefix(key)?;
        let Kind::Prefixes(prefixes) = &self.kind else {
            return None;
        };
        let same = prefixes
            .iter()
            .find(|(of, at, _)| *of == length && begin_alike(at, address, length));
        same.map(|(.., place)| *place)
    }

    /// A place for one more value.
    fn new_place(&mut self) -> usize {
        // One place stays free, for the value that was removed last.
        if self.free.len() > 1
            && let Some(place) = self.free.pop()
        {
            return place;
        }
        let place = self.values.len() / self.stride;
        self.values.resize((place + 1) * self.stride, 0);
        place
    }
}

/// An array's key.
fn index(key: &[u8]) -> Option<usize> {
    usize::try_from(u32::from_ne_bytes(*key.first_chunk()?)).ok()
}

/// A trie's key: `struct bpf_lpm_trie_key_u8` of `include/uapi/linux/bpf.h`.
fn prefix(key: &[u8]) -> Option<(u32, &[u8])> {
    let (length, address) = key.split_first_chunk()?;
    Some((u32::from_ne_bytes(*length), address))
}

/// True if two addresses have the first bits in common.
fn begin_alike(one: &[u8], other: &[u8], bits: u32) -> bool {
    let bit = |bytes: &[u8], bit: u32| {
        let byte = bytes.get(bit as usize / 8).copied().unwrap_or(0);
        byte >> (7 - bit % 8) & 1
    };
    (0..bits).all(|at| bit(one, at) == bit(other, at))
}
