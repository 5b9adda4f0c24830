//! Signatures of requests: AWS's Signature Version 4, in the header `Authorization`.
//!
//! [AWS's description](https://docs.aws.amazon.com/IAM/latest/UserGuide/reference_sigv-create-signed-request.html)
//! names the parts that are computed here.

mod canonical;
#[cfg(test)]
mod tests;

use hmac::{Hmac, KeyInit as _, Mac as _};
use hyper::HeaderMap;
use hyper::header::AUTHORIZATION;
use jiff::civil::DateTime;
use jiff::tz::TimeZone;
use jiff::{SignedDuration, Timestamp};
use sha2::{Digest as _, Sha256};

pub(super) use self::canonical::Signed;
use crate::error::{Failure, Result};

const ALGORITHM: &str = "AWS4-HMAC-SHA256";
/// The last part of a credential's scope.
const END: &str = "aws4_request";
/// The header with the time of signing.
const DATE: &str = "x-amz-date";
const DATE_FORMAT: &str = "%Y%m%dT%H%M%SZ";
/// The difference of clocks that AWS tolerates.
const LONGEST_SKEW: SignedDuration = SignedDuration::from_mins(15);
/// Headers without which a signature could be used for another request.
const ALWAYS_SIGNED: [&str; 2] = ["host", DATE];

/// The service and region that signatures have to be for.
#[derive(Clone, Debug)]
pub(super) struct Scope {
    pub(super) region: String,
    pub(super) service: &'static str,
}

/// A request's header `Authorization`.
#[derive(Clone, Debug)]
pub(super) struct Authorization {
    /// The caller's access key.
    pub(super) key: String,
    date: String,
    region: String,
    service: String,
    /// Names of the headers that are signed.
    headers: Vec<String>,
    signature: Vec<u8>,
}

impl Authorization {
    /// Reads the header of a request.
    pub(super) fn read(headers: &HeaderMap) -> Result<Self> {
        let header = headers.get(AUTHORIZATION).ok_or_else(|| {
            Failure::new(
                "MissingAuthenticationToken",
                "Request is missing Authentication Token",
            )
        })?;
        let header = header.to_str().ok();
        header.and_then(Self::parse).ok_or_else(|| {
            Failure::new(
                "IncompleteSignature",
                format!(
                    "Authorization header: expected {ALGORITHM} Credential=KEY/DATE/REGION/\
                     SERVICE/{END}, SignedHeaders=NAMES, Signature=HEX"
                ),
            )
        })
    }

    fn parse(header: &str) -> Option<Self> {
        let parts = header.strip_prefix(ALGORITHM)?.trim_start();
        let part = |name: &str| {
            let mut parts = parts.split(',').map(str::trim);
            parts.find_map(|part| part.strip_prefix(name)?.strip_prefix('='))
        };
        let mut credential = part("Credential")?.split('/');
        let authorization = Self {
            key: credential.next()?.to_owned(),
            date: credential.next()?.to_owned(),
            region: credential.next()?.to_owned(),
            service: credential.next()?.to_owned(),
            headers: part("SignedHeaders")?
                .split(';')
                .map(str::to_owned)
                .collect(),
            signature: hex::decode(part("Signature")?).ok()?,
        };
        let is_whole = credential.next() == Some(END) && credential.next().is_none();
        is_whole.then_some(authorization)
    }

    /// Checks the signature of a request by the caller's secret.
    pub(super) fn verify(
        &self,
        request: &Signed<'_>,
        secret: &str,
        scope: &Scope,
        now: Timestamp,
    ) -> Result<()> {
        let unsigned = ALWAYS_SIGNED.iter().find(|name| !self.has_signed(name));
        if let Some(name) = unsigned {
            return Err(mismatch(&format!("the header {name} is not signed")));
        }
        let time = self.check_time(request.headers, now)?;
        if self.region != scope.region || self.service != scope.service {
            return Err(mismatch(&format!(
                "Credential should be scoped to {}/{}, not {}/{}",
                scope.region, scope.service, self.region, self.service
            )));
        }
        let digest = Sha256::digest(request.canonical(&self.headers));
        let text = format!(
            "{ALGORITHM}\n{time}\n{}/{}/{}/{END}\n{}",
            self.date,
            self.region,
            self.service,
            hex::encode(digest)
        );
        let mut key = format!("AWS4{secret}").into_bytes();
        for part in [&self.date, &self.region, &self.service, END] {
            key = code(&key, part)?.finalize().into_bytes().to_vec();
        }
        if code(&key, &text)?.verify_slice(&self.signature).is_ok() {
            return Ok(());
        }
        Err(mismatch(
            "The request signature we calculated does not match the signature you provided. \
             Check your AWS Secret Access Key and signing method.",
        ))
    }

    fn has_signed(&self, name: &str) -> bool {
        self.headers.iter().any(|signed| signed == name)
    }

    /// The time of signing, if it is now and the credential's date.
    fn check_time<'a>(&self, headers: &'a HeaderMap, now: Timestamp) -> Result<&'a str> {
        let text = headers.get(DATE).and_then(|value| value.to_str().ok());
        let text = text.unwrap_or_default();
        let time =
            DateTime::strptime(DATE_FORMAT, text).and_then(|time| TimeZone::UTC.to_timestamp(time));
        let Ok(time) = time else {
            return Err(Failure::new(
                "IncompleteSignature",
                format!("{DATE} {text:?}: expected a time such as 20150830T123600Z"),
            ));
        };
        if now.duration_since(time).abs() > LONGEST_SKEW {
            return Err(Failure::new(
                "RequestExpired",
                format!("Request has expired. Timestamp date is {text}."),
            ));
        }
        if text.split('T').next() != Some(&self.date) {
            return Err(mismatch(&format!(
                "Date in Credential scope does not match YYYYMMDD from {text}"
            )));
        }
        Ok(text)
    }
}

fn mismatch(message: &str) -> Failure {
    Failure::new("SignatureDoesNotMatch", message)
}

/// The authentication code of a text.
fn code(key: &[u8], text: &str) -> Result<Hmac<Sha256>> {
    let mut code = Hmac::new_from_slice(key)
        .map_err(|error| Failure::new("InternalError", format!("a key's length: {error}")))?;
    code.update(text.as_bytes());
    Ok(code)
}
