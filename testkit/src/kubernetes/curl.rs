//! Requests to the API server by curl: a client that shares no code with the agent's.

use std::fmt::{self, Write as _};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Child, Stdio};

use anyhow::{Context as _, Result, bail};
use serde_json::Value;

use crate::fabric::{Netns, command};

/// A user's client of a server.
#[derive(Clone, Debug)]
pub struct Caller<'a> {
    netns: &'a Netns,
    url: String,
    certificate: PathBuf,
    token: String,
}

/// Answer of the server.
#[derive(Clone, Debug)]
pub struct Answer {
    /// The status code.
    pub code: u16,
    /// The body; a text where it is not JSON.
    pub body: Value,
}

impl Answer {
    /// The body, if the status code is the expected one.
    ///
    /// # Errors
    /// When the status code differs.
    pub fn expect(self, code: u16) -> Result<Value> {
        if self.code != code {
            bail!("answered {self}; expected {code}");
        }
        Ok(self.body)
    }
}

impl fmt::Display for Answer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.code, self.body)
    }
}

impl<'a> Caller<'a> {
    /// A client in a namespace, of the server at a URL with this certificate, with a user's token.
    #[must_use]
    pub fn new(netns: &'a Netns, url: String, certificate: &Path, token: &str) -> Self {
        Self {
            netns,
            url,
            certificate: certificate.to_owned(),
            token: token.to_owned(),
        }
    }

    /// Reads.
    ///
    /// # Errors
    /// When there is no answer.
    pub fn get(&self, path: &str) -> Result<Answer> {
        self.ask("GET", path, None)
    }

    /// Makes an object in a collection.
    ///
    /// # Errors
    /// When there is no answer.
    pub fn post(&self, path: &str, object: &Value) -> Result<Answer> {
        self.ask("POST", path, Some(("application/json", object)))
    }

    /// Replaces an object.
    ///
    /// # Errors
    /// When there is no answer.
    pub fn put(&self, path: &str, object: &Value) -> Result<Answer> {
        self.ask("PUT", path, Some(("application/json", object)))
    }

    /// Merges a patch into an object.
    ///
    /// # Errors
    /// When there is no answer.
    pub fn merge(&self, path: &str, patch: &Value) -> Result<Answer> {
        self.ask("PATCH", path, Some(("application/merge-patch+json", patch)))
    }

    /// Deletes an object.
    ///
    /// # Errors
    /// When there is no answer.
    pub fn delete(&self, path: &str) -> Result<Answer> {
        self.ask("DELETE", path, None)
    }

    /// Creates or changes an object, as `kubectl apply --server-side` does.
    ///
    /// # Errors
    /// When it is refused.
    pub fn apply(&self, path: &str, object: &Value) -> Result<Value> {
        let path = format!("{path}?fieldManager=test&force=true");
        let body = Some(("application/apply-patch+yaml", object));
        let answer = self.ask("PATCH", &path, body)?;
        if answer.code >= 300 {
            bail!("{path}: {answer}");
        }
        Ok(answer.body)
    }

    /// Watches a collection. Each line of the process's standard output is a change, as JSON.
    ///
    /// # Errors
    /// When curl cannot be started.
    pub fn watch(&self, path: &str) -> Result<Child> {
        let mut curl = self.netns.command("curl");
        curl.args(["--silent", "--show-error", "--no-buffer", "--cacert"])
            .arg(&self.certificate)
            .args(["--header", &format!("Authorization: Bearer {}", self.token)])
            .arg(format!("{}{path}?watch=true", self.url))
            .stdout(Stdio::piped());
        curl.spawn().context("start curl")
    }

    /// Merges patches into an object over one connection, so many a second, until the process ends.
    /// `folder` is for the file that lists them.
    ///
    /// # Errors
    /// When the file cannot be written, or curl cannot be started.
    pub fn merge_all(
        &self,
        path: &str,
        patches: impl IntoIterator<Item = Value>,
        per_second: u32,
        folder: &Path,
    ) -> Result<Child> {
        let mut list = String::new();
        for patch in patches {
            // A JSON text in the quotes of curl's file is a JSON text of that text.
            let body = Value::String(patch.to_string());
            writeln!(
                list,
                "url = \"{}{path}\"\nrequest = PATCH\ncacert = \"{}\"\ndata-binary = {body}\n\
                 header = \"Authorization: Bearer {}\"\n\
                 header = \"Content-Type: application/merge-patch+json\"\n\
                 output = /dev/null\nsilent\nnext",
                self.url,
                self.certificate.display(),
                self.token
            )?;
        }
        let file = folder.join("patches");
        fs::write(&file, list)?;
        let mut curl = self.netns.command("curl");
        curl.args(["--rate", &format!("{per_second}/s"), "--config"])
            .arg(file)
            .stdout(Stdio::null())
            .stderr(Stdio::null());
        curl.spawn().context("start curl")
    }

    fn ask(&self, method: &str, path: &str, body: Option<(&str, &Value)>) -> Result<Answer> {
        let mut curl = self.netns.command("curl");
        curl.stderr(Stdio::piped())
            .args(["--silent", "--show-error", "--max-time", "30"])
            .args(["--request", method, "--write-out", "\n%{http_code}"])
            .args(["--header", &format!("Authorization: Bearer {}", self.token)])
            .arg("--cacert")
            .arg(&self.certificate);
        let input = match body {
            Some((kind, body)) => {
                curl.args([
                    "--header",
                    &format!("Content-Type: {kind}"),
                    "--data-binary",
                    "@-",
                ]);
                body.to_string()
            }
            None => String::new(),
        };
        curl.arg(format!("{}{path}", self.url));
        let output = command::run_with_input(&mut curl, &input)?;
        let (body, code) = output
            .rsplit_once('\n')
            .context("curl has not written the status code")?;
        Ok(Answer {
            code: code.parse()?,
            body: serde_json::from_str(body).unwrap_or_else(|_not_json| body.into()),
        })
    }
}
