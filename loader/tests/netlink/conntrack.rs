//! Conntrack's entries of real flows, with `conntrack` as the second opinion: a client, a node that
//! does NAT for services, and a server, each in a network namespace.

use std::collections::HashSet;
use std::fs::{self, File};
use std::io::{self, Read, Write};
use std::net::{IpAddr, SocketAddr, TcpListener, TcpStream, UdpSocket};
use std::panic::{self, AssertUnwindSafe};
use std::time::Duration;

use loader::netfilter::conntrack::{Conntrack, Entry, TcpState, Tuple, entries, timeouts};
use nix::sched::{CloneFlags, setns};

use crate::host::{Pod, in_netns, ip, run};

const TCP: u8 = 6;
const UDP: u8 = 17;
const SCTP: u8 = 132;

/// The client, the server, the service, and the node towards the server.
const V4: [&str; 4] = ["10.1.0.2", "10.2.0.2", "10.96.0.1", "10.2.0.1"];
const V6: [&str; 4] = ["fd01::2", "fd02::2", "fd96::1", "fd02::1"];
const SERVICE_PORT: u16 = 80;
const SERVER_PORT: u16 = 8080;

/// Maximum time of a packet.
const SOON: Duration = Duration::from_secs(5);

struct Stage {
    client: Pod,
    server: Pod,
}

/// Runs something in a pod's namespace.
fn inside<T: Send>(pod: &Pod, work: impl FnOnce() -> T + Send) -> T {
    std::thread::scope(|scope| {
        let thread = scope.spawn(|| {
            let netns = File::open(&pod.path).expect("the pod's namespace");
            setns(netns, CloneFlags::CLONE_NEWNET).expect("enter it");
            work()
        });
        thread.join().expect("what runs inside")
    })
}

impl Stage {
    /// Connects both to the calling thread's namespace, which forwards. A service's destination is
    /// translated to the server; for UDP also its source, to the node's address.
    fn new() -> Self {
        let (client, server) = (Pod::new(), Pod::new());
        for (pod, number) in [(&client, 1), (&server, 2)] {
            let path = pod.path.display();
            ip(&format!(
                "link add pod{number} type veth peer name eth0 netns {path}"
            ));
            ip(&format!("addr add 10.{number}.0.1/24 dev pod{number}"));
            ip(&format!("addr add fd0{number}::1/64 dev pod{number} nodad"));
            ip(&format!("link set pod{number} up"));
            for line in [
                "link set lo up".to_owned(),
                format!("addr add 10.{number}.0.2/24 dev eth0"),
                format!("addr add fd0{number}::2/64 dev eth0 nodad"),
                "link set eth0 up".to_owned(),
                format!("route add default via 10.{number}.0.1"),
                format!("-6 route add default via fd0{number}::1"),
            ] {
                pod.run(&format!("ip {line}"));
            }
        }
        fs::write("/proc/sys/net/ipv4/ip_forward", "1").expect("forward");
        fs::write("/proc/sys/net/ipv6/conf/all/forwarding", "1").expect("forward");
        for line in [
            "add table inet services",
            "add chain inet services pre { type nat hook prerouting priority dstnat ; }",
            "add chain inet services post { type nat hook postrouting priority srcnat ; }",
            "add rule inet services post ip daddr 10.2.0.2 meta l4proto udp masquerade",
            "add rule inet services post ip6 daddr fd02::2 meta l4proto udp masquerade",
        ] {
            run(&format!("nft {line}"));
        }
        for (family, [_, server, service, _]) in [("ip", V4), ("ip6", V6)] {
            let server = SocketAddr::new(server.parse().expect("an address"), SERVER_PORT);
            for protocol in ["tcp", "udp"] {
                run(&format!(
                    "nft add rule inet services pre {family} daddr {service} \
                     {protocol} dport {SERVICE_PORT} dnat {family} to {server}"
                ));
            }
        }
        Self { client, server }
    }

    /// Opens a connection to a service, and sends in both directions.
    fn tcp(&self, server: SocketAddr, service: SocketAddr) -> (TcpStream, TcpStream) {
        let listener = inside(&self.server, || TcpListener::bind(server).expect("listen"));
        let here = inside(&self.client, || {
            TcpStream::connect_timeout(&service, SOON).expect("connect")
        });
        let (there, _) = listener.accept().expect("accept");
        let mut byte = [0];
        for (mut from, mut to) in [(&here, &there), (&there, &here)] {
            to.set_read_timeout(Some(SOON)).expect("a timeout");
            from.write_all(b"x").expect("write");
            to.read_exact(&mut byte).expect("read");
        }
        (here, there)
    }

