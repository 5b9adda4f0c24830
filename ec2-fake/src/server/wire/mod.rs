//! The EC2 Query protocol: forms become calls, and answers become XML.

mod model;
mod parameters;
mod read;
mod write;

use crate::answer::Answer;
use crate::call::{Call, Request};
use crate::cloud::Cloud;
use crate::error::{Failure, Result};

/// The call that a form or a query string stands for.
///
/// # Errors
/// As EC2 answers: an action, a parameter or a value that it does not have, or one that is missing.
pub(crate) fn request(form: &[u8]) -> Result<Request> {
    read::request(form_urlencoded::parse(form).into_owned())
}

/// The answer of a call that succeeded, as XML.
pub(crate) fn answer(
    cloud: &Cloud,
    call: &Call,
    answer: &Answer,
    request: &str,
) -> std::io::Result<Vec<u8>> {
    write::answer(cloud, call, answer, request).print()
}

/// An error as XML.
pub(crate) fn failure(failure: &Failure, request: &str) -> std::io::Result<Vec<u8>> {
    write::failure(failure, request).print()
}
