//! Errors of the SDK as failures.

use std::error::Error;
use std::iter::successors;

use aws_credential_types::provider::error::CredentialsError;
use aws_sdk_ec2::config::http::HttpResponse;
use aws_sdk_ec2::error::{ProvideErrorMetadata, SdkError};
use aws_sdk_ec2::operation::RequestId as _;
use cloud::{Class, Failure};

use super::Sent;
use crate::shape::FieldError;

/// The code of a call that was not sent, because there were no credentials to sign it with.
const NO_CREDENTIALS: &str = "NoCredentials";
/// The code of a call that was not sent, because it could not be built.
const NOT_SENT: &str = "NotSent";
/// Longer bodies of answers are no help.
const CAUSE: usize = 512;

impl Sent {
    /// A failure by an error of the SDK.
    pub(super) fn failed<E>(self, error: &SdkError<E, HttpResponse>) -> Failure
    where
        E: ProvideErrorMetadata + Error + 'static,
    {
        match error {
            SdkError::ServiceError(service) => {
                let status = service.raw().status().as_u16();
                let body = service.raw().body().bytes().unwrap_or_default();
                let request = error.request_id().or_else(|| request_id(body));
                self.answered(status, service.err(), request)
            }
            SdkError::ConstructionFailure(_) => self.unsent(NOT_SENT, Class::Invalid, error),
            _ if lacks_credentials(error) => self.unsent(NO_CREDENTIALS, Class::Credentials, error),
            _ => self.unanswered(&causes(error)),
        }
    }

    fn answered<E>(self, status: u16, error: &E, request: Option<&str>) -> Failure
    where
        E: ProvideErrorMetadata + Error + 'static,
    {
        let code = error.code().unwrap_or_default();
        let message = match error.message() {
            Some(message) => message.to_owned(),
            None => format!("HTTP status {status}: {}", causes(error)),
        };
        let message = match request {
            Some(request) => format!("{message} (request {request})"),
            None => message,
        };
        Failure::answered(self.0, status, code, &message)
    }

    /// A call without an answer that can be used.
    pub(super) fn unanswered(self, reason: &str) -> Failure {
        Failure::unanswered(self.0, reason)
    }

    /// An answer with a field that cannot be used: its effect has to be read.
    pub(super) fn unreadable(self, error: &FieldError) -> Failure {
        self.unanswered(&format!("the answer cannot be read: {error}"))
    }

    /// A call that no parameters of EC2 stand for.
    pub(super) fn invalid(self, reason: &str) -> Failure {
        self.refused(NOT_SENT, Class::Invalid, reason)
    }

    fn unsent(self, code: &str, class: Class, error: &(dyn Error + 'static)) -> Failure {
        self.refused(code, class, &causes(error))
    }

    fn refused(self, code: &str, class: Class, reason: &str) -> Failure {
        Failure {
            action: self.0,
            class,
            code: code.to_owned(),
            message: reason.to_owned(),
        }
    }
}

/// The request's id in a refusal; the SDK looks for it in the headers alone.
fn request_id(body: &[u8]) -> Option<&str> {
    let (_, rest) = str::from_utf8(body).ok()?.split_once("<RequestID>")?;
    let (id, _) = rest.split_once("</RequestID>")?;
    Some(id.trim())
}

fn lacks_credentials(error: &(dyn Error + 'static)) -> bool {
    successors(Some(error), |it| (*it).source()).any(<dyn Error>::is::<CredentialsError>)
}

/// An error and its causes in one line. A cause that its error has in its own text is left out.
fn causes(error: &(dyn Error + 'static)) -> String {
    let mut line = String::new();
    for cause in successors(Some(error), |it| (*it).source()) {
        let text = cause.to_string();
        if line.contains(&text) {
            continue;
        }
        if !line.is_empty() {
            line.push_str(": ");
        }
        line.push_str(&text);
    }
    line.chars().take(CAUSE).collect()
}
