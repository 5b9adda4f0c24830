//! Reading the document's file, whatever it turns out to be.

use std::fs::File;
use std::io::Read as _;
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::Path;

/// Largest document that is read, in bytes. A Kubernetes object is smaller by far: etcd refuses
/// requests above 1.5 MiB.
pub const SIZE_MAX: u64 = 4 << 20;

/// The file's text, or why there is none.
pub(super) fn read(path: &Path) -> Result<String, String> {
    // Without O_NONBLOCK the open of a FIFO would wait for a writer.
    let mut file = File::options()
        .read(true)
        .custom_flags(libc::O_NONBLOCK)
        .open(path)
        .map_err(|e| format!("cannot be opened: {e}"))?;
    let metadata = file
        .metadata()
        .map_err(|e| format!("cannot be examined: {e}"))?;
    if !metadata.is_file() {
        return Err("is not a file; allowed: a regular file or a link to one".to_owned());
    }
    let mut bytes = Vec::new();
    let read = (&mut file)
        .take(SIZE_MAX + 1)
        .read_to_end(&mut bytes)
        .map_err(|e| format!("cannot be read: {e}"))?;
    if read as u64 > SIZE_MAX {
        return Err(format!(
            "has {} bytes; allowed: at most {SIZE_MAX}",
            metadata.len().max(read as u64)
        ));
    }
    String::from_utf8(bytes).map_err(|e| format!("is not UTF-8 text: {e}"))
}