    /// A datagram to a service, and its answer; the client's socket.
    fn udp(&self, server: SocketAddr, client: IpAddr, service: SocketAddr) -> UdpSocket {
        let there = inside(&self.server, || UdpSocket::bind(server).expect("bind"));
        let here = inside(&self.client, || UdpSocket::bind((client, 0)).expect("bind"));
        for socket in [&there, &here] {
            socket.set_read_timeout(Some(SOON)).expect("a timeout");
        }
        let mut byte = [0];
        here.send_to(b"x", service).expect("send");
        let (_, from) = received(&there, &mut byte).expect("receive");
        there.send_to(b"x", from).expect("answer");
        received(&here, &mut byte).expect("the answer");
        here
    }
}

/// A datagram. The kernel does not itself restart a receive with a deadline after a signal.
fn received(socket: &UdpSocket, bytes: &mut [u8]) -> io::Result<(usize, SocketAddr)> {
    loop {
        match socket.recv_from(bytes) {
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            other => return other,
        }
    }
}

fn dump(conntrack: &mut Conntrack) -> Vec<Entry> {
    let mut entries = Vec::new();
    conntrack
        .dump(&mut |entry| entries.push(*entry))
        .expect("dump");
    entries
}

fn find(conntrack: &mut Conntrack, original: Tuple) -> Entry {
    let found: Vec<_> = dump(conntrack)
        .into_iter()
        .filter(|entry| entry.original == original)
        .collect();
    assert_eq!(found.len(), 1, "entries of {original}");
    found[0]
}

fn turned(tuple: Tuple) -> Tuple {
    Tuple {
        protocol: tuple.protocol,
        source: tuple.destination,
        destination: tuple.source,
    }
}

/// Both tuples are known, neither of them turned round is, and after `conntrack -D` none is.
fn known_until_deleted(conntrack: &mut Conntrack, entry: Entry) {
    let Entry {
        original, reply, ..
    } = entry;
    assert!(conntrack.has(&original).expect("ask"), "{original}");
    assert!(conntrack.has(&reply).expect("ask"), "{reply}");
    for tuple in [turned(original), turned(reply)] {
        assert!(!conntrack.has(&tuple).expect("ask"), "{tuple}");
    }
    let other = Tuple {
        protocol: TCP + UDP - original.protocol,
        ..original
    };
    assert!(!conntrack.has(&other).expect("ask"), "{other}");
    run(&format!(
        "conntrack -D -p {} -s {} --sport {} -d {} --dport {}",
        original.protocol,
        original.source.ip(),
        original.source.port(),
        original.destination.ip(),
        original.destination.port()
    ));
    for tuple in [original, reply] {
        assert!(!conntrack.has(&tuple).expect("ask"), "{tuple}");
    }
    let left = dump(conntrack);
    assert!(!left.iter().any(|left| left.original == original));
}

#[test]
fn flows_through_a_service_are_known_by_both_their_tuples_until_they_are_deleted() {
    in_netns(async |_| {
        let stage = Stage::new();
        let mut conntrack = Conntrack::open().expect("open");
        for addresses in [V4, V6] {
            let [client, server, service, node] =
                addresses.map(|text| text.parse::<IpAddr>().expect("an address"));
            let server = SocketAddr::new(server, SERVER_PORT);
            let service = SocketAddr::new(service, SERVICE_PORT);

            let (here, there) = stage.tcp(server, service);
            let source = here.local_addr().expect("its address");
            let original = Tuple {
                protocol: TCP,
                source,
                destination: service,
            };
            let entry = find(&mut conntrack, original);
            let reply = Tuple {
                protocol: TCP,
                source: server,
                destination: source,
            };
            assert_eq!(entry.reply, reply);
            assert_eq!(entry.tcp_state, Some(TcpState::Established));
            assert!(entry.is_destination_translated() && !entry.is_source_translated());
            assert!(entry.has_seen_reply() && entry.is_assured());
            known_until_deleted(&mut conntrack, entry);
            drop((here, there));

            let socket = stage.udp(server, client, service);
            let original = Tuple {
                protocol: UDP,
                source: socket.local_addr().expect("its address"),
                destination: service,
            };
            let entry = find(&mut conntrack, original);
            assert_eq!(entry.reply.source, server);
            assert_eq!(entry.reply.destination.ip(), node);
            assert_eq!(entry.tcp_state, None);
            assert!(entry.is_destination_translated() && entry.is_source_translated());
            assert!(entry.has_seen_reply() && !entry.is_assured());
            known_until_deleted(&mut conntrack, entry);
        }
    });
}

