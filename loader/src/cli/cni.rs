//! What the commands about the CNI plugin do.

use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::Result;

use super::args::{CniCommand, PlaceArgs};
use super::output;
use super::table::one_line;
use crate::cni::{self, Install, Place, Report};

/// Runs one of them; `socket` is the agent's, `state_dir` the plugin's.
pub(super) fn run(command: CniCommand, socket: PathBuf, state_dir: &Path) -> Result<()> {
    let (report, output) = match command {
        CniCommand::Install {
            place,
            plugin,
            conflist,
            wait_ready,
            output,
        } => {
            let install = Install {
                place: place.into(),
                plugin,
                conflist,
                wait: wait_ready.map(|seconds| Duration::from_secs(seconds.into())),
                socket,
                state_dir: state_dir.to_owned(),
            };
            (cni::install(&install)?, output)
        }
        CniCommand::Uninstall { place, output } => (cni::uninstall(&place.into())?, output),
    };
    output::value(output, &report, |report, _paint| text(report))
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
    let notes = report.notes.iter().map(|note| format!("note: {note}"));
    files
        .chain(notes)
        .map(|line| one_line(&line) + "\n")
        .collect()
}
