//! Results of STUN clients for the translation: by RFC 5780 (coturn) and by RFC 3489.

use std::net::{IpAddr, UdpSocket};
use std::process::{Child, Command, Stdio};
use std::time::Duration;
use std::{fs, io};

use anyhow::{Context as _, Result};
use datapath_common::config::PortSlice;
use testkit::fabric::eventually::{check, eventually};
use testkit::raw::Namespace;
use testkit::testrun::ip;

use crate::ours::{self, Attached};
use crate::stage::{ENI_MAC, NETS, Net, POD_MAC, Stage, VETH_MAC, text};

/// The time that the server may take to start.
const START: Duration = Duration::from_secs(20);

/// A STUN server with two addresses, as RFC 5780 requires. It ends with this value.
struct Server {
    child: Child,
    _folder: tempfile::TempDir,
}

impl Server {
    fn start(world: &Namespace, addresses: [IpAddr; 2]) -> Result<Self> {
        let folder = tempfile::tempdir()?;
        let child = world.run(|| {
            let mut server = Command::new("turnserver");
            server.args(["-n", "--no-tls", "--no-dtls", "--no-auth", "--no-cli"]);
            for address in addresses {
                server.args(["-L", &address.to_string()]);
            }
            server
                .args(["-p", "3478", "--log-file", "stdout"])
                .arg("--pidfile")
                .arg(folder.path().join("pid"))
                .arg("--userdb")
                .arg(folder.path().join("db"))
                .stdin(Stdio::null())
                .stdout(Stdio::null())
                .stderr(Stdio::null())
                .spawn()
                .context("turnserver (package coturn)")
        })?;
        Ok(Self {
            child,
            _folder: folder,
        })
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let ended: io::Result<_> = self.child.kill().and_then(|()| self.child.wait());
        if let Err(error) = ended {
            eprintln!("turnserver: {error}");
        }
    }
}

/// The pod's second address, and the outside's.
struct Second {
    pod: IpAddr,
    remote: IpAddr,
}

fn second(net: &Net) -> Result<Second> {
    let [pod, remote] = if net.pod.is_ipv4() {
        ["10.0.1.11", "198.51.100.8"]
    } else {
        ["2001:db8:0:1::b", "2600::8"]
    };
    Ok(Second {
        pod: pod.parse()?,
        remote: remote.parse()?,
    })
}

/// Gives the pod and the world stacks of their own, with two addresses each, between which our
/// programs translate.
fn populated(net: &Net) -> Result<(Stage, Attached, Server)> {
    let stage = Stage::new()?;
    let more = second(net)?;
    let [pod, world] = &stage.ends;
    let flags = if net.pod.is_ipv4() { "" } else { " nodad" };
    for (end, addresses, (next, mac)) in [
        (pod, [net.pod, more.pod], (net.gateway, VETH_MAC)),
        (world, [net.remote, more.remote], (net.node, ENI_MAC)),
    ] {
        end.run(|| {
            let sysctl = "/proc/sys/net/ipv6/conf/far/disable_ipv6";
            fs::write(sysctl, "0").context(sysctl)?;
            ip("link set lo up")?;
            for address in addresses {
                ip(&format!("addr add {address} dev far{flags}"))?;
            }
            let mac = text(mac);
            ip(&format!(
                "neigh add {next} lladdr {mac} dev far nud permanent"
            ))?;
            ip(&format!("route add {next} dev far"))?;
            ip(&format!("route add default via {next} dev far"))
        })?;
    }
    let mac = text(POD_MAC);
    stage.node.run(|| {
        ip(&format!("route add {} dev veth-a", more.pod))?;
        ip(&format!(
            "neigh add {} lladdr {mac} dev veth-a nud permanent",
            more.pod
        ))
    })?;
    let mut attached = ours::attach(&stage)?;
    attached.programs.put_address(more.pod, ours::endpoint())?;
    let server = Server::start(world, [net.remote, more.remote])?;
    eventually(START, "the STUN server listens", || {
        let sockets = world.run(|| {
            let files = ["/proc/thread-self/net/udp", "/proc/thread-self/net/udp6"];
            Ok(files
                .map(fs::read_to_string)
                .into_iter()
                .collect::<io::Result<String>>()?)
        })?;
        // Ports 3478 and 3479 on both addresses.
        let listening = [":0D96 ", ":0D97 "].map(|port| sockets.matches(port).count());
        check(listening.iter().all(|count| *count >= 2), || sockets)
    })?;
    Ok((stage, attached, server))
}

