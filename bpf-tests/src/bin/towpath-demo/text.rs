//! The story on the terminal.

use std::collections::BTreeMap;
use std::io::IsTerminal as _;
use std::time::Duration;

use ipam::Family;
use testkit::fabric::Pod;
use testkit::fabric::counters::Name;

use crate::report::{Document, Flow, HEAL_LIMIT_MS, Healed};

/// Writes the story, or nothing when a document is requested.
pub(crate) struct Text {
    quiet: bool,
    colour: bool,
}

/// Select Graphic Rendition parameters (ECMA-48 section 8.3.117).
#[derive(Clone, Copy)]
enum Style {
    Bold = 1,
    Dim = 2,
    Red = 31,
    Green = 32,
    Cyan = 36,
}

impl Text {
    pub(crate) fn new(quiet: bool) -> Self {
        // https://no-color.org: any value but the empty one.
        let unwanted = std::env::var_os("NO_COLOR").is_some_and(|value| !value.is_empty());
        Self {
            quiet,
            colour: std::io::stdout().is_terminal() && !unwanted,
        }
    }

    fn paint(&self, style: Style, text: impl std::fmt::Display) -> String {
        if self.colour {
            format!("\x1b[{}m{text}\x1b[0m", style as u8)
        } else {
            text.to_string()
        }
    }

    fn line(&self, text: impl std::fmt::Display) {
        if !self.quiet {
            println!("{text}");
        }
    }

    pub(crate) fn step(&self, text: &str) {
        self.line(format_args!("{} {text}", self.paint(Style::Cyan, "==>")));
    }

    pub(crate) fn pod(&self, pod: &Pod, eni: u8) {
        self.line(format_args!(
            "    {} on ENI {eni}: {}, {}",
            self.paint(Style::Bold, &pod.name),
            pod.address(Family::V4),
            pod.address(Family::V6)
        ));
    }

    pub(crate) fn flows_head(&self) {
        self.step("Each pod's packets, the ENI that the VPC saw them on, and the address that the far end saw");
        let head = columns(&[
            "flow", "family", "proto", "from", "to", "ENI", "seen as", "path", "why", "result",
        ]);
        self.line(self.paint(Style::Bold, head));
    }

    pub(crate) fn flow(&self, flow: &Flow) {
        let eni = flow.eni.map_or("-".to_owned(), |eni| eni.to_string());
        let row = columns(&[
            flow.name,
            flow.family,
            &flow.protocol,
            &flow.from,
            &flow.to,
            &eni,
            flow.snat.as_deref().unwrap_or("-"),
            flow.path,
            &flow.why,
            "",
        ]);
        let result = if flow.ok {
            self.paint(Style::Green, "ok")
        } else {
            self.paint(Style::Red, "FAILED")
        };
        self.line(format_args!("{row}{result}"));
        if let Some(problem) = &flow.problem {
            self.line(format_args!("      {}", self.paint(Style::Red, problem)));
        }
    }

    pub(crate) fn counters(&self, moved: &BTreeMap<Name, u64>) {
        self.step("The counters that moved");
        for ((program, outcome), packets) in moved {
            let program = self.paint(Style::Dim, format_args!("{program:<14}"));
            self.line(format_args!(
                "    {program} {outcome:<22} {packets:>8} packets"
            ));
        }
    }

    pub(crate) fn heal_head(&self) {
        self.step("A rule and a route removed by hand, while nobody asks for them");
    }

    pub(crate) fn healed(&self, healed: &Healed) {
        let style = if healed.after_ms <= HEAL_LIMIT_MS {
            Style::Green
        } else {
            Style::Red
        };
        let time = self.paint(style, format_args!("back after {} ms", healed.after_ms));
        self.line(format_args!("    {}: {time}", healed.object));
    }

    pub(crate) fn summary(&self, document: &Document, time: Duration) {
        let good = document.flows.iter().filter(|flow| flow.ok).count();
        let style = if document.ok {
            Style::Green
        } else {
            Style::Red
        };
        self.step(&self.paint(
            style,
            format_args!(
                "{good} of {} flows as they should be, {} packets with a foreign source, {} out of \
                 the VPC with a pod's, {:.1} s",
                document.flows.len(),
                document.foreign_source_drops,
                document.untranslated_drops,
                time.as_secs_f32()
            ),
        ));
    }

    /// Says how to enter what was left up; on stderr when stdout holds the document.
    pub(crate) fn kept(&self, commands: &[(&str, String)]) {
        self.step("Everything stays up");
        for (what, command) in commands {
            if self.quiet {
                eprintln!("{what}: {command}");
            } else {
                self.line(format_args!(
                    "    {what:<25} {}",
                    self.paint(Style::Bold, command)
                ));
            }
        }
    }
}

/// One line of the table.
fn columns(cells: &[&str; 10]) -> String {
    let [
        name,
        family,
        protocol,
        from,
        to,
        eni,
        snat,
        path,
        why,
        result,
    ] = cells;
    format!(
        "    {name:<20} {family:<6} {protocol:<5} {from:<23} {to:<23} {eni:<3} {snat:<23} {path:<6} \
         {why:<17} {result}"
    )
}
