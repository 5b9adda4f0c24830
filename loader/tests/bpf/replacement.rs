//! Replacement under traffic: every packet meets one program, the old one or the new one.

use std::net::UdpSocket;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use datapath_common::counter::Program;
use towpath::bpf::Datapath;

use crate::world::{attach, hook, in_each_mode, run, veth};

/// Replacements by a newly loaded program.
const REPLACEMENTS: u32 = 10;

#[test]
fn no_packet_passes_between_two_programs() {
    in_each_mode(|world, mode| {
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
        let mut datapath = world.load(mode);
        attach(&mut datapath, hook(&device, Program::FromNetwork));
        assert_eq!(counted(&datapath), 0);

        let stop = Arc::new(AtomicBool::new(false));
        let sender = thread::spawn({
            let (stop, socket) = (stop.clone(), UdpSocket::bind("10.9.9.8:0").unwrap());
            move || {
                let mut sent = 0_u64;
                while !stop.load(Ordering::Relaxed) {
                    socket.send_to(b"packet", "10.9.9.9:9").unwrap();
                    sent += 1;
                }
                sent
            }
        });
        for _replacement in 0..REPLACEMENTS {
            datapath = world.load(mode);
            attach(&mut datapath, hook(&device, Program::FromNetwork));
        }
        stop.store(true, Ordering::Relaxed);
        let sent = sender.join().unwrap();
        // The last packets may still be in a backlog.
        let deadline = Instant::now() + Duration::from_secs(5);
        while counted(&datapath) < sent && Instant::now() < deadline {
            thread::yield_now();
        }
        println!("{mode:?}: {sent} packets sent during {REPLACEMENTS} replacements");
        assert_eq!(counted(&datapath), sent);
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
