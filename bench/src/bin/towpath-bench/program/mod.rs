//! Cost of the programs for a packet, by the kernel's test run.
//!
//! Every path is measured for each variant of the settings in the same rounds, on the same packets,
//! next to a program that does nothing.

mod drops;
mod extremes;
mod floor;
mod flows;
mod meter;
mod opening;
mod paths;
mod primitives;
mod targets;
mod variant;

use anyhow::{Context as _, Result, anyhow};
use testkit::testrun::{self, scene};

use crate::options::Options;
use crate::report::{self, Row};
use meter::{Meter, Plan};
use variant::Variants;

/// Measures the group, in the network namespace of a new thread.
pub(crate) fn measure(options: &Options) -> Result<Vec<Row>> {
    let plan = Plan::of(options);
    let thread = std::thread::Builder::new().name("program".to_owned());
    let measuring = thread
        .spawn(move || measure_here(plan))
        .context("a thread for the programs")?;
    let result = measuring.join();
    result.map_err(|_panic| anyhow!("the measurement of programs ended by a panic"))?
}

fn measure_here(plan: Plan) -> Result<Vec<Row>> {
    testrun::private_namespace()?;
    scene::make_devices()?;
    let mut meter = Meter::new(plan)?;
    report::progress("program: loading");
    let mut variants = Variants::load()?;
    primitives::measure(&mut meter)?;
    paths::measure(&mut meter, &mut variants)?;
    flows::measure(&mut meter, &mut variants)?;
    opening::measure(&mut meter, &mut variants)?;
    drops::measure(&mut meter, &mut variants)?;
    extremes::measure(&mut meter)?;
    meter.finish()
}
