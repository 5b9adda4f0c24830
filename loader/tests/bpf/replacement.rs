//! Replacement under traffic: every packet meets one program, the old one or the new one.

use std::net::UdpSocket;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use datapath_common::abi;
use datapath_common::counter::Program;
use loader::bpf::{AttachMode, Datapath};
use loader::kernel::{Link, StepKind};

use crate::world::{attach, hook, in_each_mode, run, veth};

/// Replacements by a newly loaded program.
const REPLACEMENTS: u32 = 3;
/// Between two packets: far less than a detached program would take to be attached again, and the
/// verifier gets a CPU.
const PAUSE: Duration = Duration::from_micros(20);

/// A device, and a socket whose packets it receives; nothing else sends there.
fn sending_device() -> (Link, UdpSocket) {
    // Without IPv6 nothing but the test itself sends.
    for scope in ["all", "default"] {
        let path = format!("/proc/sys/net/ipv6/conf/{scope}/disable_ipv6");
        std::fs::write(path, "1").unwrap();
    }
    let device = veth("eni0");
    run("ip", &["addr", "add", "10.9.9.8/24", "dev", "eni0-peer"]);
    run(
        "ip",
        &[
            "neigh",
            "add",
            "10.9.9.9",
            "lladdr",
            "02:00:00:00:00:09",
            "dev",
            "eni0-peer",
        ],
    );
    (device, UdpSocket::bind("10.9.9.8:0").unwrap())
}

/// A thread that sends until it is stopped.
struct Sender {
    stop: Arc<AtomicBool>,
    thread: JoinHandle<u64>,
}

impl Sender {
    fn start(socket: UdpSocket) -> Self {
        let stop = Arc::new(AtomicBool::new(false));
        let thread = thread::spawn({
            let stop = stop.clone();
            move || {
                let mut sent = 0_u64;
                while !stop.load(Ordering::Relaxed) {
                    socket.send_to(b"packet", "10.9.9.9:9").unwrap();
                    sent += 1;
                    thread::sleep(PAUSE);
                }
                sent
            }
        });
        Self { stop, thread }
    }

    /// Stops sending, and returns the number of sent packets.
    fn stop(self) -> u64 {
        self.stop.store(true, Ordering::Relaxed);
        self.thread.join().unwrap()
    }
}

#[test]
fn no_packet_passes_between_two_programs() {
    in_each_mode(|world, mode| {
        let (device, socket) = sending_device();
        let mut datapath = world.load(mode);
        attach(&mut datapath, hook(&device, Program::FromNetwork));
        assert_eq!(counted(&datapath), 0);

        let sender = Sender::start(socket);
        for _replacement in 0..REPLACEMENTS {
            datapath = world.load(mode);
            attach(&mut datapath, hook(&device, Program::FromNetwork));
        }
        let sent = sender.stop();
        // The last packets may still be in a backlog.
        let deadline = Instant::now() + Duration::from_secs(5);
        while counted(&datapath) < sent && Instant::now() < deadline {
            thread::yield_now();
        }
        println!("{mode:?}: {sent} packets sent during {REPLACEMENTS} replacements");
        assert_eq!(counted(&datapath), sent);
    });
}

/// An agent of another ABI version leaves its pins and its programs, with maps of their own. While
/// ours take over, every packet meets a program of one or of both.
#[test]
fn no_packet_passes_between_the_programs_of_two_versions() {
    in_each_mode(|world, mode| {
        let (device, socket) = sending_device();
        let hooks = [Program::FromNetwork, Program::ToNetwork].map(|p| hook(&device, p));
        let mut old = world.load(mode);
        for hook in hooks {
            attach(&mut old, hook);
        }
        let root = world.bpffs().join("towpath");
        let ours = root.join(format!("v{}", abi::VERSION));
        let sender = Sender::start(socket);
        let mut seen = 0;
        for _upgrade in 0..REPLACEMENTS {
            std::fs::rename(&ours, root.join("v1")).unwrap();
            let mut new = world.load(mode);
            for hook in hooks {
                attach(&mut new, hook);
            }
            assert!(!root.join("v1").exists());
            seen += counted(&old);
            old = new;
        }
        let sent = sender.stop();
        let deadline = Instant::now() + Duration::from_secs(5);
        while seen + counted(&old) < sent && Instant::now() < deadline {
            thread::yield_now();
        }
        seen += counted(&old);
        println!("{mode:?}: {sent} packets sent during {REPLACEMENTS} upgrades, {seen} counted");
        assert!(seen >= sent, "{mode:?}: {sent} sent, {seen} counted");
        // One filter takes the place of the other at once; links run one after the other.
        if mode == AttachMode::Clsact {
            assert_eq!(seen, sent);
        }
        for hook in hooks {
            old.apply(&StepKind::Detach(hook)).unwrap();
        }
        let qdiscs = run("tc", &["qdisc", "show", "dev", "eni0"]);
        assert!(!qdiscs.contains("clsact"), "the qdisc stays ours: {qdiscs}");
    });
}

/// Packets that met the program.
fn counted(datapath: &Datapath) -> u64 {
    let counters = datapath.counters().unwrap();
    counters
        .iter()
        .filter(|((program, _), _)| *program == Program::FromNetwork)
        .map(|(_, counter)| counter.packets)
        .sum()
}
