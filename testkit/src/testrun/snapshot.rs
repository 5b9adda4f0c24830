//! Contents of the maps of loaded programs, as bytes.

use std::collections::BTreeMap;
use std::os::fd::{AsFd as _, AsRawFd as _, RawFd};

use anyhow::{Context as _, Result};
use aya::maps::{Map, MapData};

use super::Programs;
use super::tables::{Element, bpf, command, pointer};

/// A map.
#[derive(Clone, Debug)]
pub struct Snapshot {
    /// Capacity in entries.
    pub capacity: usize,
    /// Keys and values. A per-CPU map has none.
    pub entries: Vec<(Vec<u8>, Vec<u8>)>,
}

impl Programs {
    /// Contents of every map, by its name, if there are no writes at the same time.
    ///
    /// # Errors
    /// When the kernel refuses.
    pub fn snapshot(&self) -> Result<BTreeMap<String, Snapshot>> {
        let mut maps = BTreeMap::new();
        for (name, map) in self.ebpf.maps() {
            let snapshot = match map {
                Map::Array(data)
                | Map::HashMap(data)
                | Map::LruHashMap(data)
                | Map::LpmTrie(data) => of(data, true),
                Map::PerCpuArray(data) => of(data, false),
                _other => continue,
            };
            maps.insert(name.to_owned(), snapshot.with_context(|| name.to_owned())?);
        }
        Ok(maps)
    }
}

fn of(data: &MapData, with_entries: bool) -> Result<Snapshot> {
    let info = data.info()?;
    let sizes = (
        usize::try_from(info.key_size())?,
        usize::try_from(info.value_size())?,
    );
    Ok(Snapshot {
        capacity: usize::try_from(info.max_entries())?,
        entries: if with_entries {
            entries(data.fd().as_fd().as_raw_fd(), sizes)?
        } else {
            Vec::new()
        },
    })
}

fn entries(map: RawFd, (key, value): (usize, usize)) -> Result<Vec<(Vec<u8>, Vec<u8>)>> {
    let mut entries: Vec<(Vec<u8>, Vec<u8>)> = Vec::new();
    loop {
        let last = entries
            .last()
            .map_or(std::ptr::null(), |(key, _)| key.as_ptr());
        let (mut next, mut found) = (vec![0; key], vec![0; value]);
        let mut element = Element {
            map: map.cast_unsigned(),
            padding: 0,
            key: pointer(last),
            value: pointer(next.as_mut_ptr()),
            flags: 0,
        };
        match bpf(command::NEXT_KEY, &mut element) {
            Ok(_) => {}
            Err(error) if error.raw_os_error() == Some(libc::ENOENT) => return Ok(entries),
            Err(error) => return Err(error).context("the next key"),
        }
        (element.key, element.value) = (pointer(next.as_ptr()), pointer(found.as_mut_ptr()));
        bpf(command::LOOKUP, &mut element).context("a look-up")?;
        entries.push((next, found));
    }
}
