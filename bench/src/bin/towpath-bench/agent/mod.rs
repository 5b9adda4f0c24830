//! The agent: latencies, start, repair, memory, CPU, loading.
//!
//! The agent is a real process in the node's namespace of a fabric, and gets its requests over its
//! socket. Its endpoints are real pods, because their devices take most of the time of an add.

pub(crate) mod figures;
mod floor;
mod flows;
mod latency;
mod lifecycle;
mod loading;
mod memory;
mod process;
mod rest;
mod scene;
mod upkeep;

use anyhow::Result;

use crate::options::Options;
use crate::report::Row;
use scene::{Layout, Scene, Size};

/// Endpoints of a node that is far from full.
const FEW: usize = 30;

/// Measures the agent.
///
/// # Errors
/// When the fabric cannot be made, the agent refuses something, or a packet left by the wrong ENI.
pub(crate) fn measure(options: &Options) -> Result<Vec<Row>> {
    measure_with(if options.quick {
        &Size::QUICK
    } else {
        &Size::FULL
    })
}

fn measure_with(size: &Size) -> Result<Vec<Row>> {
    let mut rows = loading::measure(size)?;
    rows.extend(floor::measure(size)?);
    let mut scene = Scene::set(size, &Layout::SMALL)?;
    rows.extend(memory::at_rest(&scene)?);
    rows.extend(rest::measure(&scene, size, 0)?.1);
    rows.extend(latency::measure(&scene, size)?);
    if size.endpoints > FEW {
        scene.fill(0..FEW)?;
        rows.extend(rest::measure(&scene, size, FEW)?.1);
        scene.fill(FEW..size.endpoints)?;
    } else {
        scene.fill(0..size.endpoints)?;
    }
    rows.extend(lifecycle::measure(&mut scene, size)?);
    rows.extend(rest::beside_rules(&scene, size)?);
    rows.extend(upkeep::measure(&mut scene, size)?);
    scene.finish()?;
    rows.extend(rest::on_large_instances(size)?);
    Ok(rows)
}

#[cfg(test)]
mod tests;
