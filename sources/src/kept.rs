//! Latest state of the sources, kept on disk: it outlives the agent, within one boot.

use std::fmt;
use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result};
use document::read_file_up_to;
use serde::{Deserialize, Serialize};
use sha1::{Digest as _, Sha1};

use super::record;

/// Largest record that is read, in bytes: by far more than all namespaces of a large cluster need.
const RECORD_MAX: u64 = 256 << 20;

/// Kept sources: each has a record in the state folder.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Subject {
    /// The node document.
    Node,
    /// The pools' objects.
    Pools,
    /// Documents of pools that were deleted and are in use.
    RemovedPools,
    /// Labels and annotations of the node's pods.
    Pods,
    /// Those of all namespaces.
    Namespaces,
}

impl Subject {
    const ALL: [Self; 5] = [
        Self::Node,
        Self::Pools,
        Self::RemovedPools,
        Self::Pods,
        Self::Namespaces,
    ];

    fn path(self, state: &Path) -> PathBuf {
        state.join(match self {
            Self::Node => "node.json",
            Self::Pools => "pools.json",
            Self::RemovedPools => "removed-pools.json",
            Self::Pods => "pods.json",
            Self::Namespaces => "namespaces.json",
        })
    }
}

/// The place where something is kept.
#[derive(Clone, Debug)]
pub struct Kept {
    state: PathBuf,
    path: PathBuf,
    boot: String,
    server: Option<Server>,
}

/// An API server, as far as it is known without an answer of it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub struct Server {
    url: String,
    /// SHA-1 of each root certificate that the server is trusted by, in hexadecimal digits.
    roots: Vec<String>,
}

impl Server {
    /// The server at this URL, trusted by these root certificates (DER).
    #[must_use]
    pub fn new(url: &str, roots: &[Vec<u8>]) -> Self {
        let digest = |root: &Vec<u8>| format!("{:x}", Sha1::digest(root));
        Self {
            url: url.to_owned(),
            roots: roots.iter().map(digest).collect(),
        }
    }

    /// Many clusters have one URL inside of them, so one root has to be shared as well. All of them
    /// need not be: a rotation adds one before it removes the other.
    fn is_of_one_cluster_with(&self, other: &Self) -> bool {
        let is_without = self.roots.is_empty() && other.roots.is_empty();
        let shares = self.roots.iter().any(|root| other.roots.contains(root));
        self.url == other.url && (is_without || shares)
    }
}

fn shown(server: Option<&Server>) -> String {
    let Some(Server { url, roots }) = server else {
        return "none".to_owned();
    };
    match roots.as_slice() {
        [] => url.clone(),
        roots => format!("{url} with the roots {}", roots.join(", ")),
    }
}

/// The content of the record.
#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
struct Record {
    /// The boot that it is of: another boot may be another machine's.
    boot: String,
    /// The API server that it comes from; null for a file.
    #[serde(default)]
    server: Option<Server>,
    /// Name of the source: a file's path, or the object's kind and name.
    source: String,
    /// The document as the source had it.
    document: String,
}

impl Kept {
    /// The place of the node document in the state folder, for the boot with this id.
    #[must_use]
    pub fn new(state: &Path, boot: &str) -> Self {
        Self {
            state: state.to_owned(),
            path: Subject::Node.path(state),
            boot: boot.to_owned(),
            server: None,
        }
    }

    /// The place of records that come from this API server: those of another cluster do not count.
    #[must_use]
    pub fn with_server(self, server: Server) -> Self {
        Self {
            server: Some(server),
            ..self
        }
    }

    /// The place of something else.
    #[must_use]
    pub fn of(&self, subject: Subject) -> Self {
        Self {
            path: subject.path(&self.state),
            ..self.clone()
        }
    }

    /// Parsed document that an agent of this boot kept of the source. An unreadable one counts as
    /// none, and is logged.
    pub fn read_as<T, E: fmt::Display>(
        &self,
        source: &str,
        parse: impl FnOnce(&str) -> Result<T, E>,
    ) -> Option<T> {
        let parsed = parse(&self.read(source)?);
        let log = |error: &E| {
            let path = self.path.display();
            tracing::warn!("what an earlier agent kept is not used: {path}: document: {error}");
        };
        parsed.inspect_err(log).ok()
    }

    /// The document that an agent of this boot kept of the source. An unreadable one counts as
    /// none.
    pub fn read(&self, source: &str) -> Option<String> {
        let record = self.record().unwrap_or_else(|error| {
            tracing::warn!("what an earlier agent kept is not used: {error:#}");
            None
        })?;
        let is_ours = record.boot == self.boot && record.source == source;
        if is_ours && !self.is_of_our_cluster(&record) {
            let path = self.path.display();
            tracing::warn!(
                "a record of another cluster is not used: {path}: server: {}; expected: {}",
                shown(record.server.as_ref()),
                shown(self.server.as_ref())
            );
            return None;
        }
        is_ours.then_some(record.document)
    }

