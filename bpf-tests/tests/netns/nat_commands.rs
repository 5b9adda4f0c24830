//! `towpath nat` and `towpath masq explain` on a node with traffic: their output matches the
//! datapath.

use std::net::{IpAddr, SocketAddr, UdpSocket};

use ipam::Family;
use serde_json::{Value, json};
use testkit::fabric::eventually::check;
use testkit::fabric::layout::{DIRECT, Host};
use testkit::fabric::traffic::{Asker, Echo, Protocol, Session, of_protocol, send_ip};
use testkit::fabric::world::Site;
use testkit::fabric::{Fabric, Place, source_check};

use crate::masq::{FIRST_PORT, internet, masquerade, scene, site, snat};
use crate::support::{CHANGE, count, within};

/// A port outside of the range: its flows get another one.
const LOW: u16 = 20_000;
/// A port of the range: its flows keep it.
const KEPT: u16 = FIRST_PORT + 77;

fn nat(fabric: &Fabric, words: &[&str]) -> Value {
    let words: Vec<_> = ["nat"].iter().chain(words).copied().collect();
    fabric.agent.cli_json(&fabric.node, &words).unwrap()
}

/// The rows of a list.
fn rows(fabric: &Fabric, filter: &[&str]) -> Vec<Value> {
    let words: Vec<_> = ["list"].iter().chain(filter).copied().collect();
    let list = nat(fabric, &words);
    let rows = list["flows"].as_array().unwrap().clone();
    assert_eq!(list["total"], rows.len(), "{list}");
    rows
}

/// The one row of a family with this inside port, once the flow has this phase.
fn row(fabric: &Fabric, family: Family, port: u16, phase: &str) -> Value {
    within(CHANGE, &format!("port {port} is {phase}"), || {
        let rows = rows(fabric, &[]);
        let is_it = |row: &&Value| row["family"] == family_name(family) && row["pod-port"] == port;
        let row = rows.iter().find(is_it);
        let row = row.ok_or_else(|| anyhow::anyhow!("no such flow: {rows:?}"))?;
        check(row["phase"] == phase, || row.to_string())?;
        Ok(row.clone())
    })
}

/// Output of a command that succeeds.
fn text(fabric: &Fabric, words: &[&str]) -> String {
    let output = fabric.agent.cli(&fabric.node, words).unwrap();
    let text = String::from_utf8(output.stdout).unwrap();
    let error = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(0), "{words:?}: {text}{error}");
    assert_eq!(error, "", "{words:?}");
    text
}

/// Expects that every line of a table has its columns under those of the head.
fn assert_aligned(table: &str) {
    let mut lines = table.lines();
    let head = lines.next().unwrap();
    let starts: Vec<_> = head
        .char_indices()
        .filter(|(at, c)| *c != ' ' && (*at == 0 || head[..*at].ends_with("  ")))
        .map(|(at, _)| at)
        .collect();
    for line in lines {
        for start in &starts {
            assert_ne!(&line[*start..=*start], " ", "column {start}:\n{table}");
            assert!(
                *start == 0 || line[..*start].ends_with("  "),
                "column {start}:\n{table}"
            );
        }
    }
}

fn text_of(address: IpAddr) -> Value {
    json!(address.to_string())
}

/// A connection of a pod by ENI 0 that gets another port.
fn a_connection_is_listed(fabric: &Fabric, from: Place, to: SocketAddr) -> Session {
    let family = Family::of(from.address);
    let name = family_name(family);
    let open = Session::open(from, LOW, to).unwrap();
    let shown = row(fabric, family, LOW, "established");
    let wanted = json!({
        "family": name, "protocol": "tcp", "kind": "pod", "phase": "established",
        "pod": text_of(from.address), "pod-port": LOW, "eni": 0,
        "translated": text_of(open.seen().ip()), "translated-port": open.seen().port(),
        "remote": text_of(to.ip()), "remote-port": to.port(),
        "idle-seconds": shown["idle-seconds"], "expires-seconds": shown["expires-seconds"],
    });
    assert_eq!(shown, wanted);
    let left = shown["expires-seconds"].as_u64().unwrap();
    assert!((7430..=7440).contains(&left), "{left}");
    open
}

