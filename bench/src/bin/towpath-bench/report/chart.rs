//! A chart for each group: horizontal bars, each with a tick at its target.
//!
//! The colours are readable on light and on dark paper. Figures of one unit share a scale. A group
//! with several units has a part for each.

use std::fmt::Write as _;

use super::{Row, Unit, figure};
use crate::options::Group;

const WIDTH: f64 = 960.0;
/// Start of the bars, and length of the longest.
const LEFT: f64 = 430.0;
const LENGTH: f64 = 420.0;
const LINE: f64 = 20.0;
const BAR: f64 = 12.0;

/// Colours: neither white nor black, so that both papers show them.
const TEXT: &str = "#7d8590";
const PLAIN: &str = "#6e8fb8";
const MET: &str = "#4a9a5c";
const MISSED: &str = "#c8553d";
const TICK: &str = "#b58a1b";

/// The chart of a group: the name of its file, and the drawing. `None` if the group has no figures.
pub(super) fn chart(group: Group, rows: &[&Row]) -> Option<(String, String)> {
    (!rows.is_empty()).then(|| (format!("{}.svg", group.name()), draw(group, rows)))
}

fn draw(group: Group, rows: &[&Row]) -> String {
    let mut units: Vec<Unit> = Vec::new();
    for row in rows {
        if !units.contains(&row.unit) {
            units.push(row.unit);
        }
    }
    let mut drawing = Drawing {
        body: String::new(),
        y: LINE * 1.5,
    };
    for unit in units {
        let mut of_unit: Vec<_> = rows
            .iter()
            .copied()
            .filter(|row| row.unit == unit)
            .collect();
        of_unit.sort_by_key(|row| row.target.is_none());
        drawing.part(group, unit, &of_unit);
    }
    let height = drawing.y;
    format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {WIDTH:.0} {height:.0}\" \
         width=\"{WIDTH:.0}\" height=\"{height:.0}\" font-family=\"sans-serif\" \
         font-size=\"12\" fill=\"{TEXT}\">\n<title>{}</title>\n{}</svg>\n",
        group.name(),
        drawing.body
    )
}

struct Drawing {
    body: String,
    y: f64,
}

impl Drawing {
    fn add(&mut self, element: &str) {
        self.body.push_str(element);
        self.body.push('\n');
    }

    fn text(&mut self, x: f64, anchor: &str, text: &str) {
        let y = self.y;
        let mut element = String::new();
        // Writing to a string cannot fail.
        let written = write!(
            element,
            "<text x=\"{x:.1}\" y=\"{y:.1}\" text-anchor=\"{anchor}\">{}</text>",
            escaped(text)
        );
        if written.is_ok() {
            self.add(&element);
        }
    }

    /// The rows of one unit, with its headline.
    fn part(&mut self, group: Group, unit: Unit, rows: &[&Row]) {
        self.text(10.0, "start", &format!("{}, {}", group.name(), unit.name()));
        self.y += LINE;
        let most = scale(rows);
        for row in rows {
            self.row(row, most);
        }
        self.y += LINE;
    }

    fn row(&mut self, row: &Row, most: f64) {
        self.text(LEFT - 8.0, "end", &row.name);
        let at = |value: f64| (value.max(0.0) / most).min(1.0) * LENGTH;
        let colour = match row.met() {
            Some(true) => MET,
            Some(false) => MISSED,
            None => PLAIN,
        };
        let (top, length) = (self.y - BAR + 2.0, at(row.value).max(1.0));
        self.add(&format!(
            "<rect x=\"{LEFT:.1}\" y=\"{top:.1}\" width=\"{length:.1}\" height=\"{BAR:.1}\" \
             fill=\"{colour}\"/>"
        ));
        let mut end = length;
        if let Some(target) = row.target {
            let x = LEFT + at(target);
            self.add(&format!(
                "<line x1=\"{x:.1}\" x2=\"{x:.1}\" y1=\"{:.1}\" y2=\"{:.1}\" stroke=\"{TICK}\" \
                 stroke-width=\"2\"/>",
                top - 2.0,
                top + BAR + 2.0
            ));
            end = end.max(at(target));
        }
        let cut = if row.value > most { " (cut)" } else { "" };
        let text = format!("{}{cut}", figure(row.value));
        self.text(LEFT + end + 6.0, "start", &text);
        self.y += LINE;
    }
}

/// Value of the longest bar: the largest figure, unless it would hide most of the others.
fn scale(rows: &[&Row]) -> f64 {
    let mut values: Vec<_> = rows
        .iter()
        .map(|row| row.value.max(row.target.unwrap_or_default()))
        .collect();
    values.sort_unstable_by(f64::total_cmp);
    let most = values.last().copied().unwrap_or(1.0);
    let usual = values[values.len() * 3 / 4..].first().copied();
    let readable = usual.map_or(most, |usual| 4.0 * usual);
    most.min(readable).max(f64::MIN_POSITIVE)
}

fn escaped(text: &str) -> String {
    text.replace('&', "&amp;")
        .replace('<', "&lt;")
        .replace('>', "&gt;")
}

#[cfg(test)]
mod tests {
    use super::super::tests::row;
    use super::*;

    #[test]
    fn bars_are_as_long_as_their_figures_and_targets_are_ticks() {
        let rows = [
            row("a < b & c", 100.0, Some(50.0)),
            row("met", 25.0, Some(50.0)),
            row("plain", 50.0, None),
        ];
        let rows: Vec<_> = rows.iter().collect();
        let (name, text) = chart(Group::Program, &rows).unwrap();
        assert_eq!(name, "program.svg");
        assert!(text.starts_with("<svg ") && text.ends_with("</svg>\n"));
        assert!(text.contains("a &lt; b &amp; c"));
        for (length, colour) in [("420.0", MISSED), ("105.0", MET), ("210.0", PLAIN)] {
            let bar = format!("width=\"{length}\" height=\"12.0\" fill=\"{colour}\"");
            assert!(text.contains(&bar), "{bar} in {text}");
        }
        assert_eq!(text.matches("<line x1=\"640.0\"").count(), 2);
        assert!(chart(Group::Program, &[]).is_none());
    }

    #[test]
    fn one_long_bar_does_not_hide_the_others_and_says_so() {
        let mut rows: Vec<_> = (0..8).map(|_| row("short", 10.0, None)).collect();
        rows.push(row("long", 1000.0, None));
        let rows: Vec<_> = rows.iter().collect();
        let (_, text) = chart(Group::Program, &rows).unwrap();
        assert_eq!(text.matches("1000 (cut)").count(), 1);
        assert_eq!(text.matches("width=\"105.0\"").count(), 8);
    }

    #[test]
    fn each_unit_has_its_own_scale() {
        let mut other = row("time", 5000.0, None);
        other.unit = Unit::Milliseconds;
        let one = row("ratio", 1.0, None);
        let (_, text) = chart(Group::Live, &[&one, &other]).unwrap();
        assert_eq!(text.matches("width=\"420.0\"").count(), 2);
        assert!(text.contains("live, ms") && text.contains("live, scaled ns"));
    }
}
