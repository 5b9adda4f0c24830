//! Common tools through the masquerade: curl, iperf3, ping and traceroute.

use std::process::{Child, Stdio};
use std::time::Duration;

use ipam::Family;
use serde_json::Value;
use testkit::fabric::eventually::check;
use testkit::fabric::traffic::Web;
use testkit::fabric::world::World;
use testkit::fabric::{Place, command};

use crate::masq::{flag, internet, snat, under_each_policy};
use crate::support::within;

/// Size of curl's downloads and uploads, in bytes.
const BULK: usize = 8 * 1024 * 1024;

fn curl(from: Place, options: &[&str], url: &str) -> String {
    let mut curl = from.netns.command("curl");
    curl.args([
        "--silent",
        "--show-error",
        "--fail",
        "--globoff",
        "--max-time",
        "20",
    ]);
    command::run(curl.args(options).arg(url)).unwrap()
}

#[test]
fn curl_gets_and_sends() {
    under_each_policy(|fabric, from, eni| {
        let data = fabric.file("data");
        std::fs::write(&data, vec![7; BULK]).unwrap();
        let upload = format!("@{}", data.display());
        let family = Family::of(from.address);
        let web = Web::start(internet(fabric, family)).unwrap();
        let seen: std::net::SocketAddr = curl(from, &[], &web.url("/")).parse().unwrap();
        assert_eq!(seen.ip(), snat(fabric, eni, family));
        let options = ["--output", "/dev/null", "--write-out", "%{size_download}"];
        let got = curl(from, &options, &web.url(&format!("/{BULK}")));
        assert_eq!(got, BULK.to_string());
        let options = ["--header", "Expect:", "--data-binary", &upload];
        let sent = curl(from, &options, &web.url("/take"));
        assert_eq!(sent, BULK.to_string());
    });
}

/// An iperf3 server; it ends with this value.
pub(crate) struct Iperf(Child);

impl Iperf {
    pub(crate) fn start(at: Place) -> Self {
        let mut server = at.netns.command("iperf3");
        server
            .args(["-s", "-B", &at.address.to_string()])
            .stdin(Stdio::null())
            .stdout(Stdio::null());
        let server = Self(server.spawn().unwrap());
        within(Duration::from_secs(5), "iperf3 listens", || {
            let listening = at.netns.run("ss -Hltn")?;
            check(listening.contains(":5201"), || listening.clone())
        });
        server
    }
}

impl Drop for Iperf {
    fn drop(&mut self) {
        let _ended = self.0.kill();
        let _ended = self.0.wait();
    }
}

/// Errors of an iperf3 server for a client while it is between two clients: it has not closed its
/// socket yet, or not opened it again.
const BETWEEN: [&str; 3] = [
    "busy",
    "unable to connect to server: Connection refused",
    "unable to send cookie to server",
];

/// Final report of an iperf3 client.
pub(crate) fn iperf(from: Place, to: Place, options: &[&str]) -> Value {
    let what = format!("iperf3 {options:?}");
    within(Duration::from_secs(10), &what, || {
        let mut client = from.netns.command("iperf3");
        client
            .args(["-J", "-c", &to.address.to_string()])
            .args(options);
        let output = command::output(&mut client)?;
        let report: Value = serde_json::from_slice(&output.stdout)?;
        let error = &report["error"];
        let is_busy = error
            .as_str()
            .is_some_and(|error| BETWEEN.iter().any(|part| error.contains(part)));
        assert!(error.is_null() || is_busy, "{what}: {error}");
        check(!is_busy, || error.to_string())?;
        Ok(report["end"].clone())
    })
}

#[test]
fn iperf3_carries_tcp_both_ways_and_udp() {
    under_each_policy(|fabric, from, _| {
        let to = internet(fabric, Family::of(from.address));
        let _server = Iperf::start(to);
        // The receiver's count misses packets in flight: at most the contents of the two sockets.
        // Without limits, the kernel could let these grow to more than all of the data.
        for options in [
            &["-n", "16M", "-w", "256K"][..],
            &["-n", "16M", "-w", "256K", "-R"],
        ] {
            let end = iperf(from, to, options);
            let bytes = end["sum_sent"]["bytes"].as_u64().unwrap();
            assert!(bytes >= 16 << 20, "{options:?}: {bytes} bytes");
            let received = end["sum_received"]["bytes"].as_u64().unwrap();
            assert!(
                received > bytes / 4 * 3,
                "{options:?}: {received} bytes received"
            );
            println!(
                "{} {options:?}: {} bit/s",
                from.address, end["sum_received"]["bits_per_second"]
            );
        }
        for options in [
            &["-u", "-b", "20M", "-w", "2M", "-t", "1"][..],
            &["-u", "-b", "20M", "-w", "2M", "-t", "1", "-R"],
        ] {
            let end = iperf(from, to, options);
            let lost = end["sum"]["lost_percent"].as_f64().unwrap();
            assert!(lost < 1.0, "{options:?}: {lost} % lost");
            let packets = end["sum"]["packets"].as_u64().unwrap();
            assert!(packets > 100, "{options:?}: {packets} packets");
        }
    });
}

#[test]
fn ping_counts_every_answer() {
    under_each_policy(|fabric, from, _| {
        let to = internet(fabric, Family::of(from.address)).address;
        let line = format!("ping -n -c 20 -i 0.01 -W 2 {to}");
        let said = from.netns.run(&line).unwrap();
        assert!(said.contains(" 20 received, 0% packet loss"), "{said}");
    });
}

/// The hops that traceroute(8) shows.
fn hops(from: Place, to: Place, kind: &[&str]) -> Vec<String> {
    let mut traceroute = from.netns.command("traceroute");
    let family = Family::of(from.address);
    traceroute
        .args([flag(family), "-n", "-q", "1", "-w", "2", "-m", "6"])
        .args(kind)
        .arg(to.address.to_string());
    let text = command::run(&mut traceroute).unwrap();
    let lines = text.lines().skip(1);
    lines
        .map(|line| line.split_whitespace().nth(1).unwrap_or("?").to_owned())
        .collect()
}

#[test]
fn traceroute_shows_every_hop_by_udp_icmp_and_tcp() {
    under_each_policy(|fabric, from, eni| {
        let family = Family::of(from.address);
        let to = internet(fabric, family);
        for kind in [&[][..], &["-I"], &["-T", "-p", "80"]] {
            let shown = hops(from, to, kind);
            let what = format!("{} {kind:?}: {shown:?}", from.address);
            assert_eq!(shown.len(), 4, "{what}");
            assert_eq!(
                shown[0],
                fabric.node_at(family).unwrap().address.to_string(),
                "{what}"
            );
            let gateway = match family {
                Family::V4 => fabric.eni(eni).unwrap().gateway_v4().to_string(),
                // One of the router's global addresses.
                Family::V6 => "26".to_owned(),
            };
            assert!(shown[1].starts_with(&gateway), "{what}");
            assert_eq!(shown[2], World::path_address(family), "{what}");
            assert_eq!(shown[3], to.address.to_string(), "{what}");
        }
    });
}