#[test]
fn entries_that_lead_to_a_gone_pod_are_removed_and_no_others() {
    in_netns(async |_| {
        let stage = Stage::new();
        let mut conntrack = Conntrack::open().expect("open");
        for [client, server, service, node] in [V4, V6] {
            let address = |text: &str| text.parse::<IpAddr>().expect("an address");
            let there = SocketAddr::new(address(server), SERVER_PORT);
            let called = SocketAddr::new(address(service), SERVICE_PORT);
            let tcp = stage.tcp(there, called);
            let udp = stage.udp(there, address(client), called);
            let removed = |conntrack: &mut Conntrack, gone: &[&str]| {
                let gone = gone.iter().copied().map(address).collect();
                conntrack.remove_leading_to(&gone).expect("remove")
            };
            let nothing = removed(&mut conntrack, &[client, node]);
            assert!(
                nothing.is_whole && nothing.leading_to.is_empty(),
                "{nothing:?}"
            );
            let all = removed(&mut conntrack, &[server, client]);
            let (entries, _) = all.leading_to[&address(server)];
            assert_eq!((entries, all.leading_to.len()), (2, 1), "{all:?}");
            let sources = [
                tcp.0.local_addr().expect("an address"),
                udp.local_addr().expect("an address"),
            ];
            let left = dump(&mut conntrack);
            let is_left = |entry: &Entry| sources.contains(&entry.original.source);
            assert!(!left.iter().any(is_left), "{left:?}");
            let again = removed(&mut conntrack, &[server]);
            assert!(again.leading_to.is_empty(), "{again:?}");
        }
    });
}

#[test]
fn only_flows_with_ports_in_the_hosts_own_zone_are_shown() {
    in_netns(async |_| {
        for line in [
            "-p sctp -s 10.1.0.2 -d 10.2.0.2 --sport 1 --dport 2 --state ESTABLISHED \
             --orig-vtag 1 --reply-vtag 2",
            "-p icmp -s 10.1.0.2 -d 10.2.0.2 --icmp-type 8 --icmp-code 0 --icmp-id 5",
            "-p gre -s 10.1.0.2 -d 10.2.0.2 --srckey 1 --dstkey 2",
            "-p udp -s 10.1.0.2 -d 10.2.0.2 --sport 1 --dport 2 --zone 5",
            "-p udp -s 10.1.0.2 -d 10.2.0.2 --sport 3 --dport 4 --orig-zone 5",
        ] {
            run(&format!("conntrack -I -t 60 {line}"));
        }
        assert_eq!(run("conntrack -L").matches("10.1.0.2").count(), 10);
        let mut conntrack = Conntrack::open().expect("open");
        let shown = dump(&mut conntrack);
        assert_eq!(shown.len(), 1, "{shown:?}");
        assert_eq!(shown[0].original.protocol, SCTP);
        assert!(conntrack.has(&shown[0].original).expect("ask"));
        let zoned = Tuple {
            protocol: UDP,
            ..shown[0].original
        };
        assert!(!conntrack.has(&zoned).expect("ask"));
        let mixed = Tuple {
            source: "[fd01::2]:1".parse().expect("an address"),
            ..zoned
        };
        let error = conntrack.has(&mixed).expect_err("two families");
        assert!(format!("{error:#}").contains("two families"), "{error:#}");
    });
}

