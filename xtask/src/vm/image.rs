//! The guest's root file system: an uncompressed archive that the kernel unpacks into memory.
//!
//! Files stand in the guest where they stand here, so that test programs find what was compiled
//! into them as a path: the agent, fixtures, the dynamic loader.

use std::fs::{self, File};
use std::os::unix::fs::{PermissionsExt as _, symlink};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::{Mutex, PoisonError};

use anyhow::{Context as _, Result, bail};

use super::choice::Program;
use super::kernel::Files;
use crate::build::artifacts::{self, Executable};
use crate::process;

/// Programs that tests call in the guest; busybox stands in for the rest.
const TOOLS: &[&str] = &[
    "bpftool", "curl", "ethtool", "ip", "nft", "nsenter", "ping", "setpriv", "tc",
];
/// Folder of the sources that tests read.
const FIXTURES: &str = "node-document/tests/fixtures";

/// The program that reports the verifier's figures of a kernel.
pub(super) struct Reporter {
    /// The program, here and in the guest.
    pub(super) program: PathBuf,
    /// The object that it is given, the same.
    pub(super) object: PathBuf,
}

/// A root file system in the making.
pub(super) struct Image {
    folder: PathBuf,
    reporter: Reporter,
    packing: Mutex<()>,
}

impl Image {
    /// Gathers everything but the kernel's modules.
    pub(super) fn new(
        programs: &[Program],
        executables: &[Executable],
        object: &Path,
    ) -> Result<Self> {
        let folder = datapath_build::workspace_root().join("target/vm");
        let reporter = Reporter {
            program: artifacts::binary(executables, "ebpf-report")?.to_owned(),
            object: object.to_owned(),
        };
        let image = Self {
            folder,
            reporter,
            packing: Mutex::new(()),
        };
        let root = image.root();
        if root.exists() {
            fs::remove_dir_all(&root)?;
        }
        for name in [
            "proc", "sys", "dev", "run", "tmp", "etc", "busybox", "modules",
        ] {
            fs::create_dir_all(root.join(name))?;
        }
        let busybox = process::find("busybox").context("busybox is missing")?;
        fs::copy(busybox, root.join("busybox/busybox"))?;
        symlink("/busybox/busybox", root.join("busybox/sh"))?;
        for tool in TOOLS {
            let file = process::find(tool).with_context(|| format!("{tool} is missing"))?;
            image.add_program(&file, false)?;
        }
        image.add_program(artifacts::binary(executables, "towpath")?, true)?;
        image.add_program(&image.reporter.program, true)?;
        fs::copy(object, image.place(object)?)?;
        for program in programs {
            image.add_program(&program.path, true)?;
        }
        image.add_folder(&datapath_build::workspace_root().join(FIXTURES))?;
        image.add_script("init", include_str!("init.sh"))?;
        Ok(image)
    }

    /// Completes the file system with a kernel's modules and the script that runs the tests, and
    /// packs it, one kernel's after the other's.
    pub(super) fn pack(&self, kernel: &str, files: &Files, script: &str) -> Result<PathBuf> {
        let _alone = self.packing.lock().unwrap_or_else(PoisonError::into_inner);
        self.add_script("tests.sh", script)?;
        let modules = self.root().join("modules");
        fs::remove_dir_all(&modules)?;
        fs::create_dir(&modules)?;
        for module in &files.modules {
            fs::copy(module, modules.join(module.file_name().unwrap_or_default()))?;
        }
        let archive = self.folder.join(format!("initramfs-{kernel}.cpio"));
        let status = Command::new("busybox")
            .args(["sh", "-c", "busybox find . | busybox cpio -o -H newc"])
            .current_dir(self.root())
            .stdout(File::create(&archive)?)
            .stderr(Stdio::null())
            .status()
            .context("cannot run busybox")?;
        if !status.success() {
            bail!("busybox cannot pack the guest's files ({status})");
        }
        Ok(archive)
    }

    /// The program that reports the verifier's figures of a kernel.
    pub(super) fn reporter(&self) -> &Reporter {
        &self.reporter
    }

    fn root(&self) -> PathBuf {
        self.folder.join("root")
    }

    /// Where a file of this machine stands in the guest's tree.
    fn place(&self, file: &Path) -> Result<PathBuf> {
        let place = self.root().join(
            file.strip_prefix("/")
                .with_context(|| format!("{} is no absolute path", file.display()))?,
        );
        if let Some(parent) = place.parent() {
            fs::create_dir_all(parent)?;
        }
        Ok(place)
    }

    /// Adds a program with the libraries that it loads.
    fn add_program(&self, file: &Path, strip: bool) -> Result<()> {
        let place = self.place(file)?;
        if strip {
            let mut command = Command::new("strip");
            process::run(command.arg("-o").arg(&place).arg(file))?;
        } else {
            fs::copy(file, &place)?;
        }
        for library in libraries(&process::output(Command::new("ldd").arg(file))?) {
            let place = self.place(&library)?;
            if !place.exists() {
                fs::copy(&library, &place)?;
            }
        }
        Ok(())
    }

    fn add_folder(&self, folder: &Path) -> Result<()> {
        for entry in fs::read_dir(folder)? {
            let entry = entry?;
            if entry.file_type()?.is_dir() {
                self.add_folder(&entry.path())?;
            } else {
                fs::copy(entry.path(), self.place(&entry.path())?)?;
            }
        }
        Ok(())
    }

    fn add_script(&self, name: &str, text: &str) -> Result<()> {
        let place = self.root().join(name);
        fs::write(&place, text)?;
        fs::set_permissions(&place, fs::Permissions::from_mode(0o755))?;
        Ok(())
    }
}

/// The files that `ldd` names.
fn libraries(ldd: &str) -> Vec<PathBuf> {
    ldd.lines()
        .flat_map(str::split_whitespace)
        .filter(|word| word.starts_with('/'))
        .map(PathBuf::from)
        .collect()
}

#[cfg(test)]
mod tests {
    use std::path::PathBuf;

    use super::libraries;

    #[test]
    fn reads_libraries_and_the_loader() {
        let ldd = "\tlinux-vdso.so.1 (0x00007ffd)\n\tlibc.so.6 => /lib/libc.so.6 (0x00007f)\n\
                   \t/lib64/ld-linux-x86-64.so.2 (0x00007f)\n";
        let expected = ["/lib/libc.so.6", "/lib64/ld-linux-x86-64.so.2"];
        assert_eq!(libraries(ldd), expected.map(PathBuf::from));
    }
}
