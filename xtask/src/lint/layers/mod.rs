//! Layers inside of a crate, or of a folder of one: a module imports modules of its own layer or of
//! lower ones, and no two modules import each other.

mod imports;

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::Path;

use anyhow::{Context as _, Result, bail};

use self::imports::imports;
use super::text::{files, is_test};
use crate::console::note;

/// A crate or a module with modules of its own, and these from the lowest layer to the highest.
struct Layers {
    /// Folder of the sources: `src` of a crate, or a folder below it.
    folder: &'static str,
    /// One layer a line.
    order: &'static [&'static [&'static str]],
}

const FOLDERS: &[Layers] = &[
    Layers {
        folder: "loader/src",
        order: &[
            &["constants", "stamp"],
            &["intent"],
            &["kernel"],
            &["observation"],
            &["desired", "netlink"],
            &["netfilter", "plan"],
            &["reconcile"],
            &["bpf"],
        ],
    },
    Layers {
        folder: "agent/src",
        order: &[
            &["fault_points"],
            &["server"],
            &["state"],
            &["allocation"],
            &["cluster"],
            &["host"],
            &["actor"],
            &["report", "run"],
            &["cli"],
        ],
    },
    Layers {
        folder: "datapath-ebpf/src",
        order: &[
            &["scratch"],
            &["base"],
            &["packet"],
            &["policy"],
            &["nat"],
            &["path"],
            &["cache", "programs"],
        ],
    },
    Layers {
        folder: "datapath-ebpf/src/base",
        order: &[&["clock", "code", "maps", "settings"], &["count", "mark"]],
    },
    Layers {
        folder: "datapath-ebpf/src/packet",
        order: &[
            &["family", "fragment_ring", "link_local", "transport"],
            &["fragment"],
            &["rewrite"],
            &["icmp_error"],
        ],
    },
    Layers {
        folder: "datapath-ebpf/src/nat",
        order: &[
            &["host_socket", "tables"],
            &["attempt", "tracked"],
            &["ports"],
            &["flow"],
            &["ending", "open"],
            &["request", "suspect"],
        ],
    },
    Layers {
        folder: "datapath-ebpf/src/path",
        order: &[
            &["redirect", "stack"],
            &["record"],
            &["deliver", "egress"],
            &["host", "reply"],
        ],
    },
    Layers {
        folder: "datapath-ebpf/src/cache",
        order: &[
            &["plain"],
            &["entry", "fill", "flow_update", "seen"],
            &["fill_egress", "fill_reply"],
            &["lookup"],
        ],
    },
    Layers {
        folder: "datapath-ebpf/src/programs",
        order: &[
            &["log", "step"],
            &["finish", "reaper"],
            &["from_endpoint", "from_network", "to_endpoint", "to_network"],
        ],
    },
];

/// Modules, and the modules that each imports.
type Graph = BTreeMap<String, BTreeSet<String>>;

/// Fails on an upward import, on a circle, and on a module without a layer.
pub(super) fn check() -> Result<()> {
    let root = datapath_build::workspace_root();
    let mut modules = 0;
    let mut faults = Vec::new();
    for layers in FOLDERS {
        let graph = layers.graph(root)?;
        modules += graph.len();
        let found = layers.faults(&graph).into_iter();
        faults.extend(found.map(|fault| format!("{}: {fault}", layers.folder)));
    }
    if faults.is_empty() {
        note(&format!("layers: {modules} modules, 0 upward, 0 circles"));
        return Ok(());
    }
    bail!("{} faults:\n{}", faults.len(), faults.join("\n"));
}

impl Layers {
    /// The modules of the folder.
    fn graph(&self, root: &Path) -> Result<Graph> {
        let (_, module) = self.folder.split_once("src").unwrap_or_default();
        let module = module.trim_start_matches('/').replace('/', "::");
        let folder = root.join(self.folder);
        let mut graph = Graph::new();
        for file in files(&folder, "rs")? {
            let file_in_folder = file.strip_prefix(&folder)?;
            let parts = parts(file_in_folder);
            let Some(name) = parts.first() else {
                continue;
            };
            if is_test(file_in_folder) || ["lib", "main"].contains(&name.as_str()) {
                continue;
            }
            let text =
                fs::read_to_string(&file).with_context(|| format!("read {}", file.display()))?;
            let entry = graph.entry(name.clone()).or_default();
            entry.extend(imports(&text, &module, parts.len()));
            entry.remove(name);
        }
        let known: BTreeSet<String> = graph.keys().cloned().collect();
        for imported in graph.values_mut() {
            imported.retain(|name| known.contains(name));
        }
        Ok(graph)
    }

