//! Errors of the API server as people read them: each with its whole cause, and the server's URL.

use std::error::Error;
use std::fmt;

use kube::runtime::watcher;
use tower::BoxError;

/// The error of a request that has got no answer. Its text has the whole chain.
#[derive(Debug)]
struct Unanswered {
    server: String,
    cause: String,
}

impl fmt::Display for Unanswered {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "no answer from {}: {}", self.server, self.cause)
    }
}

impl Error for Unanswered {}

/// Makes an error of the connection one that names the server and the whole cause.
pub(super) fn unanswered(server: &str, error: &BoxError) -> BoxError {
    Box::new(Unanswered {
        server: server.to_owned(),
        cause: chain(error.as_ref()),
    })
}

/// An error with its causes. A cause that the text so far contains is not repeated.
#[must_use]
pub fn chain(error: &(dyn Error + 'static)) -> String {
    let mut text = one(error);
    let mut next = behind(error);
    while let Some(cause) = next {
        let of_cause = one(cause);
        if !text.contains(&of_cause) {
            text = format!("{text}: {of_cause}");
        }
        next = behind(cause);
    }
    text
}

/// The cause of an error, where its own text does not have all of it.
fn behind<'a>(error: &'a (dyn Error + 'static)) -> Option<&'a (dyn Error + 'static)> {
    let is_whole = matches!(error.downcast_ref(), Some(kube::Error::Api(_)))
        || matches!(error.downcast_ref(), Some(watcher::Error::WatchError(_)));
    error.source().filter(|_| !is_whole)
}

/// The text of an error by itself, without how the library calls its kinds.
fn one(error: &(dyn Error + 'static)) -> String {
    if let Some(watch) = error.downcast_ref::<watcher::Error>() {
        return match watch {
            watcher::Error::InitialListFailed(_) => "list".to_owned(),
            watcher::Error::WatchStartFailed(_) => "begin to watch".to_owned(),
            watcher::Error::WatchError(status) => format!("watch: {}", refusal(status)),
            watcher::Error::WatchFailed(_) => "watch".to_owned(),
            watcher::Error::NoResourceVersion => watch.to_string(),
        };
    }
    match error.downcast_ref::<kube::Error>() {
        Some(kube::Error::Api(status)) => refusal(status),
        Some(kube::Error::Service(cause)) => one(cause.as_ref()),
        Some(_) | None => error.to_string(),
    }
}

/// A refusal of the server.
fn refusal(status: &kube::core::Status) -> String {
    let code = status.code;
    let message = status.message.trim();
    if message.is_empty() {
        format!("refused with {code}")
    } else {
        format!("refused with {code}: {message}")
    }
}

#[cfg(test)]
mod tests {
    use std::io;

    use anyhow::Context as _;

    use super::*;

    #[test]
    fn the_whole_chain_is_told_once_without_the_librarys_words() {
        let refused = io::Error::from_raw_os_error(libc::ECONNREFUSED);
        let connect = Err::<(), _>(refused).context("tcp connect error");
        let connect = connect.context("client error (Connect)").unwrap_err();
        let error = kube::Error::Service(unanswered("https://10.0.0.1:6443/", &connect.into()));
        let error = watcher::Error::WatchStartFailed(error);
        assert_eq!(
            chain(&error),
            "begin to watch: no answer from https://10.0.0.1:6443/: client error (Connect): tcp \
             connect error: Connection refused (os error 111)"
        );
    }

    #[test]
    fn refusals_have_their_code_and_what_the_server_says() {
        let refusal = |code: u16, message: &str| {
            let status = serde_json::json!({"code": code, "message": message});
            kube::Error::Api(serde_json::from_value(status).unwrap())
        };
        let error = watcher::Error::InitialListFailed(refusal(403, "pods is forbidden"));
        assert_eq!(chain(&error), "list: refused with 403: pods is forbidden");
        assert_eq!(chain(&refusal(401, "")), "refused with 401");
    }
}
