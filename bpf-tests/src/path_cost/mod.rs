//! Cost of each path of a packet, in instructions, calls of helpers and look-ups.
//!
//! Every packet also goes through the kernel's test run, so that the counted run did the same as
//! the kernel.

mod node;
mod path;

use anyhow::{Context as _, Result, bail, ensure};
use datapath_common::counter::Program;
use loader::bpf;
use loader::bpf::DatapathSettings;
use serde::Serialize;

use crate::interpreter::{Cost, Machine};
use path::{Path, Sent, Step};
use testkit::testrun::{Output, Programs};

/// A path and its cost.
#[derive(Clone, Debug, Serialize)]
pub struct Row {
    /// The program that handles the packet.
    pub program: &'static str,
    /// Path and kind of the packet.
    pub path: String,
    /// True if the programs store the flows that the stack carries.
    pub service_nat: bool,
    /// Executed instructions.
    pub instructions: u64,
    /// Calls of helpers.
    pub helpers: u64,
    /// Look-ups in maps, which are calls of a helper as well.
    pub lookups: u64,
    /// The whole cost.
    #[serde(skip)]
    pub cost: Cost,
}

/// Every path, without service NAT and with it.
///
/// # Errors
/// Without root. When the kernel and the interpreter differ in a packet's result, or a result is
/// not the expected one.
pub fn measure() -> Result<Vec<Row>> {
    node::make_devices()?;
    let mut rows = Vec::new();
    for path in [bpf::DatapathMode::Direct, bpf::DatapathMode::ServiceNat] {
        let mut programs = Programs::load_with(&DatapathSettings {
            masquerade_v6: true,
            path,
            ..DatapathSettings::default()
        })?;
        node::fill(&mut programs)?;
        programs.count_notes()?;
        let machine = Machine::beside(&programs, &node::DEVICES)?;
        let service_nat = path == bpf::DatapathMode::ServiceNat;
        for path in path::all() {
            if path.needs_service_nat && !service_nat {
                continue;
            }
            programs.forget_flows()?;
            programs.count_notes()?;
            let mut node = Node {
                programs: &mut programs,
                machine: machine.clone(),
                ports: None,
            };
            let cost = node
                .cost(&path)
                .with_context(|| format!("{}, service NAT: {service_nat}", path.name))?;
            rows.push(Row {
                program: path.step.program.name(),
                path: path.name,
                service_nat,
                instructions: cost.instructions,
                helpers: cost.helpers.values().sum(),
                lookups: cost.lookups.values().sum(),
                cost,
            });
        }
    }
    rows.sort_by(|left, right| (left.program, &left.path).cmp(&(right.program, &right.path)));
    Ok(rows)
}

/// A node twice: in the kernel and in the interpreter.
struct Node<'a> {
    programs: &'a mut Programs,
    machine: Machine,
    /// The ports that kernel and interpreter gave to the last request.
    ports: Option<[u16; 2]>,
}

impl Node<'_> {
    fn cost(&mut self, path: &Path) -> Result<Cost> {
        for step in &path.before {
            self.step(step)?;
        }
        let before = self.counted(path)?;
        let cost = self.step(&path.step)?;
        let counted = self.counted(path)?;
        ensure!(
            path.outcome.is_none() || counted == before.map(|count| count + 1),
            "it is not counted as {:?}",
            path.outcome
        );
        Ok(cost)
    }

    /// Counts of the path's outcome, by the kernel and by the interpreter.
    fn counted(&self, path: &Path) -> Result<[u64; 2]> {
        let Some(outcome) = path.outcome else {
            return Ok([0; 2]);
        };
        let program = path.step.program;
        Ok([
            self.programs.counter(program, outcome)?.packets,
            self.machine.counter(program, outcome)?.packets,
        ])
    }

    /// Runs a packet through kernel and interpreter.
    fn step(&mut self, step: &Step) -> Result<Cost> {
        if step.is_late {
            self.machine.pass(u64::from(bpf::jiffies_per_second()?));
        }
        let [kernels, ours] = match self.ports {
            Some(ports) => ports.map(Some),
            None => [None; 2],
        };
        let theirs = self.programs.run(step.program, &step.input(kernels))?;
        let (made, cost) = self.machine.run(step.program, &step.input(ours))?;
        let ports = [step.port(&theirs.frame), step.port(&made.frame)];
        compare(step.program, &theirs, &made, ports[0] == ports[1])?;
        if let ([Some(theirs), Some(ours)], Sent::Packet(_)) = (ports, &step.sent) {
            self.ports = Some([theirs, ours]);
        }
        Ok(cost)
    }
}

/// Fails if two results for a packet differ. A random port may differ, and the checksum with it.
fn compare(program: Program, theirs: &Output, ours: &Output, same_port: bool) -> Result<()> {
    let whole = |output: &Output| (output.code, output.mark, output.frame.len());
    if whole(theirs) == whole(ours) && (!same_port || theirs.frame == ours.frame) {
        return Ok(());
    }
    bail!(
        "{}: the kernel made {theirs:x?}, the interpreter {ours:x?}",
        program.name()
    );
}
