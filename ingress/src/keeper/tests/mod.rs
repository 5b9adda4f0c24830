use std::cell::{Cell, RefCell};
use std::fs;
use std::os::unix::fs::symlink;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::path::PathBuf;
use std::sync::Mutex;
use std::thread;
use std::time::Instant;

use proptest::prelude::*;
use serde_json::json;
use tokio::runtime::{Builder, Runtime};

use super::*;
use crate::network::Network;

mod folders;
mod odd;

const PLUGIN: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/plugin/fake-ipam");
const TIMEOUT: Duration = Duration::from_secs(20);

thread_local! {
    static KILL_AT: Cell<Option<Moment>> = const { Cell::new(None) };
}

/// A kill: nothing of the keeper's memory is left.
struct Killed;

fn reach(moment: Moment) {
    if KILL_AT.get() == Some(moment) {
        KILL_AT.set(None);
        resume_unwind(Box::new(Killed));
    }
}

/// The user of the addresses, and its answer to them.
#[derive(Default)]
struct Uses {
    used: RefCell<Option<(Owner, BTreeSet<IpAddr>)>>,
    refusal: RefCell<Option<Refusal>>,
}

struct Handed(Mutex<Uses>);

impl User for Handed {
    async fn take(&self, owner: &Owner, addresses: &BTreeSet<IpAddr>) -> Result<(), Refusal> {
        let uses = self.0.lock().unwrap();
        if let Some(refusal) = uses.refusal.borrow().clone() {
            return Err(refusal);
        }
        uses.used.replace(Some((owner.clone(), addresses.clone())));
        Ok(())
    }

    async fn leave(&self, owner: &Owner) -> Result<(), String> {
        let uses = self.0.lock().unwrap();
        uses.used.borrow_mut().take_if(|(of, _)| of == owner);
        Ok(())
    }
}

struct Bed {
    folder: tempfile::TempDir,
    user: Handed,
    keeper: Keeper,
    runtime: Runtime,
    now: Duration,
}

impl Bed {
    fn new() -> Self {
        let folder = tempfile::tempdir().unwrap();
        symlink(PLUGIN, folder.path().join("fake-ipam")).unwrap();
        Self {
            keeper: Keeper::open(&folder.path().join("state"), TIMEOUT, reach).unwrap(),
            folder,
            user: Handed(Mutex::default()),
            runtime: Builder::new_current_thread().enable_all().build().unwrap(),
            now: Duration::ZERO,
        }
    }

    fn request(&self, node: &str, version: &str) -> Request {
        Self::request_in(node, version, &[self.folder.path().to_owned()])
    }

    fn request_in(node: &str, version: &str, folders: &[PathBuf]) -> Request {
        let config = json!({"cniVersion": version, "ipam": {"type": "fake-ipam"}, "name": "pods",
            "type": "towpath-cni"});
        let network = Network {
            name: "pods".to_owned(),
            plugin: "fake-ipam".to_owned(),
            config: config.to_string(),
        };
        Request::new(node, &network, folders)
    }

    fn state(&self, name: &str) -> PathBuf {
        let folder = self.folder.path().join("fake-ipam.d");
        fs::create_dir_all(&folder).unwrap();
        folder.join(name)
    }

    /// Changes the plugin's behaviour, or ends that.
    fn set(&self, name: &str, text: Option<&str>) {
        match text {
            Some(text) => fs::write(self.state(name), text).unwrap(),
            None => fs::remove_file(self.state(name)).unwrap(),
        }
    }

    fn step(&mut self, wanted: Option<&Request>) -> Progress {
        let step = self.keeper.step(wanted, &self.user, self.now);
        self.runtime.block_on(step)
    }

    /// Steps until there is nothing to do, however long that may be.
    fn settle(&mut self, wanted: Option<&Request>) {
        for _ in 0..20 {
            match self.step(wanted) {
                Progress::Stepped => {}
                Progress::Rests(Some(until)) => self.now = until,
                Progress::Rests(None) => return,
            }
        }
        panic!("it does not settle: {:?}", self.keeper);
    }

