//! The pool of a pod: selection, restriction, label selectors.

pub mod pool_selection;
pub mod restriction;
pub(super) mod selector;