#[test]
fn a_mark_is_found_in_entries_of_any_kind_by_the_bits_that_are_asked_for() {
    in_netns(async |_| {
        let mut conntrack = Conntrack::open().expect("open");
        let flow = "-s 10.1.0.2 -d 10.2.0.2";
        for (number, line) in [
            "-p udp --sport 1 --dport 2",
            "-p udp --sport 3 --dport 4 --zone 5",
            "-p icmp --icmp-type 8 --icmp-code 0 --icmp-id 5",
        ]
        .into_iter()
        .enumerate()
        {
            let value = u32::try_from(number + 2).expect("a small number") << 24;
            let mark = value | 0x8000_4000;
            let has = |conntrack: &mut Conntrack, value| {
                conntrack.has_mark(value, 0x3f00_0000).expect("ask")
            };
            assert!(!has(&mut conntrack, value), "{line}");
            run(&format!("conntrack -I -t 60 {flow} {line} --mark {mark}"));
            assert!(has(&mut conntrack, value), "{line}");
            assert!(!has(&mut conntrack, value + (4 << 24)), "{line}");
        }
        assert!(entries().expect("conntrack is there") >= 3);
        run("conntrack -F");
        assert!(!conntrack.has_mark(2 << 24, 0x3f00_0000).expect("ask"));
    });
}

#[test]
fn a_big_table_is_shown_whole() {
    const SOCKETS: usize = 2;
    const PORTS: u16 = 50_000;
    in_netns(async |_| {
        ip("link add void type veth peer name voidp");
        ip("addr add 10.9.0.1/24 dev void");
        ip("link set void up");
        ip("link set voidp up");
        ip("neigh add 10.9.0.2 lladdr 02:00:00:00:00:02 dev void nud permanent");
        for line in [
            "add table inet follow",
            "add chain inet follow out { type filter hook output priority 0 ; }",
            "add rule inet follow out ct state new counter",
        ] {
            run(&format!("nft {line}"));
        }
        for _ in 0..SOCKETS {
            let socket = UdpSocket::bind("10.9.0.1:0").expect("bind");
            for port in 1..=PORTS {
                socket.send_to(b"x", ("10.9.0.2", port)).expect("send");
            }
        }
        let mut conntrack = Conntrack::open().expect("open");
        let mut originals = HashSet::new();
        conntrack
            .dump(&mut |entry| assert!(originals.insert(entry.original), "{entry:?} again"))
            .expect("dump");
        assert_eq!(originals.len(), SOCKETS * usize::from(PORTS));
        // After an abandoned dump the next one is complete.
        let halfway = panic::catch_unwind(AssertUnwindSafe(|| {
            let leave = &mut |_: &Entry| panic::resume_unwind(Box::new("enough"));
            conntrack.dump(leave)
        }));
        assert!(halfway.is_err(), "the first entry ended it");
        let entries = dump(&mut conntrack);
        assert_eq!(entries.len(), originals.len());
        assert!(conntrack.has(&entries[0].reply).expect("ask"));
        let count = run("conntrack -C");
        assert_eq!(count.lines().next(), Some("100000"));
    });
}

#[test]
fn timeouts_are_those_of_the_namespace() {
    in_netns(async |_| {
        let folder = "/proc/sys/net/netfilter/nf_conntrack";
        let read = |name: &str| {
            let text = fs::read_to_string(format!("{folder}_{name}")).expect("read");
            text.trim().parse::<u32>().expect("a number")
        };
        let seconds = |name: &str| Duration::from_secs(read(name).into());
        fs::write(format!("{folder}_tcp_timeout_established"), "7777").expect("write");
        fs::write(format!("{folder}_udp_timeout_stream"), "77").expect("write");
        let timeouts = timeouts();
        let tcp = timeouts.tcp;
        assert_eq!(tcp.established, Duration::from_secs(7777));
        assert_eq!(timeouts.udp_stream, Duration::from_secs(77));
        for (value, name) in [
            (tcp.syn_sent, "tcp_timeout_syn_sent"),
            (tcp.syn_recv, "tcp_timeout_syn_recv"),
            (tcp.fin_wait, "tcp_timeout_fin_wait"),
            (tcp.close_wait, "tcp_timeout_close_wait"),
            (tcp.last_ack, "tcp_timeout_last_ack"),
            (tcp.time_wait, "tcp_timeout_time_wait"),
            (tcp.close, "tcp_timeout_close"),
            (tcp.max_retrans, "tcp_timeout_max_retrans"),
            (tcp.unacknowledged, "tcp_timeout_unacknowledged"),
            (timeouts.udp, "udp_timeout"),
            (timeouts.generic, "generic_timeout"),
        ] {
            assert_eq!(value, seconds(name), "{name}");
        }
        assert_eq!(timeouts.max, Some(read("max")));
        let sctp = seconds("sctp_timeout_established");
        assert_eq!(timeouts.sctp_established, Some(sctp));
    });
}