/// A question of a pod to which nobody listens: the path to the server works.
fn a_question_is_listed_as_opening(fabric: &Fabric, from: Place, to: IpAddr) -> UdpSocket {
    let asking = from
        .netns
        .enter(|| Ok(UdpSocket::bind((from.address, KEPT))?));
    let asking = asking.unwrap();
    asking.send_to(&[7], (to, 9)).unwrap();
    assert_eq!(
        row(fabric, Family::of(to), KEPT, "opening")["translated-port"],
        KEPT
    );
    asking
}

/// A question of a pod by ENI 1 that is answered.
fn an_answered_question_is_listed(fabric: &Fabric, from: Place, to: SocketAddr) -> Asker {
    let asker = Asker::open(from, KEPT + 1, to).unwrap();
    let seen = asker.ask(7).unwrap();
    let shown = row(fabric, Family::of(from.address), KEPT + 1, "established");
    assert_eq!(shown["translated"], text_of(seen.ip()));
    assert_eq!(
        (&shown["eni"], &shown["protocol"]),
        (&json!(1), &json!("udp"))
    );
    asker
}

fn a_connection_of_the_host_is_listed(fabric: &Fabric, to: SocketAddr) -> Session {
    let family = Family::of(to.ip());
    let host = Session::open(fabric.node_at(family).unwrap(), KEPT + 3, to).unwrap();
    let shown = row(fabric, family, KEPT + 3, "established");
    assert_eq!(shown["kind"], "host");
    assert_eq!(shown["pod"], text_of(snat(fabric, 0, family)));
    assert_eq!(shown["translated-port"], host.seen().port());
    host
}

/// A connection from outside to a server in a pod.
fn a_connection_from_outside_is_listed(fabric: &Fabric, at: Place) -> (Echo, Session) {
    let family = Family::of(at.address);
    let service = Echo::telling(at, 0).unwrap();
    let outside = fabric.host(Host::Outside, family);
    let inbound = Session::open(outside, 0, service.address()).unwrap();
    let shown = row(fabric, family, service.address().port(), "established");
    assert_eq!(shown["kind"], "inbound");
    assert_eq!(shown["remote"], text_of(outside.address));
    assert_eq!(shown["remote-port"], inbound.seen().port());
    for absent in ["eni", "translated", "translated-port"] {
        assert_eq!(shown[absent], Value::Null, "{shown}");
    }
    (service, inbound)
}

/// Filters by pod, by remote and by protocol select some of the rows.
fn filters_select_their_rows(fabric: &Fabric, pod: IpAddr, remote: IpAddr) {
    let all = rows(fabric, &[]);
    for (option, field) in [
        ("--pod", text_of(pod)),
        ("--remote", text_of(remote)),
        ("--protocol", json!("udp")),
    ] {
        let value = field.as_str().unwrap();
        let key = &option[2..];
        let of = |row: &&Value| row[key] == field;
        let wanted: Vec<_> = all.iter().filter(of).map(identity).collect();
        let shown = rows(fabric, &[option, value]);
        let shown: Vec<_> = shown.iter().map(identity).collect();
        assert_eq!(shown, wanted, "{option} {value}");
        assert!(!wanted.is_empty() && wanted.len() < all.len(), "{option}");
    }
    let address = pod.to_string();
    let both = rows(fabric, &["--pod", &address, "--protocol", "17"]);
    assert_eq!(both.len(), 1, "{both:?}");
}

#[test]
fn list_shows_every_flow_with_its_kind_phase_and_port() {
    let (fabric, pods) = scene(json!({}));
    for family in Family::ALL {
        let [first, second] = pods.each_ref().map(|pod| pod.at(family));
        let server = Echo::telling(internet(&fabric, family), 0).unwrap();
        let to = server.address();
        let open = a_connection_is_listed(&fabric, first, to);
        let asking = a_question_is_listed_as_opening(&fabric, first, to.ip());
        let asker = an_answered_question_is_listed(&fabric, second, to);
        let ended = Session::open(second, KEPT + 2, to).unwrap();
        drop(ended);
        row(&fabric, family, KEPT + 2, "closed");
        let host = a_connection_of_the_host_is_listed(&fabric, to);
        let inbound = a_connection_from_outside_is_listed(&fabric, second);
        let outside = fabric.host(Host::Outside, family).address;
        filters_select_their_rows(&fabric, second.address, outside);
        drop((open, asking, asker, host, inbound));
    }
    assert_aligned(&text(&fabric, &["nat", "list"]));
    fabric.finish().unwrap();
}

