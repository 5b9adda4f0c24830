//! Shortages of room for flows, as health reports them.

use std::time::Instant;

use super::pressed::is_pressed;
use crate::thread::report::{Report, Top};

/// Shortages, as sentences. `name` gives the name of an identity's owner.
#[must_use]
pub fn pressure(report: &Report, now: Instant, name: impl Fn(u32) -> String) -> Vec<String> {
    let mut short = Vec::new();
    if let Some(room) = report.capacities {
        let used = &report.used;
        for (table, used, room) in [
            ("ipv4", used.flows_v4, room.flows_v4),
            ("ipv6", used.flows_v6, room.flows_v6),
            ("inbound", used.inbound, room.inbound),
            ("stack", used.stack, room.stack),
        ] {
            if is_pressed(used, room) {
                short.push(format!("the flow table {table} has {used} of {room} flows"));
            }
        }
    }
    let refused = report.refusals.at(now);
    if !refused.is_empty() {
        let refused: Vec<_> = refused
            .into_iter()
            .map(|(reason, packets)| format!("{packets} {reason}"))
            .collect();
        let refused = refused.join(", ");
        short.push(format!(
            "packets of new flows were dropped within the last 5 minutes: {refused}"
        ));
    }
    let top = report.last.as_ref().and_then(|(_, sweep)| sweep.quotas.top);
    let Some(Top { endpoint, flows }) = top.filter(|_| !short.is_empty()) else {
        return short;
    };
    let whose = name(endpoint);
    let with_top = |reason| format!("{reason}; {whose} has most flows, {flows}");
    short.into_iter().map(with_top).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Capacities, QuotaUse, Sweep, Used};

    #[test]
    fn a_table_whose_rest_is_for_shares_is_told_with_who_has_most() {
        let now = Instant::now();
        let name = |endpoint| format!("pod {endpoint}");
        let mut report = Report {
            capacities: Some(Capacities {
                flows_v4: 64,
                flows_v6: 64,
                inbound: 10,
                stack: 10,
            }),
            used: Used {
                flows_v4: 55,
                inbound: 8,
                ..Used::default()
            },
            ..Report::default()
        };
        assert_eq!(pressure(&report, now, name), Vec::<String>::new());
        report.used.flows_v4 = 56;
        let expected = ["the flow table ipv4 has 56 of 64 flows"];
        assert_eq!(pressure(&report, now, name), expected);
        let sweep = Sweep {
            quotas: QuotaUse {
                top: Some(Top {
                    endpoint: 7,
                    flows: 50,
                }),
                ..QuotaUse::default()
            },
            ..Sweep::default()
        };
        report.last = Some((now, sweep));
        let expected = ["the flow table ipv4 has 56 of 64 flows; pod 7 has most flows, 50"];
        assert_eq!(pressure(&report, now, name), expected);
    }

    #[test]
    fn a_refusal_is_told_with_its_reason() {
        let now = Instant::now();
        let mut report = Report::default();
        report.refusals.take(now, [0; 6]);
        report.refusals.take(now, [1, 0, 2, 0, 0, 0]);
        let reported = pressure(&report, now, |_| String::new());
        assert_eq!(
            reported,
            [
                "packets of new flows were dropped within the last 5 minutes: 1 no-port, \
                 2 quota-exceeded"
            ]
        );
    }
}
