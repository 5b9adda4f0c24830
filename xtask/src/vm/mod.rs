//! The kernel matrix: test programs run in virtual machines with other kernels.
//!
//! The machines are emulated without hardware help (TCG), so that they run anywhere, also inside
//! of another virtual machine. That is no place to measure time.

mod guest;
mod image;
mod kernel;
mod mirror;
mod module;

use std::sync::{Mutex, PoisonError};
use std::thread;

use anyhow::{Context as _, Result};

use crate::artifacts::Executable;
use crate::console::note;
use crate::test::Counts;
use kernel::{Files, KERNELS, Kernel};

/// Machines that run at the same time: each keeps little more than one processor busy.
const AT_ONCE: usize = 2;

/// Runs the guest's test programs on every kernel; one kernel's failure does not stop the others.
pub(crate) fn run(executables: &[Executable]) -> Result<Counts> {
    // One run at a time: another would share the cache, and the cores would be too few for both.
    let _lock = kernel::lock_cache()?;
    let programs = guest::programs(executables)?;
    let image = image::Image::new(&programs, executables)?;
    let boot = |kernel: &Kernel, files: Result<Files>| {
        note(&format!("test: vm: kernel {}", kernel.name));
        files
            .and_then(|files| guest::run(kernel, &files, &image, &programs))
            .with_context(|| format!("kernel {}", kernel.name))
            .unwrap_or_else(|error| {
                eprintln!("error: {error:#}");
                Counts::FAILURE
            })
    };
    let fetched = KERNELS.iter().map(|kernel| (kernel, kernel.fetch()));
    let waiting = Mutex::new(fetched.collect::<Vec<_>>().into_iter());
    let work = || {
        let mut counts = Counts::default();
        loop {
            let next = waiting
                .lock()
                .unwrap_or_else(PoisonError::into_inner)
                .next();
            let Some((kernel, files)) = next else {
                return counts;
            };
            counts = counts + boot(kernel, files);
        }
    };
    Ok(thread::scope(|scope| {
        let guests: Vec<_> = (0..AT_ONCE).map(|_| scope.spawn(work)).collect();
        guests
            .into_iter()
            .map(|guest| guest.join().unwrap_or(Counts::FAILURE))
            .fold(Counts::default(), |sum, counts| sum + counts)
    }))
}
