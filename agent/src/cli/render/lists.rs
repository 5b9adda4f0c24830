//! Tables: endpoints, ENIs, objects, counters.

use std::collections::BTreeSet;

use crate::CleanUp;
use api::types::ObjectKind;
use api::types::{Attachment, EndpointStatus, EniStatus, Metric};
use api::types::{ObjectState, OwnedObject, Readiness};
use terminal::{Paint, Table, Tone, one_line};

fn tone(readiness: &Readiness) -> Tone {
    match readiness {
        Readiness::Ready => Tone::Plain,
        Readiness::NotReady { .. } => Tone::Bad,
        Readiness::Excluded { .. } => Tone::Warning,
    }
}

fn readiness(readiness: &Readiness) -> &'static str {
    match readiness {
        Readiness::Ready => "ready",
        Readiness::NotReady { .. } => "not-ready",
        Readiness::Excluded { .. } => "excluded",
    }
}

fn state(state: ObjectState) -> &'static str {
    match state {
        ObjectState::Present => "present",
        ObjectState::Missing => "missing",
        ObjectState::Unexpected => "unexpected",
    }
}

/// A kind of object, for people.
pub(super) fn kind(kind: ObjectKind) -> &'static str {
    match kind {
        ObjectKind::Sysctl => "sysctl",
        ObjectKind::Mtu => "mtu",
        ObjectKind::LinkState => "link-state",
        ObjectKind::Device => "device",
        ObjectKind::Address => "address",
        ObjectKind::Route => "route",
        ObjectKind::Rule => "rule",
        ObjectKind::Neighbour => "neighbour",
        ObjectKind::MapEntry => "map-entry",
        ObjectKind::Attachment => "attachment",
        ObjectKind::NetfilterTable => "netfilter-table",
    }
}

fn join<T: ToString>(items: impl IntoIterator<Item = T>) -> String {
    let texts: Vec<_> = items.into_iter().map(|item| item.to_string()).collect();
    texts.join(",")
}

/// The endpoints.
pub(in crate::cli) fn endpoints(endpoints: &[EndpointStatus], paint: Paint) -> String {
    let mut table = Table::new([
        "CONTAINER",
        "INTERFACE",
        "POD",
        "ADDRESSES",
        "POOL",
        "POLICY",
        "ENI",
        "DEVICE",
        "STATE",
        "REASON",
    ]);
    for endpoint in endpoints {
        let enis = endpoint
            .addresses
            .iter()
            .map(|address| address.eni.map_or("?".to_owned(), |eni| eni.to_string()));
        let pools = endpoint.addresses.iter().filter_map(|a| a.pool.as_deref());
        let pools: BTreeSet<&str> = pools.collect();
        let policies = endpoint
            .addresses
            .iter()
            .filter_map(|a| a.policy.as_deref());
        let policies: BTreeSet<&str> = policies.collect();
        table.row(
            tone(&endpoint.readiness),
            [
                endpoint.owner.container_id.clone(),
                endpoint.owner.interface.clone(),
                endpoint
                    .pod
                    .as_ref()
                    .map(ToString::to_string)
                    .unwrap_or_default(),
                join(endpoint.addresses.iter().map(|a| a.address)),
                join(pools),
                join(policies),
                join(enis),
                endpoint.host_device.clone(),
                condition(endpoint),
                reason(endpoint),
            ],
        );
    }
    table.render(paint)
}

fn condition(endpoint: &EndpointStatus) -> String {
    let readiness = readiness(&endpoint.readiness);
    if endpoint.orphaned {
        format!("orphaned, {readiness}")
    } else {
        readiness.to_owned()
    }
}

/// Why an endpoint is not ready, and where the pod of one without a record is.
fn reason(endpoint: &EndpointStatus) -> String {
    let reason = endpoint.readiness.reason().unwrap_or_default();
    if !endpoint.orphaned {
        return reason.to_owned();
    }
    let netns = endpoint.netns.display().to_string();
    let netns = if netns.is_empty() { "unknown" } else { &netns };
    let separator = if reason.is_empty() { "" } else { "; " };
    format!("{reason}{separator}its record is lost; netns {netns}")
}

