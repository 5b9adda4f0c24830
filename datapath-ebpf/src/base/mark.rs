//! Our bits of the packet mark. Their layout (`datapath_common::mark::MarkLayout`) is fixed when
//! the programs are loaded.

use super::PRIMARY_ENI;
use aya_ebpf::Global;
use datapath_common::mark::MarkLayout;

#[unsafe(no_mangle)]
static MARK_SHIFT: Global<u32> = Global::new(MarkLayout::DEFAULT.shift());
#[unsafe(no_mangle)]
static MARK_MASK: Global<u32> = Global::new(MarkLayout::DEFAULT.mask());
#[unsafe(no_mangle)]
static MARK_DONE: Global<u32> = Global::new(MarkLayout::DEFAULT.done());
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
        let field = u32::from(number) + 1;
        Self(field.wrapping_shl(MARK_SHIFT.load()))
    }

    /// The mark of what an ENI received: the primary's traffic stays unmarked and takes the host's
    /// own routes.
    #[inline(always)]
    pub(crate) fn of_ingress(number: u8) -> Self {
        if number == PRIMARY_ENI {
            Self::NONE
        } else {
            Self::eni(number)
        }
    }

    /// The mark of a packet that an ENI's egress has nothing more to do with.
    #[inline(always)]
    pub(crate) fn done() -> Self {
        Self(MARK_DONE.load())
    }

    /// True if a packet's whole mark says so.
    #[inline(always)]
    pub(crate) fn is_done(mark: u32) -> bool {
        mark & MARK_DONE.load() != 0
    }

    /// True if a packet's whole mark has bits of ours.
    #[inline(always)]
    pub(crate) fn is_ours(mark: u32) -> bool {
        mark & MARK_MASK.load() != 0
    }

    /// True if a packet's whole mark says that the stack carries it for an exception's sake.
    #[inline(always)]
    pub(crate) fn is_exception(mark: u32) -> bool {
        mark & MARK_EXCEPTION.load() != 0
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
