//! A loader that does not read the kernel's types.

use std::io;
use std::thread;

use anyhow::{Context as _, Result};
use aya::EbpfLoader;
use nix::sched::{CloneFlags, unshare};
use nix::unistd::chroot;

/// Where the kernel shows its types; [`EbpfLoader::new`] looks for `vmlinux` there.
const TYPES: &str = "/sys/kernel/btf";

/// A loader of eBPF objects.
///
/// [`EbpfLoader::new`] reads the types of the whole kernel, to relocate programs by them: 20 ms, and as
/// many MiB at the peak. Ours have nothing to relocate, and aya has no way to say so. So a thread makes
/// the loader that does not find the file: its root, which is no other thread's, is a folder in which
/// there is none. Where that fails (it takes `CAP_SYS_CHROOT`), the types are read.
#[must_use]
pub fn loader() -> EbpfLoader<'static> {
    let made = thread::Builder::new()
        .name("loader".to_owned())
        .spawn(|| {
            if let Err(error) = hide_types() {
                tracing::debug!("the kernel's types are read, for nothing: {error:#}");
            }
            EbpfLoader::new()
        })
        .map(thread::JoinHandle::join);
    match made {
        Ok(Ok(loader)) => loader,
        Ok(Err(_panic)) => EbpfLoader::new(),
        Err(error) => {
            tracing::debug!("no thread for the loader: {error}");
            EbpfLoader::new()
        }
    }
}

/// Gives this thread a root of its own. It must end soon: nothing else is to be found from there.
fn hide_types() -> Result<()> {
    unshare(CloneFlags::CLONE_FS)
        .map_err(io::Error::from)
        .context("cannot have a root of its own")?;
    chroot(TYPES)
        .map_err(io::Error::from)
        .with_context(|| format!("cannot make {TYPES} the root"))
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::{TYPES, loader};

    #[test]
    fn only_the_thread_that_makes_the_loader_has_another_root() {
        let made = format!("{:?}", loader());
        assert!(Path::new(TYPES).join("vmlinux").exists());
        assert!(
            made.contains("btf: None"),
            "as root, which this test is to be, nothing is read: {made:.200}"
        );
    }
}