    /// Steps until there is nothing to do now.
    fn rest(&mut self, wanted: Option<&Request>) {
        while self.step(wanted) == Progress::Stepped {}
    }

    fn restart(&mut self) {
        let folder = self.folder.path().join("state");
        self.keeper = Keeper::open(&folder, TIMEOUT, reach).unwrap();
        self.user = Handed(Mutex::default());
    }

    /// Settles with a kill at a moment, if that is reached.
    fn settle_killed(&mut self, wanted: Option<&Request>, moment: Moment) -> bool {
        KILL_AT.set(Some(moment));
        let settled = catch_unwind(AssertUnwindSafe(|| self.settle(wanted)));
        KILL_AT.set(None);
        match settled {
            Ok(()) => false,
            Err(killed) if killed.is::<Killed>() => {
                self.restart();
                true
            }
            Err(panic) => resume_unwind(panic),
        }
    }

    fn calls(&self) -> Vec<String> {
        let calls = fs::read_to_string(self.state("calls")).unwrap_or_default();
        calls.lines().map(str::to_owned).collect()
    }

    /// The commands that the plugin was called with.
    fn commands(&self) -> Vec<String> {
        let first = |line: &String| line.split(' ').next().unwrap().to_owned();
        self.calls().iter().map(first).collect()
    }

    /// Addresses that the plugin has given and not got back.
    fn given(&self) -> BTreeSet<IpAddr> {
        let files = fs::read_dir(self.state("given")).into_iter().flatten();
        let read = |file: fs::DirEntry| fs::read_to_string(file.path()).unwrap();
        files
            .map(|file| read(file.unwrap()).trim().parse().unwrap())
            .collect()
    }

    fn used(&self) -> BTreeSet<IpAddr> {
        let uses = self.user.0.lock().unwrap();
        let used = uses.used.borrow();
        used.iter()
            .flat_map(|(_, addresses)| addresses.clone())
            .collect()
    }
}

#[test]
fn a_life_is_called_by_the_book() {
    let mut bed = Bed::new();
    let one = bed.request("node-1", "1.0.0");
    bed.settle(Some(&one));
    assert_eq!(bed.used(), bed.given());
    assert_eq!(bed.used().len(), 1);
    bed.settle(Some(&one));
    bed.settle(None);
    assert!(bed.given().is_empty() && bed.used().is_empty());
    let folder = bed.folder.path().display();
    let seen = format!(
        "towpath-ingress-node-1 eth0 netns=other args={} path={folder} stdin=",
        one.args
    );
    let result = json!({"cniVersion": "1.0.0", "dns": {},
        "ips": [{"version": "4", "address": "10.0.1.10/24"}]});
    let calls = bed.calls();
    let expected = [
        format!("ADD {seen}{}", one.config),
        format!("CHECK {seen}{}", one.config_with(&result)),
        format!("DEL {seen}{}", one.config),
    ];
    assert_eq!(calls, expected);
    let state = bed.folder.path().join("state");
    assert_eq!(fs::read_dir(state).unwrap().count(), 0);
}

#[test]
fn a_restart_keeps_the_address_without_another_add() {
    for version in ["0.3.1", "0.4.0", "1.0.0", "1.1.0"] {
        let mut bed = Bed::new();
        let one = bed.request("node-1", version);
        bed.settle(Some(&one));
        let used = bed.used();
        for _ in 0..2 {
            bed.restart();
            bed.settle(Some(&one));
            assert_eq!(bed.used(), used, "{version}");
        }
        let adds = bed.commands().iter().filter(|name| *name == "ADD").count();
        assert_eq!(adds, 1, "{version}");
        let checks = bed
            .commands()
            .iter()
            .filter(|name| *name == "CHECK")
            .count();
        assert_eq!(checks, if version == "0.3.1" { 0 } else { 3 }, "{version}");
    }
}

