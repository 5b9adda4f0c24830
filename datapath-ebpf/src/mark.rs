//! Our bits of the packet mark. Their layout (`datapath_common::mark::MarkLayout`) is fixed when
//! the programs are loaded.

use aya_ebpf::Global;
use datapath_common::mark::MarkLayout;

#[unsafe(no_mangle)]
static MARK_SHIFT: Global<u32> = Global::new(MarkLayout::DEFAULT.shift());
#[unsafe(no_mangle)]
static MARK_MASK: Global<u32> = Global::new(MarkLayout::DEFAULT.mask());
#[unsafe(no_mangle)]
static MARK_EXCEPTION: Global<u32> = Global::new(MarkLayout::DEFAULT.exception());

/// Our bits of a mark.
#[derive(Clone, Copy)]
pub(crate) struct Mark(u32);

impl Mark {
    /// No ENI, no flag.
    pub(crate) const NONE: Self = Self(0);

    /// The mark of an ENI. User space gives no number that the field cannot hold.
    #[inline(always)]
    pub(crate) fn eni(number: u8) -> Self {
        Self((u32::from(number) + 1).wrapping_shl(MARK_SHIFT.load()))
    }

    /// This mark, for a packet that the stack must answer, fragment or take apart.
    #[inline(always)]
    pub(crate) fn exception(self) -> Self {
        Self(self.0 | MARK_EXCEPTION.load())
    }

    /// A packet's whole mark with our bits replaced by these; others' bits stay.
    #[inline(always)]
    pub(crate) fn within(self, mark: u32) -> u32 {
        (mark & !MARK_MASK.load()) | self.0
    }
}
