//! Translated flows, as text.

use api::types::{
    DestinationUse, FlowCount, LastSweep, NatFamily, NatFlow, NatFlows, NatFlushed, NatStats,
    NatStatus,
};
use terminal::{Paint, Table, Tone, one_line};

/// The flows.
pub(in crate::cli) fn nat_flows(list: &NatFlows, paint: Paint) -> String {
    let mut table = Table::new([
        "FAMILY",
        "PROTOCOL",
        "POD",
        "TRANSLATED",
        "REMOTE",
        "PHASE",
        "IDLE",
        "EXPIRES",
        "KIND",
    ]);
    for flow in &list.flows {
        table.row(
            Tone::Plain,
            [
                flow.family.clone(),
                flow.protocol.clone(),
                with_port(&flow.pod.to_string(), flow.pod_port),
                translated(flow),
                with_port(&flow.remote.to_string(), flow.remote_port),
                flow.phase.clone(),
                format!("{}s", flow.idle_seconds),
                format!("{}s", flow.expires_seconds),
                flow.kind.name().to_owned(),
            ],
        );
    }
    let mut out = table.render(paint);
    let shown = u64::try_from(list.flows.len()).unwrap_or(u64::MAX);
    let more = list.total.saturating_sub(shown);
    if more > 0 {
        out += "and ";
        out += &more.to_string();
        out += " more: ask for a pod, a remote or a protocol\n";
    }
    out
}

fn with_port(address: &str, port: u16) -> String {
    if address.contains(':') {
        format!("[{address}]:{port}")
    } else {
        format!("{address}:{port}")
    }
}

fn translated(flow: &NatFlow) -> String {
    let Some(port) = flow.translated_port else {
        return String::new();
    };
    match flow.translated {
        Some(address) => with_port(&address.to_string(), port),
        None => format!("?:{port}"),
    }
}

/// The result of a flush.
pub(in crate::cli) fn nat_flushed(flushed: NatFlushed) -> String {
    format!("{} flows removed\n", flushed.removed)
}

/// The statistics.
pub(in crate::cli) fn nat_stats(stats: &NatStats, paint: Paint) -> String {
    let mut out = String::new();
    for (family, done) in &stats.families {
        out += &family_lines(family, done);
    }
    let failures = stats.failures.iter().filter(|(_, packets)| **packets > 0);
    let failures: Vec<_> = failures
        .map(|(reason, packets)| format!("{packets} {reason}"))
        .collect();
    out += &paint.text(
        if failures.is_empty() {
            Tone::Plain
        } else {
            Tone::Warning
        },
        &format!("Packets dropped: {}", or_none(&failures)),
    );
    out.push('\n');
    out += &sweeper(&stats.sweeper, paint);
    out += "\nFlows\n";
    out += &counts(&stats.flows, paint);
    if !stats.destinations.is_empty() {
        out += "\nDestinations with the most ports in use\n";
        out += &destinations(&stats.destinations, paint);
    }
    out
}

fn or_none(items: &[String]) -> String {
    if items.is_empty() {
        "none".to_owned()
    } else {
        items.join(", ")
    }
}

fn family_lines(name: &str, done: &NatFamily) -> String {
    let NatFamily {
        allocated,
        kept,
        host,
        removed,
        inbound_noted,
        inbound_removed,
        stack_noted,
        stack_removed,
        failed,
        tries,
    } = done;
    let tries: Vec<_> = tries
        .iter()
        .map(|tries| format!("{}: {}", tries.ports, tries.allocations))
        .collect();
    format!(
        "{name}: {allocated} allocated ({kept} kept their port, {host} of the host), {failed} \
         failed, {removed} removed; from outside {inbound_noted} noted, {inbound_removed} \
         removed; of the stack {stack_noted} noted, {stack_removed} removed\n  ports tried: {}\n",
        tries.join(", ")
    )
}

fn sweeper(status: &NatStatus, paint: Paint) -> String {
    let mut out = format!(
        "{}\nReclaimed: {} ({} while room was short), {} of removed endpoints, {} flushed; {} \
         counts corrected\n",
        summary(status),
        status.reclaimed,
        status.reclaimed_under_pressure,
        status.of_removed_endpoints,
        status.flushed,
        status.quotas_corrected,
    );
    if let Some(error) = &status.error {
        out += &paint.text(Tone::Bad, &one_line(&format!("Sweeper: {error}")));
        out.push('\n');
    }
    out
}

