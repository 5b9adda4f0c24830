//! From which function and source line an instruction comes, by the object's BTF: the numbers are those
//! of `Documentation/bpf/btf.rst`.

use anyhow::{Context as _, Result};
use aya_obj::Function;

/// Where an instruction comes from. What is inlined has the line that it was written in.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Origin {
    /// The function that it is part of in the object.
    pub function: String,
    /// The source file, as the compiler was given it.
    pub file: String,
    /// The line, from 1 on.
    pub line: u32,
}

/// Origins by the slot that they begin at.
#[derive(Debug)]
pub(super) struct Lines {
    functions: Vec<(usize, String)>,
    lines: Vec<(usize, String, u32)>,
}

impl Lines {
    /// Those of a linked program.
    pub(super) fn new(types: &[u8], function: &Function) -> Result<Self> {
        /// The lower bits of a line's number are its column.
        const COLUMN_BITS: u32 = 10;
        let types = Types::new(types)?;
        let mut functions = Vec::new();
        for info in &function.func_info.func_info {
            let name = types.name(info.type_id)?;
            functions.push((usize::try_from(info.insn_off)?, name));
        }
        let mut lines = Vec::new();
        for info in &function.line_info.line_info {
            let file = types.string(info.file_name_off)?;
            let line = info.line_col >> COLUMN_BITS;
            lines.push((usize::try_from(info.insn_off)?, file, line));
        }
        functions.sort();
        lines.sort();
        Ok(Self { functions, lines })
    }

    /// The origin of a slot.
    pub(super) fn of(&self, slot: usize) -> Origin {
        let function = self.functions.partition_point(|(begin, _)| *begin <= slot);
        let function = function.checked_sub(1).map(|at| &self.functions[at].1);
        let line = self.lines.partition_point(|(begin, ..)| *begin <= slot);
        let line = line.checked_sub(1).map(|at| &self.lines[at]);
        Origin {
            function: function.cloned().unwrap_or_default(),
            file: line.map(|(_, file, _)| file.clone()).unwrap_or_default(),
            line: line.map(|(.., line)| *line).unwrap_or_default(),
        }
    }
}

/// The types' names.
struct Types<'a> {
    strings: &'a [u8],
    /// Offset of each type's name; the first is of number 1.
    names: Vec<u32>,
}

impl<'a> Types<'a> {
    fn new(bytes: &'a [u8]) -> Result<Self> {
        let word = |at: usize| -> Result<u32> {
            let word = bytes.get(at..).and_then(<[u8]>::first_chunk);
            Ok(u32::from_ne_bytes(*word.context("types cut short")?))
        };
        let at = |field: usize| Ok::<_, anyhow::Error>(usize::try_from(word(field)?)?);
        // `struct btf_header`.
        let (header, types, length) = (at(4)?, at(8)?, at(12)?);
        let (strings, size) = (header + at(16)?, at(20)?);
        let mut names = Vec::new();
        let mut place = header + types;
        while place < header + types + length {
            names.push(word(place)?);
            let info = word(place + 4)?;
            let count = usize::try_from(info & 0xffff)?;
            // `struct btf_type`, and by its kind what follows.
            place += 12
                + match info >> 24 & 0x1f {
                    1 | 14 | 17 => 4,
                    3 => 12,
                    4 | 5 | 15 | 19 => 12 * count,
                    6 | 13 => 8 * count,
                    _ => 0,
                };
        }
        Ok(Self {
            strings: bytes.get(strings..strings + size).context("no strings")?,
            names,
        })
    }

    fn name(&self, number: u32) -> Result<String> {
        let index = usize::try_from(number)?.checked_sub(1);
        let offset = index.and_then(|index| self.names.get(index));
        self.string(*offset.context("no such type")?)
    }

    fn string(&self, offset: u32) -> Result<String> {
        let bytes = self.strings.get(usize::try_from(offset)?..);
        let bytes = bytes.context("no such string")?.split(|byte| *byte == 0);
        let first = bytes.into_iter().next().unwrap_or_default();
        Ok(String::from_utf8_lossy(first).into_owned())
    }
}
