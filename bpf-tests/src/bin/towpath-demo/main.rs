//! The demo: a node with two ENIs in a VPC of network namespaces, its pods talking, each packet by
//! the ENI that owns the address it carries, and what is broken by hand healed.
//!
//! `cargo xtask demo` builds and runs it.

mod flows;
mod heal;
mod plan;
mod report;
mod stage;
mod text;

use std::process::ExitCode;
use std::time::Instant;

use anyhow::Result;
use clap::Parser;
use testkit::fabric::{counters, record};
use testkit::interrupt;

use report::Document;
use stage::Stage;
use text::Text;

/// Shows Towpath at work, in network namespaces of this machine. Needs root.
#[derive(Debug, Parser)]
#[command(name = "towpath-demo")]
struct Options {
    /// Leave everything up afterwards, and say how to enter it.
    #[arg(long)]
    keep: bool,
    /// Print one JSON document instead of the story.
    #[arg(long)]
    json: bool,
    /// Remove what an earlier `--keep` left up, and do nothing else.
    #[arg(long, conflicts_with_all = ["keep", "json"])]
    down: bool,
}

fn main() -> ExitCode {
    let options = Options::parse();
    match run(&options) {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(error) => {
            eprintln!("error: {error:#}");
            ExitCode::FAILURE
        }
    }
}

/// Runs the demo; whether everything was as it should be.
fn run(options: &Options) -> Result<bool> {
    interrupt::watch()?;
    let removed = record::remove_kept()?;
    if options.down {
        println!("removed: {removed}");
        return Ok(true);
    }
    let text = Text::new(options.json);
    let shown = play(options, &text);
    if options.json {
        // There is always a document, even if the demo was aborted.
        shown.as_ref().unwrap_or(&Document::default()).print()?;
    }
    Ok(shown?.ok)
}

fn play(options: &Options, text: &Text) -> Result<Document> {
    let start = Instant::now();
    let stage = Stage::set(text)?;
    let document = show(&stage, text).inspect_err(|_| {
        if interrupt::check().is_ok() {
            eprintln!("{}", stage.fabric.describe());
        }
    })?;
    text.summary(&document, start.elapsed());
    if options.keep {
        stage.leave_up(text)?;
    } else {
        // Foreign packets are in the document: the fabric need not tell of them again.
        let _told = stage.fabric.finish();
    }
    Ok(document)
}

fn show(stage: &Stage, text: &Text) -> Result<Document> {
    let before = counters::read(&stage.fabric)?;
    text.flows_head();
    let mut flows = Vec::new();
    let mut look = flows::Look::take(stage)?;
    for trial in flows::trials() {
        interrupt::check()?;
        let flow = trial.run(stage, &mut look)?;
        text.flow(&flow);
        flows.push(flow);
    }
    text.counters(&counters::moved(&before, &counters::read(&stage.fabric)?));
    text.heal_head();
    let mut healed = Vec::new();
    for damage in heal::damages(stage)? {
        interrupt::check()?;
        let object = damage.run(stage)?;
        text.healed(&object);
        healed.push(object);
    }
    let foreign = stage.fabric.foreign()?.values().sum();
    let leaks = stage.fabric.leaks()?.values().sum();
    Ok(Document::new(flows, foreign, leaks, healed))
}
