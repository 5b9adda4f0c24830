//! Flow marks: untranslated flows that are tracked, those opened from the outside and those of the
//! host's stack.

mod entry;
pub(crate) mod inbound;
pub(super) mod index;
pub(crate) mod stack;