/// Fields of a row that do not change with time.
fn identity(row: &Value) -> (Value, Value, Value) {
    let of = |key: &str| row[key].clone();
    (of("pod"), of("pod-port"), of("kind"))
}

fn family_name(family: Family) -> &'static str {
    match family {
        Family::V4 => "ipv4",
        Family::V6 => "ipv6",
    }
}

#[test]
fn flush_removes_a_pods_flows_and_no_others() {
    let (fabric, pods) = scene(json!({}));
    let server = Echo::telling(internet(&fabric, Family::V4), 0).unwrap();
    let to = server.address();
    let [first, second] = pods.each_ref().map(|pod| pod.at(Family::V4));
    let node = fabric.node_at(Family::V4).unwrap();
    let lost = Asker::open(first, LOW, to).unwrap();
    lost.ask(7).unwrap();
    let mut kept = [second, node].map(|from| Session::open(from, KEPT, to).unwrap());
    let address = first.address.to_string();
    let flushed = nat(&fabric, &["flush", "--pod", &address]);
    assert_eq!(flushed, json!({"removed": 1}));
    assert!(rows(&fabric, &["--pod", &address]).is_empty());
    assert_eq!(rows(&fabric, &[]).len(), 2);
    for session in &mut kept {
        session.exchange().unwrap();
    }
    // A datagram opens a new flow.
    lost.ask(7).unwrap();
    assert_eq!(
        text(&fabric, &["nat", "flush", "--pod", "192.0.2.1"]),
        "0 flows removed\n"
    );
    assert_eq!(
        text(&fabric, &["nat", "flush", "--all"]),
        "3 flows removed\n"
    );
    assert!(rows(&fabric, &[]).is_empty());
    for (words, named) in [
        (&["flush"][..], "--pod"),
        (&["flush", "--all", "--pod", &address], "--all"),
        (&["flush", "--pod", "web"], "web"),
        (&["list", "--protocol", "quic"], "quic"),
        (&["list", "--remote", "10.0.0.0/8"], "10.0.0.0/8"),
    ] {
        let words: Vec<_> = ["nat"].iter().chain(words).copied().collect();
        let output = fabric.agent.cli(&fabric.node, &words).unwrap();
        let error = String::from_utf8_lossy(&output.stderr);
        assert_ne!(output.status.code(), Some(0), "{words:?}");
        assert!(error.contains(named), "{words:?}: {error}");
        assert!(output.stdout.is_empty(), "{words:?}");
    }
    fabric.finish().unwrap();
}

/// Flows of each kind to a server, and the server of the one from outside.
fn flows_of_each_kind(
    fabric: &Fabric,
    [pod, other]: [Place; 2],
    to: SocketAddr,
) -> (Echo, Vec<Session>) {
    let mut open = Vec::new();
    for index in 0..3 {
        open.push(Session::open(pod, KEPT + index, to).unwrap());
        open.push(Session::open(pod, LOW + index, to).unwrap());
    }
    // The other pod has the same ports by another ENI, and the host those of this one.
    open.push(Session::open(other, KEPT, to).unwrap());
    let node = fabric.node_at(Family::of(to.ip())).unwrap();
    open.push(Session::open(node, KEPT, to).unwrap());
    let service = Echo::telling(pod, 0).unwrap();
    let outside = fabric.host(Host::Outside, Family::of(to.ip()));
    open.push(Session::open(outside, 0, service.address()).unwrap());
    (service, open)
}

