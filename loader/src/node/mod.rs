//! The node document: a `CiliumNode` v2 as JSON or YAML, read once and watched.

mod check;
mod document;
mod placement;
mod problem;
mod raw;
mod reading;
mod watch;

use datapath_common::mark::MarkLayout;

pub(crate) use self::placement::Around;
pub use self::problem::{DocumentError, Problem};
pub(crate) use self::watch::look;
pub use self::watch::{NodeSource, watch, watch_kept};
use crate::intent::Node;
pub use crate::kept::Kept;
use crate::numbers::ENI_MAX;

/// Reads a node document. A text that begins with a brace is JSON, any other one YAML,
/// where a word without quotes is text wherever text is wanted.
///
/// `mark` bounds the ENI numbers: a packet's mark has to carry them.
///
/// What is wrong with an entry costs that entry: it is not ready or not given, and stands among
/// `refused` with the field's path, its value, and what is allowed.
///
/// # Errors
/// When the text is no object of the kind, or a part that holds all ENIs is not of its type.
pub fn parse(text: &str, mark: MarkLayout) -> Result<Node, DocumentError> {
    let (document, wrong) = reading::read(text)?;
    check::check(&document, &wrong, highest_number(mark))
}

/// The highest ENI number that both the mark and the tables have room for.
pub(crate) fn highest_number(mark: MarkLayout) -> u8 {
    let max = u8::try_from(mark.max_eni()).unwrap_or(u8::MAX);
    max.min(ENI_MAX)
}
