//! Ports of translation as the programs take them, and the names of the programs.

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
