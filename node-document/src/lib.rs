//! The node document: the text of a `CiliumNode` v2, as JSON or YAML, and the node that it describes.
//!
//! One bad entry costs only itself. Nothing here does I/O.

mod check;
mod fields;
mod placement;
mod problem;
mod raw;
mod reading;

use datapath_common::mark::MarkLayout;
use loader::constants::highest_number;
use loader::intent::Node;

pub use self::placement::{Around, place, take_enis};
pub use self::problem::DocumentError;

/// Reads a node document. A text that begins with a brace is JSON, any other one YAML,
/// where a word without quotes is text wherever text is wanted.
///
/// `mark` bounds the ENI numbers: a packet's mark has to carry them.
///
/// An error in an entry costs that entry alone: it is not ready or not given. It is listed in
/// `refused` with the field's path, its value, and what is expected.
///
/// # Errors
/// When the text is no object of the kind, or a part that holds all ENIs is not of its type.
pub fn parse(text: &str, mark: MarkLayout) -> Result<Node, DocumentError> {
    let (document, wrong) = reading::read(text)?;
    check::check(&document, &wrong, highest_number(mark))
}
