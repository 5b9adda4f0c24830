//! Loaded programs with the sweeper of their maps, which tests reuse.

use std::collections::BTreeSet;
use std::net::IpAddr;

use anyhow::Result;
use datapath_common::abi::PodTuple;
use flows::{Lifetimes, Limits, Mark, Removed, StackLifetimes, Sweeper, Tracker};
use loader::bpf::{DatapathSettings, NatTables};
use testkit::testrun::Programs;
use testkit::testrun::pool::{self, Pool};

/// The programs, and the sweeper of their maps.
pub(crate) struct Loaded {
    pub(crate) programs: Programs,
    pub(crate) sweeper: Sweeper<NatTables>,
}

/// Loaded programs for one test.
pub(crate) type Lease = pool::Lease<Loaded>;

/// Programs with these settings, and without flows.
pub(crate) fn lease(settings: &DatapathSettings) -> Result<Lease> {
    static POOL: Pool<Loaded> = Pool::new();
    POOL.lease(settings, Loaded::new, |loaded| loaded.fresh(settings))
}

impl Loaded {
    fn new(settings: &DatapathSettings) -> Result<Self> {
        let mut programs = Programs::load_with(settings)?;
        let tables = programs.nat_tables()?;
        Ok(Self {
            programs,
            sweeper: sweeper(tables, settings),
        })
    }

    /// Removes all flows, and resets the state of the sweeper.
    fn fresh(self, settings: &DatapathSettings) -> Result<Self> {
        self.programs.forget_flows()?;
        Ok(Self {
            programs: self.programs,
            sweeper: sweeper(self.sweeper.tables, settings),
        })
    }
}

/// An empty conntrack: no flow here takes the host's stack.
struct Untracked;

impl Tracker for Untracked {
    fn lifetimes(&mut self) -> StackLifetimes {
        StackLifetimes::default()
    }

    fn has(&mut self, _tuple: &PodTuple) -> Result<bool> {
        Ok(false)
    }

    fn has_mark(&mut self, _mark: Mark) -> Result<bool> {
        Ok(false)
    }

    fn remove_leading_to(&mut self, _gone: &BTreeSet<IpAddr>) -> Result<Removed> {
        Ok(Removed::default())
    }
}

fn sweeper(tables: NatTables, settings: &DatapathSettings) -> Sweeper<NatTables> {
    let limits = Limits::from(settings);
    Sweeper::new(tables, Lifetimes::default(), limits, Box::new(Untracked))
}