fn a_packet_without_ports_is_dropped(fabric: &Fabric, from: Place, to: IpAddr) {
    let failed = count(fabric, "from_endpoint", "protocol-without-ports");
    let packet = of_protocol(from.address, to, 47, &[7; 64]).unwrap();
    send_ip(from, to, [&packet]).unwrap();
    within(CHANGE, "the drop is counted", || {
        let now = count(fabric, "from_endpoint", "protocol-without-ports");
        check(now == failed + 1, || format!("{failed} then {now}"))
    });
}

/// The sum of a field of some rows.
fn sum(rows: &Value, field: &str, of: impl Fn(&Value) -> bool) -> u64 {
    let rows = rows.as_array().unwrap().iter().filter(|row| of(row));
    rows.map(|row| row[field].as_u64().unwrap()).sum()
}

/// The counts of a family grow by the flows of each kind and by the dropped packet.
fn counts_grow(before: &Value, after: &Value, family: Family) {
    let name = family_name(family);
    let grown = |key: &str| {
        let of = |stats: &Value| stats["families"][name][key].as_u64().unwrap();
        of(after) - of(before)
    };
    let counts = [
        "allocated",
        "kept",
        "host",
        "inbound-noted",
        "removed",
        "failed",
    ];
    assert_eq!(counts.map(grown), [8, 4, 1, 1, 0, 0], "{after}");
    let tries = |stats: &Value| sum(&stats["families"][name]["tries"], "allocations", |_| true);
    assert_eq!(tries(after) - tries(before), 8, "{after}");
    let reason = "protocol-without-ports";
    let lost = |stats: &Value| stats["failures"][reason].as_u64().unwrap();
    assert_eq!(lost(after) - lost(before), 1);
}

/// The flows of each kind are listed by their destination and by their kind.
fn flows_are_listed(stats: &Value, to: SocketAddr) {
    let busy = stats["destinations"].as_array().unwrap();
    let of_server = |eni: u8| {
        let port = to.port();
        let found = busy
            .iter()
            .find(|of| of["eni"] == eni && of["remote-port"] == port);
        found.map(|of| of["ports"].clone())
    };
    assert_eq!(
        [of_server(0), of_server(1)],
        [Some(json!(7)), Some(json!(1))]
    );
    let name = family_name(Family::of(to.ip()));
    let listed = |kind: &str| {
        sum(&stats["flows"], "flows", |row| {
            row["family"] == name && row["kind"] == kind
        })
    };
    assert_eq!(["pod", "host", "inbound"].map(listed), [7, 1, 1], "{stats}");
}

#[test]
fn stats_count_what_was_sent() {
    let (fabric, [pod, other]) = scene(json!({}));
    for family in Family::ALL {
        let from = pod.at(family);
        let server = Echo::telling(internet(&fabric, family), 0).unwrap();
        let to = server.address();
        let before = nat(&fabric, &["stats"]);
        let open = flows_of_each_kind(&fabric, [from, other.at(family)], to);
        a_packet_without_ports_is_dropped(&fabric, from, to.ip());
        let after = nat(&fabric, &["stats"]);
        counts_grow(&before, &after, family);
        flows_are_listed(&after, to);
        drop(open);
    }
    let shown = text(&fabric, &["nat", "stats"]);
    assert!(shown.contains("2 protocol-without-ports"), "{shown}");
    let tables: Vec<_> = shown.split("\n\n").skip(1).collect();
    assert_eq!(tables.len(), 2, "{shown}");
    for table in tables {
        assert_aligned(table.split_once('\n').unwrap().1);
    }
    fabric.finish().unwrap();
}

/// Explanation of a packet.
fn explain(fabric: &Fabric, from: &str, to: &str, protocol: &str) -> Value {
    let words = ["masq", "explain", "--protocol", protocol, from, to];
    let answer: Value = fabric.agent.cli_json(&fabric.node, &words).unwrap();
    let table = text(fabric, &words);
    let (line, steps) = table.split_once("\n\n").unwrap();
    assert!(line.contains(answer["why"].as_str().unwrap()), "{table}");
    assert_aligned(steps);
    answer
}

/// The way in which a packet leaves the node.
struct Leaves<'a> {
    why: &'a str,
    eni: u8,
    source: IpAddr,
}

impl<'a> Leaves<'a> {
    fn by(eni: u8, source: IpAddr, why: &'a str) -> Self {
        Self { why, eni, source }
    }

