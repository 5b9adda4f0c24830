//! The surroundings of one test.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::thread;

use aya::Ebpf;
use aya::programs::links::{FdLink, PinnedLink};
use aya::programs::tc::{NlOptions, TcAttachOptions};
use aya::programs::{LinkOrder, SchedClassifier, TcAttachType};
use datapath_common::abi;
use datapath_common::counter::Program;
use loader::bpf::{AttachMode, BpfOptions, Datapath, DatapathSettings, OBJECT, loader};
use loader::constants;
use loader::kernel::{Attachment, Hook, Link, LinkKind, Observed, StepKind};
use nix::mount::{MsFlags, mount};
use nix::sched::{CloneFlags, unshare};

/// A network namespace, a mount namespace and a BPF filesystem, gone with the test.
pub(crate) struct World {
    folder: tempfile::TempDir,
}

/// Runs a test in a world of its own. Namespaces belong to a thread, so it gets one.
pub(crate) fn in_world(test: impl FnOnce(&World) + Send + 'static) {
    let result = thread::spawn(move || test(&World::new())).join();
    if let Err(panic) = result {
        std::panic::resume_unwind(panic);
    }
}

/// Runs a test in a world of its own for each mechanism that the kernel must have.
pub(crate) fn in_each_mode(test: impl Fn(&World, AttachMode) + Clone + Send + 'static) {
    let mut modes = vec![AttachMode::Clsact];
    if kernel() >= (6, 6) {
        modes.push(AttachMode::Tcx);
    }
    println!("mechanisms of this kernel: {modes:?}");
    for mode in modes {
        let test = test.clone();
        in_world(move |world| test(world, mode));
    }
}

/// Version of the running kernel.
fn kernel() -> (u32, u32) {
    let release = std::fs::read_to_string("/proc/sys/kernel/osrelease").unwrap();
    let mut parts = release
        .split('.')
        .map(|part| part.trim().parse().unwrap_or(0));
    (parts.next().unwrap_or(0), parts.next().unwrap_or(0))
}

/// The agent's tasks share it.
const _: fn() = || {
    fn shared<T: Send + Sync>() {}
    shared::<Datapath>();
};

impl World {
    fn new() -> Self {
        unshare(CloneFlags::CLONE_NEWNET | CloneFlags::CLONE_NEWNS)
            .expect("these tests need root: they make namespaces");
        let none: Option<&str> = None;
        mount(none, "/", none, MsFlags::MS_REC | MsFlags::MS_PRIVATE, none).unwrap();
        let folder = tempfile::tempdir().unwrap();
        mount(
            Some("bpf"),
            folder.path(),
            Some("bpf"),
            MsFlags::empty(),
            none,
        )
        .unwrap();
        Self { folder }
    }

    /// The BPF filesystem.
    pub(crate) fn bpffs(&self) -> &Path {
        self.folder.path()
    }

    pub(crate) fn options(&self, attach: AttachMode) -> BpfOptions {
        BpfOptions {
            pin_root: self.bpffs().join("towpath"),
            attach,
        }
    }

    pub(crate) fn load(&self, attach: AttachMode) -> Datapath {
        Datapath::load(&self.options(attach), &DatapathSettings::default()).unwrap()
    }

    pub(crate) fn map_pin(&self, name: &str) -> PathBuf {
        self.bpffs()
            .join(format!("towpath/v{}/maps", abi::VERSION))
            .join(name)
    }

    pub(crate) fn link_pin(&self, hook: Hook) -> PathBuf {
        let name = format!("{}-{}", hook.program.name(), hook.ifindex);
        self.bpffs()
            .join(format!("towpath/v{}/links", abi::VERSION))
            .join(name)
    }

    /// Id of the link and of the program it runs.
    pub(crate) fn link(&self, hook: Hook) -> (u32, u32) {
        let link = FdLink::from(PinnedLink::from_pin(self.link_pin(hook)).unwrap());
        let info = link.info().unwrap();
        (info.id(), info.program_id())
    }
}

