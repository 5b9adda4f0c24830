//! A hash map, array or trie of the kernel by its descriptor, with whole dumps and many writes in
//! batches (`BPF_MAP_LOOKUP_BATCH` and `BPF_MAP_UPDATE_BATCH`, Linux 5.6), which aya lacks.

use std::io;
use std::marker::PhantomData;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use aya_obj::generated::bpf_cmd;
use zerocopy::{FromBytes, Immutable, IntoBytes};

use super::{Attribute, bpf, raw};

/// Entries that one call reads. With it a dump of a full map takes a hundred calls or so.
const BATCH: usize = 4096;

/// The kernel's own error of a map that has no batches (`ENOTSUPP` in `include/linux/errno.h`), as
/// tries of older kernels.
const NO_BATCHES: i32 = 524;

/// Keys and values: bytes without a meaning of their own to this module.
pub(in crate::bpf) trait Plain: FromBytes + IntoBytes + Immutable + Copy {}
impl<T: FromBytes + IntoBytes + Immutable + Copy> Plain for T {}

/// A map, its keys and values typed.
pub(in crate::bpf) struct Table<K, V> {
    fd: OwnedFd,
    of: PhantomData<fn(K) -> V>,
}

/// The part of `union bpf_attr` for single entries.
#[repr(C)]
struct Element {
    map: u32,
    pad: u32,
    key: u64,
    value: u64,
    flags: u64,
}

/// The part of `union bpf_attr` for batches.
#[repr(C)]
struct Batch {
    from: u64,
    to: u64,
    keys: u64,
    values: u64,
    count: u32,
    map: u32,
    element_flags: u64,
    flags: u64,
}

// SAFETY: the pointers are filled in by the functions below from live borrows of the sizes that
// `Table::new` was given.
unsafe impl Attribute for Element {}
// SAFETY: as above.
unsafe impl Attribute for Batch {}

impl<K: Plain, V: Plain> Table<K, V> {
    /// A map of which the caller knows that its keys and values have the sizes of these types.
    ///
    /// # Safety
    /// The kernel writes as many bytes as the map's sizes say.
    pub(in crate::bpf) unsafe fn new(fd: BorrowedFd<'_>) -> io::Result<Self> {
        let fd = fd.try_clone_to_owned()?;
        let of = PhantomData;
        Ok(Self { fd, of })
    }

    fn element(&self, key: &K, value: u64, flags: u64) -> Element {
        Element {
            map: raw(self.fd.as_fd()),
            pad: 0,
            key: std::ptr::from_ref(key) as u64,
            value,
            flags,
        }
    }

