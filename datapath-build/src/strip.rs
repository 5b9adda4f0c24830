//! The object without what only a debugger reads.

use anyhow::{Context as _, Result, bail};
use object::build::elf::{Builder, SectionData};
use object::elf::SHT_STRTAB;

use crate::btf_ext;

/// Prefixes of the names of DWARF's sections and of their relocations.
const DEBUG: [&[u8]; 2] = [b".debug_", b".rel.debug_"];
/// BTF about instructions, and its relocations.
const ABOUT_INSTRUCTIONS: &[u8] = b".BTF.ext";
const RELOCATIONS: &[u8] = b".rel.BTF.ext";

/// Line information in an object: the source line of each instruction.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Lines {
    /// It is kept: the verifier's log and profiles show the lines.
    Kept,
    /// It is removed.
    Forgotten,
}

/// An object without DWARF, and without source lines unless they are wanted. The BTF that
/// bpf-linker makes of DWARF stays.
///
/// The result is a tenth of the object. A parser reads all relocations of DWARF, and the kernel
/// scans the lines at each change of an instruction.
///
/// # Errors
/// If it is no ELF object, or has no BTF of instructions.
pub fn strip(object: &[u8], lines: Lines) -> Result<Vec<u8>> {
    let mut builder = Builder::read(object).context("read the eBPF object")?;
    for section in &mut builder.sections {
        let name = section.name.as_slice();
        section.delete |= DEBUG.iter().any(|start| name.starts_with(start));
    }
    match lines {
        Lines::Kept => {}
        Lines::Forgotten => forget_lines(&mut builder)?,
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

/// Takes the source lines out, and their relocations.
fn forget_lines(builder: &mut Builder<'_>) -> Result<()> {
    let endian = builder.endian;
    let mut kept = None;
    for section in &mut builder.sections {
        if section.name.as_slice() == ABOUT_INSTRUCTIONS
            && let SectionData::Data(data) = &mut section.data
        {
            let without = btf_ext::without_lines(data, endian).context(".BTF.ext")?;
            kept = u64::try_from(without.len()).ok();
            *data = without.into();
        }
    }
    let Some(kept) = kept else {
        bail!("the eBPF object has no .BTF.ext");
    };
    for section in &mut builder.sections {
        if section.name.as_slice() == RELOCATIONS
            && let SectionData::Relocation(relocations) = &mut section.data
        {
            relocations.retain(|relocation| relocation.r_offset < kept);
        }
    }
    Ok(())
}