#[test]
fn a_kill_at_any_moment_leaves_nothing_and_gives_no_address_twice() {
    for moment in Moment::ALL {
        let mut bed = Bed::new();
        let (one, other) = (
            bed.request("node-1", "1.0.0"),
            bed.request("node-2", "1.0.0"),
        );
        let mut kills = 0;
        for wanted in [
            Some(&one),
            None,
            Some(&one),
            Some(&other),
            None,
            Some(&other),
            None,
        ] {
            kills += u32::from(bed.settle_killed(wanted, moment));
            bed.settle(wanted);
            assert_eq!(bed.used(), bed.given(), "{moment:?}");
            assert_eq!(
                bed.used().len(),
                usize::from(wanted.is_some()),
                "{moment:?}"
            );
        }
        assert!(kills >= 3, "{moment:?}: {kills} kills");
    }
}

#[test]
fn a_failed_add_is_followed_by_del_with_the_same_words() {
    for how in ["ADD.fails", "ADD.garbage", "ADD.dies"] {
        let mut bed = Bed::new();
        let one = bed.request("node-1", "1.0.0");
        bed.set(how, Some(""));
        bed.rest(Some(&one));
        assert_eq!(bed.commands(), ["ADD", "DEL"], "{how}");
        assert!(bed.given().is_empty() && bed.used().is_empty(), "{how}");
        let problems = bed.keeper.problems();
        assert!(
            problems[0].contains("fake-ipam ADD failed: "),
            "{how}: {problems:?}"
        );
        let [add, del] = &bed.calls()[..] else {
            panic!("{how}");
        };
        assert_eq!(add.strip_prefix("ADD"), del.strip_prefix("DEL"), "{how}");
        bed.set(how, None);
        bed.settle(Some(&one));
        assert_eq!(
            (bed.used(), bed.keeper.problems()),
            (bed.given(), Vec::new()),
            "{how}"
        );
    }
}

#[test]
fn a_plugin_that_hangs_is_killed_with_all_that_it_started() {
    let mut bed = Bed::new();
    bed.keeper.timeout = Duration::from_millis(300);
    let one = bed.request("node-1", "1.0.0");
    bed.set("ADD.hangs", Some(""));
    bed.step(Some(&one));
    let problems = bed.keeper.problems();
    assert!(
        problems[0].ends_with("it was killed after 300ms"),
        "{problems:?}"
    );
    let child = fs::read_to_string(bed.state("child")).unwrap();
    let file = format!("/proc/{}/stat", child.trim());
    // A killed process runs on until the kernel gets to it. A zombie is not a running process.
    let deadline = Instant::now() + Duration::from_secs(10);
    loop {
        let stat = fs::read_to_string(&file).unwrap_or_default();
        if stat.is_empty() || stat.contains(") Z ") {
            break;
        }
        assert!(Instant::now() < deadline, "{stat}");
        thread::yield_now();
    }
}

#[test]
fn a_plugin_that_is_missing_is_named_and_looked_for_again() {
    let mut bed = Bed::new();
    let mut one = bed.request("node-1", "1.0.0");
    one.plugin = bed.folder.path().join("later");
    bed.rest(Some(&one));
    let problems = bed.keeper.problems().join("; ");
    assert!(
        problems.contains("later ADD failed: it cannot be run: No such file"),
        "{problems}"
    );
    symlink(PLUGIN, &one.plugin).unwrap();
    bed.settle(Some(&one));
    assert_eq!(bed.used().len(), 1);
    assert!(bed.keeper.problems().is_empty());
}

