//! CPU, system calls and wakeups of the agent while nothing happens.

use std::fmt::Write as _;
use std::fs;
use std::sync::mpsc::{RecvTimeoutError, channel};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Result, anyhow};
use testkit::system_calls::SystemCalls;

use super::figures::{against, row};
use super::process;
use super::scene::{Attach, Layout, Scene, Size};
use crate::report::{Row, Unit};

/// The share of a CPU that the agent may take with all endpoints, in percent.
const SHARE: f64 = 0.3;
/// The growth of that share with each endpoint, in percentage points.
const GROWTH: f64 = 0.001;
/// ENIs of a large instance, and prefixes of each of them.
const LARGE: (u8, u8) = (15, 49);

/// System calls that the agent may make in a second with all endpoints. By TCX two of them are for
/// each endpoint at each glance.
const fn calls(attach: Attach) -> f64 {
    match attach {
        Attach::Mixed => 150.0,
        Attach::Tcx => 800.0,
    }
}

/// An agent at rest; all but the share in times a second.
struct Rest {
    /// Share of a CPU, from 0 to 1.
    share: f64,
    calls: f64,
    wakeups: f64,
}

fn watch(scene: &Scene, time: Duration) -> Result<Rest> {
    let agent = scene.agent()?;
    let calls = SystemCalls::of(agent)?;
    let (cpu, wakeups) = (process::cpu_time(agent)?, process::wakeups(agent)?);
    let start = Instant::now();
    thread::sleep(time);
    let time = start.elapsed().as_secs_f64();
    let used = process::cpu_time(agent)?.saturating_sub(cpu);
    let woken = process::wakeups(agent)?.saturating_sub(wakeups);
    Ok(Rest {
        share: used.as_secs_f64() / time,
        calls: f64::from(u32::try_from(calls.count()?)?) / time,
        wakeups: f64::from(u32::try_from(woken)?) / time,
    })
}

/// Watches an agent that knows so many endpoints. Returns its share of a CPU with the rows.
pub(super) fn measure(scene: &Scene, size: &Size, endpoints: usize) -> Result<(f64, Vec<Row>)> {
    let rest = watch(scene, size.rest)?;
    let of = format!("at rest, {endpoints} endpoints");
    let target = (endpoints == size.endpoints).then_some(Attach::Mixed);
    Ok((rest.share, rows(&rest, &of, target)))
}

/// Rows of an agent; with targets, if the programs are attached in this way to all endpoints.
fn rows(rest: &Rest, of: &str, targets: Option<Attach>) -> Vec<Row> {
    let cpu = row(format!("CPU {of}"), rest.share * 100.0, Unit::Percent);
    let made = row(format!("system calls {of}"), rest.calls, Unit::PerSecond);
    let wakeups = row(format!("wakeups {of}"), rest.wakeups, Unit::PerSecond);
    match targets {
        Some(attach) => vec![against(SHARE, cpu), against(calls(attach), made), wakeups],
        None => vec![cpu, made, wakeups],
    }
}

/// Netfilter rules of others.
const RULES: u16 = 5000;
/// Interval at which they are rewritten, all at once.
const REWRITTEN: Duration = Duration::from_secs(10);

/// A script of nft(8) that writes the rules in place of those that are there. No packet of the
/// bench matches one.
fn rules() -> Result<String> {
    let chain = "chain inet towpath-bench services";
    let mut script = format!(
        "add table inet towpath-bench\n\
         add chain inet towpath-bench forward {{ type filter hook forward priority filter; }}\n\
         add {chain}\nflush table inet towpath-bench\n\
         add rule inet towpath-bench forward ip daddr 192.0.2.0/24 jump services\n"
    );
    for port in 1..=RULES {
        let rule = "add rule inet towpath-bench services ip daddr 192.0.2.1 tcp dport";
        writeln!(script, "{rule} {port} counter accept")?;
    }
    Ok(script)
}

/// Watches an agent while another program rewrites its netfilter rules again and again.
pub(super) fn beside_rules(scene: &Scene, size: &Size) -> Result<Vec<Row>> {
    let node = &scene.fabric.node;
    let script = scene.fabric.file("rules.nft");
    fs::write(&script, rules()?)?;
    let rewrite = || node.run(&format!("nft -f {}", script.display())).map(drop);
    rewrite()?;
    // What follows the first rules is no rest.
    let time = size.rest.max(REWRITTEN);
    thread::sleep(time);
    let (end, ended) = channel::<()>();
    let rest = thread::scope(|scope| {
        let writer = scope.spawn(move || -> Result<()> {
            // In the middle of each interval, so that its consequences are watched.
            let mut pause = REWRITTEN / 2;
            while ended.recv_timeout(pause) == Err(RecvTimeoutError::Timeout) {
                rewrite()?;
                pause = REWRITTEN;
            }
            Ok(())
        });
        let rest = watch(scene, time);
        drop(end);
        let written = writer
            .join()
            .map_err(|_panic| anyhow!("the writer of rules panicked"))?;
        written.and(rest)
    })?;
    node.run("nft delete table inet towpath-bench")?;
    let of = format!(
        "at rest, {} endpoints, beside {RULES} rules that are rewritten each {} s",
        scene.pods.len(),
        REWRITTEN.as_secs()
    );
    Ok(rows(&rest, &of, Some(Attach::Mixed)))
}

/// Agents on a large instance, with either way to attach programs to endpoints.
pub(super) fn on_large_instances(size: &Size) -> Result<Vec<Row>> {
    let mut all = Vec::new();
    for attach in [Attach::Mixed, Attach::Tcx] {
        let (enis, prefixes) = LARGE;
        let scene = Scene::set(
            size,
            &Layout {
                enis,
                prefixes,
                attach,
            },
        )?;
        let empty = watch(&scene, size.rest)?;
        scene.fill(0..size.endpoints)?;
        // Passes that follow the last endpoint are not at rest.
        let _settled = watch(&scene, size.rest)?;
        let full = watch(&scene, size.rest)?;
        let of = |endpoints: usize| {
            let place = format!("{enis} ENIs x {prefixes} prefixes");
            format!("at rest, {endpoints} endpoints, {place}, {}", attach.name())
        };
        all.extend(rows(&empty, &of(0), None));
        all.extend(rows(&full, &of(size.endpoints), Some(attach)));
        let endpoints = f64::from(u32::try_from(size.endpoints)?);
        let growth = (full.share - empty.share).max(0.0) * 100.0 / endpoints;
        let name = format!("CPU of each endpoint, {}", of(size.endpoints));
        all.push(against(GROWTH, row(name, growth, Unit::Percent)));
        scene.finish()?;
    }
    Ok(all)
}
