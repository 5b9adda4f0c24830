//! Answers are whole documents.
//!
//! The SDK reads a document that ends early as if its last fields were unset. An ENI without its
//! attachment would pass for one that nothing holds.

use aws_sdk_ec2::config::interceptors::AfterDeserializationInterceptorContextRef;
use aws_sdk_ec2::config::{ConfigBag, Intercept, RuntimeComponents};
use aws_sdk_ec2::error::BoxError;
use xmlparser::{ElementEnd, StrSpan, Token, Tokenizer};

/// Fails answers that are not one whole document.
#[derive(Debug)]
pub(super) struct Whole;

/// An answer is not a whole document.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
enum PartError {
    #[error("the answer is not UTF-8")]
    Text(#[from] std::str::Utf8Error),
    #[error("the answer is not XML: {0}")]
    Token(#[from] xmlparser::Error),
    #[error("the answer has an end of {found}, expected that of {expected}")]
    Crossed { found: String, expected: String },
    #[error("the answer ends within {0}")]
    Cut(String),
    #[error("the answer is empty, expected a document of XML")]
    Empty,
}

#[aws_smithy_runtime_api::client::interceptors::dyn_dispatch_hint]
impl Intercept for Whole {
    fn name(&self) -> &'static str {
        "Whole"
    }

    fn read_after_deserialization(
        &self,
        context: &AfterDeserializationInterceptorContextRef<'_>,
        _: &RuntimeComponents,
        _: &mut ConfigBag,
    ) -> Result<(), BoxError> {
        let response = context.response();
        if response.status().is_success() {
            check(response.body().bytes().unwrap_or_default())?;
        }
        Ok(())
    }
}

fn check(body: &[u8]) -> Result<(), PartError> {
    let mut open: Vec<StrSpan<'_>> = Vec::new();
    let mut is_empty = true;
    for token in Tokenizer::from(std::str::from_utf8(body)?) {
        match token? {
            Token::ElementStart { local, .. } => {
                is_empty = false;
                open.push(local);
            }
            Token::ElementEnd { end, .. } => match end {
                ElementEnd::Open => {}
                ElementEnd::Empty => {
                    open.pop();
                }
                ElementEnd::Close(_, local) => close(&mut open, local)?,
            },
            _ => {}
        }
    }
    match open.last() {
        Some(element) => Err(PartError::Cut(element.to_string())),
        None if is_empty => Err(PartError::Empty),
        None => Ok(()),
    }
}

fn close(open: &mut Vec<StrSpan<'_>>, found: StrSpan<'_>) -> Result<(), PartError> {
    let expected = open.pop();
    if expected.is_some_and(|it| it.as_str() == found.as_str()) {
        return Ok(());
    }
    Err(PartError::Crossed {
        found: found.to_string(),
        expected: expected.map_or_else(|| "nothing".to_owned(), |it| it.to_string()),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    const DOCUMENT: &str = "<?xml version=\"1.0\"?>\n<a x=\"1\"><b/><c>text &amp; more</c></a>";

    #[test]
    fn a_document_is_whole_or_it_is_none() {
        check(DOCUMENT.as_bytes()).unwrap();
        check(format!("{DOCUMENT}\n").as_bytes()).unwrap();
        for end in 0..DOCUMENT.len() {
            let part = &DOCUMENT.as_bytes()[..end];
            check(part).expect_err(&String::from_utf8_lossy(part));
        }
    }

    #[test]
    fn faults_are_named() {
        let cases: [(&[u8], &str); 5] = [
            (b"<a><b></a></b>", "an end of a, expected that of b"),
            (b"<a><b/>", "ends within a"),
            (b"", "empty"),
            (b"not XML", "not XML"),
            (b"<a>\xff</a>", "not UTF-8"),
        ];
        for (body, named) in cases {
            let error = check(body).unwrap_err().to_string();
            assert!(error.contains(named), "{error}");
        }
    }
}
