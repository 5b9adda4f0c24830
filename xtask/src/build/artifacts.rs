//! The workspace's targets, and the executables of a build, as cargo reports them.

use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context as _, Result};
use serde::Deserialize;

use crate::process;

/// The features by which the client of EC2 and the operator have the SDK of AWS.
pub(crate) const SDK: &str = "towpath-ec2/sdk,towpath-operator/sdk";
/// Packages and features of every build for tests. One selection has one set of features, so that
/// cargo compiles each dependency once. The programs have code that only BPF has.
pub(crate) const TESTED: [&str; 5] = [
    "--workspace",
    "--exclude",
    "datapath-ebpf",
    "--features",
    SDK,
];

/// A target of the workspace.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Target {
    /// Package that it belongs to.
    pub(crate) package: String,
    /// Its kind: `lib`, `bin`, `test`, ...
    pub(crate) kind: String,
    /// Its name.
    pub(crate) name: String,
}

/// An executable that cargo built.
#[derive(Debug)]
pub(crate) struct Executable {
    /// The target that it was built from.
    pub(crate) target: Target,
    /// True if it is the target's test program and not the target itself.
    pub(crate) test: bool,
    /// The file.
    pub(crate) path: PathBuf,
    /// Folder of the package; tests run in it.
    pub(crate) folder: PathBuf,
}

/// The workspace as `cargo metadata` prints it.
#[derive(Deserialize)]
pub(crate) struct Metadata {
    /// The member packages.
    pub(crate) packages: Vec<Package>,
}

/// A member package.
#[derive(Deserialize)]
pub(crate) struct Package {
    /// Its name.
    pub(crate) name: String,
    /// Its version.
    #[serde(default)]
    pub(crate) version: String,
    /// Its description.
    pub(crate) description: Option<String>,
    /// Its license (SPDX).
    pub(crate) license: Option<String>,
    /// URL of its sources.
    pub(crate) repository: Option<String>,
    /// Its `Cargo.toml`.
    pub(crate) manifest_path: PathBuf,
    /// Its dependencies, inside and outside of the workspace.
    pub(crate) dependencies: Vec<Dependency>,
    /// Its targets.
    targets: Vec<RawTarget>,
}

/// A dependency of a member.
#[derive(Deserialize)]
pub(crate) struct Dependency {
    /// Name of the package.
    pub(crate) name: String,
    /// Folder, for packages of this workspace.
    pub(crate) path: Option<PathBuf>,
}

#[derive(Deserialize)]
struct RawTarget {
    name: String,
    kind: Vec<String>,
    #[serde(default)]
    test: bool,
}

/// A line of `--message-format json`.
#[derive(Deserialize)]
struct Message {
    manifest_path: Option<PathBuf>,
    target: Option<RawTarget>,
    profile: Option<Profile>,
    executable: Option<PathBuf>,
}

#[derive(Deserialize)]
struct Profile {
    test: bool,
}

impl Metadata {
    /// Reads the metadata of this workspace.
    pub(crate) fn read() -> Result<Self> {
        Self::read_in(datapath_build::workspace_root())
    }

    /// Reads the metadata of the workspace at `root`.
    pub(crate) fn read_in(root: &Path) -> Result<Self> {
        let mut command = process::locked_cargo("metadata");
        command
            .current_dir(root)
            .args(["--format-version", "1", "--no-deps"]);
        serde_json::from_str(&process::output(&mut command)?)
            .context("cargo metadata printed something else than expected")
    }

    /// A member package, by its name.
    pub(crate) fn package(&self, name: &str) -> Result<&Package> {
        let found = self.packages.iter().find(|package| package.name == name);
        found.with_context(|| format!("the workspace has no package {name}"))
    }

    /// Name of the member package that has a binary.
    pub(crate) fn package_of(&self, binary: &str) -> Result<&str> {
        let has_it = |package: &&Package| {
            let mut targets = package.targets.iter();
            targets.any(|target| target.name == binary && target.kind == ["bin"])
        };
        let found = self.packages.iter().find(has_it);
        let found = found.with_context(|| format!("no package has a binary {binary}"))?;
        Ok(&found.name)
    }

    /// Targets for which `cargo test` builds a test program.
    pub(crate) fn test_targets(&self) -> Vec<Target> {
        let mut targets: Vec<_> = self
            .packages
            .iter()
            .flat_map(|package| {
                package
                    .targets
                    .iter()
                    .filter(|target| target.test)
                    .map(|target| target.named(&package.name))
            })
            .collect();
        targets.sort();
        targets
    }
}

impl RawTarget {
    fn named(&self, package: &str) -> Target {
        Target {
            package: package.to_owned(),
            kind: self.kind.first().cloned().unwrap_or_default(),
            name: self.name.clone(),
        }
    }
}

/// Runs a cargo build and returns the executables that it built or found fresh.
pub(crate) fn build(command: &mut Command, metadata: &Metadata) -> Result<Vec<Executable>> {
    command.args(["--message-format", "json-render-diagnostics"]);
    parse(&process::output(command)?, metadata)
}

