//! The flow cache of the programs: what was decided a moment ago, which a change of the maps makes
//! worthless.

use std::sync::LazyLock;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{SystemTime, UNIX_EPOCH};

use anyhow::{Context as _, Result};
use aya::Ebpf;
use datapath_common::abi::{CacheControl, map};

use crate::bpf::flow_maps::nat::table;
use crate::bpf::sys::table::Table;

/// The next generation. It starts so that a number of an earlier agent in the map recurs only by
/// chance.
static NEXT: LazyLock<AtomicU32> = LazyLock::new(|| {
    let now = SystemTime::now().duration_since(UNIX_EPOCH);
    AtomicU32::new(now.map_or(0, |now| now.subsec_nanos()))
});

/// The switch that makes all entries worthless at once.
pub(in crate::bpf) struct Cache(Table<u32, CacheControl>);

impl Cache {
    /// That of an object.
    ///
    /// # Errors
    /// When its map is missing or cannot be examined.
    pub(in crate::bpf) fn new(ebpf: &Ebpf) -> Result<Self> {
        table(ebpf, map::CACHE_CONTROL).map(Self)
    }

    /// Invalidates every entry. Must be called after a change of maps that the programs look up,
    /// and before anything relies on the change.
    ///
    /// # Errors
    /// If the kernel refuses.
    pub(in crate::bpf) fn invalidate(&self) -> Result<()> {
        let generation = NEXT.fetch_add(1, Ordering::Relaxed);
        self.0
            .put(&0, &CacheControl { generation }, 0)
            .context("cannot write the map CACHE_CONTROL")
    }
}