/// The ENIs.
pub(in crate::cli) fn enis(enis: &[EniStatus], paint: Paint) -> String {
    let mut table = Table::new([
        "ENI", "ID", "MAC", "DEVICE", "MTU", "ADDRESS", "TABLE", "BLOCKS", "USED", "STATE",
        "REASON",
    ]);
    for eni in enis {
        let notes = eni.notes.iter().map(String::as_str);
        let reasons: Vec<_> = eni.readiness.reason().into_iter().chain(notes).collect();
        table.row(
            tone(&eni.readiness),
            [
                or_dash(eni.number.as_ref()),
                eni.id.clone(),
                or_dash(eni.mac.as_ref()),
                eni.device.clone().unwrap_or_default(),
                eni.mtu.map(|mtu| mtu.to_string()).unwrap_or_default(),
                or_dash(eni.primary_address.as_ref()),
                or_dash(eni.table.as_ref()),
                eni.blocks.len().to_string(),
                eni.addresses_in_use.to_string(),
                readiness(&eni.readiness).to_owned(),
                reasons.join("; "),
            ],
        );
    }
    table.render(paint)
}

/// Our objects in the kernel.
pub(in crate::cli) fn objects(objects: &[OwnedObject], paint: Paint) -> String {
    let mut table = Table::new(["STATE", "KIND", "SCOPE", "OBJECT"]);
    for object in objects {
        let tone = match object.state {
            ObjectState::Present => Tone::Plain,
            ObjectState::Missing => Tone::Bad,
            ObjectState::Unexpected => Tone::Warning,
        };
        table.row(
            tone,
            [
                state(object.state).to_owned(),
                kind(object.kind).to_owned(),
                object.scope.clone(),
                object.object.clone(),
            ],
        );
    }
    table.render(paint)
}

/// The counters.
pub(in crate::cli) fn metrics(metrics: &[Metric], paint: Paint) -> String {
    let mut table = Table::new(["PROGRAM", "OUTCOME", "PACKETS", "BYTES", "MEANING"]);
    for metric in metrics {
        let tone = if metric.drop && metric.packets > 0 {
            Tone::Warning
        } else {
            Tone::Plain
        };
        table.row(
            tone,
            [
                metric.program.clone(),
                metric.outcome.clone(),
                metric.packets.to_string(),
                metric.bytes.to_string(),
                metric.meaning.clone(),
            ],
        );
    }
    table.render(paint)
}

/// `-` where there is none.
fn or_dash<T: ToString>(value: Option<&T>) -> String {
    value.map_or_else(|| "-".to_owned(), ToString::to_string)
}

/// The answer to an add.
pub(in crate::cli) fn attachment(attachment: &Attachment, paint: Paint) -> String {
    let mut table = Table::new([
        "ADDRESS", "ENI", "ENI ID", "GATEWAY", "SUBNET", "DEVICE", "MTU",
    ]);
    for allocation in &attachment.addresses {
        let eni = allocation.eni.as_ref();
        table.row(
            Tone::Plain,
            [
                allocation.address.to_string(),
                or_dash(eni.map(|eni| &eni.number)),
                or_dash(eni.map(|eni| &eni.id)),
                or_dash(allocation.gateway.as_ref()),
                or_dash(allocation.subnet.as_ref()),
                attachment.host_device.clone(),
                attachment.mtu.to_string(),
            ],
        );
    }
    table.render(paint)
}

/// The settings.
pub(in crate::cli) fn config(rows: &[config::Row], paint: Paint) -> String {
    let mut table = Table::new(["KEY", "VALUE", "FROM", "MEANING"]);
    for row in rows {
        let from = match row.source {
            config::Source::File => "file",
            config::Source::Default => "default",
        };
        table.row(
            Tone::Plain,
            [
                row.key.clone(),
                row.value.clone(),
                from.to_owned(),
                row.help.clone(),
            ],
        );
    }
    table.render(paint)
}