/// Builds every binary of the workspace, always by one command line, so that commands do not
/// rebuild each other's with other features. The programs have code that only BPF has.
pub(crate) fn build_binaries(metadata: &Metadata) -> Result<Vec<Executable>> {
    let programs = ["--exclude", "datapath-ebpf"];
    let mut command = process::locked_cargo("build");
    build(
        command.args(["--workspace", "--bins"]).args(programs),
        metadata,
    )
}

/// Builds the operator. Its feature has the SDK of AWS, which no other binary needs.
pub(crate) fn build_operator(metadata: &Metadata) -> Result<Vec<Executable>> {
    let package = [
        "--package",
        "towpath-operator",
        "--features",
        "sdk",
        "--bins",
    ];
    build(process::locked_cargo("build").args(package), metadata)
}

/// Builds every test program and every binary of the workspace, the operator with the SDK.
pub(crate) fn build_tests(metadata: &Metadata) -> Result<Vec<Executable>> {
    let mut command = process::locked_cargo("build");
    build(command.args(TESTED).args(["--bins", "--tests"]), metadata)
}

/// Builds the test program with the feature `debug-log`, which no other build has.
pub(crate) fn build_debug_log(metadata: &Metadata) -> Result<Vec<Executable>> {
    let mut command = process::locked_cargo("build");
    command.args(TESTED).args(["--test", "bpf"]);
    build(
        command.args(["--features", "towpath-loader/debug-log"]),
        metadata,
    )
}

/// The file of one of our binaries.
pub(crate) fn binary<'a>(executables: &'a [Executable], name: &str) -> Result<&'a Path> {
    executables
        .iter()
        .find(|built| !built.test && built.target.kind == "bin" && built.target.name == name)
        .map(|built| built.path.as_path())
        .with_context(|| format!("no package of the workspace has a binary {name}"))
}

fn parse(messages: &str, metadata: &Metadata) -> Result<Vec<Executable>> {
    let mut executables = Vec::new();
    for line in messages.lines().filter(|line| line.starts_with('{')) {
        let message: Message = serde_json::from_str(line)
            .with_context(|| format!("cargo printed an unexpected message: {line}"))?;
        let (Some(path), Some(manifest), Some(target), Some(profile)) = (
            message.executable,
            message.manifest_path,
            message.target,
            message.profile,
        ) else {
            continue;
        };
        let package = metadata
            .packages
            .iter()
            .find(|package| package.manifest_path == manifest)
            .with_context(|| format!("{} is no member", manifest.display()))?;
        executables.push(Executable {
            target: target.named(&package.name),
            test: profile.test,
            path,
            folder: manifest.parent().map(PathBuf::from).unwrap_or_default(),
        });
    }
    Ok(executables)
}

#[cfg(test)]
mod tests {
    use super::{Metadata, binary, parse};
    use std::path::Path;

    const METADATA: &str = r#"{"packages": [{
        "name": "towpath", "manifest_path": "/src/agent/Cargo.toml", "dependencies": [],
        "targets": [
            {"name": "towpath", "kind": ["lib"], "test": true},
            {"name": "build-script-build", "kind": ["custom-build"], "test": false}
        ]}, {
        "name": "tools", "manifest_path": "/src/tools/Cargo.toml", "dependencies": [],
        "targets": [{"name": "towpath", "kind": ["bin"]}]}]}"#;

    const MESSAGES: &str = r#"
{"reason":"build-script-executed","package_id":"x"}
{"reason":"compiler-artifact","manifest_path":"/src/agent/Cargo.toml","target":{"name":"towpath","kind":["lib"]},"profile":{"test":true},"executable":"/t/towpath-1"}
{"reason":"compiler-artifact","manifest_path":"/src/agent/Cargo.toml","target":{"name":"towpath","kind":["bin"]},"profile":{"test":false},"executable":"/t/towpath"}
{"reason":"compiler-artifact","manifest_path":"/src/agent/Cargo.toml","target":{"name":"towpath","kind":["lib"]},"profile":{"test":false},"executable":null}
{"reason":"build-finished","success":true}
"#;

    #[test]
    fn targets_without_tests_are_left_out() {
        let metadata: Metadata = serde_json::from_str(METADATA).unwrap();
        let targets = metadata.test_targets();
        assert_eq!(targets.len(), 1);
        assert_eq!(targets[0].kind, "lib");
    }

    #[test]
    fn the_package_of_a_binary_is_found_by_its_target() {
        let metadata: Metadata = serde_json::from_str(METADATA).unwrap();
        assert_eq!(metadata.package_of("towpath").unwrap(), "tools");
        assert!(metadata.package_of("tools").is_err());
    }

    #[test]
    fn executables_are_told_from_libraries_and_tests_from_binaries() {
        let metadata: Metadata = serde_json::from_str(METADATA).unwrap();
        let built = parse(MESSAGES, &metadata).unwrap();
        assert_eq!(built.len(), 2);
        assert!(built[0].test);
        assert_eq!(built[0].folder, Path::new("/src/agent"));
        assert_eq!(binary(&built, "towpath").unwrap(), Path::new("/t/towpath"));
        assert!(binary(&built, "towpath-demo").is_err());
    }
}
