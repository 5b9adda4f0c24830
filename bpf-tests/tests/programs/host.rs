//! The host itself: its sockets, which hold their ports against pods' flows, and its packets that
//! are none of translation's business.

use std::io::Read as _;
use std::net::{IpAddr, SocketAddr, TcpListener, TcpStream, UdpSocket};
use std::os::fd::AsRawFd as _;
use std::time::Duration;

use datapath_common::counter::Program;
use datapath_common::outcome::Verdict;
use datapath_common::ports::Ports;
use nix::sys::socket::{AddressFamily, SockFlag, SockType, SockaddrStorage, bind, connect, socket};
use testkit::fabric::eventually::eventually;
use testkit::packet::{Body, ETHERNET};
use testkit::testrun::{PASS, Programs, REDIRECT, ip};

use crate::case::{Case, Expect, check_all, on};
use crate::world::*;

/// The port that pod A's flow gets.
fn port_of_flow(programs: &mut Programs, net: &Net, body: Body, [port, remote]: [u16; 2]) -> u16 {
    let frame = from_a(net, net.outside, body).ports(port, remote).tcp(2, 1);
    let program = Program::FromEndpoint;
    let expect = Expect::Stack(Verdict::Translated, 0);
    let case = Case::new(program, "", on(VETH_A, frame.bytes()), expect);
    let output = programs.run(program, &case.input).unwrap();
    assert_eq!(output.code, REDIRECT);
    let at = ETHERNET + net.header();
    u16::from_be_bytes([output.frame[at], output.frame[at + 1]])
}

/// Adds an address of the host, and waits for its route, which the kernel adds asynchronously for
/// IPv6.
fn add(address: IpAddr) {
    let (length, nodad) = if address.is_ipv4() {
        (32, "")
    } else {
        (128, "nodad")
    };
    ip(&format!("address add {address}/{length} dev lo {nodad}")).unwrap();
    let look = || Ok(UdpSocket::bind((address, 0))?.connect((address, 9))?);
    eventually(Duration::from_secs(5), "the address has its route", look).unwrap();
}

/// A connection from an address.
fn connected(from: IpAddr, to: SocketAddr) -> TcpStream {
    let family = if from.is_ipv4() {
        AddressFamily::Inet
    } else {
        AddressFamily::Inet6
    };
    let socket = socket(family, SockType::Stream, SockFlag::empty(), None).unwrap();
    let from = SockaddrStorage::from(SocketAddr::new(from, 0));
    bind(socket.as_raw_fd(), &from).unwrap();
    connect(socket.as_raw_fd(), &SockaddrStorage::from(to)).unwrap();
    TcpStream::from(socket)
}

#[test]
fn sockets_of_the_host_hold_their_ports() {
    let mut programs = node();
    ip("link set lo up").unwrap();
    for net in [V4, V6] {
        let address = net.snat[1];
        add(address);
        let at = |port| SocketAddr::new(address, port);
        let listener = TcpListener::bind(at(50_000)).unwrap();
        let datagrams = UdpSocket::bind(at(50_001)).unwrap();
        let any = if net.a.is_ipv4() { "0.0.0.0" } else { "::" };
        let wildcard = UdpSocket::bind((any, 50_002)).unwrap();
        for (body, port, is_held) in [
            (Body::Tcp(0), 50_000, true),
            (Body::Udp(9), 50_000, false),
            (Body::Udp(9), 50_001, true),
            (Body::Tcp(0), 50_001, false),
            (Body::Udp(9), 50_002, true),
        ] {
            let seen = port_of_flow(&mut programs, &net, body, [port, 443]);
            assert_eq!(seen != port, is_held, "{} {body:?} {port}", net.family());
            assert!(Ports::DEFAULT.contains(seen));
        }
        drop((listener, datagrams, wildcard));
        for (body, port) in [(Body::Tcp(0), 50_000), (Body::Udp(9), 50_001)] {
            let seen = port_of_flow(&mut programs, &net, body, [port, 444]);
            assert_eq!(seen, port, "{} {body:?} without a socket", net.family());
        }
    }
}

#[test]
fn a_connection_that_the_host_has_just_closed_holds_its_port() {
    let mut programs = node();
    ip("link set lo up").unwrap();
    for net in [V4, V6] {
        let (address, remote) = (net.snat[1], net.outside);
        add(address);
        add(remote);
        let listener = TcpListener::bind(SocketAddr::new(address, 50_003)).unwrap();
        let mut client = connected(remote, SocketAddr::new(address, 50_003));
        let client_port = client.local_addr().unwrap().port();
        let (accepted, _) = listener.accept().unwrap();
        // The end that closes first keeps its port in TIME_WAIT.
        drop((accepted, listener));
        assert_eq!(client.read(&mut [0]).unwrap(), 0);
        drop(client);
        let tcp = Body::Tcp(0);
        let seen = port_of_flow(&mut programs, &net, tcp, [50_003, client_port]);
        assert_ne!(seen, 50_003, "{}", net.family());
        let seen = port_of_flow(&mut programs, &net, tcp, [50_003, 1]);
        assert_eq!(seen, 50_003, "{} to another remote", net.family());
    }
}

#[test]
fn what_is_marked_as_done_passes_uncounted() {
    let mut programs = node();
    for net in [V4, V6] {
        let frame = from_a(&net, net.outside, Body::Udp(9)).ports(50_000, 53);
        let expect = Expect::Stack(Verdict::FromHost, done());
        let program = Program::ToNetwork;
        let mut case = Case::new(program, "", on(ENI_1, frame.bytes()), expect);
        case.input.mark = done();
        let before = programs.counters().unwrap();
        let output = programs.run(program, &case.input).unwrap();
        assert_eq!(programs.counters().unwrap(), before, "{}", net.family());
        assert_eq!((output.code, output.mark), (PASS, done()));
        assert_eq!(output.frame, frame.bytes());
    }
}

#[test]
fn what_no_device_received_is_the_hosts() {
    let mut cases = Vec::new();
    for net in [V4, V6] {
        for source in [net.a, net.host, net.peer] {
            let frame = received(ENI_1, source, net.outside, Body::Udp(9)).ports(50_000, 53);
            let name = format!("{} from {source}", net.family());
            let expect = Expect::Stack(Verdict::FromHost, OTHERS);
            let program = Program::ToNetwork;
            cases.push(Case::new(program, name, on(ENI_1, frame.bytes()), expect).of_host());
        }
    }
    check_all(&cases);
}
