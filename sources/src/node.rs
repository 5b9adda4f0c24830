//! The node document's file, read and followed.

use std::path::{Path, PathBuf};

use datapath_common::mark::MarkLayout;
use document::read_file;
use loader::intent::Node;
use node_document::parse;
use tokio::sync::watch as channel;

use crate::follow;
use crate::follow::{Followed, Source};
use crate::kept::Kept;

/// The state of the node document's file.
pub type NodeSource = Followed<Node>;

/// Reads the file, then follows it until every receiver is dropped. Waits for nothing: a file or
/// folder that is not there yet is an error in the result, and is taken as soon as it appears.
///
/// Must be called inside a tokio runtime.
#[must_use]
pub fn watch(path: PathBuf, mark: MarkLayout) -> channel::Receiver<NodeSource> {
    follow::watch(path, NodeDocument { mark, kept: None })
}

/// As [`watch`], with a place where the last good document outlives the agent: that one is in force
/// until the file is good.
///
/// Must be called inside a tokio runtime.
#[must_use]
pub fn watch_kept(path: PathBuf, mark: MarkLayout, kept: Kept) -> channel::Receiver<NodeSource> {
    let kept = Some(kept);
    follow::watch(path, NodeDocument { mark, kept })
}

/// The parts of the file that cannot be used as they are now, and why.
#[must_use]
pub fn look(path: &Path, mark: MarkLayout) -> Vec<String> {
    match follow::look(path, &NodeDocument { mark, kept: None }) {
        Ok(node) => {
            let refused = node.unfollowed.refused.iter();
            let refused = refused.map(|problem| format!("{}: {problem}", path.display()));
            refused.collect()
        }
        Err(error) => vec![error],
    }
}

struct NodeDocument {
    mark: MarkLayout,
    kept: Option<Kept>,
}

impl Source for NodeDocument {
    type Content = Result<String, String>;
    type Value = Node;

    const NAME: &'static str = "node document";

    fn read(&self, path: &Path) -> Self::Content {
        read_file(path).map_err(|e| e.to_string())
    }

    fn parse(
        &self,
        path: &Path,
        content: &Self::Content,
        _last: Option<&Node>,
    ) -> Result<Node, String> {
        let parsed = match content {
            Ok(text) => parse(text, self.mark).map_err(|e| e.to_string()),
            Err(error) => Err(error.clone()),
        };
        parsed.map_err(|error| format!("{}: {error}", path.display()))
    }

    fn kept(&self, path: &Path) -> Option<Node> {
        let kept = self.kept.as_ref()?;
        kept.read_as(&path.display().to_string(), |text| parse(text, self.mark))
    }

    fn keep(&self, path: &Path, content: &Self::Content) {
        if let (Some(kept), Ok(text)) = (&self.kept, content) {
            kept.write(&path.display().to_string(), text);
        }
    }
}
