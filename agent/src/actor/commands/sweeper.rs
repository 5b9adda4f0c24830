//! Answers of the thread that sweeps flows, which replies to callers by itself.

use api::{ApiError, ErrorCode};
use flows::Answer;

use crate::server::Reply;

/// The function that hands the thread's answer to a caller.
pub(crate) fn answer<T: Send + 'static>(reply: Reply<T>) -> Answer<T> {
    Box::new(move |answer| {
        let answer =
            answer.map_err(|error| ApiError::new(ErrorCode::Internal, format!("{error:#}")));
        // A caller that went away needs no answer.
        reply.send(answer).ok();
    })
}
