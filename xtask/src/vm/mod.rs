//! The kernel matrix: test programs run in virtual machines with other kernels.
//!
//! The machines are emulated without hardware help (TCG), so that they run anywhere, also inside
//! of another virtual machine. That is no place to measure time.

mod choice;
mod guest;
mod image;
mod kernel;
mod mirror;
mod module;
mod outcome;

use anyhow::{Context as _, Result, bail};
use clap::Args;

use crate::artifacts::{self, Executable, Metadata};
use crate::console::note;
use crate::ebpf::{self, Costs};
use crate::setup::{self, Need};
use crate::test::Counts;
use choice::Program;
use image::Image;
use kernel::{KERNELS, Kernel};
pub(crate) use outcome::Outcome;
use outcome::Row;

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
    let _lock = kernel::lock_cache()?;
    let (path, object) = ebpf::object()?;
    let known = Costs::checked_in();
    let programs = choice::programs(executables)?;
    let image = Image::new(&programs, executables, &path)?;
    let rows = KERNELS.iter().map(|kernel| {
        let Some(console) = boot(kernel, &image, &programs) else {
            return Row {
                kernel: kernel.name.to_owned(),
                programs_loaded: 0,
                passed: 0,
                failed: 1,
                missing_features: Vec::new(),
            };
        };
        let measured = console.measured.as_ref();
        let figures = measured
            .context("the guest told none")
            .and_then(|measured| match &known {
                Ok(costs) => costs.check(&object, measured),
                Err(error) => bail!("{error:#}"),
            });
        let what = format!("kernel {}: the verifier's figures", kernel.name);
        let counts = console.counts + Counts::of(&what, figures);
        Row {
            kernel: measured.map_or_else(|| kernel.name.to_owned(), ebpf::Measured::series),
            programs_loaded: measured.map_or(0, |measured| measured.programs.len()),
            passed: counts.passed,
            failed: counts.failed,
            missing_features: measured
                .map(|measured| measured.missing_features.clone())
                .unwrap_or_default(),
        }
    });
    Ok(Outcome(rows.collect()))
}

/// Runs `verifier-cost`: boots every kernel for the verifier's figures alone.
pub(crate) fn costs(options: &CostOptions) -> Result<()> {
    setup::require_root("loading programs into a kernel")?;
    setup::ensure(&[Need::Build, Need::Tests, Need::Vm])?;
    let _lock = kernel::lock_cache()?;
    let executables = artifacts::build_binaries(&Metadata::read()?)?;
    let (path, object) = ebpf::object()?;
    let image = Image::new(&[], &executables, &path)?;
    let mut costs = Costs::default();
    let mut differences = Vec::new();
    for kernel in KERNELS {
        let measured = boot(kernel, &image, &[])
            .and_then(|console| console.measured)
            .with_context(|| format!("kernel {} told nothing", kernel.name))?;
        costs.add(&object, &measured);
        if !options.update {
            let known = Costs::checked_in()?;
            differences.extend(known.check(&object, &measured).err());
        }
    }
    println!("{}", costs.table());
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

/// Boots a kernel, fetched if need be; what went wrong is told.
fn boot(kernel: &Kernel, image: &Image, programs: &[Program]) -> Option<guest::Console> {
    note(&format!("test: vm: kernel {}", kernel.name));
    let console = kernel
        .fetch()
        .and_then(|files| guest::run(kernel, &files, image, programs))
        .with_context(|| format!("kernel {}", kernel.name));
    console.map_err(|error| eprintln!("error: {error:#}")).ok()
}