    fn is_of_our_cluster(&self, record: &Record) -> bool {
        match (&self.server, &record.server) {
            (Some(ours), Some(theirs)) => ours.is_of_one_cluster_with(theirs),
            (ours, theirs) => ours.is_none() && theirs.is_none(),
        }
    }

    fn record(&self) -> Result<Option<Record>> {
        let read = || format!("read {}", self.path.display());
        match read_file_up_to(&self.path, RECORD_MAX) {
            Ok(text) => Ok(Some(serde_json::from_str(&text).with_context(read)?)),
            Err(error) if error.is_missing() => Ok(None),
            Err(error) => Err(error).with_context(read),
        }
    }

    /// Keeps a good document of the source in place of the last one.
    pub fn write(&self, source: &str, document: &str) {
        let record = Record {
            boot: self.boot.clone(),
            server: self.server.clone(),
            source: source.to_owned(),
            document: document.to_owned(),
        };
        if let Err(error) = record::write(&self.path, &record) {
            tracing::warn!("cannot record the state for a restart: {error:#}");
        }
    }
}

/// Removes the records from the state folder.
///
/// # Errors
/// When one cannot be removed.
pub fn remove(state: &Path) -> Result<()> {
    for path in Subject::ALL.map(|subject| subject.path(state)) {
        record::remove(&path)?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_document_is_that_of_its_boot_and_source_alone() {
        let state = tempfile::tempdir().unwrap();
        let kept = Kept::new(state.path(), "this");
        assert_eq!(kept.read("CiliumNode one"), None);
        kept.write("CiliumNode one", "a \"text\"\n");
        assert_eq!(kept.read("CiliumNode one").unwrap(), "a \"text\"\n");
        assert_eq!(kept.read("CiliumNode two"), None);
        assert_eq!(
            Kept::new(state.path(), "other").read("CiliumNode one"),
            None
        );
        // Each subject has a record of its own.
        let pools = kept.of(Subject::Pools);
        assert_eq!(pools.read("CiliumNode one"), None);
        pools.write("CiliumNode one", "pools");
        assert_eq!(kept.read("CiliumNode one").unwrap(), "a \"text\"\n");
        remove(state.path()).unwrap();
        assert_eq!(kept.read("CiliumNode one"), None);
        assert_eq!(pools.read("CiliumNode one"), None);
        remove(state.path()).unwrap();
    }

    #[test]
    fn a_record_is_that_of_its_cluster_alone() {
        let (old, new, other) = (vec![1], vec![2], vec![3]);
        let at = |url: &str, roots: &[&Vec<u8>]| {
            let roots: Vec<_> = roots.iter().map(|root| (*root).clone()).collect();
            Some(Server::new(url, &roots))
        };
        let known = at("https://10.0.0.1/", &[&old]);
        for (writer, reader, is_used) in [
            (known.clone(), known.clone(), true),
            (known.clone(), at("https://10.0.0.1/", &[&old, &new]), true),
            (known.clone(), at("https://10.0.0.1/", &[&other]), false),
            (known.clone(), at("https://10.0.0.1/", &[]), false),
            (known.clone(), at("https://10.0.0.2/", &[&old]), false),
            (known.clone(), None, false),
            (None, known, false),
            (at("https://one/", &[]), at("https://one/", &[]), true),
            (None, None, true),
        ] {
            let state = tempfile::tempdir().unwrap();
            let kept = |server: &Option<Server>| Kept {
                server: server.clone(),
                ..Kept::new(state.path(), "this").of(Subject::Pods)
            };
            kept(&writer).write("pods", "all");
            let read = kept(&reader).read("pods");
            assert_eq!(read.is_some(), is_used, "{writer:?} {reader:?}");
        }
    }

    #[test]
    fn one_that_cannot_be_read_is_as_good_as_none() {
        let state = tempfile::tempdir().unwrap();
        let kept = Kept::new(state.path(), "this");
        for content in [&b""[..], b"{\"boot\":\"this\"", b"\xff\x00", b"[]"] {
            std::fs::write(&kept.path, content).unwrap();
            assert_eq!(kept.read("one"), None);
            kept.write("one", "good");
            assert_eq!(kept.read("one").as_deref(), Some("good"));
            let number = |text: &str| text.parse::<u8>();
            assert_eq!(kept.read_as("one", number), None, "nor one of another form");
            kept.write("one", "7");
            assert_eq!(kept.read_as("one", number), Some(7));
        }
    }
}
