//! Lines that the programs write per packet, forwarded to tracing (feature `debug-log`).
//!
//! A line has numbers where the programs have no names at hand: `program` is an
//! [index](datapath_common::counter::Program), `outcome` a
//! [code](datapath_common::outcome::Outcome::from_code); `towpath metrics` shows the names.

use std::sync::{Mutex, PoisonError};

use aya::Ebpf;
use aya_log::EbpfLogger;
use log::{Level, Log, Metadata, Record};

/// The programs' log. Lines wait in a ring buffer until they are forwarded; what does not fit in
/// between is lost.
pub(super) struct DebugLog(Option<Mutex<EbpfLogger<Forward>>>);

/// Hands lines to tracing.
struct Forward;

impl DebugLog {
    /// Opens the log. Programs without a line in them have none.
    pub(super) fn open(ebpf: &mut Ebpf) -> Self {
        match EbpfLogger::init_with_logger(ebpf, Forward) {
            Ok(logger) => Self(Some(Mutex::new(logger))),
            Err(error) => {
                tracing::warn!("the programs' log cannot be read: {error}");
                Self(None)
            }
        }
    }

    /// Forwards the lines that wait.
    pub(super) fn forward(&self) {
        if let Some(logger) = &self.0 {
            logger
                .lock()
                .unwrap_or_else(PoisonError::into_inner)
                .flush();
        }
    }
}

impl Log for Forward {
    fn enabled(&self, _metadata: &Metadata<'_>) -> bool {
        true
    }

    fn log(&self, record: &Record<'_>) {
        let (program, line) = (record.target(), record.args());
        match record.level() {
            Level::Error => tracing::error!(program, "{line}"),
            Level::Warn => tracing::warn!(program, "{line}"),
            Level::Info => tracing::info!(program, "{line}"),
            Level::Debug => tracing::debug!(program, "{line}"),
            Level::Trace => tracing::trace!(program, "{line}"),
        }
    }

    fn flush(&self) {}
}
