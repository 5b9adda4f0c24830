//! The state of the whole, as text: what is wrong first, then the parts.

use std::time::Duration;

use api::types::Trace;
use api::types::{
    DatapathStatus, DocumentStatus, Health, HealthState, Repairs, ServiceNatStatus, Status,
    SysctlStatus,
};
use api::types::{ForeignProgram, Position};
use api::types::{PathMode, ServiceNat};
use serde_json::Value;

use super::cluster::cluster_lines;
use super::{addresses, lists, nat};
use terminal::{Paint, Table, Tone, one_line};

/// The headings of lines that need a look.
const BYPASSED: &str = "Rules that packets of the direct path do not meet";
const LEFT_BEHIND: &str = "Leftovers of other CNIs (shown, never changed)";

/// The state of the whole.
pub(in crate::cli) fn status(status: &Status, paint: Paint) -> String {
    let Status {
        version,
        uptime_seconds,
        health,
        document,
        warnings,
        masquerade_notes,
        allocation,
        enis,
        endpoints,
        endpoints_not_ready,
        endpoint_notes,
        datapath,
        nat: translation,
        service_nat,
        cluster,
        traces,
        bypassed_rules,
        leftovers,
        sysctls,
        repairs,
        // Among the reasons.
        corrupt_records: _,
    } = status;
    let mut out = String::new();
    let mut line = |tone, text: &str| {
        out += &paint.text(tone, &one_line(text));
        out.push('\n');
    };

    line(
        Tone::Heading,
        &format!("Towpath {version}, up {}", uptime(*uptime_seconds)),
    );
    line(health_tone(health), &format!("Health: {}", health.state));
    for reason in &health.reasons {
        line(health_tone(health), &format!("  {reason}"));
    }
    line(Tone::Plain, &document_line(document));
    for refused in &document.refused {
        line(Tone::Warning, &format!("  refused: {refused}"));
    }
    for note in &document.notes {
        line(Tone::Plain, &format!("  note: {note}"));
    }
    for warning in warnings {
        line(Tone::Warning, &format!("  warning: {warning}"));
    }
    for note in masquerade_notes {
        line(Tone::Plain, &format!("  note: masquerade: {note}"));
    }
    let ready = endpoints.saturating_sub(endpoints_not_ready.len());
    line(
        Tone::Plain,
        &format!("Endpoints: {ready} of {endpoints} ready"),
    );
    for (owner, reason) in endpoints_not_ready {
        line(Tone::Bad, &format!("  {owner}: {reason}"));
    }
    for (owner, note) in endpoint_notes {
        line(Tone::Warning, &format!("  {owner}: {note}"));
    }
    for (tone, text) in addresses::lines(allocation) {
        line(tone, &text);
    }
    line(Tone::Plain, path_line(datapath.path));
    line(Tone::Plain, &nat::summary(translation));
    for (tone, text) in service_nat_lines(service_nat) {
        line(tone, &text);
    }
    for (tone, text) in cluster.iter().flat_map(cluster_lines) {
        line(tone, &text);
    }
    line(Tone::Plain, &repair_line(repairs));

    out += "\nENIs\n";
    out += &lists::enis(enis, paint);
    out += "\nKernel\n";
    out += &kernel(datapath, paint);
    for feature in &datapath.missing_features {
        let text = format!("Missing: {}: {}", feature.name, feature.consequence);
        out += &paint.text(Tone::Warning, &one_line(&text));
        out.push('\n');
    }
    if !datapath.foreign_programs.is_empty() {
        out += "\nPrograms of others on our hooks\n";
        out += &foreign_programs(&datapath.foreign_programs, paint);
    }
    if !sysctls.is_empty() {
        out += "\nSysctls that concern us\n";
        out += &sysctl_table(sysctls, paint);
    }
    if !traces.is_empty() {
        out += "\nTraces of network managers (shown, never touched; deploy/host keeps them away)\n";
        out += &self::traces(traces, paint);
    }
    out += &titled(BYPASSED, bypassed_rules, paint);
    out += &titled(LEFT_BEHIND, leftovers, paint);
    out
}

/// Lines that need a look, with a heading; nothing where there are none.
fn titled(title: &str, lines: &[String], paint: Paint) -> String {
    if lines.is_empty() {
        return String::new();
    }
    let mut out = format!("\n{title}\n");
    for line in lines {
        out += &paint.text(Tone::Warning, &one_line(line));
        out.push('\n');
    }
    out
}

fn path_line(path: PathMode) -> &'static str {
    match path {
        PathMode::Direct => "Path: direct (past the host's stack)",
        PathMode::Stack => "Path: stack (through the host's stack, both ways)",
    }
}

