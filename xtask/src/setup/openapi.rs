//! What Debian's source package of Kubernetes lacks: a dependency that works with Debian's compiler, and
//! for the API server a generated package.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context as _, Result};

use super::kubernetes::Tree;
use crate::process;

/// Debian's package of a newer `reflect2`.
pub(super) const REFLECT_PACKAGE: &str = "golang-github-modern-go-reflect2-dev";
/// The dependency. The tree's own release dereferences what compilers since Go 1.18 lay out in another
/// way: programs would die at the first custom resource.
const REFLECT: &str = "github.com/modern-go/reflect2";
/// The generated package.
const GENERATED: &str = "k8s.io/kubernetes/pkg/generated/openapi";
/// A package whose types are described has this line.
const MARKER: &str = "// +k8s:openapi-gen=";
/// Parts of paths of packages that are not the server's.
const OTHERS: [&str; 8] = [
    "testdata",
    "/testing",
    "_examples",
    "code-generator",
    "sample-",
    "apiextensions-apiserver/examples",
    "gengo",
    "kube-openapi",
];

/// Gives the tree the newer dependency. `unpacked` is where Debian's package of it is.
pub(super) fn renew_reflect(tree: &Tree, unpacked: &Path) -> Result<()> {
    let own = tree.folder.join("vendor").join(REFLECT);
    fs::remove_dir_all(&own).with_context(|| format!("the sources have no {REFLECT}"))?;
    let newer = unpacked.join("usr/share/gocode/src").join(REFLECT);
    process::run(Command::new("cp").arg("-r").arg(newer).arg(&own))
}

/// Generates the descriptions of all types that the API has.
pub(super) fn generate(tree: &Tree) -> Result<()> {
    let generator = tree.folder.join("openapi-gen");
    tree.go_build("./vendor/k8s.io/kube-openapi/cmd/openapi-gen", &generator)?;
    let mut packages = BTreeSet::new();
    for root in ["pkg", "staging/src/k8s.io"] {
        find(&tree.folder, &tree.folder.join(root), &mut packages)?;
    }
    let inputs: Vec<_> = packages
        .iter()
        .map(|package| format!("k8s.io/kubernetes/{package}"))
        .collect();
    let root = tree.source_root();
    let mut command = Command::new(&generator);
    command
        .current_dir(&tree.folder)
        .env("GO111MODULE", "off")
        .env("GOPATH", root.parent().unwrap_or(&root))
        .args(["--logtostderr", "-i", &inputs.join(",")])
        .args(["-p", GENERATED, "-O", "zz_generated.openapi"])
        .args(["-h", "hack/boilerplate/boilerplate.generatego.txt"])
        .args(["-r", "violations.txt", "--output-base"])
        .arg(&root);
    process::run(&mut command)
}

/// Adds the packages below a folder that have the marker, by the path that the compiler knows.
fn find(tree: &Path, folder: &Path, packages: &mut BTreeSet<String>) -> Result<()> {
    for entry in fs::read_dir(folder)? {
        let entry = entry?;
        let path = entry.path();
        if entry.file_type()?.is_dir() {
            find(tree, &path, packages)?;
        } else if path.extension().is_some_and(|extension| extension == "go") && is_marked(&path)? {
            packages.extend(package(tree, folder));
        }
    }
    Ok(())
}

fn is_marked(file: &PathBuf) -> Result<bool> {
    let text = fs::read(file).with_context(|| format!("cannot read {}", file.display()))?;
    Ok(String::from_utf8_lossy(&text)
        .lines()
        .any(|line| line.starts_with(MARKER)))
}

fn package(tree: &Path, folder: &Path) -> Option<String> {
    let path = folder.strip_prefix(tree).ok()?.to_str()?;
    if OTHERS.iter().any(|other| path.contains(other)) {
        return None;
    }
    Some(match path.strip_prefix("staging/src/") {
        Some(staged) => format!("vendor/{staged}"),
        None => path.to_owned(),
    })
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::package;

    #[test]
    fn packages_go_by_the_path_that_the_compiler_knows() {
        let of = |path: &str| package(Path::new("/tree"), &Path::new("/tree").join(path));
        assert_eq!(of("pkg/apis/core").as_deref(), Some("pkg/apis/core"));
        let staged = of("staging/src/k8s.io/api/core/v1");
        assert_eq!(staged.as_deref(), Some("vendor/k8s.io/api/core/v1"));
        assert_eq!(of("staging/src/k8s.io/sample-apiserver/pkg"), None);
        assert_eq!(of("pkg/a/testdata/b"), None);
    }
}
