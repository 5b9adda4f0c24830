//! Programs and maps of the object, linked and decoded.

use std::collections::{BTreeMap, HashSet};
use std::sync::Arc;

use anyhow::{Context as _, Result};
use aya_obj::Object;
use testkit::testrun::snapshot::Snapshot;

use super::dead;
use super::instruction::{self, Instruction};
use super::lines::Lines;
use super::map::Map;

/// A program, ready to run.
#[derive(Debug)]
pub(super) struct Program {
    pub(super) code: Vec<Instruction>,
    /// Weight of each slot: 0 if the verifier removes it.
    pub(super) weights: Vec<u8>,
    /// Source line of each slot.
    pub(super) lines: Lines,
}

/// Programs by name, and the maps by number.
#[derive(Clone, Debug)]
pub(super) struct Image {
    pub(super) programs: Arc<BTreeMap<String, Program>>,
    pub(super) maps: Vec<Map>,
}

impl Image {
    /// Links the object, with the contents of the maps of the kernel's programs.
    pub(super) fn new(object: &[u8], snapshots: &BTreeMap<String, Snapshot>) -> Result<Self> {
        let types = Object::parse(object)?.btf.map(|types| types.to_bytes());
        let types = types.context("an object without types")?;
        let mut object = Object::parse(object)?;
        let described = object.maps.clone();
        let mut names: Vec<_> = described.keys().collect();
        names.sort();
        let mut maps = Vec::new();
        let mut numbered = Vec::new();
        for name in names {
            let map = &described[name];
            let snapshot = snapshots.get(name);
            let snapshot = snapshot.with_context(|| format!("the kernel has no map {name}"))?;
            numbered.push((name.as_str(), i32::try_from(maps.len())?, map));
            maps.push(Map::new(name, map, snapshot)?);
        }
        let sections: HashSet<_> = object
            .functions
            .keys()
            .map(|(section, _)| *section)
            .collect();
        object.relocate_maps(numbered.into_iter(), &sections)?;
        object.relocate_calls(&sections)?;
        let mut programs = BTreeMap::new();
        for (name, program) in &object.programs {
            let function = object.functions.get(&program.function_key());
            let function = function.with_context(|| format!("program {name} has no code"))?;
            let code = instruction::decode(&function.instructions)?;
            let program = Program {
                weights: dead::weights(&code, &maps),
                lines: Lines::new(&types, function)?,
                code,
            };
            programs.insert(name.clone(), program);
        }
        Ok(Self {
            programs: Arc::new(programs),
            maps,
        })
    }
}