/// Makes a veth pair `name`, `name`-peer, both up.
pub(crate) fn veth(name: &str) -> Link {
    let peer = format!("{name}-peer");
    run(
        "ip",
        &["link", "add", name, "type", "veth", "peer", "name", &peer],
    );
    run("ip", &["link", "set", name, "up"]);
    run("ip", &["link", "set", &peer, "up"]);
    let json = run("ip", &["-j", "link", "show", "dev", name]);
    let parsed: serde_json::Value = serde_json::from_str(&json).unwrap();
    Link {
        ifindex: u32::try_from(parsed[0]["ifindex"].as_u64().unwrap()).unwrap(),
        name: name.to_owned(),
        alias: None,
        mac: None,
        mtu: 1500,
        up: true,
        group: 0,
        kind: LinkKind::Veth,
        master: None,
        peer_namespace: None,
    }
}

/// Runs a tool in the test's namespaces and returns what it wrote.
pub(crate) fn run(tool: &str, arguments: &[&str]) -> String {
    let output = Command::new(tool)
        .args(arguments)
        .output()
        .unwrap_or_else(|error| panic!("cannot run {tool} ({error}): install iproute2, bpftool"));
    assert!(
        output.status.success(),
        "{tool} {arguments:?}: {}",
        String::from_utf8_lossy(&output.stderr)
    );
    String::from_utf8(output.stdout).unwrap()
}

pub(crate) fn hook(link: &Link, program: Program) -> Hook {
    Hook {
        ifindex: link.ifindex,
        program,
    }
}

/// Observes the datapath.
pub(crate) fn observe(datapath: &mut Datapath) -> Observed {
    let mut observed = Observed::default();
    datapath.observe(&mut observed).unwrap();
    observed
}

/// The attachment at a hook.
pub(crate) fn at(datapath: &mut Datapath, hook: Hook) -> Option<Attachment> {
    observe(datapath).attachments.get(&hook).copied()
}

pub(crate) fn attach(datapath: &mut Datapath, hook: Hook) {
    datapath.apply(&StepKind::Attach(hook)).unwrap();
    assert_eq!(at(datapath, hook), Some(Attachment::Current));
}

/// Adds a foreign filter to a device that matches everything and does nothing.
pub(crate) fn add_u32_filter(device: &str, direction: &str, priority: &str) {
    run(
        "tc",
        &[
            "filter", "add", "dev", device, direction, "prio", priority, "u32", "match", "u32",
            "0", "0", "flowid", "1:1",
        ],
    );
}

/// A foreign program. Its code is that of one of ours, but nothing identifies it as ours.
pub(crate) struct Stranger(Ebpf);

impl Stranger {
    pub(crate) fn load() -> Self {
        let mut ebpf = loader().load(OBJECT).unwrap();
        let program: &mut SchedClassifier = ebpf
            .program_mut(Program::FromNetwork.name())
            .unwrap()
            .try_into()
            .unwrap();
        program.load().unwrap();
        Self(ebpf)
    }

    fn program(&mut self) -> &mut SchedClassifier {
        let program = self.0.program_mut(Program::FromNetwork.name()).unwrap();
        program.try_into().unwrap()
    }

    pub(crate) fn id(&mut self) -> u32 {
        self.program().info().unwrap().id()
    }

    /// Pins the program, for tools to use it.
    pub(crate) fn pin(&mut self, path: &Path) {
        self.program().pin(path).unwrap();
    }

    /// Attaches at the ingress of a device by a filter with our priority and handle.
    pub(crate) fn filter_in_our_place(&mut self, device: &str, bpffs: &Path) {
        let pin = bpffs.join("stranger");
        self.pin(&pin);
        let priority = constants::TC_PRIORITY.to_string();
        let handle = constants::TC_HANDLE.to_string();
        run(
            "tc",
            &[
                "filter",
                "add",
                "dev",
                device,
                "ingress",
                "prio",
                &priority,
                "handle",
                &handle,
                "bpf",
                "da",
                "pinned",
                pin.to_str().unwrap(),
            ],
        );
    }

    /// Attaches by TCX until this is dropped.
    pub(crate) fn attach_tcx(&mut self, device: &Link, order: LinkOrder) {
        self.program()
            .attach_with_options(
                &device.name,
                TcAttachType::Ingress,
                TcAttachOptions::TcxOrder(order),
            )
            .unwrap();
    }

    /// Attaches as a filter until this is dropped.
    pub(crate) fn attach_filter(&mut self, device: &Link, priority: u16) {
        let options = NlOptions {
            priority,
            ..NlOptions::default()
        };
        self.program()
            .attach_with_options(
                &device.name,
                TcAttachType::Ingress,
                TcAttachOptions::Netlink(options),
            )
            .unwrap();
    }
}
