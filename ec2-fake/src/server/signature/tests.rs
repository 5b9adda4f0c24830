//! Requests of AWS's own signing test suite (aws-c-auth v0.9.0, `tests/aws-signing-test-suite`).

use hyper::header::{HeaderName, HeaderValue};
use hyper::{HeaderMap, Method};
use jiff::{SignedDuration, Timestamp};

use super::{Authorization, Scope, Signed};
use crate::error::Result;

const SECRET: &str = "wJalrXUtnFEMI/K7MDENG+bPxRfiCYEXAMPLEKEY";
const NOW: &str = "2015-08-30T12:36:00Z";

/// A request of the suite.
#[derive(Clone)]
struct Case {
    method: Method,
    query: &'static str,
    headers: Vec<(&'static str, String)>,
    body: &'static str,
}

impl Case {
    /// A request with a host and a time beside its own headers.
    fn new(query: &'static str, headers: &[(&'static str, &str)], names: &str, hex: &str) -> Self {
        let authorization = format!(
            "AWS4-HMAC-SHA256 Credential=AKIDEXAMPLE/20150830/us-east-1/service/aws4_request, \
             SignedHeaders={names}, Signature={hex}"
        );
        let mut all: Vec<_> = headers
            .iter()
            .map(|(name, it)| (*name, (*it).to_owned()))
            .collect();
        all.push(("host", "example.amazonaws.com".to_owned()));
        all.push(("x-amz-date", "20150830T123600Z".to_owned()));
        all.push(("authorization", authorization));
        Self {
            method: Method::GET,
            query,
            headers: all,
            body: "",
        }
    }

    /// The request with another header in the place of one.
    fn with(mut self, name: &'static str, from: &str, to: &str) -> Self {
        for (header, value) in &mut self.headers {
            if *header == name {
                *value = value.replace(from, to);
            }
        }
        self
    }

    fn verify(&self, secret: &str, later: SignedDuration) -> Result<String> {
        let mut headers = HeaderMap::new();
        for (name, value) in &self.headers {
            let value = HeaderValue::from_str(value).unwrap();
            headers.append(HeaderName::from_static(name), value);
        }
        let authorization = Authorization::read(&headers)?;
        let signed = Signed {
            method: &self.method,
            query: self.query,
            headers: &headers,
            body: self.body.as_bytes(),
        };
        let scope = Scope {
            region: "us-east-1".to_owned(),
            service: "service",
        };
        let now = NOW.parse::<Timestamp>().unwrap() + later;
        authorization.verify(&signed, secret, &scope, now)?;
        Ok(authorization.key)
    }

    fn code(&self) -> String {
        self.verify(SECRET, SignedDuration::ZERO).unwrap_err().code
    }
}

fn vanilla() -> Case {
    let hex = "5fa00fa31553b73ebf1942676e86291e8372ff2a2260956d9b8aae1d763fbf31";
    Case::new("", &[], "host;x-amz-date", hex)
}

fn form() -> Case {
    let headers = [
        ("content-type", "application/x-www-form-urlencoded"),
        ("content-length", "13"),
        (
            "x-amz-content-sha256",
            "9095672bbd1f56dfc5b65f3e153adc8731a4a654192329106275f4c7b24d0b6e",
        ),
    ];
    Case {
        method: Method::POST,
        body: "Param1=value1",
        ..Case::new(
            "",
            &headers,
            "content-length;content-type;host;x-amz-content-sha256;x-amz-date",
            "d3875051da38690788ef43de4db0d8f280229d82040bfac253562e56c3f20e0b",
        )
    }
}

