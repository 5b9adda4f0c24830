//! What the loader makes of settings: the programs' read-only data.

use std::collections::BTreeMap;
use std::os::fd::{AsFd as _, AsRawFd as _};

use anyhow::{Context as _, Result};
use aya::EbpfLoader;
use aya::maps::Map;
use towpath::bpf::{DatapathSettings, Globals};

use super::tables::first_value;

/// The contents of the maps that hold read-only data, by name.
///
/// # Errors
/// Without root.
pub fn data(settings: &DatapathSettings) -> Result<BTreeMap<String, Vec<u8>>> {
    let globals = Globals::new(settings, towpath::bpf::jiffies_per_second()?);
    let mut loader = EbpfLoader::new();
    globals.put(&mut loader);
    let loaded = loader
        .load(towpath::bpf::OBJECT)
        .context("the eBPF object; loading it needs root")?;
    let mut data = BTreeMap::new();
    for (name, map) in loaded.maps() {
        if let Map::Array(map) = map
            && name.starts_with(".rodata")
        {
            let size = usize::try_from(map.info()?.value_size())?;
            let fd = map.fd().as_fd().as_raw_fd();
            data.insert(name.to_owned(), first_value(fd, size)?);
        }
    }
    Ok(data)
}
