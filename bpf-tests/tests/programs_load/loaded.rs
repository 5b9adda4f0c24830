//! Loaded programs, which tests with the same settings use one after the other: to verify them
//! takes the kernel a second or two each time.

use std::ops::{Deref, DerefMut};
use std::sync::{Mutex, PoisonError};

use anyhow::Result;
use bpf_tests::testrun::Programs;
use towpath::bpf::{DatapathSettings, NatTables};
use towpath::nat::{Lifetimes, Sweeper};

/// The programs, and the sweeper of their maps.
pub(crate) struct Loaded {
    pub(crate) programs: Programs,
    pub(crate) sweeper: Sweeper<NatTables>,
}

/// What no test uses at the moment.
static FREE: Mutex<Vec<(DatapathSettings, Loaded)>> = Mutex::new(Vec::new());

/// Loaded programs for one test; another one has them afterwards.
pub(crate) struct Lease {
    settings: DatapathSettings,
    /// There until the lease ends.
    loaded: Option<Loaded>,
}

impl Lease {
    /// Programs with these settings, and with no flow.
    pub(crate) fn new(settings: &DatapathSettings) -> Result<Self> {
        let loaded = match take(settings) {
            Some(loaded) => loaded.fresh(settings)?,
            None => Loaded::new(settings)?,
        };
        Ok(Self {
            settings: settings.clone(),
            loaded: Some(loaded),
        })
    }
}

impl Deref for Lease {
    type Target = Loaded;

    fn deref(&self) -> &Loaded {
        self.loaded.as_ref().unwrap()
    }
}

impl DerefMut for Lease {
    fn deref_mut(&mut self) -> &mut Loaded {
        self.loaded.as_mut().unwrap()
    }
}

impl Drop for Lease {
    fn drop(&mut self) {
        if let Some(loaded) = self.loaded.take() {
            let mut free = FREE.lock().unwrap_or_else(PoisonError::into_inner);
            free.push((self.settings.clone(), loaded));
        }
    }
}

fn take(settings: &DatapathSettings) -> Option<Loaded> {
    let mut free = FREE.lock().unwrap_or_else(PoisonError::into_inner);
    let place = free.iter().position(|(of, _)| of == settings)?;
    Some(free.swap_remove(place).1)
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

    /// The same without flows, and with a sweeper that remembers nothing.
    fn fresh(self, settings: &DatapathSettings) -> Result<Self> {
        self.programs.forget_flows()?;
        Ok(Self {
            programs: self.programs,
            sweeper: sweeper(self.sweeper.tables, settings),
        })
    }
}

fn sweeper(tables: NatTables, settings: &DatapathSettings) -> Sweeper<NatTables> {
    Sweeper::new(tables, Lifetimes::default(), settings.ports().count())
}
