//! A folder as it is now, to be compared with the same folder later.

use std::fs;
use std::os::unix::fs::MetadataExt as _;
use std::path::Path;

/// Stamp that changes if a folder is replaced, mounted over, or gets or loses an entry. Equal for a
/// folder that is missing both times.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Stamp(Option<Identity>);

/// Device, inode, and the time of the last change of its entries.
type Identity = (u64, u64, i64, i64);

impl Stamp {
    /// The stamp of a folder.
    #[must_use]
    pub fn of(folder: &Path) -> Self {
        let metadata = fs::symlink_metadata(folder).ok();
        Self(metadata.map(|it| (it.dev(), it.ino(), it.mtime(), it.mtime_nsec())))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_folder_that_is_replaced_removed_or_has_another_entry_has_another_stamp() {
        let parent = tempfile::tempdir().unwrap();
        let folder = parent.path().join("folder");
        let missing = Stamp::of(&folder);
        assert_eq!(missing, Stamp::of(&folder));
        fs::create_dir(&folder).unwrap();
        let empty = Stamp::of(&folder);
        assert_ne!(empty, missing);
        assert_eq!(empty, Stamp::of(&folder));
        let old = std::time::SystemTime::UNIX_EPOCH;
        fs::File::open(&folder).unwrap().set_modified(old).unwrap();
        let before = Stamp::of(&folder);
        fs::write(folder.join("entry"), "").unwrap();
        assert_ne!(Stamp::of(&folder), before);
        fs::rename(&folder, parent.path().join("other")).unwrap();
        fs::create_dir(&folder).unwrap();
        assert_ne!(Stamp::of(&folder), before);
    }
}
