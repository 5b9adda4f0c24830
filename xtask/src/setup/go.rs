//! The Go toolchain that builds the components of `xtask/components`: the machine's own, or Debian's,
//! unpacked into the user's cache folder.

use std::fmt::Write as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context as _, Result};

use super::unpacked;
use crate::console::note;
use crate::process;
use crate::setup::cache::Cache;

/// The oldest release that builds the components (`go` in their go.mod), as major and minor.
const OLDEST: (u32, u32) = (1, 26);
/// Debian's release that has it.
const SUITE: &str = "forky";
const PACKAGES: [&str; 2] = ["golang-1.26-go", "golang-1.26-src"];
/// The toolchain's root in these packages.
const ROOT: &str = "usr/lib/go-1.26";

/// A toolchain that is new enough.
pub(super) struct Go {
    program: PathBuf,
    /// Set where the toolchain was moved after it was built.
    root: Option<PathBuf>,
}

/// The source of a program.
#[derive(Clone, Copy, Debug)]
pub(super) struct Source<'a> {
    /// The folder of its module.
    pub(super) module: &'a Path,
    pub(super) package: &'a str,
    /// Variables that the linker sets, with their values.
    pub(super) variables: &'a [(&'a str, &'a str)],
}

impl Go {
    /// Finds the machine's toolchain, or unpacks Debian's.
    pub(super) fn ensure() -> Result<Self> {
        if let Some(program) = process::find("go").filter(|program| is_new_enough(program)) {
            return Ok(Self {
                program,
                root: None,
            });
        }
        let cache = Cache::open("go")?;
        let _lock = cache.lock()?;
        let root = cache.place("1.26").join(ROOT);
        let program = root.join("bin/go");
        if !program.is_file() {
            note(&format!(
                "setup: no Go {}.{} or newer in the path: unpacking {} of {SUITE} into {}",
                OLDEST.0,
                OLDEST.1,
                PACKAGES.join(" "),
                root.display()
            ));
            unpacked::fetch(&cache, "1.26", SUITE, &PACKAGES)?;
        }
        Ok(Self {
            program,
            root: Some(root),
        })
    }

    /// A command of the toolchain, in a module's folder.
    pub(super) fn command(&self, module: &Path, subcommand: &str) -> Command {
        let mut command = Command::new(&self.program);
        command
            .current_dir(module)
            .env("CGO_ENABLED", "0")
            .env("GOFLAGS", "-mod=readonly")
            // Another release must not be fetched in place of this one.
            .env("GOTOOLCHAIN", "local")
            .arg(subcommand);
        if let Some(root) = &self.root {
            command.env("GOROOT", root);
        }
        command
    }

    /// Builds a program without symbols; calls `on_package` for each package that is compiled.
    pub(super) fn build(
        &self,
        source: &Source<'_>,
        program: &Path,
        on_package: impl FnMut(),
    ) -> Result<()> {
        let Source {
            module,
            package,
            variables,
        } = *source;
        let mut flags = "-s -w".to_owned();
        for (name, value) in variables {
            // Writing to a string cannot fail.
            let _infallible = write!(flags, " -X {name}={value}");
        }
        let mut build = self.command(module, "build");
        build
            .args(["-v", "-trimpath", "-ldflags", &flags, "-o"])
            .arg(program)
            .arg(package);
        process::run_with_lines(&mut build, on_package)
            .with_context(|| format!("cannot build {package} of {}", module.display()))
    }

    /// The number of packages that a package is made of.
    pub(super) fn count(&self, module: &Path, packages: &[&str]) -> Result<usize> {
        let mut list = self.command(module, "list");
        Ok(process::output(list.arg("-deps").args(packages))?
            .lines()
            .count())
    }
}

fn is_new_enough(program: &Path) -> bool {
    let output = Command::new(program)
        .args(["env", "GOVERSION"])
        // A toolchain line in its own go.mod must not matter.
        .env("GOTOOLCHAIN", "local")
        .stderr(Stdio::null())
        .output();
    let version = output.map(|output| String::from_utf8_lossy(&output.stdout).into_owned());
    version.is_ok_and(|version| parse(&version).is_some_and(|version| version >= OLDEST))
}

/// Major and minor of a release's name, such as `go1.26.8`.
fn parse(version: &str) -> Option<(u32, u32)> {
    let mut numbers = version.trim().strip_prefix("go")?.split('.');
    let major = numbers.next()?.parse().ok()?;
    // A release candidate is not the release.
    let minor = numbers.next()?.parse().ok()?;
    Some((major, minor))
}

#[cfg(test)]
mod tests {
    use super::{OLDEST, parse};

    #[test]
    fn releases_are_compared_by_number() {
        assert_eq!(parse("go1.26.8\n"), Some((1, 26)));
        assert!(parse("go1.9").is_some_and(|version| version < OLDEST));
        assert!(parse("go1.27").is_some_and(|version| version > OLDEST));
        for odd in ["", "go", "go1", "go1.26rc1", "devel go1.28-abc"] {
            assert_eq!(parse(odd), None, "{odd:?}");
        }
    }
}