/// Programs of others on our hooks.
fn foreign_programs(programs: &[ForeignProgram], paint: Paint) -> String {
    let mut table = Table::new(["DEVICE", "DIRECTION", "PROGRAM", "ID", "RUNS"]);
    for program in programs {
        table.row(
            Tone::Plain,
            [
                program.device.clone(),
                program.direction.name().to_owned(),
                program.name.clone().unwrap_or_else(|| program.kind.clone()),
                program.id.map(|id| id.to_string()).unwrap_or_default(),
                position(program.position).to_owned(),
            ],
        );
    }
    table.render(paint)
}

/// Traces of network managers.
fn traces(traces: &[Trace], paint: Paint) -> String {
    let mut table = Table::new(["ENI", "DEVICE", "WHAT", "PROTOCOL", "MEANS"]);
    for trace in traces {
        table.row(
            Tone::Warning,
            [
                trace.eni.to_string(),
                trace.device.clone(),
                trace.object.clone(),
                trace.protocol.clone().unwrap_or_default(),
                trace.hint.clone(),
            ],
        );
    }
    table.render(paint)
}

/// Sysctls that concern us.
fn sysctl_table(sysctls: &[SysctlStatus], paint: Paint) -> String {
    let mut table = Table::new(["NAME", "VALUE", "EFFECT"]);
    for sysctl in sysctls {
        table.row(
            Tone::Plain,
            [
                sysctl.name.clone(),
                sysctl.effective.clone(),
                sysctl.effect.clone().unwrap_or_default(),
            ],
        );
    }
    table.render(paint)
}

fn service_nat_lines(status: &ServiceNatStatus) -> Vec<(Tone, String)> {
    let ServiceNatStatus {
        mode,
        notes,
        evidence,
        missed,
        warning,
        error,
    } = status;
    let notes = if *notes {
        "its flows take the stack both ways"
    } else {
        "its flows are not looked for"
    };
    let why = match (mode, evidence) {
        (ServiceNat::Auto, Some(evidence)) => format!("seen: {evidence}"),
        (ServiceNat::Auto, None) => "nothing seen of it".to_owned(),
        (ServiceNat::On, _) => "services.nat is on".to_owned(),
        (ServiceNat::Off, _) => "services.nat is off".to_owned(),
    };
    let first = (Tone::Plain, format!("Service NAT: {notes} ({why})"));
    let cut = missed.filter(|flows| *flows > 0).map(|flows| {
        format!(
            "it cuts off {flows} flows of pods that netfilter translates: set services.nat to auto"
        )
    });
    let warning = warning
        .iter()
        .chain(&cut)
        .map(|text| (Tone::Warning, format!("  {text}")));
    let error = error.iter().map(|text| (Tone::Bad, format!("  {text}")));
    [first].into_iter().chain(warning).chain(error).collect()
}

fn document_line(document: &DocumentStatus) -> String {
    let path = document.path.display();
    match &document.node {
        Some(node) => format!(
            "Node document: {node}, generation {}, {path}",
            document.generation
        ),
        None => format!("Node document: none yet, {path}"),
    }
}

fn repair_line(repairs: &Repairs) -> String {
    let kinds = repairs.by_kind.iter();
    let kinds: Vec<_> = kinds
        .map(|(kind, count)| format!("{count} {}", lists::kind(*kind)))
        .collect();
    if kinds.is_empty() {
        return format!("Repairs: {}", repairs.total);
    }
    format!("Repairs: {} ({})", repairs.total, kinds.join(", "))
}

fn kernel(datapath: &DatapathStatus, paint: Paint) -> String {
    let mut table = Table::new(["FEATURE", "FOUND"]);
    for (name, value) in &datapath.features {
        let value = match value {
            // The sysctl of the JIT is the first namespace's only.
            Value::Null => "not visible here".to_owned(),
            Value::String(text) => text.clone(),
            Value::Bool(_) | Value::Number(_) | Value::Array(_) | Value::Object(_) => {
                value.to_string()
            }
        };
        table.row(Tone::Plain, [name.clone(), value]);
    }
    table.render(paint)
}

fn position(position: Position) -> &'static str {
    match position {
        Position::Before => "before ours",
        Position::After => "after ours",
        Position::Alone => "without ours",
    }
}

fn health_tone(health: &Health) -> Tone {
    match health.state {
        HealthState::Ready => Tone::Good,
        HealthState::Degraded => Tone::Warning,
        HealthState::NotReady => Tone::Bad,
    }
}

