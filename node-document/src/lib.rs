//! The node document: the text of a `CiliumNode` v2, as JSON or YAML, and the node that it describes.
//!
//! A bad entry affects no other entry. Nothing here does I/O.

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

/// Reads a node document. A text that begins with a brace is JSON, any other one YAML. In YAML a
/// word without quotes is a string wherever a string is expected.
///
/// `mark` limits the ENI numbers, since a packet's mark carries them.
///
/// An error in an entry makes only that entry not ready or not allocatable. It is listed in
/// `refused` with the field's path, its value, and the expected value.
///
/// # Errors
/// If the text is no object of the kind, or if a part that contains all ENIs has a wrong type.
pub fn parse(text: &str, mark: MarkLayout) -> Result<Node, DocumentError> {
    let (document, wrong) = reading::read(text)?;
    check::check(&document, &wrong, highest_number(mark))
}
