//! Settings fixed when the programs are loaded: read-only globals of the object, so that the
//! verifier removes the branches they rule out.

/// Shift of the ENI field in the packet mark (`u32`).
pub const MARK_SHIFT: &str = "MARK_SHIFT";
/// All bits of the packet mark that are ours (`u32`).
pub const MARK_MASK: &str = "MARK_MASK";
/// The exception bit of the packet mark (`u32`).
pub const MARK_EXCEPTION: &str = "MARK_EXCEPTION";
/// The bit of the packet mark that says an ENI's egress has nothing more to do (`u32`).
pub const MARK_DONE: &str = "MARK_DONE";
/// Jiffies in a second on this kernel (`u32`).
pub const JIFFIES_PER_SECOND: &str = "JIFFIES_PER_SECOND";
/// Masquerading of IPv4 (`u32`, 0 or 1).
pub const MASQUERADE_V4: &str = "MASQUERADE_V4";
/// Masquerading of IPv6 (`u32`, 0 or 1).
pub const MASQUERADE_V6: &str = "MASQUERADE_V6";
/// The outcome of packets to the instance metadata service: a
/// [`crate::masquerade::MetadataPolicy`] (`u32`).
pub const METADATA_POLICY: &str = "METADATA_POLICY";
/// Path of all pod traffic through the host's stack (`u32`, 0 or 1).
pub const PATH_STACK: &str = "PATH_STACK";
/// Notes and look-ups of flows that the host's stack carries (`u32`, 0 or 1).
pub const SERVICE_NAT: &str = "SERVICE_NAT";
/// Translated flows that one endpoint may have (`u32`).
pub const FLOWS_PER_ENDPOINT: &str = "FLOWS_PER_ENDPOINT";
/// Most inbound flows of one endpoint (`u32`).
pub const INBOUND_PER_ENDPOINT: &str = "INBOUND_PER_ENDPOINT";
/// Most flows of the host (`u32`).
pub const FLOWS_OF_HOST: &str = "FLOWS_OF_HOST";
/// Entries of the flow cache for each CPU: a power of two, or 0 for none (`u32`).
pub const CACHE_ENTRIES: &str = "CACHE_ENTRIES";
/// The ports that any flow may get ([`crate::ports::Ports::open`]): four [`PortSlice`] as `u32`.
pub const OPEN_SLICES: &str = "OPEN_SLICES";
/// The ports of the reserve ([`crate::ports::Ports::reserve`]): as [`OPEN_SLICES`].
pub const RESERVE_SLICES: &str = "RESERVE_SLICES";
/// The ports that flows may have, also those of earlier programs: as [`OPEN_SLICES`].
pub const KNOWN_SLICES: &str = "KNOWN_SLICES";

/// Ports that translation may use: whole blocks of [`crate::abi::PORTS_PER_BLOCK`].
///
/// Blocks, because a busy destination's ports are kept in them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct PortSlice {
    first_block: u8,
    blocks: u8,
}

impl PortSlice {
    /// Most slices that there can be.
    pub const MAX: usize = 4;
    /// 40960 to 65535: what the host's automatic ports (32768 to 60999) leave, with 8,192 of these
    /// left to the host.
    pub const DEFAULT: Self = Self {
        first_block: 80,
        blocks: 48,
    };
    /// No ports.
    pub const NONE: Self = Self {
        first_block: 0,
        blocks: 0,
    };

    /// The ports from `first` to `last`; `None` when the first is below 1024, the range is empty,
    /// or its ends are no block's.
    #[must_use]
    #[expect(
        clippy::cast_possible_truncation,
        reason = "a port divided by 512 is below 128"
    )]
    pub const fn new(first: u16, last: u16) -> Option<Self> {
        let (first, end) = (first as u32, last as u32 + 1);
        let block = crate::abi::PORTS_PER_BLOCK;
        if first < 1024 || first >= end || first % block != 0 || end % block != 0 {
            return None;
        }
        Some(Self {
            first_block: (first / block) as u8,
            blocks: ((end - first) / block) as u8,
        })
    }

    /// The slice as the programs take it.
    #[must_use]
    pub const fn to_word(self) -> u32 {
        (self.first_block as u32) << 8 | self.blocks as u32
    }

    /// The slice that [`Self::to_word`] gave.
    #[inline(always)]
    #[must_use]
    #[expect(clippy::cast_possible_truncation, reason = "two bytes of the word")]
    pub const fn from_word(word: u32) -> Self {
        Self {
            first_block: (word >> 8) as u8,
            blocks: word as u8,
        }
    }

    /// The slice without its last blocks, at most so many, and these.
    #[must_use]
    pub const fn split(self, last: u8) -> (Self, Self) {
        let last = if last < self.blocks {
            last
        } else {
            self.blocks
        };
        let blocks = self.blocks - last;
        let rest = Self {
            first_block: self.first_block,
            blocks,
        };
        let last = Self {
            first_block: self.first_block + blocks,
            blocks: last,
        };
        (rest, last)
    }

    /// The first block.
    #[inline(always)]
    #[must_use]
    pub const fn first_block(self) -> u8 {
        self.first_block
    }

    /// Number of blocks.
    #[inline(always)]
    #[must_use]
    pub const fn blocks(self) -> u8 {
        self.blocks
    }

    /// Number of ports.
    #[inline(always)]
    #[must_use]
    pub const fn ports(self) -> u32 {
        self.blocks as u32 * crate::abi::PORTS_PER_BLOCK
    }

    /// True if a port, as a number, is in it.
    #[inline(always)]
    #[must_use]
    pub const fn contains(self, port: u16) -> bool {
        let block = port as u32 / crate::abi::PORTS_PER_BLOCK;
        block.wrapping_sub(self.first_block as u32) < self.blocks as u32
    }
}

/// Names of the programs in the object.
pub mod program {
    /// TC ingress of an endpoint's host-side device: what the pod sends.
    pub const FROM_ENDPOINT: &str = "from_endpoint";
    /// TC ingress of an ENI: what the VPC delivers.
    pub const FROM_NETWORK: &str = "from_network";
    /// TC egress of an ENI: what the stack sends to the VPC.
    pub const TO_NETWORK: &str = "to_network";
    /// TC egress of an endpoint's host-side device: what the stack sends to the pod.
    pub const TO_ENDPOINT: &str = "to_endpoint";
    /// Removes flows that user space found; run from user space, attached nowhere.
    pub const REAPER: &str = "reaper";
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn slices_are_whole_blocks() {
        assert_eq!(PortSlice::new(40960, 65535), Some(PortSlice::DEFAULT));
        assert_eq!(PortSlice::DEFAULT.ports(), 24_576);
        for (first, last) in [
            (512, 1023),
            (40961, 65535),
            (40960, 65534),
            (2048, 1023),
            (2048, 2047),
        ] {
            assert_eq!(PortSlice::new(first, last), None, "{first}-{last}");
        }
        for port in 0..=u16::MAX {
            assert_eq!(PortSlice::DEFAULT.contains(port), port >= 40960);
            assert!(!PortSlice::NONE.contains(port));
        }
        let slice = PortSlice::DEFAULT;
        assert_eq!(PortSlice::from_word(slice.to_word()), slice);
    }
}
