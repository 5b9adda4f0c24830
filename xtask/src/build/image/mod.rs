//! `image`: the container images of the agent and of the operator.

mod recipe;

use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context as _, Result, ensure};
use clap::Args;

use crate::build::artifacts::{self, Executable, Metadata, Package};
use crate::build::plugin;
use crate::console::note;
use crate::setup::Need;
use crate::{process, setup};
pub(crate) use recipe::Recipe;

/// CA certificates, as Debian's package ca-certificates has them.
const CERTIFICATES: &str = "/etc/ssl/certs/ca-certificates.crt";

/// Names the archive of the agent's image to tests.
pub(crate) const VARIABLE: &str = "TOWPATH_IMAGE";
/// Names the archive of the operator's image to tests.
pub(crate) const OPERATOR_VARIABLE: &str = "TOWPATH_OPERATOR_IMAGE";

/// Options of `image`.
#[derive(Args)]
#[command(after_help = "\
Examples:
  cargo xtask image                                   Build target/image/towpath.tar
  cargo xtask image --check                           Pack it twice and compare the digests
  cargo xtask image --operator                        Build target/image/towpath-operator.tar
  ctr -n k8s.io images import target/image/towpath.tar
  skopeo copy oci-archive:target/image/towpath.tar docker://REGISTRY/towpath:TAG

The image has /towpath and /towpath-cni, both static, and nothing else that runs: no shell, no C
library. The DaemonSet of deploy/kubernetes has it by its name here; an overlay's `images:` puts
your registry's in its place. The same binaries and buildah give the same digest.

The operator's image has /towpath-operator, static, and the CA certificates of this machine.")]
pub(crate) struct Options {
    /// Build the operator's image. The SDK of AWS takes minutes to compile.
    #[arg(long)]
    operator: bool,
    /// Archive of the image (OCI image layout). Default: target/image/towpath.tar, or
    /// towpath-operator.tar beside it.
    #[arg(long, value_name = "FILE")]
    output: Option<PathBuf>,
    /// Name of the image, with its tag. Default: localhost/towpath, or localhost/towpath-operator, and
    /// the version.
    #[arg(long, value_name = "NAME:TAG")]
    name: Option<String>,
    /// Pack the binaries twice, and fail unless both images have the same digest.
    #[arg(long)]
    check: bool,
}

