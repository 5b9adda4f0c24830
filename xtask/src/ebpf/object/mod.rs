//! Reads an eBPF ELF object: its functions, their calls and their stack.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::Path;

use anyhow::{Context as _, Result};
use object::{
    Object as _, ObjectSection as _, ObjectSymbol as _, RelocationTarget, SectionIndex, SymbolKind,
};

/// Bytes of an instruction slot.
const SLOT: u64 = 8;
/// Opcode of a call.
const CALL: u8 = 0x85;
/// Source register that marks a call of a function of this object (`BPF_PSEUDO_CALL` of
/// `include/uapi/linux/bpf.h`).
const PSEUDO_CALL: u8 = 1;
/// The register that points to the top of the stack.
const FRAME: u8 = 10;
/// The section of functions that programs call; every other section with code contains programs.
const SUBPROGRAMS: &str = ".text";
/// Functions that a compiler calls for copies that it does not unroll.
const MEMORY_ROUTINES: [&str; 5] = ["memcpy", "memmove", "memset", "memcmp", "bcmp"];

/// Place of a function: section and offset.
type Place = (usize, u64);

/// One function of the object.
#[derive(Debug)]
struct Function {
    name: String,
    program: bool,
    slots: u64,
    stack: u64,
    calls: BTreeSet<Place>,
}

/// An object's functions.
#[derive(Debug)]
pub(crate) struct Object {
    functions: BTreeMap<Place, Function>,
}

/// Cost of one program, by its code.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Cost {
    /// The program's name.
    pub(super) name: String,
    /// Instruction slots of eight bytes, including those of the functions that it calls.
    pub(super) instructions: u64,
    /// Bytes of stack on its deepest path of calls, as old kernels count them.
    pub(super) stack: u64,
}

impl Object {
    /// Reads the object at `path`.
    pub(super) fn read(path: &Path) -> Result<Self> {
        let data = fs::read(path).with_context(|| format!("cannot read {}", path.display()))?;
        let file = object::File::parse(&*data)
            .with_context(|| format!("{} is not an ELF object", path.display()))?;
        let mut functions = BTreeMap::new();
        for symbol in file.symbols() {
            let Some(index) = symbol.section_index() else {
                continue;
            };
            if symbol.kind() != SymbolKind::Text || symbol.size() == 0 {
                continue;
            }
            let section = file.section_by_index(index)?;
            let code = section
                .data_range(symbol.address(), symbol.size())?
                .with_context(|| format!("symbol {:?} leaves its section", symbol.name()))?;
            let relocated = relocated_calls(&file, index)?;
            let function = Function {
                name: symbol.name()?.to_owned(),
                program: section.name()? != SUBPROGRAMS,
                slots: symbol.size() / SLOT,
                stack: stack(code),
                calls: calls(code, index.0, symbol.address(), &relocated),
            };
            functions.insert((index.0, symbol.address()), function);
        }
        Ok(Self { functions })
    }

    /// Cost of each program, by name.
    pub(super) fn costs(&self) -> Vec<Cost> {
        let mut costs: Vec<_> = self
            .programs()
            .map(|(place, function)| Cost {
                name: function.name.clone(),
                instructions: self
                    .reached_from(*place)
                    .iter()
                    .filter_map(|place| self.functions.get(place))
                    .map(|function| function.slots)
                    .sum(),
                stack: self.deepest(*place, &mut Vec::new()),
            })
            .collect();
        costs.sort_by(|left, right| left.name.cmp(&right.name));
        costs
    }

    /// Calls of byte-wise memory routines that a program can reach, as "caller -> routine".
    pub(super) fn memory_routine_calls(&self) -> Vec<String> {
        let reached: BTreeSet<Place> = self
            .programs()
            .flat_map(|(place, _)| self.reached_from(*place))
            .collect();
        let mut found = Vec::new();
        for function in reached.iter().filter_map(|place| self.functions.get(place)) {
            for callee in function
                .calls
                .iter()
                .filter_map(|place| self.functions.get(place))
            {
                if MEMORY_ROUTINES.contains(&callee.name.as_str()) {
                    found.push(format!("{} -> {}", function.name, callee.name));
                }
            }
        }
        found
    }

    fn programs(&self) -> impl Iterator<Item = (&Place, &Function)> {
        self.functions
            .iter()
            .filter(|(_, function)| function.program)
    }

    /// A function and all functions that it calls, directly or not.
    fn reached_from(&self, start: Place) -> BTreeSet<Place> {
        let mut reached = BTreeSet::new();
        let mut open = vec![start];
        while let Some(place) = open.pop() {
            if reached.insert(place)
                && let Some(function) = self.functions.get(&place)
            {
                open.extend(&function.calls);
            }
        }
        reached
    }