    /// The value of a key. `flags` may be `BPF_F_LOCK`.
    pub(in crate::bpf) fn get(&self, key: &K, flags: u64) -> io::Result<Option<V>> {
        let mut value = V::new_zeroed();
        let mut element = self.element(key, std::ptr::from_mut(&mut value) as u64, flags);
        match bpf(bpf_cmd::BPF_MAP_LOOKUP_ELEM, &mut element) {
            Ok(_zero) => Ok(Some(value)),
            Err(error) if is_missing(&error) => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// Writes an entry.
    pub(in crate::bpf) fn put(&self, key: &K, value: &V, flags: u64) -> io::Result<()> {
        let mut element = self.element(key, std::ptr::from_ref(value) as u64, flags);
        bpf(bpf_cmd::BPF_MAP_UPDATE_ELEM, &mut element).map(|_zero| ())
    }

    /// Writes these entries, each key's value at the same place.
    pub(in crate::bpf) fn put_all(&self, keys: &[K], values: &[V]) -> io::Result<()> {
        let mut batch = Batch {
            from: 0,
            to: 0,
            keys: keys.as_ptr() as u64,
            values: values.as_ptr() as u64,
            count: u32::try_from(keys.len().min(values.len())).map_err(io::Error::other)?,
            map: raw(self.fd.as_fd()),
            element_flags: 0,
            flags: 0,
        };
        bpf(bpf_cmd::BPF_MAP_UPDATE_BATCH, &mut batch).map(|_zero| ())
    }

    /// Removes an entry; one that is not there is success.
    pub(in crate::bpf) fn delete(&self, key: &K) -> io::Result<()> {
        let mut element = self.element(key, 0, 0);
        match bpf(bpf_cmd::BPF_MAP_DELETE_ELEM, &mut element) {
            Err(error) if !is_missing(&error) => Err(error),
            _done => Ok(()),
        }
    }

    /// Shows every entry. One that is added or removed during the iteration may be shown or not.
    /// Every other one is shown once.
    pub(in crate::bpf) fn each(&self, mut show: impl FnMut(&K, &V)) -> io::Result<()> {
        const { assert!(size_of::<K>() >= 4, "a key has room for a position") };
        let mut size = BATCH;
        let mut keys = vec![K::new_zeroed(); size];
        let mut values = vec![V::new_zeroed(); size];
        // The kernel's position: of a hash map a bucket's number, of others the last key.
        let (mut position, mut is_first) = (K::new_zeroed(), true);
        loop {
            let mut next = K::new_zeroed();
            let mut batch = Batch {
                from: if is_first {
                    0
                } else {
                    std::ptr::from_ref(&position) as u64
                },
                to: std::ptr::from_mut(&mut next) as u64,
                keys: keys.as_mut_ptr() as u64,
                values: values.as_mut_ptr() as u64,
                count: u32::try_from(size).map_err(io::Error::other)?,
                map: raw(self.fd.as_fd()),
                element_flags: 0,
                flags: 0,
            };
            let result = bpf(bpf_cmd::BPF_MAP_LOOKUP_BATCH, &mut batch);
            let is_last = match result {
                Ok(_zero) => false,
                Err(error) if is_missing(&error) => true,
                // A bucket holds more than fits.
                Err(error) if error.raw_os_error() == Some(libc::ENOSPC) => {
                    size *= 2;
                    keys = vec![K::new_zeroed(); size];
                    values = vec![V::new_zeroed(); size];
                    continue;
                }
                Err(error) if is_first && error.raw_os_error() == Some(NO_BATCHES) => {
                    return self.walk(show);
                }
                Err(error) => return Err(error),
            };
            let count = usize::try_from(batch.count).map_err(io::Error::other)?;
            for (key, value) in keys.iter().zip(&values).take(count) {
                show(key, value);
            }
            if is_last {
                return Ok(());
            }
            (position, is_first) = (next, false);
        }
    }
}

/// The values of a per-CPU array, each summed over the CPUs, by one call; none where the kernel has
/// no batches for such arrays (before Linux 5.13).
///
/// # Errors
/// When the kernel refuses.
///
/// # Safety
/// The array's values are of 8 bytes, and there are `slots` of them.
pub(in crate::bpf) unsafe fn per_cpu_sums(
    map: BorrowedFd<'_>,
    slots: u32,
    cpus: usize,
) -> io::Result<Option<Vec<u64>>> {
    let length = usize::try_from(slots).map_err(io::Error::other)?;
    let mut keys = vec![0_u32; length];
    let mut values = vec![0_u64; length * cpus];
    let mut next = 0_u32;
    let mut batch = Batch {
        from: 0,
        to: std::ptr::from_mut(&mut next) as u64,
        keys: keys.as_mut_ptr() as u64,
        values: values.as_mut_ptr() as u64,
        count: slots,
        map: raw(map),
        element_flags: 0,
        flags: 0,
    };
    match bpf(bpf_cmd::BPF_MAP_LOOKUP_BATCH, &mut batch) {
        Ok(_zero) => {}
        Err(error) if is_missing(&error) => {}
        Err(error) if error.raw_os_error() == Some(NO_BATCHES) => return Ok(None),
        Err(error) => return Err(error),
    }
    let sum = |values: &[u64]| {
        values
            .iter()
            .fold(0, |sum: u64, one| sum.wrapping_add(*one))
    };
    Ok(Some(values.chunks(cpus.max(1)).map(sum).collect()))
}

impl<K: Plain, V: Plain> Table<K, V> {
    /// Shows every entry of a map that has no batches.
    fn walk(&self, mut show: impl FnMut(&K, &V)) -> io::Result<()> {
        let mut last = None;
        while let Some(key) = self.next(last.as_ref())? {
            if let Some(value) = self.get(&key, 0)? {
                show(&key, &value);
            }
            last = Some(key);
        }
        Ok(())
    }

    /// The key after another one, or the first key.
    fn next(&self, last: Option<&K>) -> io::Result<Option<K>> {
        let mut next = K::new_zeroed();
        let mut element = Element {
            map: raw(self.fd.as_fd()),
            pad: 0,
            key: last.map_or(0, |last| std::ptr::from_ref(last) as u64),
            value: std::ptr::from_mut(&mut next) as u64,
            flags: 0,
        };
        match bpf(bpf_cmd::BPF_MAP_GET_NEXT_KEY, &mut element) {
            Ok(_zero) => Ok(Some(next)),
            Err(error) if is_missing(&error) => Ok(None),
            Err(error) => Err(error),
        }
    }
}

fn is_missing(error: &io::Error) -> bool {
    error.raw_os_error() == Some(libc::ENOENT)
}
