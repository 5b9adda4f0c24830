//! Loading, attaching, and what a restart finds, by either mechanism.

use std::fs;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use datapath_common::abi;
use datapath_common::counter::Program;
use loader::bpf::{AttachMode, BpfOptions, Datapath, DatapathSettings};
use loader::kernel::{Attachment, StepKind};
use nix::sys::signal::{SaFlags, SigAction, SigHandler, SigSet, Signal, sigaction};
use nix::unistd::getpid;

use crate::world::{World, at, attach, hook, in_each_mode, in_world, observe, run, veth};

#[test]
fn an_attached_program_counts_packets() {
    in_each_mode(|world, mode| {
        let mut datapath = world.load(mode);
        let device = veth("pod0");
        let hook = hook(&device, Program::FromEndpoint);
        assert_eq!(at(&mut datapath, hook), None);
        assert!(
            datapath
                .counters()
                .unwrap()
                .values()
                .all(|c| c.packets == 0)
        );
        attach(&mut datapath, hook);
        run(
            "ip",
            &[
                "neigh",
                "add",
                "10.9.9.9",
                "lladdr",
                "02:00:00:00:00:01",
                "dev",
                "pod0-peer",
            ],
        );
        run("ip", &["addr", "add", "10.9.9.8/24", "dev", "pod0-peer"]);
        run("ip", &["link", "set", "lo", "up"]);
        let deadline = Instant::now() + Duration::from_secs(10);
        loop {
            // The peer's own IPv6 start-up traffic would do, but may be over by now.
            std::process::Command::new("ping")
                .args(["-c1", "-W0.01", "10.9.9.9"])
                .output()
                .expect("cannot run ping: install iputils-ping");
            let counters = datapath.counters().unwrap();
            if counters.iter().any(|((program, _), counter)| {
                *program == Program::FromEndpoint && counter.packets > 0 && counter.bytes > 0
            }) {
                break;
            }
            assert!(Instant::now() < deadline, "no packet was counted");
        }
    });
}

/// Sends a signal to every thread with a name, again and again, until it is over.
fn signal_threads(name: &str, is_over: &AtomicBool) {
    extern "C" fn nothing(_signal: libc::c_int) {}
    let action = SigAction::new(
        SigHandler::Handler(nothing),
        SaFlags::SA_RESTART,
        SigSet::empty(),
    );
    // SAFETY: the handler does nothing.
    unsafe { sigaction(Signal::SIGUSR1, &action) }.unwrap();
    while !is_over.load(Ordering::Relaxed) {
        for task in fs::read_dir("/proc/self/task").unwrap().flatten() {
            let is_named = fs::read_to_string(task.path().join("comm"));
            if is_named.is_ok_and(|it| it.trim_end() == name) {
                let thread: i32 = task.file_name().to_str().unwrap().parse().unwrap();
                // SAFETY: no pointer; a thread that has ended is an error.
                unsafe {
                    libc::syscall(libc::SYS_tgkill, getpid().as_raw(), thread, libc::SIGUSR1)
                };
            }
        }
    }
}

#[test]
fn signals_do_not_disturb_a_load() {
    in_world(|world| {
        let is_over = AtomicBool::new(false);
        let loaded = thread::scope(|scope| {
            scope.spawn(|| signal_threads("signalled", &is_over));
            // The threads that it starts have its name.
            let loads = thread::Builder::new().name("signalled".to_owned());
            let options = world.options(AttachMode::Clsact);
            let loads = loads.spawn_scoped(scope, move || {
                Datapath::load(&options, &DatapathSettings::default()).map(drop)
            });
            let loaded = loads.unwrap().join();
            is_over.store(true, Ordering::Relaxed);
            loaded.unwrap()
        });
        loaded.unwrap();
    });
}

#[test]
fn a_restart_adopts_what_runs_and_replaces_it_in_place() {
    in_each_mode(|world, mode| {
        let device = veth("eni0");
        let hook = hook(&device, Program::FromNetwork);
        let mut first = world.load(mode);
        attach(&mut first, hook);
        let before = place(world, mode, hook);
        drop(first);
        assert_eq!(
            place(world, mode, hook),
            before,
            "a program runs without its agent"
        );

        let mut second = world.load(mode);
        assert_eq!(at(&mut second, hook), Some(Attachment::Stale));
        attach(&mut second, hook);
        let after = place(world, mode, hook);
        assert_eq!(after.0, before.0, "the attachment itself stays the same");
        assert_ne!(after.1, before.1, "another program runs");
        // Attaching what is attached changes nothing.
        attach(&mut second, hook);
        assert_eq!(place(world, mode, hook), after);

        second.apply(&StepKind::Detach(hook)).unwrap();
        assert_eq!(at(&mut second, hook), None);
        second.apply(&StepKind::Detach(hook)).unwrap();
    });
}

/// Identity of the attachment and id of the program.
fn place(world: &World, mode: AttachMode, hook: loader::kernel::Hook) -> (String, u64) {
    if mode == AttachMode::Tcx {
        let (link, program) = world.link(hook);
        return (link.to_string(), program.into());
    }
    let json = run("tc", &["-j", "filter", "show", "dev", "eni0", "ingress"]);
    let parsed: serde_json::Value = serde_json::from_str(&json).unwrap();
    let filters: Vec<_> = parsed
        .as_array()
        .unwrap()
        .iter()
        .filter(|filter| filter["options"]["handle"].is_string())
        .collect();
    assert_eq!(filters.len(), 1, "{json}");
    let options = &filters[0]["options"];
    assert_eq!(filters[0]["pref"], loader::constants::TC_PRIORITY);
    assert_eq!(options["direct-action"], true);
    (
        options["handle"].to_string(),
        options["prog"]["id"].as_u64().unwrap(),
    )
}

#[test]
fn observing_many_devices_is_cheap() {
    in_each_mode(|world, mode| {
        let mut datapath = world.load(mode);
        for number in 0..30 {
            let device = veth(&format!("pod{number}"));
            attach(&mut datapath, hook(&device, Program::FromEndpoint));
        }
        let start = Instant::now();
        assert_eq!(observe(&mut datapath).attachments.len(), 30);
        let took = start.elapsed();
        println!("{mode:?}: observed in {took:?}");
        assert!(took < Duration::from_millis(200), "{took:?}");
    });
}

#[test]
fn the_usual_bpf_filesystem_is_mounted_when_it_is_missing() {
    in_world(|_world| {
        run("mount", &["-t", "sysfs", "sysfs", "/sys"]);
        let options = BpfOptions {
            pin_root: "/sys/fs/bpf/towpath".into(),
            attach: AttachMode::Auto,
        };
        for _again in 0..2 {
            Datapath::load(&options, &DatapathSettings::default()).unwrap();
            assert!(
                options
                    .pin_root
                    .join(format!("v{}/maps/ADDRESSES", abi::VERSION))
                    .exists()
            );
        }
    });
}

#[test]
fn steps_of_others_are_refused() {
    in_world(|world| {
        let mut datapath = world.load(AttachMode::Auto);
        let error = datapath.apply(&StepKind::SetUp(1)).unwrap_err();
        assert!(error.to_string().contains("not a step of the datapath"));
    });
}

#[test]
fn pins_outside_a_bpf_filesystem_are_refused() {
    in_world(|_world| {
        let folder = tempfile::tempdir().unwrap();
        let options = BpfOptions {
            pin_root: folder.path().join("towpath"),
            attach: AttachMode::Auto,
        };
        let error = Datapath::load(&options, &DatapathSettings::default())
            .err()
            .unwrap();
        assert!(error.to_string().contains("pin-root"), "{error:#}");
    });
}
