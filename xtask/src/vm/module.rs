//! Kernel modules: unpacking them, in an order in which they load.

use std::ffi::OsStr;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context as _, Result, bail};
use object::{Object as _, ObjectSection as _};

/// Puts the modules `wanted`, and what they depend on, into `folder`, numbered in the order in
/// which they load. Returns the names of those that are not among `files`.
pub(super) fn collect(wanted: &[&str], files: &[PathBuf], folder: &Path) -> Result<Vec<String>> {
    let mut collected = Collected {
        files,
        folder,
        done: Vec::new(),
        absent: Vec::new(),
    };
    for name in wanted {
        collected.add(name)?;
    }
    Ok(collected.absent)
}

/// Name of a file without its folder.
pub(super) fn file_name(file: &Path) -> String {
    file.file_name()
        .unwrap_or_default()
        .to_string_lossy()
        .into_owned()
}

struct Collected<'a> {
    files: &'a [PathBuf],
    folder: &'a Path,
    done: Vec<String>,
    absent: Vec<String>,
}

impl Collected<'_> {
    /// Adds a module after what it depends on.
    fn add(&mut self, name: &str) -> Result<()> {
        if self
            .done
            .iter()
            .chain(&self.absent)
            .any(|done| done == name)
        {
            return Ok(());
        }
        let Some(file) = self.files.iter().find(|file| module_name(file) == name) else {
            self.absent.push(name.to_owned());
            return Ok(());
        };
        let module = unpack(file)?;
        for dependency in dependencies(&module)? {
            self.add(&dependency)?;
        }
        let number = self.done.len();
        fs::write(self.folder.join(format!("{number:02}-{name}.ko")), module)?;
        self.done.push(name.to_owned());
        Ok(())
    }
}

/// Name of the module in a file, as the kernel writes it; empty for other files.
fn module_name(file: &Path) -> String {
    match file_name(file).split_once(".ko") {
        Some((name, "" | ".xz" | ".zst")) => name.replace('-', "_"),
        _ => String::new(),
    }
}

/// A module as the kernel loads it.
fn unpack(file: &Path) -> Result<Vec<u8>> {
    let name = file_name(file);
    let tool = match file.extension().and_then(OsStr::to_str) {
        Some("xz") => "xz",
        Some("zst") => "zstd",
        _ => return fs::read(file).with_context(|| format!("cannot read {name}")),
    };
    let output = Command::new(tool)
        .args(["--decompress", "--stdout"])
        .arg(file)
        .output()
        .with_context(|| format!("cannot run {tool}"))?;
    if !output.status.success() {
        bail!("{tool} cannot unpack {name}");
    }
    Ok(output.stdout)
}

/// The modules that a module names in its section `.modinfo`.
fn dependencies(module: &[u8]) -> Result<Vec<String>> {
    let file = object::File::parse(module).context("a module is no ELF object")?;
    let section = file
        .section_by_name(".modinfo")
        .context("a module lacks its section .modinfo")?;
    Ok(parse_dependencies(&String::from_utf8_lossy(
        section.data()?,
    )))
}

fn parse_dependencies(information: &str) -> Vec<String> {
    information
        .split('\0')
        .filter_map(|entry| entry.strip_prefix("depends="))
        .flat_map(|names| names.split(','))
        .filter(|name| !name.is_empty())
        .map(|name| name.replace('-', "_"))
        .collect()
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::{module_name, parse_dependencies};

    #[test]
    fn names_are_those_of_the_kernel() {
        assert_eq!(
            module_name(Path::new("/x/crc32c-intel.ko.xz")),
            "crc32c_intel"
        );
        assert_eq!(module_name(Path::new("/x/veth.ko")), "veth");
        assert_eq!(module_name(Path::new("/x/modules.dep")), "");
    }

    #[test]
    fn reads_dependencies() {
        let text = "license=GPL\0depends=nfnetlink,libcrc32c\0intree=Y\0";
        assert_eq!(parse_dependencies(text), ["nfnetlink", "libcrc32c"]);
        assert!(parse_dependencies("depends=\0name=veth\0").is_empty());
    }
}
