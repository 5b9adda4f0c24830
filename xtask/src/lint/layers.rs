//! Layers inside of a crate: a module imports modules of its own layer or of lower ones, and no two
//! modules import each other.

mod imports;

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::Path;

use anyhow::{Context as _, Result, bail};

use self::imports::imports;
use super::text::{files, is_test};
use crate::console::note;

/// A crate, and its modules from the lowest layer to the highest.
struct Layers {
    /// Folder of its sources.
    folder: &'static str,
    /// One layer a line.
    order: &'static [&'static [&'static str]],
    /// Upward imports that are not cured yet: importer, imported. The list may only shrink.
    exceptions: &'static [(&'static str, &'static str)],
}

const CRATES: &[Layers] = &[
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
            &["policy"],
        ],
        exceptions: &[],
    },
    Layers {
        folder: "agent/src",
        order: &[
            &["config", "faults"],
            &["cni_install", "server"],
            &["state"],
            &["allocation"],
            &["sources"],
            &["cluster"],
            &["host"],
            &["actor"],
            &["report", "run"],
            &["cli"],
        ],
        exceptions: &[],
    },
    Layers {
        folder: "datapath-ebpf/src",
        order: &[
            &["clock", "fault", "maps", "settings"],
            &["count", "mark"],
            &["packet"],
            &["log", "redirect"],
            &["family", "verdict"],
            &["work"],
            &["transport"],
            &["fragment", "link_local", "nat", "rewrite"],
            &["deliver", "icmp_error", "reaper", "to_endpoint"],
            &["way"],
            &["egress"],
            &["cache", "from_endpoint", "host"],
            &["answer", "to_network"],
            &["from_network"],
        ],
        exceptions: &[
            ("cache", "answer"),
            ("deliver", "cache"),
            ("egress", "cache"),
            ("family", "work"),
            ("maps", "nat"),
            ("mark", "nat"),
            ("nat", "cache"),
            ("nat", "egress"),
            ("work", "cache"),
            ("work", "egress"),
            ("work", "icmp_error"),
            ("work", "nat"),
            ("work", "transport"),
        ],
    },
];

/// Modules, and the modules that each imports.
type Graph = BTreeMap<String, BTreeSet<String>>;

/// Fails on an upward import, on a circle, and on an exception without a cause.
pub(super) fn check() -> Result<()> {
    let root = datapath_build::workspace_root();
    let mut modules = 0;
    let mut exceptions = 0;
    let mut faults = Vec::new();
    for layers in CRATES {
        let graph = graph(&root.join(layers.folder))?;
        modules += graph.len();
        exceptions += layers.exceptions.len();
        let found = layers.faults(&graph).into_iter();
        faults.extend(found.map(|fault| format!("{}: {fault}", layers.folder)));
    }
    if faults.is_empty() {
        note(&format!(
            "layers: {modules} modules, 0 upward, 0 circles, {exceptions} exceptions"
        ));
        return Ok(());
    }
    bail!("{} faults:\n{}", faults.len(), faults.join("\n"));
}

/// The modules at the top of a crate.
fn graph(folder: &Path) -> Result<Graph> {
    let mut graph = Graph::new();
    for file in files(folder, "rs")? {
        let path = file.strip_prefix(folder)?.with_extension("");
        let mut parts: Vec<String> = path
            .iter()
            .map(|part| part.to_string_lossy().into_owned())
            .collect();
        if parts.last().is_some_and(|last| last == "mod") {
            parts.pop();
        }
        let Some(module) = parts.first() else {
            continue;
        };
        if is_test(&path.with_extension("rs")) || ["lib", "main"].contains(&module.as_str()) {
            continue;
        }
        let text = fs::read_to_string(&file).with_context(|| format!("read {}", file.display()))?;
        let entry = graph.entry(module.clone()).or_default();
        entry.extend(imports(&text, parts.len()));
        entry.remove(module);
    }
    let known: BTreeSet<String> = graph.keys().cloned().collect();
    for imported in graph.values_mut() {
        imported.retain(|name| known.contains(name));
    }
    Ok(graph)
}

impl Layers {
    fn layer(&self, module: &str) -> Option<usize> {
        self.order.iter().position(|layer| layer.contains(&module))
    }

    fn is_excepted(&self, importer: &str, imported: &str) -> bool {
        self.exceptions.contains(&(importer, imported))
    }

    /// Everything in a crate's imports that breaks a rule.
    fn faults(&self, graph: &Graph) -> Vec<String> {
        let mut faults = Vec::new();
        for module in graph.keys().filter(|module| self.layer(module).is_none()) {
            faults.push(format!("{module} has no layer in {}", file!()));
        }
        let listed = self.order.iter().copied().flatten();
        for module in listed.filter(|module| !graph.contains_key(**module)) {
            faults.push(format!("{module} is in a layer and is no module"));
        }
        for (importer, imported) in self.exceptions {
            let is_there = graph
                .get(*importer)
                .is_some_and(|all| all.contains(*imported));
            if !is_there || self.layer(importer) >= self.layer(imported) {
                faults.push(format!(
                    "{importer} imports {imported} no more, or no more upward: remove the exception"
                ));
            }
        }
        let mut allowed = Graph::new();
        for (importer, all) in graph {
            for imported in all
                .iter()
                .filter(|imported| !self.is_excepted(importer, imported))
            {
                if self.layer(importer) < self.layer(imported) {
                    faults.push(format!("{importer} imports {imported} of a higher layer"));
                }
                let of_importer = allowed.entry(importer.clone()).or_default();
                of_importer.insert(imported.clone());
            }
        }
        let circle = circles(allowed);
        if !circle.is_empty() {
            faults.push(format!("in a circle of imports: {}", circle.join(", ")));
        }
        faults
    }
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
        exceptions: &[],
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
    fn an_exception_holds_for_its_import_only_and_goes_with_it() {
        let layers = Layers {
            exceptions: &[("low", "left")],
            ..LAYERS
        };
        let upward = graph(&[("low", &["left"]), ("left", &["low"]), ("right", &[])]);
        assert_eq!(layers.faults(&upward), Vec::<String>::new());
        let cured = graph(&[("low", &[]), ("left", &[]), ("right", &[])]);
        assert_eq!(layers.faults(&cured).len(), 1);
    }

    #[test]
    fn every_crate_is_found() -> Result<()> {
        let root = datapath_build::workspace_root();
        for layers in CRATES {
            let graph = super::graph(&root.join(layers.folder))?;
            assert!(graph.values().any(|imported| !imported.is_empty()));
        }
        Ok(())
    }
}
