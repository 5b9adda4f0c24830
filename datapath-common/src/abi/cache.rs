//! What user space and the programs agree on of the flow cache.

use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

/// Value of slot [`Self::SLOT`] of `CACHE_STATE`.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout,
)]
#[repr(C)]
pub struct CacheControl {
    /// Another number after each change of what is known of addresses, destinations, ENIs and notes
    /// of flows: what the programs have cached before is of no use then. No number may come back
    /// within a second.
    pub generation: u32,
}

/// Groups of flows whose changes are counted.
pub const CACHE_GROUPS: u32 = 4096;

/// Default entries of the cache for each CPU, of 128 bytes each; a setting.
pub const DEFAULT_CACHE: u32 = 1024;
