//! Targets for programs, and their rows.

use std::collections::BTreeMap;

use anyhow::{Context as _, Result};

use super::meter::row;
use crate::report::{Row, median};

/// A target: the most expensive of the rows counts.
struct Target {
    name: &'static str,
    most: f64,
    of: &'static [&'static str],
}

/// Rows without the variant's suffix. The first five have a second target: the extra cost of the
/// variant with service NAT.
const TARGETS: [Target; 7] = [
    Target {
        name: "masqueraded packet out, established",
        most: 160.0,
        of: &[
            "masqueraded out, tcp ipv4, port kept",
            "masqueraded out, udp ipv4, port kept",
        ],
    },
    Target {
        name: "masqueraded packet back, delivered",
        most: 130.0,
        of: &[
            "masqueraded back, tcp ipv4, port kept",
            "masqueraded back, udp ipv4, port kept",
        ],
    },
    Target {
        name: "exempt packet out",
        most: 70.0,
        of: &["exempt out, tcp ipv4", "exempt out, udp ipv4"],
    },
    Target {
        name: "ENI to pod",
        most: 55.0,
        of: &["from ENI to pod, tcp ipv4", "from ENI to pod, udp ipv4"],
    },
    Target {
        name: "local delivery",
        most: 70.0,
        of: &["pod to pod, tcp ipv4", "pod to pod, udp ipv4"],
    },
    Target {
        name: "new masqueraded flow, port kept",
        most: 600.0,
        of: &["new flow, port kept, empty table"],
    },
    Target {
        name: "new flow at 99% port use, mean",
        most: 20_000.0,
        of: &["new flow, 99% of the destination's ports used"],
    },
];

/// Extra cost that a packet may have with service NAT.
const MORE: f64 = 40.0;
const WITH_MORE: usize = 5;
const SERVICE_NAT: &str = ", service NAT";

/// The rows of all targets.
pub(super) fn rows(samples: &BTreeMap<String, Vec<f64>>) -> Result<Vec<Row>> {
    let of = |name: &str| {
        let samples = samples.get(name);
        samples.with_context(|| format!("nothing was measured as {name:?}"))
    };
    let mut rows = Vec::new();
    for target in &TARGETS {
        let each = target.of.iter().map(|name| of(name).cloned());
        let dearest = dearest(each.collect::<Result<_>>()?);
        rows.push(row(target.name.to_owned(), &dearest, Some(target.most)));
    }
    for target in &TARGETS[..WITH_MORE] {
        let each = target.of.iter().map(|name| {
            let (without, with) = (of(name)?, of(&format!("{name}{SERVICE_NAT}"))?);
            // Both come from the same rounds.
            let more = with
                .iter()
                .zip(without)
                .map(|(with, without)| with - without);
            Ok(more.collect())
        });
        let dearest = dearest(each.collect::<Result<_>>()?);
        let name = format!("{}: more with service NAT", target.name);
        rows.push(row(name, &dearest, Some(MORE)));
    }
    Ok(rows)
}

fn dearest(all: Vec<Vec<f64>>) -> Vec<f64> {
    let dearest = all
        .into_iter()
        .max_by(|one, two| median(one).total_cmp(&median(two)));
    dearest.unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_target_is_of_the_dearest_row_and_what_is_missing_is_named() {
        let mut samples = BTreeMap::new();
        for (number, target) in (1_u8..).zip(&TARGETS) {
            for (other, name) in target.of.iter().enumerate() {
                let cost = f64::from(number) * if other == 1 { 20.0 } else { 10.0 };
                samples.insert((*name).to_owned(), vec![cost; 3]);
                let with = vec![cost + 41.0; 3];
                samples.insert(format!("{name}{SERVICE_NAT}"), with);
            }
        }
        let rows = rows(&samples).unwrap();
        assert_eq!(rows.len(), TARGETS.len() + WITH_MORE);
        assert!((rows[0].value - 20.0).abs() < 1e-9);
        assert_eq!(rows[0].met(), Some(true));
        assert_eq!(
            rows[7].name,
            "masqueraded packet out, established: more with service NAT"
        );
        assert_eq!(rows[7].met(), Some(false));
        samples.remove("pod to pod, tcp ipv4");
        let error = super::rows(&samples).unwrap_err().to_string();
        assert!(error.contains("pod to pod, tcp ipv4"), "{error}");
    }
}
