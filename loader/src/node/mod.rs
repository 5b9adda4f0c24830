//! The node document: a `CiliumNode` v2 as JSON or YAML, read once and watched.

mod check;
mod document;
mod problem;
mod watch;

use datapath_common::mark::MarkLayout;

pub use self::problem::{DocumentError, Problem};
pub(crate) use self::watch::look;
pub use self::watch::{NodeSource, watch};
use crate::intent::Node;

/// Reads a node document. A text that begins with a brace is JSON, any other one YAML,
/// where a word without quotes is text wherever text is wanted.
///
/// `mark` bounds the ENI numbers: a packet's mark has to carry them.
///
/// # Errors
/// With every problem of the document: the field's path, its value, what is allowed. A document
/// with a field of the wrong type has that one problem.
pub fn parse(text: &str, mark: MarkLayout) -> Result<Node, DocumentError> {
    let document: document::CiliumNode = crate::document::read(text)?;
    check::check(&document, mark)
}