    fn layer(&self, module: &str) -> Option<usize> {
        self.order.iter().position(|layer| layer.contains(&module))
    }

    /// Everything in the imports of a folder that breaks a rule.
    fn faults(&self, graph: &Graph) -> Vec<String> {
        let mut faults = Vec::new();
        for module in graph.keys().filter(|module| self.layer(module).is_none()) {
            faults.push(format!("{module} has no layer in {}", file!()));
        }
        let listed = self.order.iter().copied().flatten();
        for module in listed.filter(|module| !graph.contains_key(**module)) {
            faults.push(format!("{module} is in a layer and is no module"));
        }
        for (importer, all) in graph {
            let is_upward = |imported: &&String| self.layer(importer) < self.layer(imported);
            for imported in all.iter().filter(is_upward) {
                faults.push(format!("{importer} imports {imported} of a higher layer"));
            }
        }
        let circle = circles(graph.clone());
        if !circle.is_empty() {
            faults.push(format!("in a circle of imports: {}", circle.join(", ")));
        }
        faults
    }
}

/// The modules that a file is in, from the folder on; its own is the last.
fn parts(file: &Path) -> Vec<String> {
    let path = file.with_extension("");
    let mut parts: Vec<String> = path
        .iter()
        .map(|part| part.to_string_lossy().into_owned())
        .collect();
    if parts.last().is_some_and(|last| last == "mod") {
        parts.pop();
    }
    parts
}

/// The modules that are left once each is taken out that imports none of the others.
fn circles(mut graph: Graph) -> Vec<String> {
    loop {
        let importers: BTreeSet<String> = graph.keys().cloned().collect();
        for imported in graph.values_mut() {
            imported.retain(|module| importers.contains(module));
        }
        let before = graph.len();
        graph.retain(|_, imported| !imported.is_empty());
        if graph.len() == before {
            return graph.into_keys().collect();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LAYERS: Layers = Layers {
        folder: "",
        order: &[&["low"], &["left", "right"]],
    };

    fn graph(edges: &[(&str, &[&str])]) -> Graph {
        let named = |all: &&[&str]| all.iter().map(ToString::to_string).collect();
        let all = edges.iter();
        all.map(|(module, imported)| ((*module).to_owned(), named(imported)))
            .collect()
    }

    #[test]
    fn imports_of_lower_layers_and_of_the_same_one_pass() {
        let graph = graph(&[("low", &[]), ("left", &["low", "right"]), ("right", &[])]);
        assert_eq!(LAYERS.faults(&graph), Vec::<String>::new());
    }

    #[test]
    fn upward_imports_circles_and_modules_without_a_layer_fail() {
        let upward = graph(&[("low", &["left"]), ("left", &[]), ("right", &[])]);
        assert_eq!(
            LAYERS.faults(&upward),
            ["low imports left of a higher layer"]
        );
        let circle = graph(&[("low", &[]), ("left", &["right"]), ("right", &["left"])]);
        assert_eq!(
            LAYERS.faults(&circle),
            ["in a circle of imports: left, right"]
        );
        let other = graph(&[("low", &[]), ("left", &[]), ("new", &[])]);
        assert_eq!(LAYERS.faults(&other).len(), 2);
    }

    #[test]
    fn every_folder_is_found() -> Result<()> {
        let root = datapath_build::workspace_root();
        for layers in FOLDERS {
            let graph = layers.graph(root)?;
            assert!(graph.values().any(|imported| !imported.is_empty()));
        }
        Ok(())
    }
}
