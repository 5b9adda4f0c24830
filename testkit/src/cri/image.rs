//! Images made by hand, each of files that are on this machine: nothing is pulled.

use std::fs;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context as _, Result};
use serde_json::{Value, json};

use crate::fabric::command;

/// The name of the image with busybox. Containerd would look for a bare one at a public registry.
pub const IMAGE: &str = "localhost/towpath-test:1";
/// Debian's package busybox-static has it: the image holds no library.
const BUSYBOX: &str = "/bin/busybox";
/// Tools in the image, all of them busybox.
const TOOLS: [&str; 11] = [
    "cat", "hostname", "httpd", "ip", "nc", "nslookup", "ping", "ping6", "sh", "sleep", "wget",
];
/// Sleeps until it is killed.
const FOREVER: &str = "2147483647";

/// The content of an image.
#[derive(Clone, Debug)]
pub struct Image<'a> {
    /// Its name, with a tag.
    pub name: &'a str,
    /// A static program of this machine, and where it is in the image.
    pub program: (&'a Path, &'a str),
    /// Names in `/bin` that lead to the program.
    pub links: &'a [&'a str],
    /// Command of its containers.
    pub command: &'a [&'a str],
}

impl Image<'_> {
    /// The image with busybox and nothing else, whose containers sleep.
    #[must_use]
    pub fn busybox() -> Self {
        Self {
            name: IMAGE,
            program: (Path::new(BUSYBOX), "bin/busybox"),
            links: &TOOLS,
            command: &["/bin/sleep", FOREVER],
        }
    }

    /// Writes the image's archive (OCI image layout) into a folder, and returns its path.
    ///
    /// # Errors
    /// When the program is missing, or the folder cannot be written to.
    pub fn write(&self, folder: &Path) -> Result<PathBuf> {
        let (root, layout) = (folder.join("root"), folder.join("layout"));
        let blobs = layout.join("blobs/sha256");
        for path in [
            &root.join("bin"),
            &root.join("etc"),
            &root.join("tmp"),
            &blobs,
        ] {
            fs::create_dir_all(path)?;
        }
        let (program, place) = self.program;
        fs::copy(program, root.join(place)).with_context(|| {
            let package = "busybox is of Debian's package busybox-static";
            format!("no {}; {package}", program.display())
        })?;
        for link in self.links {
            symlink(Path::new("/").join(place), root.join("bin").join(link))?;
        }
        let layer = folder.join("layer.tar");
        archive(&root, &layer)?;
        let layer_text = fs::read(&layer)?;
        let layer = Blob::put(&blobs, &layer_text)?;
        let config = json!({
            "architecture": architecture(),
            "os": "linux",
            "config": {"Cmd": self.command, "Env": ["PATH=/bin"]},
            "rootfs": {"type": "layers", "diff_ids": [layer.digest]},
        });
        let config = Blob::put(&blobs, config.to_string().as_bytes())?;
        let manifest = json!({
            "schemaVersion": 2,
            "mediaType": "application/vnd.oci.image.manifest.v1+json",
            "config": config.descriptor("application/vnd.oci.image.config.v1+json"),
            "layers": [layer.descriptor("application/vnd.oci.image.layer.v1.tar")],
        });
        let manifest = Blob::put(&blobs, manifest.to_string().as_bytes())?;
        let mut entry = manifest.descriptor("application/vnd.oci.image.manifest.v1+json");
        entry["annotations"] = json!({
            "io.containerd.image.name": self.name,
            // Annotation that podman reads the name from.
            "org.opencontainers.image.ref.name": self.name,
        });
        let index = json!({"schemaVersion": 2, "manifests": [entry]});
        fs::write(layout.join("index.json"), index.to_string())?;
        let version = json!({"imageLayoutVersion": "1.0.0"});
        fs::write(layout.join("oci-layout"), version.to_string())?;
        let image = folder.join("image.tar");
        archive(&layout, &image)?;
        Ok(image)
    }
}

/// A file of the image, by the digest of what it holds.
struct Blob {
    digest: String,
    size: usize,
}

impl Blob {
    fn put(folder: &Path, content: &[u8]) -> Result<Self> {
        let new = folder.join("new");
        fs::write(&new, content)?;
        let sum = command::run(Command::new("sha256sum").arg(&new))?;
        let sum = sum
            .split_whitespace()
            .next()
            .context("sha256sum's answer")?;
        fs::rename(&new, folder.join(sum))?;
        Ok(Self {
            digest: format!("sha256:{sum}"),
            size: content.len(),
        })
    }

    fn descriptor(&self, kind: &str) -> Value {
        json!({"mediaType": kind, "digest": self.digest, "size": self.size})
    }
}

fn archive(folder: &Path, file: &Path) -> Result<()> {
    let mut tar = Command::new("tar");
    tar.args(["--create", "--numeric-owner", "--owner=0", "--group=0"])
        .arg("--file")
        .arg(file)
        .arg("--directory")
        .arg(folder)
        .arg(".");
    command::run(&mut tar).map(drop)
}

/// This machine's architecture, by the name that Go has for it.
fn architecture() -> &'static str {
    match std::env::consts::ARCH {
        "x86_64" => "amd64",
        "aarch64" => "arm64",
        other => other,
    }
}
