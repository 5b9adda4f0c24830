//! Metrics as the text that Prometheus reads (exposition format 0.0.4).

use std::fmt::Write as _;

/// The kind of a metric.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    /// A value that only increases, and starts again with the agent or with the counted object.
    Counter,
    /// A value that increases and decreases.
    Gauge,
}

/// A metric with all its values.
pub(super) struct Metric {
    /// Its name.
    pub(super) name: &'static str,
    /// Its kind.
    pub(super) kind: Kind,
    /// Its meaning, in a sentence.
    pub(super) help: &'static str,
    /// Its values, each with its labels.
    pub(super) values: Vec<(Labels, u64)>,
}

/// Names and values of labels.
pub(super) type Labels = Vec<(&'static str, String)>;

/// The exposition's text. A metric without values is listed, too, so that all metrics are known.
pub(super) fn text(metrics: &[Metric]) -> String {
    let mut out = String::new();
    for Metric {
        name,
        kind,
        help,
        values,
    } in metrics
    {
        let kind = match kind {
            Kind::Counter => "counter",
            Kind::Gauge => "gauge",
        };
        // To write to a text does not fail.
        writeln!(out, "# HELP {name} {help}\n# TYPE {name} {kind}").ok();
        for (labels, value) in values {
            out += name;
            for (i, (label, value)) in labels.iter().enumerate() {
                out.push(if i == 0 { '{' } else { ',' });
                write!(out, "{label}=\"{}\"", escaped(value)).ok();
            }
            if !labels.is_empty() {
                out.push('}');
            }
            writeln!(out, " {value}").ok();
        }
    }
    out
}

fn escaped(value: &str) -> String {
    let mut out = String::with_capacity(value.len());
    for c in value.chars() {
        match c {
            '\\' => out += "\\\\",
            '"' => out += "\\\"",
            '\n' => out += "\\n",
            other => out.push(other),
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_text_is_what_prometheus_reads() {
        let metric = |name, kind, values| Metric {
            name,
            kind,
            help: "What it is.",
            values,
        };
        let labels = vec![
            ("pool", "a\"b\\c\nd".to_owned()),
            ("family", "ipv4".to_owned()),
        ];
        let metrics = [
            metric("towpath_a", Kind::Gauge, vec![(Vec::new(), 1)]),
            metric("towpath_b_total", Kind::Counter, vec![(labels, u64::MAX)]),
        ];
        assert_eq!(
            text(&metrics),
            "# HELP towpath_a What it is.\n# TYPE towpath_a gauge\ntowpath_a 1\n\
             # HELP towpath_b_total What it is.\n# TYPE towpath_b_total counter\n\
             towpath_b_total{pool=\"a\\\"b\\\\c\\nd\",family=\"ipv4\"} 18446744073709551615\n"
        );
    }
}
