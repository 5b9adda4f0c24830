//! Answers of the garbage-collection thread for flows, which replies to callers itself.

use api::{ApiError, ErrorCode};
use flows::Answer;

use crate::server::Reply;

/// The function that sends the thread's answer to a caller.
pub(crate) fn answer<T: Send + 'static>(reply: Reply<T>) -> Answer<T> {
    Box::new(move |answer| {
        let answer =
            answer.map_err(|error| ApiError::new(ErrorCode::Internal, format!("{error:#}")));
        // A caller that has gone needs no answer.
        reply.send(answer).ok();
    })
}