#[test]
fn requests_of_the_suite_are_verified() {
    let token = "6e86291e8372ff2a2260956d9b8aae1d763fbf315fa00fa31553b73ebf194267";
    let cases = [
        vanilla(),
        form(),
        Case::new(
            "Param-3=Value3&Param=Value2&%E1%88%B4=Value1",
            &[],
            "host;x-amz-date",
            "371d3713e185cc334048618a97f809c9ffe339c62934c032af5a0e595648fcac",
        ),
        Case::new(
            "",
            &[("my-header1", " value1"), ("my-header2", " \"a   b   c\"")],
            "host;my-header1;my-header2;x-amz-date",
            "acc3ed3afb60bb290fc8d2dd0098b9911fcaa05412b367055dee359757a9c736",
        ),
        Case::new(
            "",
            &[
                ("my-header1", "value2"),
                ("my-header1", "value2"),
                ("my-header1", "value1"),
            ],
            "host;my-header1;x-amz-date",
            "c9d5ea9f3f72853aea855b47ea873832890dbdd183b4468f858259531a5138ea",
        ),
        Case::new(
            "",
            &[("x-amz-security-token", token)],
            "host;x-amz-date;x-amz-security-token",
            "07ec1639c89043aa0e3e2de82b96708f198cceab042d4a97044c66dd9f74e7f8",
        ),
    ];
    for case in cases {
        let key = case.verify(SECRET, SignedDuration::ZERO);
        assert_eq!(
            key.unwrap(),
            "AKIDEXAMPLE",
            "{:?} {:?}",
            case.query,
            case.headers
        );
    }
}

#[test]
fn another_request_or_secret_does_not_match() {
    let other_body = Case {
        body: "Param1=value2",
        ..form()
    };
    let other_method = Case {
        method: Method::POST,
        ..vanilla()
    };
    let other_query = Case {
        query: "a=b",
        ..vanilla()
    };
    let other_host = vanilla().with("host", "example", "other");
    for case in [other_body, other_method, other_query, other_host] {
        assert_eq!(case.code(), "SignatureDoesNotMatch");
    }
    let other_secret = vanilla().verify("other", SignedDuration::ZERO).unwrap_err();
    assert_eq!(other_secret.code, "SignatureDoesNotMatch");
}

#[test]
fn clocks_differ_by_15_minutes_at_most() {
    for minutes in [-15, 15] {
        vanilla()
            .verify(SECRET, SignedDuration::from_mins(minutes))
            .unwrap();
        let beyond = SignedDuration::from_secs(minutes * 60 + minutes.signum());
        let failure = vanilla().verify(SECRET, beyond).unwrap_err();
        assert_eq!(failure.code, "RequestExpired");
    }
}

#[test]
fn a_scope_is_of_the_day_region_and_service() {
    let cases = [
        ("us-east-1", "eu-west-1", "Credential should be scoped to"),
        ("/service/", "/s3/", "Credential should be scoped to"),
        ("20150830", "20150829", "Date in Credential scope"),
        ("20150830", "2015", "Date in Credential scope"),
    ];
    for (from, to, message) in cases {
        let case = vanilla().with("authorization", from, to);
        let failure = case.verify(SECRET, SignedDuration::ZERO).unwrap_err();
        assert_eq!(failure.code, "SignatureDoesNotMatch", "{to}");
        assert!(failure.message.starts_with(message), "{failure}");
    }
}

#[test]
fn host_and_time_are_always_signed() {
    for names in ["host", "x-amz-date"] {
        let case = vanilla().with("authorization", "host;x-amz-date", names);
        let failure = case.verify(SECRET, SignedDuration::ZERO).unwrap_err();
        assert!(failure.message.ends_with("is not signed"), "{failure}");
    }
}

#[test]
fn a_header_that_is_missing_or_malformed_is_named() {
    let without = |name| {
        let mut case = vanilla();
        case.headers.retain(|(header, _)| *header != name);
        case
    };
    assert_eq!(
        without("authorization").code(),
        "MissingAuthenticationToken"
    );
    assert_eq!(without("x-amz-date").code(), "IncompleteSignature");
    let cases = [
        ("AWS4-HMAC-SHA256", "AWS3"),
        ("aws4_request", "request"),
        ("aws4_request", "aws4_request/more"),
        ("Signature=5f", "Signature=xx"),
        ("SignedHeaders=", "Headers="),
        ("/us-east-1", ""),
    ];
    for (from, to) in cases {
        let case = vanilla().with("authorization", from, to);
        assert_eq!(case.code(), "IncompleteSignature", "{to}");
    }
    let time = vanilla().with("x-amz-date", "T", " ");
    assert_eq!(time.code(), "IncompleteSignature");
}
