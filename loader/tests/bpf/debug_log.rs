//! The programs' lines per packet, with the feature `debug-log`.

use std::io::{self, Write};
use std::process::Command;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use datapath_common::counter::Program;
use datapath_common::outcome::Outcome;
use tracing_subscriber::filter::LevelFilter;

use crate::world::{attach, hook, in_each_mode, observe, run, veth};

/// Output of tracing.
#[derive(Clone, Default)]
struct Buffer(Arc<Mutex<Vec<u8>>>);

impl Write for Buffer {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.lock().unwrap().write(bytes)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl Buffer {
    fn text(&self) -> String {
        String::from_utf8(self.0.lock().unwrap().clone()).unwrap()
    }
}

#[test]
fn a_packet_writes_a_line_that_is_forwarded_to_tracing() {
    in_each_mode(|world, mode| {
        let buffer = Buffer::default();
        let writer = buffer.clone();
        let subscriber = tracing_subscriber::fmt()
            .with_max_level(LevelFilter::DEBUG)
            .with_ansi(false)
            .with_writer(move || writer.clone())
            .finish();
        let _guard = tracing::subscriber::set_default(subscriber);
        let mut datapath = world.load(mode);
        let device = veth("pod0");
        attach(&mut datapath, hook(&device, Program::FromEndpoint));
        run("ip", &["addr", "add", "10.9.9.8/24", "dev", "pod0-peer"]);
        let beginning = format!(
            "program {} device {} length ",
            Program::FromEndpoint as u8,
            device.ifindex
        );
        let deadline = Instant::now() + Duration::from_secs(10);
        loop {
            // The ARP request for it is a packet already.
            Command::new("ping")
                .args(["-c1", "-W0.01", "10.9.9.9"])
                .output()
                .expect("cannot run ping: install iputils-ping");
            observe(&mut datapath);
            let text = buffer.text();
            let line = text.lines().find(|line| line.contains(&beginning));
            if let Some(line) = line {
                assert!(line.contains("DEBUG"), "{line}");
                let (_, outcome) = line.split_once(" outcome ").expect("an outcome");
                let code = outcome
                    .split_whitespace()
                    .next()
                    .and_then(|c| c.parse().ok());
                assert!(code.and_then(Outcome::from_code).is_some(), "{line}");
                break;
            }
            assert!(Instant::now() < deadline, "no line of it in: {text}");
        }
    });
}
