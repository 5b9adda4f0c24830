//! Real traffic: measurements of the library, as rows of the report.

mod rows;

use anyhow::Result;
use bench::live::rounds::Effort;
use bench::live::scene::{Growth, POPULATIONS, compare, grow};
use testkit::interrupt;

use crate::options::Options;
use crate::report::Row;

/// Amounts of measurement. A quick run does not resolve the last percent.
fn effort(options: &Options) -> Effort {
    let (passes, rounds) = if options.quick { (2, 5) } else { (6, 15) };
    Effort {
        passes,
        rounds,
        divisor: 1,
    }
}

/// Our paths next to all other datapaths.
pub(crate) fn measure(options: &Options) -> Result<Vec<Row>> {
    interrupt::watch()?;
    let samples = compare(&POPULATIONS, effort(options))?;
    Ok(rows::live(&samples, &POPULATIONS))
}

/// Our paths on larger nodes.
pub(crate) fn growth(options: &Options) -> Result<Vec<Row>> {
    interrupt::watch()?;
    let largest = if options.quick { 1_000 } else { 10_000 };
    let endpoints = [250, 1_000, 10_000].into_iter();
    let endpoints = endpoints.filter(|endpoints| *endpoints <= largest);
    let mut growths = vec![Growth::Again];
    growths.extend(endpoints.map(Growth::Endpoints));
    growths.extend([
        Growth::Enis(15),
        Growth::Cidrs(1_000),
        Growth::Flows(250_000),
    ]);
    let samples = grow(&growths, effort(options))?;
    Ok(rows::growth(&samples, &growths, largest))
}
