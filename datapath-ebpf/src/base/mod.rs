//! Settings, maps, counters and the clock: all that a step needs before it looks at a packet.

pub(crate) mod clock;
pub(crate) mod code;
pub(crate) mod count;
pub(crate) mod maps;
pub(crate) mod mark;
pub(crate) mod settings;

/// Number of the primary ENI.
pub(crate) const PRIMARY_ENI: u8 = 0;
