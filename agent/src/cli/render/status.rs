//! The state of the whole, as text: what is wrong first, then the parts.

use std::time::Duration;

use api::types::ForeignConfig;
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
const BYPASSED: &str = "Rules that packets of the direct path bypass";
const LEFT_BEHIND: &str = "Leftovers of other CNIs (shown, never changed)";

/// The state of the whole.
pub(in crate::cli) fn status(status: &Status, paint: Paint) -> String {
    let lines = lines(status).into_iter();
    let lines = lines.map(|(tone, text)| paint.text(tone, &one_line(&text)) + "\n");
    lines.collect::<String>() + &tables(status, paint)
}

/// The lines before the tables. Records that cannot be read are among the reasons of the health.
fn lines(status: &Status) -> Vec<(Tone, String)> {
    let plain = |text: String| (Tone::Plain, text);
    let up = uptime(status.uptime_seconds);
    let heading = format!("Towpath {}, up {up}", status.version);
    let mut lines = vec![(Tone::Heading, heading)];
    lines.extend(health_lines(&status.health));
    lines.extend(document_lines(&status.document));
    let warnings = status.warnings.iter();
    lines.extend(warnings.map(|warning| (Tone::Warning, format!("  warning: {warning}"))));
    let notes = status.masquerade_notes.iter();
    lines.extend(notes.map(|note| plain(format!("  note: masquerade: {note}"))));
    lines.extend(endpoint_lines(status));
    lines.extend(addresses::lines(&status.allocation));
    lines.push(plain(path_line(status.datapath.path).to_owned()));
    lines.push(plain(nat::summary(&status.nat)));
    lines.extend(service_nat_lines(&status.service_nat));
    lines.extend(status.cluster.iter().flat_map(cluster_lines));
    lines.push(plain(repair_line(&status.repairs)));
    lines
}

fn health_lines(health: &Health) -> Vec<(Tone, String)> {
    let tone = health_tone(health);
    let reasons = health.reasons.iter();
    let reasons = reasons.map(|reason| (tone, format!("  {reason}")));
    let state = (tone, format!("Health: {}", health.state));
    std::iter::once(state).chain(reasons).collect()
}

fn endpoint_lines(status: &Status) -> Vec<(Tone, String)> {
    let (all, not_ready) = (status.endpoints, &status.endpoints_not_ready);
    let ready = all.saturating_sub(not_ready.len());
    let mut lines = vec![(Tone::Plain, format!("Endpoints: {ready} of {all} ready"))];
    let line = |tone, owner, text| (tone, format!("  {owner}: {text}"));
    let reasons = not_ready.iter();
    lines.extend(reasons.map(|(owner, reason)| line(Tone::Bad, owner, reason)));
    let notes = status.endpoint_notes.iter();
    lines.extend(notes.map(|(owner, note)| line(Tone::Warning, owner, note)));
    lines
}

fn tables(status: &Status, paint: Paint) -> String {
    let datapath = &status.datapath;
    let mut out = format!("\nENIs\n{}", lists::enis(&status.enis, paint));
    out += "\nKernel\n";
    out += &kernel(datapath, paint);
    for feature in &datapath.missing_features {
        let text = format!("Missing: {}: {}", feature.name, feature.consequence);
        out += &paint.text(Tone::Warning, &one_line(&text));
        out.push('\n');
    }
    if !datapath.foreign_programs.is_empty() {
        out += "\nForeign programs on Towpath's hooks\n";
        out += &foreign_programs(&datapath.foreign_programs, paint);
    }
    if !status.sysctls.is_empty() {
        out += "\nSysctls that affect Towpath\n";
        out += &sysctl_table(&status.sysctls, paint);
    }
    if !status.foreign_config.is_empty() {
        out += "\nSettings of network managers (shown, never changed; deploy/host prevents them)\n";
        out += &foreign_config(&status.foreign_config, paint);
    }
    out += &titled(BYPASSED, &status.bypassed_rules, paint);
    out += &titled(LEFT_BEHIND, &status.leftovers, paint);
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
        PathMode::Stack => "Path: stack (through the host's stack, in both directions)",
    }
}

/// Foreign programs on Towpath's hooks.
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

/// Configuration that network managers left on ENIs.
fn foreign_config(all: &[ForeignConfig], paint: Paint) -> String {
    let mut table = Table::new(["ENI", "DEVICE", "WHAT", "PROTOCOL", "MEANS"]);
    for one in all {
        table.row(
            Tone::Warning,
            [
                one.eni.to_string(),
                one.device.clone(),
                one.object.clone(),
                one.protocol.clone().unwrap_or_default(),
                one.hint.clone(),
            ],
        );
    }
    table.render(paint)
}

/// Sysctls that affect Towpath.
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
        "its flows take the stack in both directions"
    } else {
        "its flows are not recorded"
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

fn document_lines(document: &DocumentStatus) -> Vec<(Tone, String)> {
    let path = document.path.display();
    let line = match &document.node {
        Some(node) => format!(
            "Node document: {node}, generation {}, {path}",
            document.generation
        ),
        None => format!("Node document: none yet, {path}"),
    };
    let mut lines = vec![(Tone::Plain, line)];
    let refused = document.refused.iter();
    lines.extend(refused.map(|refused| (Tone::Warning, format!("  refused: {refused}"))));
    let notes = document.notes.iter();
    lines.extend(notes.map(|note| (Tone::Plain, format!("  note: {note}"))));
    lines
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
    use api::types::ForeignConfigKind;
    use api::types::ObjectKind;
    use api::types::RepairWar;
    use api::types::{AllocationStatus, SysctlStatus};
    use api::types::{ForeignProgram, Mechanism, MissingFeature};

    fn poor_datapath() -> DatapathStatus {
        DatapathStatus {
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
        }
    }

    fn dhcp_route() -> ForeignConfig {
        ForeignConfig {
            eni: EniNumber(1),
            device: "ens6".into(),
            kind: ForeignConfigKind::DefaultRoute,
            object: "default via 10.0.1.1 metric 1024".into(),
            protocol: Some("dhcp".into()),
            hint: "make the device unmanaged".into(),
        }
    }

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
            datapath: poor_datapath(),
            nat: api::types::NatStatus::default(),
            service_nat: ServiceNatStatus::default(),
            cluster: None,
            foreign_config: vec![dhcp_route()],
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
IPAM mode: disabled: each request brings its addresses
Path: stack (through the host's stack, in both directions)
Translated flows: none
Service NAT: its flows are not recorded (nothing seen of it)
Repairs: 3 (1 route, 2 rule)

ENIs
ENI  ID  MAC  DEVICE  MTU  ADDRESS  TABLE  BLOCKS  USED  STATE  REASON

Kernel
FEATURE  FOUND
jit      not visible here
kernel   6.18
tcx      false
Missing: tcx: programs are filters

Foreign programs on Towpath's hooks
DEVICE  DIRECTION  PROGRAM  ID  RUNS
eth0    ingress    policy   7   before ours

Sysctls that affect Towpath
NAME                          VALUE  EFFECT
net.ipv4.conf.eth1.rp_filter  1      strict

Settings of network managers (shown, never changed; deploy/host prevents them)
ENI  DEVICE  WHAT                              PROTOCOL  MEANS
1    ens6    default via 10.0.1.1 metric 1024  dhcp      make the device unmanaged

Rules that packets of the direct path bypass
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
