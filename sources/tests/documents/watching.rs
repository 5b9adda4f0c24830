//! Following a document's file through everything that happens to files.

use std::fs;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use datapath_common::mark::MarkLayout;
use document::SIZE_MAX;
use sources::kept::Kept;
use sources::node::{NodeSource, watch, watch_kept};
use tempfile::TempDir;
use tokio::sync::watch::Receiver;
use tokio::time::timeout;

use super::support::{PREFIX_YAML, SECONDARY_JSON, SECONDARY_YAML};

const SECONDARY: &str = "ip-100-120-134-10.ec2.internal";
const PREFIX: &str = "ip-100-121-90-10.ec2.internal";
/// Well below the interval at which the file is read anyway: a change has to be noticed.
const NOTICED: Duration = Duration::from_secs(3);
/// Long enough for the interval.
const POLLED: Duration = Duration::from_secs(20);

struct Followed {
    source: Receiver<NodeSource>,
}

impl Followed {
    fn new(path: &Path) -> Self {
        Self {
            source: watch(path.to_owned(), MarkLayout::DEFAULT),
        }
    }

    async fn wait(&mut self, within: Duration, what: impl Fn(&NodeSource) -> bool) -> NodeSource {
        match timeout(within, self.source.wait_for(|source| what(source))).await {
            Ok(source) => return source.expect("the task runs").clone(),
            Err(_elapsed) => {}
        }
        panic!("after {within:?}: {:?}", self.source.borrow());
    }

    /// Waits for a good document of this name.
    async fn good(&mut self, name: &str) -> NodeSource {
        let good = |s: &NodeSource| {
            s.error.is_none() && s.value.as_ref().is_some_and(|node| node.name == name)
        };
        self.wait(NOTICED, good).await
    }

    /// Waits for an error that contains a text.
    async fn error(&mut self, text: &str) -> NodeSource {
        let bad = |s: &NodeSource| s.error.as_ref().is_some_and(|e| e.contains(text));
        self.wait(NOTICED, bad).await
    }
}

fn folder() -> (TempDir, PathBuf) {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("node.yaml");
    (folder, path)
}

fn rename_into(path: &Path, text: &str) {
    let new = path.with_extension("new");
    fs::write(&new, text).expect("a new file");
    fs::rename(&new, path).expect("a rename");
}

#[tokio::test]
async fn a_good_file_is_there_at_once() {
    let (_folder, path) = folder();
    fs::write(&path, SECONDARY_YAML).unwrap();
    let followed = Followed::new(&path);
    let source = followed.source.borrow();
    assert_eq!(source.value.as_ref().unwrap().name, SECONDARY);
    assert_eq!((source.error.clone(), source.generation), (None, 1));
}

#[tokio::test]
async fn an_atomic_rename_is_seen_every_time() {
    let (_folder, path) = folder();
    fs::write(&path, SECONDARY_YAML).unwrap();
    let mut followed = Followed::new(&path);
    for round in 1..4 {
        rename_into(&path, PREFIX_YAML);
        assert_eq!(followed.good(PREFIX).await.generation, 2 * round);
        rename_into(&path, SECONDARY_YAML);
        assert_eq!(followed.good(SECONDARY).await.generation, 2 * round + 1);
    }
}

#[tokio::test]
async fn a_rewrite_in_place_is_seen() {
    let (_folder, path) = folder();
    fs::write(&path, SECONDARY_YAML).unwrap();
    let mut followed = Followed::new(&path);
    fs::write(&path, PREFIX_YAML).unwrap();
    followed.good(PREFIX).await;
}

#[tokio::test]
async fn the_links_of_a_config_map_are_followed() {
    let (folder, path) = folder();
    let version = |name: &str, text: &str| {
        let version = folder.path().join(name);
        fs::create_dir(&version).unwrap();
        fs::write(version.join("node.yaml"), text).unwrap();
        // As the kubelet does: a new link, renamed over the old one.
        symlink(name, folder.path().join("..data_tmp")).unwrap();
        fs::rename(
            folder.path().join("..data_tmp"),
            folder.path().join("..data"),
        )
        .unwrap();
    };
    version("..one", SECONDARY_YAML);
    symlink("..data/node.yaml", &path).unwrap();
    let mut followed = Followed::new(&path);
    followed.good(SECONDARY).await;
    version("..two", PREFIX_YAML);
    followed.good(PREFIX).await;
    fs::remove_dir_all(folder.path().join("..one")).unwrap();
    version("..three", SECONDARY_YAML);
    followed.good(SECONDARY).await;
}