/// A time span in the two units that matter.
fn uptime(seconds: u64) -> String {
    let span = Duration::from_secs(seconds).as_secs();
    let (days, hours, minutes) = (span / 86_400, span / 3600 % 24, span / 60 % 60);
    match (days, hours, minutes) {
        (0, 0, 0) => format!("{span}s"),
        (0, 0, minutes) => format!("{minutes}m{}s", span % 60),
        (0, hours, minutes) => format!("{hours}h{minutes}m"),
        (days, hours, _) => format!("{days}d{hours}h"),
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;
    use api::ids::EniNumber;
    use api::types::Direction;
    use api::types::ObjectKind;
    use api::types::RepairWar;
    use api::types::TraceKind;
    use api::types::{AllocationStatus, SysctlStatus};
    use api::types::{ForeignProgram, Mechanism, MissingFeature};

    fn troubled() -> Status {
        Status {
            version: "0.1.0".into(),
            uptime_seconds: 192,
            health: Health {
                state: HealthState::Degraded,
                reasons: vec!["1 of 3 endpoints is not ready".into()],
            },
            document: DocumentStatus {
                path: "/etc/towpath/node.yaml".into(),
                node: Some("ip-10-0-1-10".into()),
                generation: 2,
                error: Some("spec.eni: missing".into()),
                notes: vec!["status.eni: odd".into()],
                refused: Vec::new(),
            },
            warnings: vec!["datapath.mark-mask: shared".into()],
            masquerade_notes: vec!["pool red: odd".into()],
            allocation: AllocationStatus::default(),
            enis: Vec::new(),
            endpoints: 3,
            endpoints_not_ready: BTreeMap::from([("a/eth0".into(), "no device".into())]),
            endpoint_notes: BTreeMap::from([("b/eth0".into(), "an ingress qdisc".into())]),
            datapath: DatapathStatus {
                path: PathMode::Stack,
                features: BTreeMap::from([
                    ("tcx".into(), false.into()),
                    ("kernel".into(), "6.18".into()),
                    ("jit".into(), Value::Null),
                ]),
                missing_features: vec![MissingFeature {
                    name: "tcx".into(),
                    consequence: "programs are filters".into(),
                }],
                foreign_programs: vec![ForeignProgram {
                    device: "eth0".into(),
                    ifindex: 2,
                    direction: Direction::Ingress,
                    mechanism: Mechanism::Tcx,
                    kind: "bpf".into(),
                    name: Some("policy".into()),
                    id: Some(7),
                    priority: None,
                    position: Position::Before,
                }],
            },
            nat: api::types::NatStatus::default(),
            service_nat: ServiceNatStatus::default(),
            cluster: None,
            traces: vec![Trace {
                eni: EniNumber(1),
                device: "ens6".into(),
                kind: TraceKind::DefaultRoute,
                object: "default via 10.0.1.1 metric 1024".into(),
                protocol: Some("dhcp".into()),
                hint: "make the device unmanaged".into(),
            }],
            bypassed_rules: vec!["a rule".into()],
            leftovers: vec!["rule 512".into()],
            sysctls: vec![SysctlStatus {
                name: "net.ipv4.conf.eth1.rp_filter".into(),
                effective: "1".into(),
                effect: Some("strict".into()),
            }],
            repairs: Repairs {
                total: 3,
                by_kind: BTreeMap::from([(ObjectKind::Route, 1), (ObjectKind::Rule, 2)]),
                wars: vec![RepairWar {
                    kind: ObjectKind::Rule,
                    object: "rule 20".into(),
                    count: 11,
                    hint: "systemd-networkd".into(),
                }],
            },
            corrupt_records: vec!["/run/towpath/endpoints/x.json.corrupt".into()],
        }
    }

    #[test]
    fn what_is_wrong_comes_first() {
        let state = troubled();
        assert_eq!(
            status(&state, Paint(false)),
            "\
Towpath 0.1.0, up 3m12s
Health: degraded
  1 of 3 endpoints is not ready
Node document: ip-10-0-1-10, generation 2, /etc/towpath/node.yaml
  note: status.eni: odd
  warning: datapath.mark-mask: shared
  note: masquerade: pool red: odd
Endpoints: 2 of 3 ready
  a/eth0: no device
  b/eth0: an ingress qdisc
IPAM mode: disabled: addresses are given with each request
Path: stack (through the host's stack, both ways)
Translated flows: none
Service NAT: its flows are not looked for (nothing seen of it)
Repairs: 3 (1 route, 2 rule)

ENIs
ENI  ID  MAC  DEVICE  MTU  ADDRESS  TABLE  BLOCKS  USED  STATE  REASON

Kernel
FEATURE  FOUND
jit      not visible here
kernel   6.18
tcx      false
Missing: tcx: programs are filters

Programs of others on our hooks
DEVICE  DIRECTION  PROGRAM  ID  RUNS
eth0    ingress    policy   7   before ours

Sysctls that concern us
NAME                          VALUE  EFFECT
net.ipv4.conf.eth1.rp_filter  1      strict

Traces of network managers (shown, never touched; deploy/host keeps them away)
ENI  DEVICE  WHAT                              PROTOCOL  MEANS
1    ens6    default via 10.0.1.1 metric 1024  dhcp      make the device unmanaged

Rules that packets of the direct path do not meet
a rule

Leftovers of other CNIs (shown, never changed)
rule 512
"
        );
    }

    #[test]
    fn time_spans_are_short() {
        for (seconds, text) in [(5, "5s"), (65, "1m5s"), (3_661, "1h1m"), (90_000, "1d1h")] {
            assert_eq!(uptime(seconds), text);
        }
    }
}
