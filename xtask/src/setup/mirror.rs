//! Where this machine gets its packages from, and a private view of other releases on the same
//! mirror: nothing of the machine's own package state changes.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context as _, Result, bail};

use crate::process;

/// Keys that sign Debian's releases.
const KEYRING: &str = "/usr/share/keyrings/debian-archive-keyring.gpg";

/// Addresses of the machine's mirrors.
#[derive(Debug, PartialEq, Eq)]
struct Addresses {
    /// Releases and backports.
    main: String,
    /// Security updates.
    security: String,
}

/// Package lists of one suite, in a folder of their own.
pub(crate) struct Mirror {
    configuration: PathBuf,
    suite: String,
}

impl Mirror {
    /// Fetches the package lists of `suite` (such as `trixie-backports`) into `folder`.
    pub(crate) fn open(suite: &str, folder: &Path) -> Result<Self> {
        let addresses = Addresses::of_this_machine()?;
        let address = if suite.ends_with("-security") {
            addresses.security
        } else {
            addresses.main
        };
        for name in [
            "etc/apt.conf.d",
            "etc/preferences.d",
            "lists/partial",
            "cache/archives/partial",
        ] {
            fs::create_dir_all(folder.join(name))?;
        }
        fs::write(
            folder.join("etc/sources.list"),
            format!("deb [signed-by={KEYRING}] {address} {suite} main\n"),
        )?;
        let configuration = folder.join("apt.conf");
        let root = folder.display();
        fs::write(
            &configuration,
            format!(
                "Dir::Etc \"{root}/etc\";\nDir::Etc::sourcelist \"sources.list\";\n\
                 Dir::Etc::sourceparts \"-\";\nDir::State::lists \"{root}/lists\";\n\
                 Dir::Cache \"{root}/cache\";\nAPT::Sandbox::User \"root\";\n\
                 Acquire::Check-Valid-Until \"false\";\n"
            ),
        )?;
        let mirror = Self {
            configuration,
            suite: suite.to_owned(),
        };
        process::run(
            mirror
                .command("apt-get")
                .args(["--quiet", "--quiet", "update"]),
        )
        .with_context(|| format!("cannot fetch the package lists of {suite}"))?;
        Ok(mirror)
    }

    /// Downloads a kernel into `folder`: `package`, or what it stands for.
    pub(crate) fn download(&self, package: &str, folder: &Path) -> Result<()> {
        let mut open = vec![package.to_owned()];
        let mut parts: Vec<String> = Vec::new();
        while let Some(name) = open.pop() {
            let name = format!("{name}/{}", self.suite);
            let record = process::output(self.command("apt-cache").args([
                "--no-all-versions",
                "show",
                &name,
            ]))?;
            let others = kernel_packages(&record);
            // A package that depends on parts of the kernel holds none itself.
            if others.is_empty() && !parts.contains(&name) {
                parts.push(name);
            }
            open.extend(others);
        }
        self.fetch(&parts, folder)
    }

    /// Downloads packages into `folder`, those named and nothing that they depend on.
    pub(crate) fn download_packages(&self, packages: &[&str], folder: &Path) -> Result<()> {
        let of_suite = |package: &&str| format!("{package}/{}", self.suite);
        let packages: Vec<_> = packages.iter().map(of_suite).collect();
        self.fetch(&packages, folder)
    }

    fn fetch(&self, packages: &[String], folder: &Path) -> Result<()> {
        process::run(
            self.command("apt-get")
                .current_dir(folder)
                .args(["--quiet", "download"])
                .args(packages),
        )
    }

    fn command(&self, program: &str) -> Command {
        let mut command = Command::new(program);
        command.env("APT_CONFIG", &self.configuration);
        command
    }
}

