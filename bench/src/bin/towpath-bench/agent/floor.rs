//! Cost of the kernel alone for a pod: the least that any agent can need.
//!
//! Attaching a program by TCX holds the lock of the network configuration and waits until every CPU
//! has passed through the scheduler. The wait is `synchronize_rcu` after `tcx_entry_update` in
//! kernel/bpf/tcx.c. Removing a device waits, too. The duration depends on the kernel's tick and on
//! the load.

use std::sync::Barrier;
use std::thread;
use std::time::Instant;

use anyhow::{Result, anyhow};
use testkit::fabric::Netns;
use testkit::fabric::program::{Action, ForeignProgram, Position};
use testkit::fabric::record::Record;

use super::figures::{median_row, millis};
use super::scene::Size;
use crate::report::{Row, Unit};

/// Makes pairs of devices in two namespaces, attaches a program to one end and removes them.
pub(super) fn measure(size: &Size) -> Result<Vec<Row>> {
    let record = Record::create()?;
    let host = Netns::create(&format!("{}-host", record.prefix()))?;
    let pod = Netns::create(&format!("{}-pod", record.prefix()))?;
    let folder = record.bpffs().join("floor");
    std::fs::create_dir_all(&folder)?;
    let (mut made, mut attached, mut removed) = (Vec::new(), Vec::new(), Vec::new());
    for number in 0..size.serial {
        let peer = pod.name();
        let start = Instant::now();
        host.ip(&format!(
            "link add host{number} type veth peer name pod{number} netns {peer}"
        ))?;
        made.push(millis(start.elapsed()));
        let mut program = ForeignProgram::load_uncounted(
            &format!("floor{number}"),
            &folder,
            &Action::Pass.instructions(),
        )?;
        let start = Instant::now();
        program.attach_tcx(&host, &format!("host{number}"), Position::Last)?;
        attached.push(millis(start.elapsed()));
        let start = Instant::now();
        host.ip(&format!("link del host{number}"))?;
        removed.push(millis(start.elapsed()));
    }
    let row = |name: &str, samples: &[f64]| {
        let name = format!("floor: {name}, p50");
        median_row(name, samples, Unit::Milliseconds)
    };
    let mut rows = vec![
        row("a pair of devices made by ip(8)", &made),
        row("a program attached to a new device by TCX", &attached),
        row("a pair of devices removed by ip(8)", &removed),
    ];
    for &(devices, rounds) in size.bursts {
        rows.push(removals(&host, &pod, devices, rounds)?);
    }
    Ok(rows)
}

/// Removes pairs of devices at the same time, each by a program of its own, as the deletes of a
/// burst of pods must.
fn removals(host: &Netns, pod: &Netns, devices: usize, rounds: usize) -> Result<Row> {
    let mut wholes = Vec::new();
    for _ in 0..rounds {
        let pair = |number| {
            let pod = pod.name();
            format!("link add host{number} type veth peer name pod{number} netns {pod}\n")
        };
        host.ip(&(0..devices).map(pair).collect::<String>())?;
        let barrier = Barrier::new(devices + 1);
        let whole = thread::scope(|scope| -> Result<f64> {
            let remove = |number| {
                let barrier = &barrier;
                scope.spawn(move || {
                    barrier.wait();
                    host.ip(&format!("link del host{number}"))
                })
            };
            let removals: Vec<_> = (0..devices).map(remove).collect();
            barrier.wait();
            let start = Instant::now();
            for removal in removals {
                removal
                    .join()
                    .map_err(|_panic| anyhow!("a removal panicked"))??;
            }
            Ok(millis(start.elapsed()))
        })?;
        wholes.push(whole);
    }
    let name = format!("floor: {devices} pairs of devices removed at once by ip(8), whole");
    Ok(median_row(name, &wholes, Unit::Milliseconds))
}
