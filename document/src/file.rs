//! A document's file, opened with care: it may be anything.

use std::fs::File;
use std::io::{self, Read as _};
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::Path;
use std::string::FromUtf8Error;

/// Largest document that is read, in bytes. A Kubernetes object is smaller by far: etcd refuses
/// requests above 1.5 MiB.
pub const SIZE_MAX: u64 = 4 << 20;

/// A file gives no text.
#[derive(Debug, thiserror::Error)]
pub enum FileError {
    /// It cannot be opened.
    #[error("cannot be opened: {0}")]
    Open(io::Error),
    /// It cannot be read.
    #[error("cannot be read: {0}")]
    Read(io::Error),
    /// It is a folder, a device, a pipe.
    #[error("is not a file; allowed: a regular file or a link to one")]
    NotAFile,
    /// It is larger than what is allowed.
    #[error("has {size} bytes; allowed: at most {most}")]
    TooLarge {
        /// Its size in bytes, as far as it is known.
        size: u64,
        /// The most bytes that are allowed.
        most: u64,
    },
    /// It holds no text.
    #[error("is not a text; allowed: UTF-8; {0}")]
    NotText(FromUtf8Error),
}

impl FileError {
    /// Returns true if there is no file.
    #[must_use]
    pub fn is_missing(&self) -> bool {
        matches!(self, Self::Open(e) if e.kind() == io::ErrorKind::NotFound)
    }
}

/// Reads a file as text, up to [`SIZE_MAX`].
///
/// # Errors
/// When the file cannot be read, is no regular file, is too large, or is not UTF-8.
pub fn read_file(path: &Path) -> Result<String, FileError> {
    read_file_up_to(path, SIZE_MAX)
}

/// Reads a file of at most so many bytes as text.
///
/// # Errors
/// As [`read_file`].
pub fn read_file_up_to(path: &Path, most: u64) -> Result<String, FileError> {
    // Without O_NONBLOCK the open of a FIFO would wait for a writer.
    let file = File::options()
        .read(true)
        .custom_flags(libc::O_NONBLOCK)
        .open(path)
        .map_err(FileError::Open)?;
    let metadata = file.metadata().map_err(FileError::Read)?;
    if !metadata.is_file() {
        return Err(FileError::NotAFile);
    }
    let mut bytes = Vec::new();
    let read = file
        .take(most.saturating_add(1))
        .read_to_end(&mut bytes)
        .map_err(FileError::Read)? as u64;
    if read > most {
        let size = metadata.len().max(read);
        return Err(FileError::TooLarge { size, most });
    }
    String::from_utf8(bytes).map_err(FileError::NotText)
}
