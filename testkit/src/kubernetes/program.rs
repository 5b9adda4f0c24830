//! Kubernetes' programs, where `cargo xtask test` has put them.

use std::env;
use std::ffi::OsString;
use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result, bail};

/// Names the folder of the components, each of them in a folder of its own.
const COMPONENTS: &str = "TOWPATH_COMPONENTS";
/// Names a folder whose programs replace ours.
const ASSETS: &str = "KUBEBUILDER_ASSETS";
/// The programs that such a folder may have.
const REPLACEABLE: [&str; 3] = ["etcd", "kube-apiserver", "kubectl"];
/// Folders of components.
const FOLDERS: [&str; 4] = ["kubernetes", "coredns", "cnitool", "debian"];

/// A program, by its name.
///
/// # Errors
/// When it was not built or fetched: the message names the command that does.
pub fn program(name: &str) -> Result<PathBuf> {
    find(name, env::var_os(ASSETS), env::var_os(COMPONENTS))
}

fn find(name: &str, assets: Option<OsString>, components: Option<OsString>) -> Result<PathBuf> {
    let assets = assets.filter(|_| REPLACEABLE.contains(&name));
    if let Some(program) = assets.map(|folder| Path::new(&folder).join(name))
        && program.is_file()
    {
        return Ok(program);
    }
    let folder = components.with_context(|| {
        format!("{COMPONENTS} names no folder with {name}: `cargo xtask test api` makes one")
    })?;
    let places = FOLDERS.map(|component| Path::new(&folder).join(component).join(name));
    let Some(program) = places.into_iter().find(|program| program.is_file()) else {
        bail!(
            "{} has no {name}: `cargo xtask test api` builds it",
            Path::new(&folder).display()
        );
    };
    Ok(program)
}

#[cfg(test)]
mod tests {
    use std::ffi::OsString;
    use std::fs;
    use std::path::Path;

    use super::find;

    fn make(folder: &Path, names: &[&str]) -> OsString {
        fs::create_dir_all(folder).unwrap();
        for name in names {
            fs::write(folder.join(name), "").unwrap();
        }
        folder.into()
    }

    #[test]
    fn assets_replace_the_api_server_and_nothing_else() {
        let folder = tempfile::tempdir().unwrap();
        let assets = folder.path().join("assets");
        let given = Some(make(&assets, &["etcd", "kube-apiserver", "kubelet"]));
        let components = folder.path().join("components");
        make(
            &components.join("kubernetes"),
            &["kube-apiserver", "kubelet"],
        );
        make(&components.join("debian"), &["kubectl"]);
        let built = Some(components.clone().into_os_string());
        let found = |name: &str| find(name, given.clone(), built.clone()).unwrap();
        assert_eq!(found("kube-apiserver"), assets.join("kube-apiserver"));
        assert_eq!(found("kubelet"), components.join("kubernetes/kubelet"));
        assert_eq!(found("kubectl"), components.join("debian/kubectl"));
        let error = find("kube-proxy", given, built).unwrap_err().to_string();
        assert!(error.ends_with("has no kube-proxy: `cargo xtask test api` builds it"));
        assert!(find("kubelet", None, None).is_err());
    }
}