#[tokio::test]
async fn the_target_of_a_link_elsewhere_is_followed() {
    let (_folder, path) = folder();
    let (_elsewhere, target) = folder();
    fs::write(&target, SECONDARY_YAML).unwrap();
    symlink(&target, &path).unwrap();
    let mut followed = Followed::new(&path);
    followed.good(SECONDARY).await;
    rename_into(&target, PREFIX_YAML);
    followed.good(PREFIX).await;
}

#[tokio::test]
async fn a_file_that_goes_leaves_the_last_good_document() {
    let (_folder, path) = folder();
    fs::write(&path, SECONDARY_YAML).unwrap();
    let mut followed = Followed::new(&path);
    fs::remove_file(&path).unwrap();
    let source = followed.error("cannot be opened").await;
    assert_eq!(source.value.unwrap().name, SECONDARY);
    assert_eq!(source.generation, 1);
    // It comes back as it was: the error is cleared, the document is not a new one.
    fs::write(&path, SECONDARY_YAML).unwrap();
    assert_eq!(followed.good(SECONDARY).await.generation, 1);
    fs::remove_file(&path).unwrap();
    followed.error("cannot be opened").await;
    fs::write(&path, PREFIX_YAML).unwrap();
    assert_eq!(followed.good(PREFIX).await.generation, 2);
}

#[tokio::test]
async fn a_bad_document_leaves_the_last_good_one() {
    let (_folder, path) = folder();
    fs::write(&path, SECONDARY_YAML).unwrap();
    let mut followed = Followed::new(&path);
    rename_into(
        &path,
        &SECONDARY_YAML.replace("cilium.io/v2", "cilium.io/v1"),
    );
    let source = followed.error("apiVersion: \"cilium.io/v1\"").await;
    assert!(
        source
            .error
            .unwrap()
            .starts_with(&path.display().to_string())
    );
    assert_eq!(source.value.unwrap().name, SECONDARY);
    rename_into(&path, PREFIX_YAML);
    followed.good(PREFIX).await;
}

#[tokio::test]
async fn folders_may_come_later_and_be_replaced() {
    let top = tempfile::tempdir().unwrap();
    let parent = top.path().join("a/b");
    let path = parent.join("node.yaml");
    let mut followed = Followed::new(&path);
    let source = followed.error("cannot be opened").await;
    assert!(source.value.is_none());
    assert_eq!(source.generation, 0);
    fs::create_dir_all(&parent).unwrap();
    fs::write(&path, SECONDARY_YAML).unwrap();
    followed.good(SECONDARY).await;
    fs::remove_dir_all(top.path().join("a")).unwrap();
    followed.error("cannot be opened").await;
    fs::create_dir_all(&parent).unwrap();
    fs::write(&path, PREFIX_YAML).unwrap();
    followed.good(PREFIX).await;
    // A folder in the place of the followed one, by renaming.
    let other = top.path().join("a/c");
    fs::create_dir(&other).unwrap();
    fs::write(other.join("node.yaml"), SECONDARY_YAML).unwrap();
    fs::rename(&parent, top.path().join("a/old")).unwrap();
    fs::rename(&other, &parent).unwrap();
    followed
        .wait(POLLED, |s| s.error.is_none() && s.generation == 3)
        .await;
    rename_into(&path, PREFIX_YAML);
    followed.good(PREFIX).await;
}

#[tokio::test]
async fn what_is_not_a_text_of_bounded_size_is_refused() {
    let (_folder, path) = folder();
    fs::create_dir(&path).unwrap();
    let mut followed = Followed::new(&path);
    followed.error("is not a file").await;
    fs::remove_dir(&path).unwrap();

    nix::unistd::mkfifo(&path, nix::sys::stat::Mode::S_IRUSR).unwrap();
    followed.error("is not a file").await;
    fs::remove_file(&path).unwrap();

    rename_into(&path, "");
    followed.error("apiVersion: missing").await;

    let size = usize::try_from(SIZE_MAX).unwrap() + 1;
    rename_into(&path, &" ".repeat(size));
    let allowed = format!("has {size} bytes; allowed: at most {SIZE_MAX}");
    followed.error(&allowed).await;

    let new = path.with_extension("new");
    fs::write(&new, b"kind: \xff\xfe").unwrap();
    fs::rename(&new, &path).unwrap();
    followed.error("allowed: UTF-8").await;
    rename_into(&path, SECONDARY_YAML);
    followed.good(SECONDARY).await;
}

