//! The kernel matrix: test programs run in virtual machines with other kernels.
//!
//! The machines are emulated without hardware help (TCG), so that they run anywhere, also inside
//! of another virtual machine. That is no place to measure time.

mod guest;
mod image;
mod kernel;
mod module;

use anyhow::{Context as _, Result};

use crate::artifacts::Executable;
use crate::console::note;
use crate::test::Counts;
use kernel::KERNELS;

/// Runs the guest's test programs on every kernel; one kernel's failure does not stop the others.
pub(crate) fn run(executables: &[Executable]) -> Result<Counts> {
    // One run at a time: another would share the cache, and the cores would be too few for both.
    let _lock = kernel::cache()?.lock()?;
    let programs = guest::programs(executables)?;
    let image = image::Image::new(&programs, executables)?;
    let mut counts = Counts::default();
    for kernel in KERNELS {
        note(&format!("test: vm: kernel {}", kernel.name));
        let result = kernel
            .fetch()
            .and_then(|files| guest::run(kernel, &files, &image, &programs))
            .with_context(|| format!("kernel {}", kernel.name));
        counts = counts
            + result.unwrap_or_else(|error| {
                eprintln!("error: {error:#}");
                Counts::FAILURE
            });
    }
    Ok(counts)
}
