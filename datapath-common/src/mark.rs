//! The layout of Towpath's part of the packet mark.
//!
//! The mark is shared with kube-proxy, the VPC CNI, Cilium and others, who OR their bits in. All
//! of ours lie in one contiguous mask: its highest bit says *exception*, the next one *done*, the
//! rest is a field with the ENI number **plus one**, so that 0 means "not marked by us".

/// Where our bits lie in the packet mark.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct MarkLayout {
    mask: u32,
}

/// Why a mask cannot be used.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MarkError {
    /// The mask's bits are not contiguous.
    NotContiguous,
    /// The mask has fewer than [`MarkLayout::MIN_BITS`] bits.
    TooNarrow,
}

impl core::fmt::Display for MarkError {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        match self {
            Self::NotContiguous => f.write_str("its bits must be contiguous"),
            Self::TooNarrow => write!(f, "it must have at least {} bits", MarkLayout::MIN_BITS),
        }
    }
}

impl core::error::Error for MarkError {}

impl MarkLayout {
    /// Two flags and a field for 15 ENIs, the most that an instance's first network card takes.
    pub const MIN_BITS: u32 = 6;

    /// Clear of kube-proxy (0x4000, 0x8000), the VPC CNI (0x80), Cilium (0xf00) and Tailscale
    /// (0xff0000).
    pub const DEFAULT: Self = Self { mask: 0xff00_0000 };

    /// A layout within `mask`.
    ///
    /// # Errors
    /// When the mask is not contiguous or too narrow.
    pub const fn new(mask: u32) -> Result<Self, MarkError> {
        if mask.count_ones() < Self::MIN_BITS {
            return Err(MarkError::TooNarrow);
        }
        if mask.leading_zeros() + mask.count_ones() + mask.trailing_zeros() != 32 {
            return Err(MarkError::NotContiguous);
        }
        Ok(Self { mask })
    }

    /// All of our bits.
    #[must_use]
    pub const fn mask(self) -> u32 {
        self.mask
    }

    /// Shift of the ENI field.
    #[must_use]
    pub const fn shift(self) -> u32 {
        self.mask.trailing_zeros()
    }

    /// The bit of a packet whose path is an exception (too large, options, TTL at its end).
    #[must_use]
    pub const fn exception(self) -> u32 {
        1 << self.mask.ilog2()
    }

    /// The bit of a packet that needs no more work at an ENI's egress.
    #[must_use]
    pub const fn done(self) -> u32 {
        self.exception() >> 1
    }

    /// The bits of the ENI field.
    #[must_use]
    pub const fn field_mask(self) -> u32 {
        self.mask & !(self.exception() | self.done())
    }

    /// The highest ENI number that the field holds.
    #[must_use]
    pub const fn max_eni(self) -> u32 {
        (self.field_mask() >> self.shift()) - 1
    }

    /// The mark of an ENI; `None` when the number does not fit the field.
    #[must_use]
    pub const fn eni(self, number: u32) -> Option<u32> {
        if number > self.max_eni() {
            return None;
        }
        Some((number + 1) << self.shift())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn default_is_clear_of_the_neighbours_bits() {
        let layout = MarkLayout::DEFAULT;
        for other in [0x4000, 0x8000, 0x80, 0xf00, 0x00ff_0000] {
            assert_eq!(layout.mask() & other, 0);
        }
        assert_eq!(layout.exception(), 0x8000_0000);
        assert_eq!(layout.done(), 0x4000_0000);
        assert_eq!(layout.field_mask(), 0x3f00_0000);
        assert_eq!(layout.max_eni(), 62);
        assert_eq!(layout.eni(0), Some(0x0100_0000));
        assert_eq!(layout.eni(62), Some(0x3f00_0000));
        assert_eq!(layout.eni(63), None);
    }

    #[test]
    fn rejects_masks_that_cannot_hold_the_layout() {
        assert_eq!(MarkLayout::new(0xf00f_0000), Err(MarkError::NotContiguous));
        assert_eq!(MarkLayout::new(0x1f00), Err(MarkError::TooNarrow));
        assert_eq!(MarkLayout::new(0), Err(MarkError::TooNarrow));
        assert_eq!(MarkLayout::new(u32::MAX).map(MarkLayout::shift), Ok(0));
        assert_eq!(MarkLayout::new(0x3f).map(MarkLayout::max_eni), Ok(14));
    }
}
