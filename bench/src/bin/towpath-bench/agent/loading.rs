//! Load time of the programs.

use std::time::Instant;

use anyhow::Result;
use loader::bpf::{AttachMode, BpfOptions, Datapath, DatapathSettings, LEAST_NOTES, OBJECT};
use testkit::fabric::record::Record;
use testkit::verifier::verify;

use super::figures::{against, median_row, millis};
use super::scene::Size;
use crate::report::{Row, Unit};

/// Target for the load time, in milliseconds.
const LOAD: f64 = 60.0;

/// Loads the programs as an agent without service NAT and without earlier pins: every map is made,
/// every program verified.
///
/// Further rows have the verifier's figures for each program, one after the other, with all of
/// their code in use.
pub(super) fn measure(size: &Size) -> Result<Vec<Row>> {
    let record = Record::create()?;
    let settings = DatapathSettings {
        stack: LEAST_NOTES,
        ..DatapathSettings::default()
    };
    let mut whole = Vec::new();
    for round in 0..size.loads {
        let options = BpfOptions {
            pin_root: record.bpffs().join(format!("load-{round}")),
            attach: AttachMode::Auto,
        };
        let start = Instant::now();
        let datapath = Datapath::load(&options, &settings)?;
        whole.push(millis(start.elapsed()));
        drop(datapath);
    }
    let name = "programs loaded, cold";
    let mut rows = vec![against(LOAD, median_row(name, &whole, Unit::Milliseconds))];

    let rounds = (0..size.loads.div_ceil(2)).map(|_| verify(OBJECT));
    let rounds = rounds.collect::<Result<Vec<_>>>()?;
    let micros = |time: u64| -> Result<f64> { Ok(f64::from(u32::try_from(time)?) / 1e3) };
    let sums = rounds
        .iter()
        .map(|costs| micros(costs.values().map(|cost| cost.microseconds).sum()));
    let sums = sums.collect::<Result<Vec<_>>>()?;
    let name = "verification, one program after the other";
    rows.push(median_row(name, &sums, Unit::Milliseconds));
    for program in rounds.first().into_iter().flat_map(|costs| costs.keys()) {
        let times = rounds.iter().filter_map(|costs| costs.get(program));
        let times = times.map(|cost| micros(cost.microseconds));
        let name = format!("verification of {program}");
        let times = times.collect::<Result<Vec<_>>>()?;
        rows.push(median_row(name, &times, Unit::Milliseconds));
    }
    Ok(rows)
}
