//! Match of the state folder and the pins: both have one id.
//!
//! The folder has the id in a file. The pins have it as the name of a folder beside those of maps
//! and links, since a BPF file system holds no files. A folder of other pins does not describe the
//! kernel, and its agent would treat every endpoint there as deleted or lost. If one of the two has
//! no id (it is new, was emptied, or is of a version that wrote none) it gets the other's.

use std::ffi::OsStr;
use std::fs;
use std::io::{self, ErrorKind, Read as _};
use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result, bail};
use datapath_common::abi;
use document::read_file;

/// Name of the file in the state folder.
const FILE: &str = "id";
/// Prefix of the name of the folder beside the pins.
const PREFIX: &str = "state-";
/// Digits of an id: 128 bits.
const DIGITS: usize = 32;

/// Checks that a state folder and pins belong together, and writes the id to both. Returns the
/// folder beside the pins that carries it.
///
/// # Errors
/// When both have an id, and not the same one; or when the pins' cannot be read or written.
pub(crate) fn join(state: &Path, pins: &Path) -> Result<PathBuf> {
    let of_folder = read(state);
    let of_pins = beside(pins)?.map(|(id, _)| id);
    let id = match (&of_folder, &of_pins) {
        (Some(folder), Some(beside)) if folder != beside => bail!(
            "state-dir {} (id {folder}) is of other pins than those at datapath.pin-root {} (id \
             {beside}): its agent would not know the endpoints that are in the kernel. Set state-dir \
             to the folder of these pins, or to an empty one, which keeps the endpoints; or remove \
             everything with `towpath cleanup --yes`",
            state.display(),
            pins.display()
        ),
        (Some(id), _) | (None, Some(id)) => id.clone(),
        (None, None) => random()?,
    };
    if of_folder.is_none()
        && let Err(error) = write(state, &id)
    {
        tracing::warn!("the state folder is without an id, and may be mistaken: {error:#}");
    }
    let version = pins.join(format!("v{}", abi::VERSION));
    let path = version.join(format!("{PREFIX}{id}"));
    fs::create_dir_all(&path).with_context(|| format!("make {}", path.display()))?;
    Ok(path)
}

/// Removes the id of a folder and of pins.
///
/// # Errors
/// When it cannot be removed.
pub(crate) fn remove(state: &Path, pins: &Path) -> Result<()> {
    let gone = |removed: io::Result<()>, path: &Path| match removed {
        Err(error) if error.kind() != ErrorKind::NotFound => {
            Err(error).with_context(|| format!("remove {}", path.display()))
        }
        Ok(()) | Err(_) => Ok(()),
    };
    while let Some((_, path)) = beside(pins)? {
        gone(fs::remove_dir(&path), &path)?;
    }
    let path = state.join(FILE);
    gone(fs::remove_file(&path), &path)
}

/// The id of a state folder; none where there is none that can be read.
fn read(state: &Path) -> Option<String> {
    let path = state.join(FILE);
    match read_file(&path) {
        Ok(text) => {
            let id = Some(text.trim()).filter(|id| is_id(id));
            if id.is_none() {
                tracing::warn!(path = %path.display(), "the state folder's id cannot be read");
            }
            id.map(str::to_owned)
        }
        Err(error) => {
            if !error.is_missing() {
                tracing::warn!(path = %path.display(), %error, "the state folder's id cannot be read");
            }
            None
        }
    }
}

/// The id in the folder beside the pins, of any version, and that folder.
fn beside(pins: &Path) -> Result<Option<(String, PathBuf)>> {
    for version in folders(pins)? {
        for path in folders(&version)? {
            let name = path.file_name().and_then(OsStr::to_str).unwrap_or_default();
            if let Some(id) = name.strip_prefix(PREFIX).filter(|id| is_id(id)) {
                return Ok(Some((id.to_owned(), path)));
            }
        }
    }
    Ok(None)
}

/// Content of a folder; none if it is no folder.
fn folders(folder: &Path) -> Result<Vec<PathBuf>> {
    let read = || {
        fs::read_dir(folder)?
            .map(|entry| Ok(entry?.path()))
            .collect()
    };
    match read() {
        Err(error) if is_no_folder(&error) => Ok(Vec::new()),
        entries => entries.with_context(|| format!("read {}", folder.display())),
    }
}

fn is_no_folder(error: &io::Error) -> bool {
    matches!(error.kind(), ErrorKind::NotFound | ErrorKind::NotADirectory)
}

fn is_id(text: &str) -> bool {
    let is_digit = |byte: u8| byte.is_ascii_digit() || (b'a'..=b'f').contains(&byte);
    text.len() == DIGITS && text.bytes().all(is_digit)
}