#[test]
fn what_is_never_used_goes_back() {
    let mut bed = Bed::new();
    let one = bed.request("node-1", "1.0.0");
    let refuse = |bed: &Bed, refusal| {
        bed.user.0.lock().unwrap().refusal.replace(refusal);
    };
    refuse(&bed, Some(Refusal::Later("no document yet".to_owned())));
    bed.rest(Some(&one));
    assert_eq!(bed.commands(), ["ADD"]);
    assert_eq!(bed.keeper.problems(), ["no document yet"]);
    refuse(
        &bed,
        Some(Refusal::Never("no ENI owns 10.0.1.10".to_owned())),
    );
    bed.now += TIMEOUT;
    bed.rest(Some(&one));
    assert_eq!(bed.commands(), ["ADD", "DEL"]);
    assert_eq!(bed.keeper.problems(), ["no ENI owns 10.0.1.10"]);
    refuse(&bed, None);
    bed.settle(Some(&one));
    assert_eq!(bed.used(), bed.given());
}

#[test]
fn an_address_that_the_plugin_has_lost_is_given_anew() {
    let mut bed = Bed::new();
    let one = bed.request("node-1", "1.0.0");
    bed.settle(Some(&one));
    fs::remove_dir_all(bed.state("given")).unwrap();
    bed.restart();
    bed.settle(Some(&one));
    assert_eq!(
        bed.commands(),
        ["ADD", "CHECK", "CHECK", "DEL", "ADD", "CHECK"]
    );
    assert_eq!(bed.used(), bed.given());
}

#[test]
fn what_a_plugin_cannot_say_takes_no_address_away() {
    let mut bed = Bed::new();
    let one = bed.request("node-1", "1.0.0");
    bed.settle(Some(&one));
    let used = bed.used();
    let plugin = bed.folder.path().join("fake-ipam");
    fs::remove_file(&plugin).unwrap();
    bed.restart();
    bed.rest(Some(&one));
    assert_eq!(bed.used(), used);
    assert_eq!(bed.keeper.problems().len(), 1);
    // Without its plugin the DEL is owed on, also by the next agent.
    bed.rest(None);
    bed.restart();
    bed.rest(None);
    assert!(
        bed.keeper.problems()[0].contains("DEL failed"),
        "{:?}",
        bed.keeper.problems()
    );
    symlink(PLUGIN, plugin).unwrap();
    bed.settle(None);
    assert!(bed.given().is_empty());
}

#[test]
fn a_record_that_cannot_be_written_keeps_the_plugin_from_being_called() {
    let mut bed = Bed::new();
    let one = bed.request("node-1", "1.0.0");
    let state = bed.folder.path().join("state");
    fs::write(&state, "no folder").unwrap();
    bed.rest(Some(&one));
    assert!(bed.calls().is_empty());
    assert!(bed.keeper.problems()[0].starts_with("the record of the agent's own addresses: "));
    fs::remove_file(&state).unwrap();
    bed.settle(Some(&one));
    assert_eq!(bed.used().len(), 1);
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 12, ..ProptestConfig::default() })]

    #[test]
    fn whatever_happens_in_between_the_end_is_clean(
        script in prop::collection::vec((0..3_usize, 0..8_usize, 0..4_usize), 1..8)
    ) {
        let mut bed = Bed::new();
        let requests = [bed.request("node-1", "1.0.0"), bed.request("node-2", "0.3.1")];
        for (wanted, moment, fault) in script {
            let wanted = requests.get(wanted);
            let fault = ["ADD.fails", "DEL.fails", "CHECK.fails"].get(fault);
            if let Some(fault) = fault {
                bed.set(fault, Some(""));
                bed.rest(wanted);
                bed.set(fault, None);
            }
            if let Some(moment) = Moment::ALL.get(moment) {
                bed.settle_killed(wanted, *moment);
            }
        }
        bed.settle(Some(&requests[0]));
        prop_assert_eq!(bed.used(), bed.given());
        prop_assert_eq!(bed.used().len(), 1);
        let used = bed.used();
        bed.restart();
        bed.settle(Some(&requests[0]));
        prop_assert_eq!(bed.used(), used);
        bed.settle(None);
        prop_assert!(bed.given().is_empty() && bed.used().is_empty());
    }
}