impl Addresses {
    /// Reads the machine's package sources, in both of apt's formats.
    fn of_this_machine() -> Result<Self> {
        let mut text = fs::read_to_string("/etc/apt/sources.list").unwrap_or_default();
        let files = fs::read_dir("/etc/apt/sources.list.d").context(
            "tests fetch from this machine's Debian mirror, but it has no package sources",
        )?;
        for file in files {
            let path = file?.path();
            let known = |end: &str| path.extension().is_some_and(|extension| extension == end);
            if known("list") || known("sources") {
                text.push_str("\n\n");
                text.push_str(&fs::read_to_string(&path)?);
            }
        }
        Self::parse(&text)
    }

    fn parse(text: &str) -> Result<Self> {
        let sources = sources(text);
        let of = |security: bool| {
            sources
                .iter()
                .find(|(address, suite)| {
                    address.contains("debian") && suite.ends_with("-security") == security
                })
                .map(|(address, _)| address.clone())
        };
        let (Some(main), Some(security)) = (of(false), of(true)) else {
            bail!(
                "tests fetch from this machine's Debian mirror, but its package sources name no \
                 Debian release with security updates"
            );
        };
        Ok(Self { main, security })
    }
}

/// Every pair of address and suite that package sources name.
fn sources(text: &str) -> Vec<(String, String)> {
    let mut found = Vec::new();
    for stanza in text.split("\n\n") {
        let field = |name: &str| {
            stanza
                .lines()
                .find_map(|line| line.strip_prefix(name))
                .map(str::split_whitespace)
        };
        if let (Some(addresses), Some(suites)) = (field("URIs:"), field("Suites:")) {
            for address in addresses {
                for suite in suites.clone() {
                    found.push((address.to_owned(), suite.to_owned()));
                }
            }
        }
        for line in stanza.lines().filter_map(|line| line.strip_prefix("deb ")) {
            // Options stand in brackets before the address.
            let line = line.split_once("] ").map_or(line, |(_, rest)| rest);
            let mut words = line.split_whitespace();
            if let (Some(address), Some(suite)) = (words.next(), words.next()) {
                found.push((address.to_owned(), suite.to_owned()));
            }
        }
    }
    found
}

/// The packages of a kernel that a package's record depends on: newer kernels are split.
fn kernel_packages(record: &str) -> Vec<String> {
    record
        .lines()
        .filter_map(|line| line.strip_prefix("Depends:"))
        .flat_map(|line| line.split(','))
        .filter_map(|item| item.split_whitespace().next())
        .filter(|name| {
            ["linux-image-", "linux-binary-", "linux-modules-"]
                .iter()
                .any(|start| name.starts_with(start))
        })
        .map(str::to_owned)
        .collect()
}

#[cfg(test)]
mod tests {
    use super::{Addresses, kernel_packages};

    #[test]
    fn reads_both_formats_of_package_sources() {
        let expected = Addresses {
            main: "http://mirror.example/debian".to_owned(),
            security: "http://mirror.example/debian-security".to_owned(),
        };
        let stanzas = "Types: deb\nURIs: http://mirror.example/debian\nSuites: a a-updates\n\n\
                       Types: deb\nURIs: http://mirror.example/debian-security\nSuites: a-security\n";
        assert_eq!(Addresses::parse(stanzas).unwrap(), expected);
        let lines = "# deb http://other.example/debian a main\n\
                     deb [arch=amd64 trusted=yes] http://mirror.example/debian a main\n\
                     deb http://mirror.example/debian-security a-security main\n";
        assert_eq!(Addresses::parse(lines).unwrap(), expected);
    }

    #[test]
    fn a_machine_without_debian_sources_is_told_so() {
        let error = Addresses::parse("deb http://mirror.example/ubuntu noble main").unwrap_err();
        assert!(error.to_string().contains("Debian mirror"), "{error}");
    }

    #[test]
    fn follows_the_parts_of_a_split_kernel() {
        let record = "Package: linux-image-7\nDepends: dracut | linux-initramfs-tool, \
                      linux-base-7 (= 1), linux-binary-7 (= 1), linux-modules-7 (= 1)\n";
        assert_eq!(
            kernel_packages(record),
            ["linux-binary-7", "linux-modules-7"]
        );
    }
}