    /// Expects this way, in the explanation and then for a packet.
    #[track_caller]
    fn check(self, fabric: &Fabric, from: Place, to: Place) {
        let Self { why, eni, source } = self;
        for (protocol, name) in [Protocol::Tcp, Protocol::Udp, Protocol::Icmp]
            .into_iter()
            .zip(["tcp", "udp", "icmp"])
        {
            let (client, server) = (from.address.to_string(), to.address.to_string());
            let said = explain(fabric, &client, &server, name);
            let what = format!("{name} from {client} to {server}: {said}");
            assert_eq!(said["why"], why, "{what}");
            assert_eq!(said["eni"], eni, "{what}");
            let snat = (source != from.address).then(|| text_of(source));
            assert_eq!(said.get("snat").cloned(), snat, "{what}");
            source_check::forget_flows(&fabric.vpc.router).unwrap();
            protocol.exchange(from, to).unwrap();
            let flows = source_check::flows(&fabric.vpc.router).unwrap();
            let gone = flows.iter().filter(|flow| flow.to == to.address);
            let gone: Vec<_> = gone.map(|flow| (flow.eni, flow.from)).collect();
            assert_eq!(gone, [(u16::from(eni), source)], "{what}");
        }
    }
}

/// A packet of a protocol, with a payload that shows no ports.
struct Portless {
    to: IpAddr,
    protocol: u8,
}

impl Portless {
    fn of(protocol: u8, to: IpAddr) -> Self {
        Self { to, protocol }
    }

    /// Expects that it is explained as dropped, is dropped, and is counted as explained.
    #[track_caller]
    fn check(self, fabric: &Fabric, from: Place, why: &str) {
        let Self { to, protocol } = self;
        let said = explain(
            fabric,
            &from.address.to_string(),
            &to.to_string(),
            &protocol.to_string(),
        );
        assert_eq!(said["verdict"], "dropped", "{said}");
        assert_eq!(said["why"], why, "{said}");
        source_check::forget_flows(&fabric.vpc.router).unwrap();
        let before = count(fabric, "from_endpoint", why);
        let packet = of_protocol(from.address, to, protocol, &[0, 9, 0, 9, 0, 8, 0, 0]).unwrap();
        send_ip(from, to, [&packet]).unwrap();
        within(CHANGE, why, || {
            let now = count(fabric, "from_endpoint", why);
            check(now > before, || format!("{before} then {now}"))
        });
        let flows = source_check::flows(&fabric.vpc.router).unwrap();
        assert!(flows.iter().all(|flow| flow.to != to), "{flows:?}");
    }
}

#[test]
fn explain_tells_what_happens() {
    let native = json!({"native-routing-cidrs": ["203.0.113.0/24", "2001:db8:113::/48"]});
    let (mut fabric, pods) = scene(masquerade(&native));
    fabric.world().unwrap().set_metadata_ttl(3).unwrap();
    let direct = fabric.add_pod(1, DIRECT.start).unwrap();
    let [first, second] = &pods;
    let untranslated: Vec<_> = [second, &direct]
        .into_iter()
        .flat_map(|pod| Family::ALL.map(|family| pod.address(family).into()))
        .collect();
    fabric.allow_untranslated(&untranslated).unwrap();
    for family in Family::ALL {
        let from = second.at(family);
        let own = from.address;
        let (listed, world) = (
            site(&fabric, Site::Listed, family),
            internet(&fabric, family),
        );
        Leaves::by(1, own, "exempt-vpc").check(&fabric, from, fabric.peer(family));
        Leaves::by(1, own, "exempt-native").check(&fabric, from, listed);
        Leaves::by(1, snat(&fabric, 1, family), "translated").check(&fabric, from, world);
        let metadata = site(&fabric, Site::Metadata, family);
        Leaves::by(0, snat(&fabric, 0, family), "translated").check(&fabric, from, metadata);
        let skipping = direct.at(family);
        Leaves::by(1, skipping.address, "skip-pool").check(&fabric, skipping, world);
        Portless::of(47, world.address).check(&fabric, from, "protocol-without-ports");

        let local = |to: IpAddr| {
            let said = explain(&fabric, &own.to_string(), &to.to_string(), "tcp");
            (said["verdict"].clone(), said["why"].clone())
        };
        assert_eq!(
            local(first.address(family)),
            (json!("delivered"), json!("local"))
        );
        Protocol::Tcp.exchange(from, first.at(family)).unwrap();
        let node = fabric.node_at(family).unwrap();
        assert_eq!(local(node.address), (json!("stack"), json!("host")));
        Protocol::Tcp.exchange(from, node).unwrap();
        // An address of this node's blocks without a pod.
        let nobody = fabric.eni(1).unwrap().pod_address(family, 3).unwrap();
        Portless::of(17, nobody).check(&fabric, from, "no-endpoint");
    }
    fabric.finish().unwrap();
}

