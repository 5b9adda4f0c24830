//! The object without what only a debugger reads.

use anyhow::{Context as _, Result};
use object::build::elf::{Builder, SectionData};
use object::elf::SHT_STRTAB;

/// How the names of DWARF's sections begin, and of their relocations.
const DEBUG: [&[u8]; 2] = [b".debug_", b".rel.debug_"];

/// An object without DWARF. bpf-linker makes BTF out of it, which stays; the rest is three quarters of
/// the object, and who parses it goes through every relocation there.
///
/// # Errors
/// When it is no ELF object.
pub fn strip(object: &[u8]) -> Result<Vec<u8>> {
    let mut builder = Builder::read(object).context("read the eBPF object")?;
    for section in &mut builder.sections {
        let name = section.name.as_slice();
        section.delete |= DEBUG.iter().any(|start| name.starts_with(start));
    }
    // LLVM keeps the names of sections and of symbols in one table, the writer in two.
    let names = builder.sections.add();
    names.name = b".shstrtab"[..].into();
    names.sh_type = SHT_STRTAB;
    names.data = SectionData::SectionString;
    builder.delete_orphans();
    builder.delete_orphan_relocations();
    let mut stripped = Vec::new();
    builder
        .write(&mut stripped)
        .context("write the eBPF object")?;
    Ok(stripped)
}
