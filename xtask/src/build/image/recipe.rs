//! An image, and its build by buildah: from nothing, and reproducible.

use std::fs::{self, Permissions};
use std::os::unix::fs::{PermissionsExt as _, symlink};
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context as _, Result};
use serde_json::Value;

use crate::process;

/// The permissions of files and folders.
const MODE: u32 = 0o755;

/// Contents and properties of an image.
pub(crate) struct Recipe {
    /// Files, by their absolute paths in the image. All of them are executable.
    pub(crate) files: Vec<(PathBuf, String)>,
    /// Symbolic links, by their paths in the image, and their targets.
    pub(crate) links: Vec<(&'static str, &'static str)>,
    /// Program that the container runs.
    pub(crate) entrypoint: &'static str,
    /// Labels (OCI image specification, "Annotations").
    pub(crate) labels: Vec<(&'static str, String)>,
    /// The name, with its tag.
    pub(crate) name: String,
}

impl Recipe {
    /// Builds the image into an archive (OCI image layout), and returns its digest. All other files
    /// stay in the folder `work`, which is removed afterwards.
    pub(crate) fn build(&self, work: &Path, archive: &Path) -> Result<String> {
        remove(work)?;
        let root = work.join("root");
        self.lay_out(&root)?;
        let buildah = |words: &[&str]| {
            let mut command = Command::new("buildah");
            // Storage of its own, which needs no feature of the kernel.
            command.arg("--root").arg(work.join("storage"));
            command.arg("--runroot").arg(work.join("run"));
            command.args(["--storage-driver", "vfs"]).args(words);
            process::output(&mut command)
        };
        let text = |path: &Path| path.to_str().map(str::to_owned).context("a path is UTF-8");
        let container = buildah(&["from", "scratch"])?;
        let container = container.trim();
        // One layer; owners and times do not come from this machine.
        let tree = format!("{}/.", text(&root)?);
        buildah(&["copy", "--quiet", "--chown", "0:0", container, &tree, "/"])?;
        let entrypoint = serde_json::to_string(&[self.entrypoint])?;
        let mut config = vec!["config", "--entrypoint", &entrypoint, "--cmd", ""];
        let labels: Vec<_> = self
            .labels
            .iter()
            .map(|(key, value)| format!("{key}={value}"))
            .collect();
        for label in &labels {
            config.extend(["--label", label, "--annotation", label]);
        }
        config.push(container);
        buildah(&config)?;
        let _not_there = fs::remove_file(archive);
        let target = format!("oci-archive:{}:{}", text(archive)?, self.name);
        let commit = ["commit", "--quiet", "--format", "oci", "--timestamp", "0"];
        buildah(&[&commit[..], &["--identity-label=false", container, &target]].concat())?;
        remove(work)?;
        digest(archive)
    }

    /// Puts all files at their places in the image.
    fn lay_out(&self, root: &Path) -> Result<()> {
        let inside = |path: &str| root.join(path.trim_start_matches('/'));
        for (source, path) in &self.files {
            let file = inside(path);
            make_room(root, &file)?;
            fs::copy(source, &file).with_context(|| format!("copy {}", source.display()))?;
            fs::set_permissions(&file, Permissions::from_mode(MODE))?;
        }
        for (path, target) in &self.links {
            let link = inside(path);
            make_room(root, &link)?;
            symlink(target, link)?;
        }
        Ok(())
    }
}

/// Makes the folders above a file, with permissions that do not depend on the umask.
fn make_room(root: &Path, file: &Path) -> Result<()> {
    let folders = file.ancestors().skip(1);
    let folders: Vec<_> = folders
        .take_while(|folder| folder.starts_with(root))
        .collect();
    for folder in folders.into_iter().rev() {
        fs::create_dir_all(folder)?;
        fs::set_permissions(folder, Permissions::from_mode(MODE))?;
    }
    Ok(())
}

/// The digest of the image in an archive: that of its manifest, which contains all other digests.
fn digest(archive: &Path) -> Result<String> {
    let mut tar = Command::new("tar");
    tar.args(["--extract", "--to-stdout", "--file"])
        .arg(archive)
        .arg("index.json");
    let index: Value = serde_json::from_str(&process::output(&mut tar)?)?;
    let digest = index["manifests"][0]["digest"].as_str();
    Ok(digest
        .context("the archive's index names no image")?
        .to_owned())
}

fn remove(folder: &Path) -> Result<()> {
    if folder.exists() {
        fs::remove_dir_all(folder).with_context(|| format!("remove {}", folder.display()))?;
    }
    Ok(())
}
