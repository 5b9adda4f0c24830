//! The kernel matrix: test programs run in virtual machines with other kernels.
//!
//! The machines are emulated without hardware help (TCG), so that they run anywhere, also inside
//! of another virtual machine. That is no place to measure time.

mod choice;
mod guest;
mod image;
mod kernel;
mod module;
mod outcome;

use std::sync::{Mutex, PoisonError, mpsc};
use std::thread;

use anyhow::{Context as _, Result, bail};
use clap::Args;

use crate::build::artifacts::{self, Executable, Metadata};
use crate::console::{self, note};
use crate::ebpf::{self, Costs};
use crate::setup::{self, Need};
use crate::test::Results;
use choice::Program;
use guest::Console;
use image::Image;
use kernel::{KERNELS, Kernel};
pub(crate) use outcome::Outcome;

/// Options of `verifier-cost`.
#[derive(Args)]
pub(crate) struct CostOptions {
    /// Write what is measured to docs/verifier-cost.md instead.
    #[arg(long)]
    update: bool,
}

/// Runs the guests' test programs on every kernel; one kernel's failure does not stop the others.
pub(crate) fn run(executables: &[Executable]) -> Result<Outcome> {
    // One run at a time: another would share the cache, and the cores would be too few for both.
    let _lock = kernel::cache()?.lock()?;
    let (path, object) = ebpf::object()?;
    let known = Costs::checked_in();
    let programs = choice::programs(executables)?;
    let image = Image::new(&programs, executables, &path)?;
    let consoles = boot_all(&image, &programs)?;
    let mut outcome = Outcome::default();
    for (kernel, console) in KERNELS.iter().zip(consoles) {
        match console {
            Ok(console) => {
                let figures = console
                    .measured
                    .as_ref()
                    .context("the guest reported no figures");
                let figures = figures.and_then(|measured| match &known {
                    Ok(costs) => costs.check(&object, measured),
                    Err(error) => bail!("{error:#}"),
                });
                let name = format!("kernel {}", kernel.name);
                let figures = Results::of(&format!("{name}: the verifier's figures"), figures);
                let results = Results::read(&name, console.counts, console.reader) + figures;
                outcome.add(kernel, console.measured.as_ref(), results);
            }
            Err(error) => {
                let results = Results::failure("the kernel matrix", &format!("{error:#}"));
                outcome.add(kernel, None, results);
            }
        }
    }
    Ok(outcome)
}

/// Runs `verifier-cost`: boots every kernel for the verifier's figures alone.
pub(crate) fn costs(options: &CostOptions) -> Result<()> {
    setup::require_root("loading programs into a kernel")?;
    setup::ensure(&[Need::Build, Need::Tests, Need::Vm])?;
    let _lock = kernel::cache()?.lock()?;
    let executables = artifacts::build_binaries(&Metadata::read()?)?;
    let (path, object) = ebpf::object()?;
    let image = Image::new(&[], &executables, &path)?;
    let mut costs = Costs::default();
    let mut differences = Vec::new();
    for (kernel, console) in KERNELS.iter().zip(boot_all(&image, &[])?) {
        let measured = console?
            .measured
            .with_context(|| format!("kernel {} reported no figures", kernel.name))?;
        costs.add(&object, &measured);
        if !options.update {
            let known = Costs::checked_in()?;
            differences.extend(known.check(&object, &measured).err());
        }
    }
    console::result(&costs.table())?;
    if options.update {
        return costs.check_in();
    }
    for difference in &differences {
        eprintln!("error: {difference:#}");
    }
    if !differences.is_empty() {
        bail!("{} of {} kernels differ", differences.len(), KERNELS.len());
    }
    Ok(())
}

/// Boots every kernel, as many at a time as there are processors: a guest has one, which spares the
/// emulator what it takes to keep several in step. Those that have the most to do come first.
fn boot_all(image: &Image, programs: &[Program]) -> Result<Vec<Result<Console>>> {
    let mut open: Vec<usize> = (0..KERNELS.len()).collect();
    open.sort_by_key(|number| KERNELS.get(*number).map(|kernel| kernel.depth));
    let open = Mutex::new(open);
    let (sender, results) = mpsc::channel();
    let processors = thread::available_parallelism().context("how many processors are there?")?;
    thread::scope(|scope| {
        for _ in 0..processors.get().min(KERNELS.len()) {
            let (open, sender) = (&open, sender.clone());
            scope.spawn(move || {
                let next = || open.lock().unwrap_or_else(PoisonError::into_inner).pop();
                while let Some(number) = next() {
                    let console = boot(&KERNELS[number], image, programs);
                    if sender.send((number, console)).is_err() {
                        return;
                    }
                }
            });
        }
    });
    drop(sender);
    let mut consoles: Vec<_> = results.into_iter().collect();
    consoles.sort_by_key(|(number, _)| *number);
    Ok(consoles.into_iter().map(|(_, console)| console).collect())
}

/// Boots a kernel.
fn boot(kernel: &Kernel, image: &Image, programs: &[Program]) -> Result<Console> {
    note(&format!("test: vm: kernel {}", kernel.name));
    kernel
        .fetch()
        .and_then(|files| guest::run(kernel, &files, image, programs))
        .with_context(|| format!("kernel {}", kernel.name))
}