/// Builds the image and prints where it is, its size and its digest.
pub(crate) fn run(options: &Options) -> Result<()> {
    setup::ensure(&[Need::Build, Need::Image])?;
    let metadata = Metadata::read()?;
    let (mut recipe, archive) = if options.operator {
        let operator = build_static(&metadata, "towpath-operator", &["--features", "sdk"])?;
        ensure_static(&operator)?;
        let package = metadata.package("towpath-operator")?;
        (of_operator(&operator, package), "towpath-operator.tar")
    } else {
        let agent = build_agent(&metadata)?;
        let plugin = plugin::build(&metadata)?;
        for binary in [&agent, &plugin] {
            ensure_static(binary)?;
        }
        let recipe = of_binaries(&agent, &plugin, metadata.package("towpath")?);
        (recipe, "towpath.tar")
    };
    if let Some(name) = &options.name {
        recipe.name.clone_from(name);
    }
    let folder = Path::new("target/image");
    let output = options
        .output
        .clone()
        .unwrap_or_else(|| folder.join(archive));
    let output = datapath_build::workspace_root().join(output);
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
pub(crate) fn of_binaries(agent: &Path, plugin: &Path, package: &Package) -> Recipe {
    Recipe {
        files: vec![
            (agent.to_owned(), "/towpath".to_owned()),
            (plugin.to_owned(), "/towpath-cni".to_owned()),
        ],
        // Runtimes name network namespaces so.
        links: vec![("/var/run", "/run")],
        ..recipe("/towpath", package)
    }
}

/// The recipe of the operator's image.
fn of_operator(operator: &Path, package: &Package) -> Recipe {
    Recipe {
        files: vec![
            (operator.to_owned(), "/towpath-operator".to_owned()),
            (CERTIFICATES.into(), CERTIFICATES.to_owned()),
        ],
        ..recipe("/towpath-operator", package)
    }
}

/// A recipe without files.
fn recipe(entrypoint: &'static str, package: &Package) -> Recipe {
    let title = entrypoint.trim_start_matches('/');
    Recipe {
        files: Vec::new(),
        links: Vec::new(),
        entrypoint,
        labels: vec![
            ("org.opencontainers.image.title", title.to_owned()),
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
        name: format!("localhost/{title}:{}", package.version),
    }
}

/// Builds an image into a file.
pub(crate) fn build(recipe: &Recipe, archive: &Path) -> Result<String> {
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
    note(&format!("image: packed twice, the same: {digest}"));
    Ok(digest)
}

/// The image for tests: of what is built for them, with the libraries that it needs. Returns where it
/// is.
pub(crate) fn for_tests(executables: &[Executable], metadata: &Metadata) -> Result<PathBuf> {
    setup::ensure(&[Need::Image])?;
    let binary = |name| artifacts::binary(executables, name);
    let (agent, plugin) = (binary("towpath")?, binary("towpath-cni")?);
    let folder = folder()?;
    let small = stripped(agent, &folder)?;
    let mut recipe = of_binaries(&small, plugin, metadata.package("towpath")?);
    recipe.files.extend(libraries(agent)?);
    let archive = folder.join("test.tar");
    build_twice(&recipe, &archive)?;
    Ok(archive)
}

/// The operator's image for tests, likewise.
pub(crate) fn operator_for_tests(
    executables: &[Executable],
    metadata: &Metadata,
) -> Result<PathBuf> {
    let operator = artifacts::binary(executables, "towpath-operator")?;
    let folder = folder()?;
    let small = stripped(operator, &folder)?;
    let mut recipe = of_operator(&small, metadata.package("towpath-operator")?);
    recipe.files.extend(libraries(operator)?);
    let archive = folder.join("operator-test.tar");
    build(&recipe, &archive)?;
    Ok(archive)
}

/// The folder of images for tests.
fn folder() -> Result<PathBuf> {
    let folder = datapath_build::workspace_root().join("target/image");
    std::fs::create_dir_all(&folder)?;
    Ok(folder)
}

/// A copy of a binary without what is for debuggers, which is most of it.
fn stripped(binary: &Path, folder: &Path) -> Result<PathBuf> {
    let name = binary.file_name().context("a binary has a name")?;
    let small = folder.join(name);
    let mut strip = Command::new("strip");
    let strip = strip.arg("--strip-debug").arg("-o").arg(&small);
    process::run(strip.arg(binary))?;
    Ok(small)
}

/// The libraries of a program, each with the path at which the program loads it.
fn libraries(program: &Path) -> Result<Vec<(PathBuf, String)>> {
    let listed = process::output(Command::new("ldd").arg(program))?;
    let paths = listed
        .split_whitespace()
        .filter(|word| word.starts_with('/'));
    Ok(paths.map(|path| (path.into(), path.to_owned())).collect())
}

/// Builds the agent as it is released, with its C library in it: of glibc, whose allocator it keeps
/// small.
pub(crate) fn build_agent(metadata: &Metadata) -> Result<PathBuf> {
    build_static(metadata, "towpath", &[])
}

/// Builds a package's binary of its name as it is released.
fn build_static(metadata: &Metadata, package: &str, extra: &[&str]) -> Result<PathBuf> {
    let mut build = process::locked_cargo("build");
    build
        .args(["--profile", "agent", "--package", package])
        .args(["--target", plugin::GNU])
        .args(extra)
        .env("RUSTFLAGS", plugin::static_flags()?);
    let executables = artifacts::build(&mut build, metadata)?;
    artifacts::binary(&executables, package).map(Path::to_owned)
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