/// The objects that a clean-up removed.
pub(in crate::cli) fn removed(removed: &CleanUp, _paint: Paint) -> String {
    let CleanUp { objects, failures } = removed;
    if objects.is_empty() && failures.is_empty() {
        return "no object of Towpath was there\n".to_owned();
    }
    let gone = objects
        .iter()
        .map(|object| format!("removed {}\n", one_line(object)));
    let left = failures
        .iter()
        .map(|failure| format!("not removed {}\n", one_line(failure)));
    gone.chain(left).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use api::ids::{EniNumber, Owner};
    use api::types::AddressStatus;

    #[test]
    fn endpoints_show_the_eni_of_each_address() {
        let address = |text: &str, eni| AddressStatus {
            address: text.parse().unwrap(),
            eni,
            pool: Some("default".into()),
            policy: Some("direct".into()),
        };
        let endpoint = EndpointStatus {
            owner: Owner {
                container_id: "0a1b".into(),
                interface: "eth0".into(),
            },
            netns: "/run/netns/web".into(),
            host_device: "tow0123456789ab".into(),
            mtu: 9001,
            pod: None,
            network: None,
            orphaned: false,
            addresses: vec![
                address("10.0.1.20", Some(EniNumber(1))),
                address("2001:db8::20", None),
            ],
            readiness: Readiness::NotReady {
                reason: "no ENI owns 2001:db8::20".into(),
            },
        };
        assert_eq!(
            endpoints(&[endpoint], Paint(false)),
            "CONTAINER  INTERFACE  POD  ADDRESSES               POOL     POLICY  ENI  DEVICE           STATE      \
             REASON\n\
             0a1b       eth0       -    10.0.1.20,2001:db8::20  default  direct  1,?  tow0123456789ab  \
             not-ready  \
             no ENI owns 2001:db8::20\n"
        );
    }

    #[test]
    fn enis_show_reasons_and_notes() {
        let eni = EniStatus {
            number: Some(EniNumber(1)),
            device_index: Some(1),
            id: "eni-0b".into(),
            mac: "0a:11:22:33:44:55".parse().ok(),
            device: None,
            mtu: None,
            primary_address: "10.0.2.10".parse().ok(),
            subnet: "10.0.2.0/24".parse().ok(),
            table: Some(11),
            blocks: vec!["10.0.2.16/28".parse().unwrap()],
            addresses_in_use: 3,
            readiness: Readiness::NotReady {
                reason: "no device has its MAC".into(),
            },
            notes: vec!["waiting since 12:00".into()],
        };
        assert_eq!(
            enis(&[eni], Paint(false)),
            "ENI  ID      MAC                DEVICE  MTU  ADDRESS    TABLE  BLOCKS  USED  STATE      REASON\n\
             1    eni-0b  0a:11:22:33:44:55  -       -    10.0.2.10  11     1       3     not-ready  \
             no device has its MAC; waiting since 12:00\n"
        );
    }

    #[test]
    fn objects_and_counters_align() {
        let object = OwnedObject {
            kind: ObjectKind::Rule,
            scope: "node".into(),
            object: "ipv4 20: from all lookup 220".into(),
            state: ObjectState::Missing,
        };
        assert_eq!(
            objects(&[object], Paint(false)),
            "STATE    KIND  SCOPE  OBJECT\n\
             missing  rule  node   ipv4 20: from all lookup 220\n"
        );
        let metric = Metric {
            program: "from_endpoint".into(),
            outcome: "spoofed-source".into(),
            drop: true,
            packets: 3,
            bytes: 222,
            meaning: "The source is not the endpoint's.".into(),
        };
        assert_eq!(
            metrics(&[metric], Paint(true)),
            "\x1b[1mPROGRAM        OUTCOME         PACKETS  BYTES  MEANING\x1b[0m\n\
             \x1b[33mfrom_endpoint  spoofed-source  3        222    The source is not the endpoint's.\x1b[0m\n"
        );
    }
}
