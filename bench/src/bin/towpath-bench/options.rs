//! The command line.

use std::path::PathBuf;

use clap::{Parser, ValueEnum};

/// Groups of measurements.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Group {
    /// Nanoseconds of a program for a packet, by the kernel's test run.
    Program,
    /// CPU time of real traffic, next to the kernel's own routing and the VPC CNI's rules.
    Live,
    /// CPU time of real traffic with many endpoints, ENIs, exempt CIDRs and flows.
    Growth,
    /// The agent: latencies, memory, CPU, loading.
    Agent,
    /// Pods that a container runtime runs and stops.
    Cri,
}

impl Group {
    /// Every group, in the order in which they run.
    pub(crate) const ALL: [Self; 5] = [
        Self::Program,
        Self::Live,
        Self::Growth,
        Self::Agent,
        Self::Cri,
    ];

    /// Name on the command line and in all results.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Program => "program",
            Self::Live => "live",
            Self::Growth => "growth",
            Self::Agent => "agent",
            Self::Cri => "cri",
        }
    }
}

/// Measures the datapath, the agent, and pods.
#[derive(Debug, Parser)]
pub(crate) struct Options {
    /// Groups to measure; all of them when none is named.
    #[arg(value_enum)]
    groups: Vec<Group>,
    /// Fewer rounds, and nothing larger than 1,000 endpoints: about three minutes.
    #[arg(long)]
    pub(crate) quick: bool,
    /// One short round of everything in the group `program`: shows that all of it can be measured.
    /// The figures mean nothing.
    #[arg(long, hide = true)]
    pub(crate) trial: bool,
    /// Also writes the results to this file as JSON.
    #[arg(long, value_name = "FILE")]
    pub(crate) json: Option<PathBuf>,
    /// Also writes one SVG chart for each group to this folder.
    #[arg(long, value_name = "FOLDER")]
    pub(crate) charts: Option<PathBuf>,
}

impl Options {
    /// The groups that the command line selects.
    pub(crate) fn groups(&self) -> Vec<Group> {
        Group::ALL
            .into_iter()
            .filter(|group| self.groups.is_empty() || self.groups.contains(group))
            .collect()
    }
}
