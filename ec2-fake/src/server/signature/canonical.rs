//! Requests in the form that is signed.

use hyper::{HeaderMap, Method};
use percent_encoding::{AsciiSet, NON_ALPHANUMERIC, percent_decode_str, utf8_percent_encode};
use sha2::{Digest as _, Sha256};

/// Characters that are encoded: all but the unreserved ones of RFC 3986, section 2.3.
const ENCODED: &AsciiSet = &NON_ALPHANUMERIC
    .remove(b'-')
    .remove(b'.')
    .remove(b'_')
    .remove(b'~');

/// The parts of a request that are signed. The path is `/`.
#[derive(Clone, Copy, Debug)]
pub(in crate::server) struct Signed<'a> {
    pub(in crate::server) method: &'a Method,
    pub(in crate::server) query: &'a str,
    pub(in crate::server) headers: &'a HeaderMap,
    pub(in crate::server) body: &'a [u8],
}

impl Signed<'_> {
    /// The canonical request with the headers of these names.
    pub(super) fn canonical(&self, names: &[String]) -> String {
        let mut lines = vec![
            self.method.to_string(),
            "/".to_owned(),
            canonical_query(self.query),
        ];
        lines.extend(names.iter().map(|name| {
            let values: Vec<_> = self.headers.get_all(name).iter().map(value).collect();
            format!("{name}:{}", values.join(","))
        }));
        lines.push(String::new());
        lines.push(names.join(";"));
        lines.push(hex::encode(Sha256::digest(self.body)));
        lines.join("\n")
    }
}

/// A header's value, with single spaces.
fn value(value: &hyper::header::HeaderValue) -> String {
    let text = String::from_utf8_lossy(value.as_bytes());
    text.split_whitespace().collect::<Vec<_>>().join(" ")
}

/// The parameters of a query string, encoded and in order.
fn canonical_query(query: &str) -> String {
    let encoded = |text: &str| {
        let text = percent_decode_str(text).decode_utf8_lossy();
        utf8_percent_encode(&text, ENCODED).to_string()
    };
    let pairs = query.split('&').filter(|pair| !pair.is_empty());
    let mut pairs: Vec<_> = pairs
        .map(|pair| {
            let (name, value) = pair.split_once('=').unwrap_or((pair, ""));
            (encoded(name), encoded(value))
        })
        .collect();
    pairs.sort_unstable();
    let pairs = pairs.iter().map(|(name, value)| format!("{name}={value}"));
    pairs.collect::<Vec<_>>().join("&")
}
