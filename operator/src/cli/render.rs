//! Tables.

use terminal::{Paint, Table, Tone};

use crate::check::{Judgement, State};
use crate::cleanup::{Fate, Remnant};
use crate::config::{Row, Source};

/// The table of EC2's judgements.
pub(super) fn judgements(all: &[Judgement], paint: Paint) -> String {
    let mut table = Table::new(["CALL", "STATE", "REASON"]);
    for judgement in all {
        let (tone, state) = match judgement.state {
            State::Allowed => (Tone::Plain, "allowed"),
            State::Untried => (Tone::Warning, "untried"),
            State::Refused => (Tone::Bad, "refused"),
        };
        let reason = judgement.reason.clone().unwrap_or_default();
        table.row(tone, [judgement.call.to_owned(), state.to_owned(), reason]);
    }
    table.render(paint)
}

/// The table of a cluster's ENIs.
pub(super) fn remnants(all: &[Remnant], paint: Paint) -> String {
    let mut table = Table::new(["ENI", "SUBNET", "INSTANCE", "CREATED", "STATE"]);
    for remnant in all {
        let (tone, state) = match &remnant.fate {
            Fate::Deleted => (Tone::Plain, "deleted".to_owned()),
            Fate::Deletable => (Tone::Plain, "deletable".to_owned()),
            Fate::InUse => (Tone::Warning, "in use".to_owned()),
            Fate::Failed(cause) => (Tone::Bad, format!("not deleted: {cause}")),
        };
        let cells = [
            remnant.eni.clone(),
            remnant.subnet.clone(),
            remnant.instance.clone().unwrap_or_default(),
            remnant.created.clone().unwrap_or_default(),
            state,
        ];
        table.row(tone, cells);
    }
    table.render(paint)
}

/// The table of settings.
pub(super) fn settings(all: &[Row], paint: Paint) -> String {
    let mut table = Table::new(["KEY", "VALUE", "SOURCE"]);
    for row in all {
        let (tone, source) = match row.source {
            Source::File => (Tone::Good, "file"),
            Source::Default => (Tone::Plain, "default"),
        };
        let cells = [row.key.clone(), row.value.clone(), source.to_owned()];
        table.row(tone, cells);
    }
    table.render(paint)
}