fn random() -> Result<String> {
    let mut bytes = [0; DIGITS / 2];
    fs::File::open("/dev/urandom")
        .and_then(|mut file| file.read_exact(&mut bytes))
        .context("read /dev/urandom")?;
    Ok(format!("{:0DIGITS$x}", u128::from_ne_bytes(bytes)))
}

fn write(state: &Path, id: &str) -> Result<()> {
    let path = state.join(FILE);
    let mut file = tempfile::NamedTempFile::new_in(state)?;
    io::Write::write_all(&mut file, format!("{id}\n").as_bytes())?;
    file.as_file().sync_all()?;
    file.persist(&path)
        .with_context(|| format!("write {}", path.display()))?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::host::earlier_ports::EarlierPorts;
    use crate::host::reservation::Reservation;
    use sources::kept::Kept;
    use sources::numbering::Numbering;

    fn folders() -> [tempfile::TempDir; 2] {
        [(); 2].map(|()| tempfile::tempdir().unwrap())
    }

    #[test]
    fn a_folder_and_pins_know_each_other_from_the_first_start_on() {
        let [state, pins] = folders();
        let first = join(state.path(), pins.path()).unwrap();
        assert_eq!(join(state.path(), pins.path()).unwrap(), first);
        // A version that is replaced hands its id on.
        let older = pins.path().join("v1").join(first.file_name().unwrap());
        fs::create_dir_all(older.parent().unwrap()).unwrap();
        fs::rename(&first, &older).unwrap();
        assert_eq!(join(state.path(), pins.path()).unwrap(), first);
        fs::remove_dir(&older).unwrap();
        // Pins go with a reboot, and a folder may be lost.
        fs::remove_dir(&first).unwrap();
        assert_eq!(join(state.path(), pins.path()).unwrap(), first);
        for damage in [None, Some(""), Some("zz"), Some("\u{fffd}")] {
            let file = state.path().join(FILE);
            match damage {
                None => fs::remove_file(&file).unwrap(),
                Some(text) => fs::write(&file, text).unwrap(),
            }
            assert_eq!(join(state.path(), pins.path()).unwrap(), first);
        }
    }

    #[test]
    fn the_folder_of_other_pins_is_refused_and_nothing_is_written() {
        let [state, pins] = folders();
        let [other, others] = folders();
        join(state.path(), pins.path()).unwrap();
        join(other.path(), others.path()).unwrap();
        let id_of = |pins: &tempfile::TempDir| beside(pins.path()).unwrap().map(|(id, _)| id);
        let ids = [read(state.path()), id_of(&others)];
        let error = join(state.path(), others.path()).unwrap_err().to_string();
        for part in [&state, &others].map(|folder| folder.path().display().to_string()) {
            assert!(error.contains(&part), "{error}");
        }
        assert!(ids.iter().flatten().all(|id| error.contains(id)), "{error}");
        assert_eq!(ids, [read(state.path()), id_of(&others)]);

        remove(state.path(), others.path()).unwrap();
        join(state.path(), others.path()).unwrap();
        remove(Path::new("/nonexistent/a"), Path::new("/nonexistent/b")).unwrap();
    }

    /// Nothing of this comes from the agent, but nothing of it may keep the agent from starting.
    #[test]
    fn what_is_no_file_in_the_state_folder_stops_nothing() {
        let fifo: fn(&Path) = |path| {
            nix::unistd::mkfifo(path, nix::sys::stat::Mode::S_IRWXU).unwrap();
        };
        let endless: fn(&Path) = |path| std::os::unix::fs::symlink("/dev/zero", path).unwrap();
        let directory: fn(&Path) = |path| fs::create_dir(path).unwrap();
        for make in [fifo, endless, directory] {
            let [state, pins] = folders();
            for name in [
                FILE,
                "node.json",
                "earlier-ports.json",
                "reserved-ports.json",
            ] {
                make(&state.path().join(name));
            }
            let (sender, started) = std::sync::mpsc::channel();
            std::thread::spawn(move || {
                let kept = Kept::new(state.path(), "boot").read("one");
                let _numbering = Numbering::open(state.path(), "boot");
                EarlierPorts::open(state.path(), "boot");
                Reservation::new(state.path());
                let joined = join(state.path(), pins.path());
                sender.send(kept.is_none() && joined.is_ok())
            });
            let started = started.recv_timeout(std::time::Duration::from_secs(20));
            assert_eq!(started, Ok(true));
        }
    }

    #[test]
    fn a_folder_that_cannot_be_written_stops_nothing() {
        let [_, pins] = folders();
        join(Path::new("/proc/nonexistent"), pins.path()).unwrap();
        assert!(beside(pins.path()).unwrap().is_some());
    }
}