/// The use of the maps, and the last sweep.
pub(super) fn summary(status: &NatStatus) -> String {
    let maps = status.maps.iter().map(|map| {
        format!(
            "{} {} of {} ({}%)",
            map.name, map.used, map.room, map.percent
        )
    });
    let maps: Vec<_> = maps.collect();
    let sweep = status.last_sweep.as_ref().map(
        |LastSweep {
             seconds_ago,
             took_ms,
             ..
         }| format!("; swept {seconds_ago}s ago in {took_ms} ms"),
    );
    format!(
        "Translated flows: {}{}",
        or_none(&maps),
        sweep.unwrap_or_default()
    )
}

fn counts(flows: &[FlowCount], paint: Paint) -> String {
    let mut table = Table::new(["FAMILY", "KIND", "PHASE", "FLOWS"]);
    for count in flows {
        table.row(
            Tone::Plain,
            [
                count.family.clone(),
                count.kind.name().to_owned(),
                count.phase.clone(),
                count.flows.to_string(),
            ],
        );
    }
    table.render(paint)
}

fn destinations(destinations: &[DestinationUse], paint: Paint) -> String {
    let mut table = Table::new(["ENI", "PROTOCOL", "REMOTE", "PORTS", "PERCENT"]);
    for destination in destinations {
        table.row(
            Tone::Plain,
            [
                destination.eni.to_string(),
                destination.protocol.clone(),
                with_port(&destination.remote.to_string(), destination.remote_port),
                destination.ports.to_string(),
                destination.percent.to_string(),
            ],
        );
    }
    table.render(paint)
}

#[cfg(test)]
mod tests {
    use super::*;
    use api::types::{FlowKind, MapUse};

    #[test]
    fn flows_align() {
        let flow = NatFlow {
            family: "ipv4".into(),
            protocol: "tcp".into(),
            kind: FlowKind::Pod,
            pod: "10.0.1.20".parse().unwrap(),
            pod_port: 40000,
            eni: Some(1),
            translated: Some("10.0.1.10".parse().unwrap()),
            translated_port: Some(50000),
            remote: "198.51.100.7".parse().unwrap(),
            remote_port: 443,
            phase: "established".into(),
            idle_seconds: 3,
            expires_seconds: 7437,
        };
        let inbound = NatFlow {
            family: "ipv6".into(),
            protocol: "udp".into(),
            kind: FlowKind::Inbound,
            pod: "2001:db8::20".parse().unwrap(),
            eni: None,
            translated: None,
            translated_port: None,
            remote: "2001:db8:ffff::7".parse().unwrap(),
            ..flow.clone()
        };
        let list = NatFlows {
            flows: vec![flow, inbound],
            total: 5,
        };
        assert_eq!(
            nat_flows(&list, Paint(false)),
            "FAMILY  PROTOCOL  POD                   TRANSLATED       REMOTE                  PHASE        IDLE  EXPIRES  KIND\n\
             ipv4    tcp       10.0.1.20:40000       10.0.1.10:50000  198.51.100.7:443        established  3s    7437s    pod\n\
             ipv6    udp       [2001:db8::20]:40000  -                [2001:db8:ffff::7]:443  established  3s    7437s    inbound\n\
             and 3 more: ask for a pod, a remote or a protocol\n"
        );
    }

    #[test]
    fn the_summary_is_one_line() {
        let status = NatStatus {
            maps: vec![MapUse {
                name: "ipv4".into(),
                used: 26,
                room: 1000,
                percent: 2.6,
            }],
            last_sweep: Some(LastSweep {
                seconds_ago: 4,
                took_ms: 12,
                removed: 0,
                exempt: 0,
                under_pressure: false,
            }),
            ..NatStatus::default()
        };
        assert_eq!(
            summary(&status),
            "Translated flows: ipv4 26 of 1000 (2.6%); swept 4s ago in 12 ms"
        );
        assert_eq!(summary(&NatStatus::default()), "Translated flows: none");
    }
}