    /// Programs that take more stack than the limit, with their stack.
    pub(super) fn too_deep(&self) -> Vec<String> {
        /// Kernels allow 512 (`MAX_BPF_STACK` of `include/linux/filter.h`). The difference is room for
        /// changes, and for compilers that spill more.
        const MOST: u64 = 448;
        let costs = self.costs().into_iter();
        costs
            .filter(|cost| cost.stack > MOST)
            .map(|cost| {
                format!(
                    "{} takes {} of {MOST} bytes of stack",
                    cost.name, cost.stack
                )
            })
            .collect()
    }

    /// Bytes of stack of a function with its deepest callee. The kernel forbids recursion; `path`
    /// ends it here too.
    fn deepest(&self, place: Place, path: &mut Vec<Place>) -> u64 {
        let Some(function) = self.functions.get(&place) else {
            return 0;
        };
        if path.contains(&place) {
            return 0;
        }
        path.push(place);
        let below = function
            .calls
            .iter()
            .map(|callee| self.deepest(*callee, path))
            .max()
            .unwrap_or(0);
        path.pop();
        // The count is that of `check_max_stack_depth` of `kernel/bpf/verifier.c`. Since 6.9 its
        // steps are of 16 if programs are compiled, but not on earlier kernels.
        function.stack.max(1).next_multiple_of(32) + below
    }
}

/// Relocated calls of a section: offset of the call to (section, offset) of its symbol.
fn relocated_calls(file: &object::File<'_>, index: SectionIndex) -> Result<BTreeMap<u64, Place>> {
    let mut calls = BTreeMap::new();
    for (offset, relocation) in file.section_by_index(index)?.relocations() {
        if let RelocationTarget::Symbol(symbol) = relocation.target() {
            let symbol = file.symbol_by_index(symbol)?;
            if let Some(section) = symbol.section_index() {
                calls.insert(offset, (section.0, symbol.address()));
            }
        }
    }
    Ok(calls)
}

/// An instruction slot (`struct bpf_insn` of `include/uapi/linux/bpf.h`).
struct Slot {
    opcode: u8,
    destination: u8,
    source: u8,
    displacement: i64,
    immediate: i64,
}

/// The slots of `code`.
fn slots(code: &[u8]) -> impl Iterator<Item = Slot> {
    code.as_chunks().0.iter().map(
        |&[
            opcode,
            registers,
            low,
            high,
            immediate0,
            immediate1,
            immediate2,
            immediate3,
        ]| {
            let immediate = [immediate0, immediate1, immediate2, immediate3];
            Slot {
                opcode,
                destination: registers & 0xf,
                source: registers >> 4,
                displacement: i16::from_le_bytes([low, high]).into(),
                immediate: i32::from_le_bytes(immediate).into(),
            }
        },
    )
}

/// The functions that `code` calls; `code` is at `address` of section `section`.
fn calls(
    code: &[u8],
    section: usize,
    address: u64,
    relocated: &BTreeMap<u64, Place>,
) -> BTreeSet<Place> {
    (address..)
        .step_by(8)
        .zip(slots(code))
        .filter(|(_, slot)| slot.opcode == CALL && slot.source == PSEUDO_CALL)
        .map(|(offset, slot)| {
            // The immediate counts slots from the one after the call. With a relocation it counts
            // from the symbol, so that -1 means the symbol's own slot.
            let (section, base) = relocated.get(&offset).copied().unwrap_or((section, offset));
            (section, base.wrapping_add_signed((slot.immediate + 1) * 8))
        })
        .collect()
}

/// Bytes of stack that `code` uses: the deepest displacement from the frame pointer, as in a load
/// or store, or in `rX = r10; rX += -n`.
fn stack(code: &[u8]) -> u64 {
    /// `rX = rY`, 64 bits.
    const MOVE: u8 = 0xbf;
    /// `rX += immediate`, 64 bits.
    const ADD: u8 = 0x07;
    let mut deepest: i64 = 0;
    // One bit per register: set if it holds a copy of the frame pointer.
    let mut copies: u16 = 0;
    for slot in slots(code) {
        // Classes 1 to 3: loads address by the source, stores by the destination.
        let base = match slot.opcode & 0x07 {
            1 => Some(slot.source),
            2 | 3 => Some(slot.destination),
            _ => None,
        };
        if base == Some(FRAME) {
            deepest = deepest.min(slot.displacement);
        }
        let register = 1 << slot.destination;
        if slot.opcode == ADD && copies & register != 0 {
            deepest = deepest.min(slot.immediate);
        }
        // Classes 0, 1, 4 and 7 (loads and arithmetic) overwrite their destination.
        if matches!(slot.opcode & 0x07, 0 | 1 | 4 | 7) {
            copies &= !register;
        }
        if slot.opcode == MOVE && slot.source == FRAME {
            copies |= register;
        }
    }
    deepest.unsigned_abs()
}

#[cfg(test)]
mod tests;