#[test]
fn explain_knows_the_flows_that_there_are() {
    let (mut fabric, pods) = scene(json!({}));
    let [_, pod] = &pods;
    let addresses = Family::ALL.map(|family| pod.address(family).into());
    fabric.allow_untranslated(&addresses).unwrap();
    for family in Family::ALL {
        let (from, outside) = (pod.at(family), fabric.host(Host::Outside, family));
        let explained = |own: SocketAddr, to: SocketAddr, protocol| {
            explain(&fabric, &own.to_string(), &to.to_string(), protocol)
        };
        let server = Echo::telling(internet(&fabric, family), 0).unwrap();
        let mut session = Session::open(from, LOW, server.address()).unwrap();
        let own = session.own().unwrap();
        let said = explained(own, server.address(), "tcp");
        let found = (&said["why"], &said["snat"], &said["port"], &said["eni"]);
        let (address, port) = (text_of(session.seen().ip()), json!(session.seen().port()));
        assert_eq!(found, (&json!("translated"), &address, &port, &json!(1)));
        session.exchange().unwrap();
        // With another protocol the same ports are another flow.
        assert_eq!(explained(own, server.address(), "udp")["port"], Value::Null);

        let service = Echo::telling(from, 0).unwrap();
        let mut inbound = Session::open(outside, 0, service.address()).unwrap();
        let said = explained(service.address(), inbound.own().unwrap(), "tcp");
        let found = (&said["why"], &said["verdict"], &said["eni"]);
        assert_eq!(
            found,
            (&json!("inbound"), &json!("untranslated"), &json!(1))
        );
        inbound.exchange().unwrap();
        // Without the flow the same packet would be translated.
        let other = SocketAddr::new(outside.address, inbound.own().unwrap().port() ^ 1);
        let said = explained(service.address(), other, "tcp");
        assert_eq!(said["why"], "translated");
    }
    for (words, named) in [
        (["10.0.1.999", "8.8.8.8"], "10.0.1.999"),
        (["192.0.2.1", "8.8.8.8"], "192.0.2.1"),
        (["10.0.1.20", "2001:db8::1"], "families"),
    ] {
        let words: Vec<_> = ["masq", "explain"].into_iter().chain(words).collect();
        let output = fabric.agent.cli(&fabric.node, &words).unwrap();
        let error = String::from_utf8_lossy(&output.stderr);
        assert_ne!(output.status.code(), Some(0), "{words:?}");
        assert!(error.contains(named), "{words:?}: {error}");
    }
    fabric.finish().unwrap();
}

#[test]
fn explain_tells_of_a_family_that_is_off_and_of_blocked_metadata() {
    let settings = json!({"ipv6": false, "metadata": "block"});
    let (mut fabric, [pod, _]) = scene(masquerade(&settings));
    let (v4, v6) = (pod.at(Family::V4), pod.at(Family::V6));
    fabric.allow_untranslated(&[v6.address.into()]).unwrap();
    let world = internet(&fabric, Family::V6);
    Leaves::by(0, v6.address, "off").check(&fabric, v6, world);
    for from in [v4, v6] {
        let to = site(&fabric, Site::Metadata, Family::of(from.address)).address;
        Portless::of(17, to).check(&fabric, from, "metadata-blocked");
    }
    fabric.finish().unwrap();
}
