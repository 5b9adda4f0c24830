//! Metrics as the text that Prometheus reads (`OpenMetrics` 1.0).

use std::fmt::Error;

use prometheus_client::collector::Collector;
use prometheus_client::encoding::{DescriptorEncoder, EncodeMetric, MetricEncoder, text as format};
use prometheus_client::metrics::MetricType;
use prometheus_client::metrics::counter::ConstCounter;
use prometheus_client::metrics::gauge::ConstGauge;
use prometheus_client::registry::Registry;

use crate::server::durations::Durations;

/// The kind of a metric.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    /// A value that only increases, and starts again with the agent or with the counted object.
    Counter,
    /// A value that increases and decreases.
    Gauge,
}

/// A metric with all its values.
#[derive(Debug)]
pub(super) struct Metric {
    /// Its name.
    pub(super) name: &'static str,
    /// Its kind.
    pub(super) kind: Kind,
    /// Its meaning, in a sentence.
    pub(super) help: &'static str,
    /// Its values, each with its labels. One without labels is alone.
    pub(super) values: Vec<(Labels, u64)>,
}

/// Names and values of labels.
pub(super) type Labels = Vec<(&'static str, String)>;

/// All metrics of a moment.
#[derive(Debug)]
pub(super) struct Exposed {
    pub(super) metrics: Vec<Metric>,
    pub(super) durations: Durations,
}

/// Name of the histograms of durations.
pub(super) const DURATIONS: &str = "towpath_endpoint_request_duration_seconds";

impl Exposed {
    /// The exposition's text. A metric without values is listed, too, so that all metrics are known.
    pub(super) fn text(self) -> String {
        let mut registry = Registry::default();
        registry.register_collector(Box::new(self));
        let mut out = String::new();
        // To write to a text does not fail.
        format::encode(&mut out, &registry).ok();
        out
    }
}

impl Collector for Exposed {
    fn encode(&self, mut encoder: DescriptorEncoder) -> Result<(), Error> {
        for metric in &self.metrics {
            metric.encode(&mut encoder)?;
        }
        let help = "Duration of requests of the CNI plugin, by request and result.";
        let histograms = self.durations.histograms();
        let kind = histograms.metric_type();
        histograms.encode(encoder.encode_descriptor(DURATIONS, help, None, kind)?)
    }
}

impl Metric {
    fn encode(&self, encoder: &mut DescriptorEncoder) -> Result<(), Error> {
        // The encoder adds the suffix of counters.
        let (name, kind) = match self.kind {
            Kind::Counter => (self.name.trim_end_matches("_total"), MetricType::Counter),
            Kind::Gauge => (self.name, MetricType::Gauge),
        };
        let mut encoder = encoder.encode_descriptor(name, self.help, None, kind)?;
        for (labels, value) in &self.values {
            if labels.is_empty() {
                return self.encode_value(*value, encoder);
            }
            self.encode_value(*value, encoder.encode_family(labels)?)?;
        }
        Ok(())
    }

    fn encode_value(&self, value: u64, encoder: MetricEncoder<'_>) -> Result<(), Error> {
        match self.kind {
            Kind::Counter => ConstCounter::new(value).encode(encoder),
            Kind::Gauge => ConstGauge::new(value).encode(encoder),
        }
    }
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
        let exposed = Exposed {
            metrics: vec![
                metric("towpath_a", Kind::Gauge, vec![(Vec::new(), 1)]),
                metric("towpath_b_total", Kind::Counter, vec![(labels, u64::MAX)]),
                metric("towpath_c_total", Kind::Counter, Vec::new()),
            ],
            durations: Durations::default(),
        };
        let text = exposed.text();
        let begin = "# HELP towpath_a What it is.\n# TYPE towpath_a gauge\ntowpath_a 1\n\
             # HELP towpath_b What it is.\n# TYPE towpath_b counter\n\
             towpath_b_total{pool=\"a\\\"b\\\\c\\nd\",family=\"ipv4\"} 18446744073709551615\n\
             # HELP towpath_c What it is.\n# TYPE towpath_c counter\n";
        assert!(text.starts_with(begin), "{text}");
        let count = format!("{DURATIONS}_count{{request=\"delete\",result=\"error\"}} 0\n");
        assert!(text.contains(&count), "{text}");
        assert!(text.ends_with("# EOF\n"), "{text}");
    }
}