#[tokio::test]
async fn what_says_the_same_is_not_published_again() {
    let (_folder, path) = folder();
    fs::write(&path, SECONDARY_YAML).unwrap();
    let mut followed = Followed::new(&path);
    followed.source.mark_unchanged();
    // The unchanged text, an equal document in another notation, then a new document: one change.
    rename_into(&path, SECONDARY_YAML);
    let quiet = timeout(Duration::from_millis(300), followed.source.changed());
    assert!(quiet.await.is_err(), "the same text was published");
    rename_into(&path, SECONDARY_JSON);
    let quiet = timeout(Duration::from_millis(300), followed.source.changed());
    assert!(quiet.await.is_err(), "the same document was published");
    rename_into(&path, PREFIX_YAML);
    assert_eq!(followed.good(PREFIX).await.generation, 2);
}

/// Truncates the file and writes it in ten pieces. Returns the longest pause between two pieces,
/// and the first error that was published in that time.
async fn write_in_pieces(path: &Path, followed: &Followed) -> (Duration, Option<String>) {
    use std::io::Write as _;
    let mut file = fs::File::create(path).expect("the file");
    let (mut longest, mut error) = (Duration::ZERO, None);
    for piece in PREFIX_YAML.as_bytes().chunks(PREFIX_YAML.len() / 10 + 1) {
        let start = Instant::now();
        tokio::time::sleep(Duration::from_millis(5)).await;
        error = error.or_else(|| followed.source.borrow().error.clone());
        file.write_all(piece).expect("a piece");
        longest = longest.max(start.elapsed());
    }
    (longest, error)
}

#[tokio::test]
async fn a_write_in_pieces_settles_without_an_error() {
    let (_folder, path) = folder();
    for _ in 0..50 {
        rename_into(&path, SECONDARY_YAML);
        let mut followed = Followed::new(&path);
        let (longest, error) = write_in_pieces(&path, &followed).await;
        followed.good(PREFIX).await;
        // A busy machine may pause the writer for longer than a writer is waited for.
        if longest < Duration::from_millis(20) {
            assert_eq!(error, None, "longest pause {longest:?}");
            return;
        }
    }
    panic!("the writer was never quick enough");
}

#[tokio::test]
async fn the_task_ends_with_its_last_receiver() {
    let (_folder, path) = folder();
    let before = tokio::runtime::Handle::current()
        .metrics()
        .num_alive_tasks();
    let followed = Followed::new(&path);
    drop(followed);
    let ended = async {
        while tokio::runtime::Handle::current()
            .metrics()
            .num_alive_tasks()
            > before
        {
            tokio::task::yield_now().await;
        }
    };
    timeout(NOTICED, ended).await.expect("the task ends");
}

#[tokio::test]
async fn the_last_good_document_outlives_who_follows_it() {
    let (folder, path) = folder();
    let follow = |path: &Path, boot: &str| Followed {
        source: watch_kept(
            path.to_owned(),
            MarkLayout::DEFAULT,
            Kept::new(folder.path(), boot),
        ),
    };
    fs::write(&path, SECONDARY_YAML).unwrap();
    drop(follow(&path, "this"));
    fs::write(&path, "kind: Pod").unwrap();
    let source = follow(&path, "other").source.borrow().clone();
    assert!(source.value.is_none());

    let mut followed = follow(&path, "this");
    let source = followed.source.borrow().clone();
    assert_eq!(source.value.unwrap().name, SECONDARY);
    assert_eq!(source.generation, 0);
    assert!(source.error.unwrap().contains("kind"));
    rename_into(&path, PREFIX_YAML);
    assert_eq!(followed.good(PREFIX).await.generation, 1);
    drop(followed);
    fs::remove_file(&path).unwrap();
    let kept = follow(&path, "this").source.borrow().clone();
    assert_eq!(kept.value.unwrap().name, PREFIX);
    let elsewhere = folder.path().join("other.yaml");
    assert!(follow(&elsewhere, "this").source.borrow().value.is_none());
}
