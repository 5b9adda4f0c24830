//! BTF about instructions: the function and the source line of each.

use anyhow::{Context as _, Result, ensure};
use object::Endianness;
use object::endian::Endian as _;

// Offsets in the header (`struct btf_ext_header`, "BTF_Ext Section" of
// `Documentation/bpf/btf.rst`). Offsets of sections count from the header's end.
const HEADER_LENGTH: usize = 4;
const FUNCTIONS: usize = 8;
const FUNCTIONS_LENGTH: usize = 12;
const LINES: usize = 16;
const LINES_LENGTH: usize = 20;
const TYPES: usize = 24;
const TYPES_LENGTH: usize = 28;

/// Reduces a section to its functions.
///
/// # Errors
/// When it is cut short, does not begin with functions, or has relocations by types.
pub(crate) fn without_lines(section: &[u8], endian: Endianness) -> Result<Vec<u8>> {
    let word = |at: usize| {
        let bytes = section.get(at..).and_then(|rest| rest.first_chunk());
        let bytes = bytes.with_context(|| format!("no header: {} bytes", section.len()))?;
        anyhow::Ok(endian.read_u32(*bytes))
    };
    ensure!(word(FUNCTIONS)? == 0, "functions do not come first");
    ensure!(word(TYPES_LENGTH)? == 0, "there are relocations by types");
    let functions = word(FUNCTIONS_LENGTH)?;
    let end = usize::try_from(word(HEADER_LENGTH)?.saturating_add(functions))?;
    let kept = section.get(..end);
    let mut kept = kept.context("functions are cut short")?.to_vec();
    for (at, value) in [(LINES, functions), (LINES_LENGTH, 0), (TYPES, functions)] {
        let field = kept.get_mut(at..).and_then(|rest| rest.first_chunk_mut());
        *field.context("the header is too short")? = endian.write_u32(value);
    }
    Ok(kept)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A section with a function's record, a line's, and so many bytes of relocations.
    fn section(types: u32) -> Vec<u8> {
        let magic = [0x9f, 0xeb, 1, 0];
        let header = [32_u32, 0, 8, 8, 4, 12, types];
        let words = header.into_iter().flat_map(u32::to_le_bytes);
        magic.into_iter().chain(words).chain(1..=12).collect()
    }

    #[test]
    fn only_functions_stay() {
        let kept = without_lines(&section(0), Endianness::Little).unwrap();
        let mut wanted = section(0);
        wanted.truncate(40);
        wanted[LINES_LENGTH] = 0;
        wanted[TYPES] = 8;
        assert_eq!(kept, wanted);
        assert_eq!(wanted[LINES], 8);
    }

    #[test]
    fn other_sections_are_refused() {
        for (section, why) in [
            (section(4), "there are relocations by types"),
            (section(0)[..39].to_vec(), "functions are cut short"),
            (section(0)[..30].to_vec(), "no header: 30 bytes"),
        ] {
            let error = without_lines(&section, Endianness::Little).unwrap_err();
            assert_eq!(error.to_string(), why);
        }
    }
}
