//! The eBPF side of the agent.

use aya::include_bytes_aligned;

/// The object with all programs and maps, as `datapath-build` made it.
pub static OBJECT: &[u8] = include_bytes_aligned!(env!("TOWPATH_DATAPATH_OBJECT"));
