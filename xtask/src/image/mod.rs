//! `image`: the agent's container image.

mod recipe;

use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context as _, Result, ensure};
use clap::Args;

use crate::artifacts::{self, Metadata, Package};
use crate::console::note;
use crate::setup::Need;
use crate::{plugin, process, setup};
use recipe::Recipe;

/// Options of `image`.
#[derive(Args)]
#[command(after_help = "\
Examples:
  cargo xtask image                                   Build target/image/towpath.tar
  cargo xtask image --check                           Build it twice and compare the digests
  ctr -n k8s.io images import target/image/towpath.tar
  skopeo copy oci-archive:target/image/towpath.tar docker://REGISTRY/towpath:TAG

The image has /towpath and /towpath-cni, both static, and nothing else that runs: no shell, no C
library. The DaemonSet of deploy/kubernetes has it by its name here; an overlay's `images:` puts
your registry's in its place. The same sources, compiler and buildah give the same digest.")]
pub(crate) struct Options {
    /// Where the image goes: an archive of the OCI image layout.
    #[arg(long, value_name = "FILE", default_value = "target/image/towpath.tar")]
    output: PathBuf,
    /// The image's name, with its tag; without it, localhost/towpath and the version.
    #[arg(long, value_name = "NAME:TAG")]
    name: Option<String>,
    /// Build it twice, and fail unless both have the same digest.
    #[arg(long)]
    check: bool,
}

/// Builds the image and prints where it is, its size and its digest.
pub(crate) fn run(options: &Options) -> Result<()> {
    setup::ensure(&[Need::Build, Need::Image])?;
    let metadata = Metadata::read()?;
    let agent = build_agent(&metadata)?;
    let plugin = plugin::build(&metadata)?;
    for binary in [&agent, &plugin] {
        ensure_static(binary)?;
    }
    let mut recipe = of_binaries(&agent, &plugin, metadata.package("towpath")?);
    if let Some(name) = &options.name {
        recipe.name.clone_from(name);
    }
    let output = datapath_build::workspace_root().join(&options.output);
    let digest = if options.check {
        build_twice(&recipe, &output)?
    } else {
        build(&recipe, &output)?
    };
    let size = std::fs::metadata(&output)?.len();
    println!(
        "{} {} {} KiB {digest}",
        output.display(),
        recipe.name,
        size.div_ceil(1024)
    );
    Ok(())
}

/// The recipe of the agent's image.
fn of_binaries(agent: &Path, plugin: &Path, package: &Package) -> Recipe {
    Recipe {
        files: vec![
            (agent.to_owned(), "/towpath".to_owned()),
            (plugin.to_owned(), "/towpath-cni".to_owned()),
        ],
        // Runtimes name network namespaces so.
        links: vec![("/var/run", "/run")],
        entrypoint: "/towpath",
        labels: vec![
            ("org.opencontainers.image.title", "towpath".to_owned()),
            (
                "org.opencontainers.image.description",
                package.description.clone().unwrap_or_default(),
            ),
            ("org.opencontainers.image.version", package.version.clone()),
            (
                "org.opencontainers.image.licenses",
                package.license.clone().unwrap_or_default(),
            ),
            (
                "org.opencontainers.image.source",
                package.repository.clone().unwrap_or_default(),
            ),
        ],
        name: format!("localhost/towpath:{}", package.version),
    }
}

/// Builds an image into a file.
fn build(recipe: &Recipe, archive: &Path) -> Result<String> {
    let folder = archive.parent().context("the image's file has a folder")?;
    std::fs::create_dir_all(folder)?;
    recipe.build(
        &folder.join(format!("work-{}", std::process::id())),
        archive,
    )
}

/// Builds an image into a file, and fails unless it is the same a second time.
fn build_twice(recipe: &Recipe, archive: &Path) -> Result<String> {
    let (digest, other) = (build(recipe, archive)?, archive.with_extension("again"));
    let again = build(recipe, &other)?;
    std::fs::remove_file(other)?;
    ensure!(
        digest == again,
        "the image is not the same each time: {digest}, then {again}"
    );
    note(&format!("image: built twice, the same: {digest}"));
    Ok(digest)
}

/// Builds the agent as it is released, with its C library in it: of glibc, whose allocator it keeps
/// small.
fn build_agent(metadata: &Metadata) -> Result<PathBuf> {
    let mut build = process::locked_cargo("build");
    build
        .args(["--release", "--package", "towpath", "--target", plugin::GNU])
        .env("RUSTFLAGS", plugin::STATIC);
    let executables = artifacts::build(&mut build, metadata)?;
    artifacts::binary(&executables, "towpath").map(Path::to_owned)
}

/// Fails unless a program needs no library: there is none in the image.
fn ensure_static(binary: &Path) -> Result<()> {
    let mut readelf = Command::new("readelf");
    let headers = process::output(readelf.args(["--program-headers", "--wide"]).arg(binary))?;
    ensure!(
        !headers.contains("INTERP"),
        "{} is not static: is the static C library there (Debian's libc6-dev)?",
        binary.display()
    );
    Ok(())
}