/// Runs a client in the pod.
fn client(stage: &Stage, line: &str) -> Result<String> {
    let mut words = line.split_whitespace();
    let program = words.next().context("a command")?;
    let output = stage.ends[0].run(|| {
        Command::new(program)
            .args(words)
            .stdin(Stdio::null())
            .output()
            .with_context(|| format!("{program} (packages coturn, stun-client)"))
    })?;
    let text = [output.stdout, output.stderr].concat();
    Ok(String::from_utf8_lossy(&text).into_owned())
}

/// Verdict of coturn's client on the mapping, and the client's addresses as the server saw them.
fn mapping(stage: &Stage, net: &Net, port: u16) -> (String, Vec<String>) {
    let line = format!(
        "turnutils_natdiscovery -m -L {} -l {port} {}",
        net.pod, net.remote
    );
    let text = client(stage, &line).unwrap();
    let verdict = text.lines().find(|line| line.starts_with("NAT with"));
    let verdict = verdict.unwrap_or_else(|| panic!("{text}")).to_owned();
    let seen = text.lines().filter_map(|line| {
        let (_, address) = line.split_once("UDP reflexive addr: ")?;
        Some(address.to_owned())
    });
    (verdict, seen.collect())
}

/// The address and port that the outside sees, as coturn writes them.
fn seen(address: IpAddr, port: u16) -> String {
    format!("{address}:{port}")
}

#[test]
fn a_free_port_is_kept_and_one_below_ours_is_changed_to_one() {
    for net in &NETS {
        let (stage, _programs, _server) = populated(net).unwrap();
        let (verdict, addresses) = mapping(&stage, net, 50_000);
        assert_eq!(verdict, "NAT with Endpoint Independent Mapping!");
        assert_eq!(addresses, vec![seen(net.node, 50_000); 2]);

        // The first candidate follows from pod and port alone.
        let (verdict, addresses) = mapping(&stage, net, 33_000);
        assert_eq!(verdict, "NAT with Endpoint Independent Mapping!");
        let [one, other] = addresses.as_slice() else {
            panic!("{addresses:?}");
        };
        assert_eq!(one, other);
        let port: u16 = one.rsplit(':').next().unwrap().parse().unwrap();
        assert!(PortSlice::DEFAULT.contains(port), "{port}");
        assert_eq!(*one, seen(net.node, port));
    }
}

/// Mapping is per destination, which shows where a port is taken towards one of them.
#[test]
fn a_port_that_is_taken_towards_one_destination_is_changed_there_alone() {
    for net in &NETS {
        let (stage, _programs, _server) = populated(net).unwrap();
        let more = second(net).unwrap();
        let holder = stage.ends[0].run(|| Ok(UdpSocket::bind((more.pod, 50_000))?));
        holder
            .unwrap()
            .send_to(b"mine", (more.remote, 3478))
            .unwrap();
        let (verdict, addresses) = mapping(&stage, net, 50_000);
        assert_eq!(verdict, "NAT with Address and Port Dependent Mapping!");
        let kept = seen(net.node, 50_000);
        let [first, second, third] = addresses.as_slice() else {
            panic!("{addresses:?}");
        };
        assert_eq!((first, third), (&kept, &kept));
        assert_ne!(*second, kept);
    }
}

#[test]
fn answers_pass_from_the_address_and_port_that_were_asked_alone() {
    let net = &NETS[0];
    let (stage, _programs, _server) = populated(net).unwrap();
    let line = format!("turnutils_natdiscovery -f -L {} {}", net.pod, net.remote);
    let text = client(&stage, &line).unwrap();
    let verdict = "NAT with Address and Port Dependent Filtering!";
    assert!(text.lines().any(|line| line == verdict), "{text}");

    let text = client(&stage, &format!("stun {} -p 50100", net.remote)).unwrap();
    let verdict =
        "Primary: Independent Mapping, Port Dependent Filter, preserves ports, no hairpin";
    assert!(text.lines().any(|line| line.trim() == verdict), "{text}");
}
