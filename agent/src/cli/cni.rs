//! The commands about the CNI plugin.

use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context as _, Result};
use tokio::signal::unix::{SignalKind, signal};

use super::args::{CniCommand, ContentArgs, PlaceArgs};
use crate::run::cni_install as cni;
use crate::run::cni_install::{Install, Place, Report};
use terminal::one_line;

/// Runs one of them; `socket` is the agent's, `state_dir` the plugin's.
pub(super) async fn run(command: CniCommand, socket: PathBuf, state_dir: &Path) -> Result<()> {
    let install = |place: PlaceArgs, content: ContentArgs| Install {
        place: place.into(),
        plugin: content.plugin,
        conflist: content.conflist,
        wait: None,
        socket,
        state_dir: state_dir.to_owned(),
    };
    let (report, output) = match command {
        CniCommand::Install {
            place,
            content,
            wait_ready,
            output,
        } => {
            let install = Install {
                wait: wait_ready.map(|seconds| Duration::from_secs(seconds.into())),
                ..install(place, content)
            };
            (cni::install(&install)?, output)
        }
        CniCommand::Keep {
            place,
            content,
            uninstall_at_end,
        } => {
            let mut terminate = signal(SignalKind::terminate()).context("listen for SIGTERM")?;
            let mut interrupt = signal(SignalKind::interrupt()).context("listen for SIGINT")?;
            let install = install(place, content);
            tokio::select! {
                _ = terminate.recv() => {}
                _ = interrupt.recv() => {}
                never = cni::keep(&install) => match never? {},
            }
            if uninstall_at_end {
                let report = cni::uninstall(&install.place, state_dir)?;
                tracing::info!(files = ?report.changed, "removed");
            }
            return Ok(());
        }
        CniCommand::Uninstall { place, output } => {
            (cni::uninstall(&place.into(), state_dir)?, output)
        }
    };
    terminal::value(output, &report, |report, _paint| text(report))
}

impl From<PlaceArgs> for Place {
    fn from(place: PlaceArgs) -> Self {
        let PlaceArgs { bin_dir, conf_dir } = place;
        Self { bin_dir, conf_dir }
    }
}

/// A line per file, then the notes.
fn text(report: &Report) -> String {
    let kinds = [
        ("changed", &report.changed),
        ("unchanged", &report.unchanged),
        ("leftover removed", &report.leftovers),
    ];
    let files = kinds.into_iter().flat_map(|(kind, paths)| {
        paths
            .iter()
            .map(move |path| format!("{kind}: {}", path.display()))
    });
    let others = report.others.iter();
    let others = others.map(|plugin| format!("kept foreign entry: {plugin}"));
    let notes = report.notes.iter().map(|note| format!("note: {note}"));
    files
        .chain(others)
        .chain(notes)
        .map(|line| one_line(&line) + "\n")
        .collect()
}
