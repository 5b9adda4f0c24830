//! Gateways of ENIs in the datapath.

use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

/// Value of the `GATEWAYS` map: the first bytes of a frame to the gateway of an ENI. All zero means
/// that the gateway's MAC is unknown, and the kernel resolves it for each packet.
#[derive(
    Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, FromBytes, IntoBytes, Immutable, KnownLayout,
)]
#[repr(C)]
pub struct GatewayEntry {
    /// The jiffy from which on it is invalid.
    ///
    /// User space watches the kernel's neighbour entry, and extends this time while it does.
    pub until: u64,
    /// Device of the ENI.
    pub ifindex: u32,
    /// The MAC of the gateway and that of the device, as they lie in a frame.
    pub macs: [[u8; 6]; 2],
}

const _: () = assert!(size_of::<GatewayEntry>() == 24);

impl GatewayEntry {
    /// The gateway's MAC is unknown.
    pub const UNKNOWN: Self = Self {
        until: 0,
        ifindex: 0,
        macs: [[0; 6]; 2],
    };

    /// Slots of an ENI: one for each family.
    pub const SLOTS: u32 = 2;

    /// The slot of an ENI's gateway of IPv4, or of IPv6.
    #[inline(always)]
    #[must_use]
    pub const fn slot(eni: u8, is_v4: bool) -> u32 {
        eni as u32 * Self::SLOTS + !is_v4 as u32
    }
}

#[cfg(test)]
mod tests {
    use std::vec::Vec;

    use super::*;
    use crate::abi::MAX_ENIS;

    #[test]
    fn every_gateway_has_a_slot_of_its_own() {
        let slots: Vec<_> = (0..=u8::MAX)
            .flat_map(|eni| [true, false].map(|is_v4| GatewayEntry::slot(eni, is_v4)))
            .collect();
        assert!(slots.iter().copied().eq(0..MAX_ENIS * GatewayEntry::SLOTS));
    }
}
