//! The agent's own addresses by a delegated IPAM plugin: a fake one that writes down its calls, and
//! host-local.

use std::collections::BTreeSet;
use std::fs;
use std::net::IpAddr;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};

use ipam::Family;
use serde_json::{Value, json};
use testkit::fabric::Fabric;
use testkit::fabric::Place;
use testkit::fabric::agent::{FAULT_VARIABLE, START};
use testkit::fabric::eventually::check;
use testkit::fabric::traffic::Protocol;

use crate::ingress::{SOON, configure, kills, metric, own, restart, scene, wait_for};
use crate::support::{get, within};

const FAKE: &str = concat!(
    env!("CARGO_MANIFEST_DIR"),
    "/../ingress/tests/plugin/fake-ipam"
);
const REFERENCE: &str = "/usr/lib/cni/host-local";

/// A node where a plugin gives the addresses.
pub(crate) struct Delegated {
    pub(crate) fabric: Fabric,
    pub(crate) plugins: PathBuf,
}

impl Delegated {
    pub(crate) fn new(plugin: &str) -> Self {
        let fabric = scene(false);
        let plugins = fabric.file("plugins");
        fs::create_dir_all(&plugins).unwrap();
        let name = Path::new(plugin).file_name().unwrap();
        symlink(plugin, plugins.join(name)).unwrap();
        Self { fabric, plugins }
    }

    /// Makes the runtimes' configuration delegate to a plugin.
    pub(crate) fn delegate(&self, version: &str, ipam: &Value) {
        let list = json!({"cniVersion": version, "name": "pods", "plugins": [
            {"type": "towpath-cni", "ipam": ipam}]});
        let folder = self.fabric.agent.conf_dir();
        fs::create_dir_all(&folder).unwrap();
        fs::write(folder.join("10-towpath.conflist"), list.to_string()).unwrap();
    }

    pub(crate) fn fake() -> Self {
        let bed = Self::new(FAKE);
        bed.delegate("1.0.0", &json!({"type": "fake-ipam"}));
        let v4 = bed.address(Family::V4, 2).to_string();
        let (net, last) = v4.rsplit_once('.').unwrap();
        bed.set("net", net);
        bed.set("first", last);
        bed.set("more", &format!("{}/128", bed.address(Family::V6, 5)));
        bed
    }

    /// An address of the prefixes of ENI 1.
    fn address(&self, family: Family, index: usize) -> IpAddr {
        self.fabric
            .eni(1)
            .unwrap()
            .pod_address(family, index)
            .unwrap()
    }

    fn settings(&self, mode: &str) -> Value {
        json!({"ingress": mode, "plugin-dirs": [self.plugins], "timeout": 2})
    }

    pub(crate) fn restart(&mut self, mode: &str) {
        let settings = self.settings(mode);
        restart(&mut self.fabric, &settings);
    }

    fn state(&self, name: &str) -> PathBuf {
        let folder = self.plugins.join("fake-ipam.d");
        fs::create_dir_all(&folder).unwrap();
        folder.join(name)
    }

    pub(crate) fn set(&self, name: &str, text: &str) {
        fs::write(self.state(name), text).unwrap();
    }

    /// Makes the plugin give its first address next if it has got back all: the ENI has few.
    fn begins_at_its_first_address(&self) {
        if self.given().is_empty() {
            fs::copy(self.state("first"), self.state("last")).unwrap();
        }
    }

    pub(crate) fn unset(&self, name: &str) {
        fs::remove_file(self.state(name)).unwrap();
    }

    /// The plugin's calls.
    pub(crate) fn calls(&self) -> Vec<String> {
        let calls = fs::read_to_string(self.state("calls")).unwrap_or_default();
        calls.lines().map(str::to_owned).collect()
    }

    /// The number of calls after CHECK, which follows the use of the addresses. No other call
    /// follows it without a cause.
    pub(crate) fn calls_until_check(&self) -> usize {
        within(SOON, "the plugin is called with CHECK", || {
            let calls = self.calls();
            let is_checked = calls.last().is_some_and(|call| call.starts_with("CHECK "));
            check(is_checked, || format!("{calls:?}")).map(|()| calls.len())
        })
    }

    /// IPv4 addresses that the plugin has given and not got back.
    pub(crate) fn given(&self) -> BTreeSet<IpAddr> {
        let files = fs::read_dir(self.state("given")).into_iter().flatten();
        let read = |file: fs::DirEntry| fs::read_to_string(file.path()).unwrap();
        files
            .map(|file| read(file.unwrap()).trim().parse().unwrap())
            .collect()
    }

    pub(crate) fn waits_for_given(&self, count: usize) {
        within(SOON, "the plugin has given as much", || {
            let given = self.given();
            check(given.len() == count, || {
                format!("{given:?}: {:?}", self.calls())
            })
        });
    }

    /// Restarts the agent without the feature, and waits until it has given everything back. An
    /// agent that is stopped earlier repeats its DEL before anything else.
    pub(crate) fn switch_off(&mut self) {
        self.restart("off");
        self.waits_for_given(0);
        self.waits_for_record(false);
    }

    /// Waits until there is a record of calls, or none.
    pub(crate) fn waits_for_record(&self, is_there: bool) {
        let record = self.fabric.file("own").join("ingress.json");
        within(SOON, "the record is as it should be", || {
            check(record.exists() == is_there, || {
                format!("{:?}", self.calls())
            })
        });
    }

    pub(crate) fn says(&self, text: &str) {
        within(SOON, text, || {
            let reasons = get(&self.fabric, "/v1/status")["health"]["reasons"].to_string();
            check(reasons.contains(text), || reasons)
        });
    }
}

#[test]
fn a_listener_on_a_delegated_address_is_reached_and_the_calls_are_as_they_should_be() {
    let mut bed = Delegated::fake();
    bed.restart("on");
    let own = wait_for(&bed.fabric, 2);
    assert_eq!(bed.given(), [own[&Family::V4]].into());
    let count = metric(&bed.fabric, "towpath_agent_addresses");
    assert_eq!(count.unwrap(), 2);
    for (family, address) in &own {
        let to = Place {
            netns: &bed.fabric.node,
            address: *address,
        };
        Protocol::Tcp
            .exchange(bed.fabric.peer(*family), to)
            .unwrap();
    }
    bed.restart("on");
    assert_eq!(wait_for(&bed.fabric, 2), own, "a restart keeps them");
    // Another node name: the earlier container id gets its DEL.
    bed.fabric
        .publish_changed(|document| document["metadata"]["name"] = json!("renamed"))
        .unwrap();
    within(SOON, "the earlier id is given back", || {
        let calls = bed.calls();
        let is_renamed = calls
            .iter()
            .any(|call| call.starts_with("ADD towpath-ingress-renamed "));
        check(is_renamed, || format!("{calls:?}"))
    });
    bed.waits_for_given(1);
    wait_for(&bed.fabric, 2);
    // The path and the plugin's configuration are gone when it is switched off.
    fs::remove_file(bed.fabric.agent.conf_dir().join("10-towpath.conflist")).unwrap();
    restart(
        &mut bed.fabric,
        &json!({"ingress": "off", "plugin-dirs": []}),
    );
    bed.waits_for_given(0);
    wait_for(&bed.fabric, 0);
    let calls = bed.calls();
    for call in &calls {
        assert!(
            call.contains(" eth0 netns=other args=IgnoreUnknown=true;"),
            "{call}"
        );
    }
    let of = |command: &str| {
        let calls = calls.iter().filter_map(|call| call.strip_prefix(command));
        calls.map(str::to_owned).collect::<BTreeSet<_>>()
    };
    assert_eq!(of("ADD"), of("DEL"), "each DEL has the words of its ADD");
    bed.fabric.finish().unwrap();
}

#[test]
fn what_a_plugin_does_wrong_harms_nothing_and_is_named() {
    let mut bed = Delegated::fake();
    bed.set("ADD.fails", "");
    bed.restart("on");
    bed.says("fake-ipam ADD failed: failure requested");
    let failures = metric(&bed.fabric, "towpath_agent_address_failures_total");
    assert!(failures.unwrap() >= 1);
    let count = metric(&bed.fabric, "towpath_agent_addresses");
    assert_eq!(count.unwrap(), 0);
    let pod = bed.fabric.add_pod(1, 9).unwrap();
    bed.unset("ADD.fails");
    let own = wait_for(&bed.fabric, 2);
    bed.switch_off();
    bed.set("only", &format!("{}/24", own[&Family::V4]));
    bed.restart("on");
    bed.says("the plugin allocated no ipv6 address; expected one of each family");
    bed.waits_for_given(0);
    bed.unset("only");
    let faults = [
        ("ADD.hangs", "", "it was killed after 2s"),
        ("ADD.garbage", "", "its result is not valid JSON"),
        ("only", "192.0.2.7/24", "no ENI of this node owns 192.0.2.7"),
    ];
    let taken = format!("{}/24", pod.address(Family::V4));
    let faults = faults
        .into_iter()
        .chain([("only", taken.as_str(), "belongs to the endpoint of")]);
    for (file, text, message) in faults {
        bed.switch_off();
        // Of one family alone, for the answer has no other.
        let families = json!({"ipam": {"families": ["ipv4"]}});
        bed.fabric.agent.configure(&families).unwrap();
        bed.set(file, text);
        bed.restart("on");
        bed.says(message);
        bed.waits_for_given(0);
        assert!(super::ingress::own(&bed.fabric).unwrap().is_empty());
        Protocol::Tcp
            .exchange(pod.at(Family::V4), bed.fabric.peer(Family::V4))
            .unwrap();
        bed.unset(file);
        wait_for(&bed.fabric, 1);
    }
    // An address of a family that is off is named, and the others are used.
    bed.says(&format!("{} of the plugin is not used", own[&Family::V6]));
    bed.switch_off();
    let families = json!({"ipam": {"families": ["ipv4", "ipv6"]}});
    bed.fabric.agent.configure(&families).unwrap();
    fs::remove_file(bed.plugins.join("fake-ipam")).unwrap();
    bed.restart("on");
    bed.says("fake-ipam ADD failed: it cannot be run: No such file");
    symlink(FAKE, bed.plugins.join("fake-ipam")).unwrap();
    wait_for(&bed.fabric, 2);
    bed.fabric.finish().unwrap();
}

#[test]
fn a_delegation_that_ends_or_begins_leaves_nothing_of_the_other_source() {
    let mut bed = Delegated::fake();
    bed.restart("on");
    let delegated = wait_for(&bed.fabric, 2);
    let is_had = |bed: &Delegated, is_delegated: bool| {
        bed.waits_for_given(usize::from(is_delegated));
        bed.waits_for_record(is_delegated);
        within(SOON, "the agent has addresses of one source", || {
            let leases = bed.fabric.agent.ask("GET", "/v1/addresses", None)?["leases"].take();
            check(leases.as_array().is_some_and(|all| all.len() == 2), || {
                leases.to_string()
            })
        });
    };
    // The plugin leaves the configuration of the runtimes, and comes back, while the agent runs.
    let list = bed.fabric.agent.conf_dir().join("10-towpath.conflist");
    fs::remove_file(&list).unwrap();
    is_had(&bed, false);
    wait_for(&bed.fabric, 2);
    bed.delegate("1.0.0", &json!({"type": "fake-ipam"}));
    is_had(&bed, true);
    // The addresses of the other source may stay leased until these take their place.
    let own = within(SOON, "the address that the plugin gave is used", || {
        let own = wait_for(&bed.fabric, 2);
        let given = bed.given();
        check(given == [own[&Family::V4]].into(), || {
            format!("{own:?} is used, {given:?} was given")
        })
        .map(|()| own)
    });
    assert_ne!(own, delegated);
    // Without its folder in the settings, DEL goes to the program of the ADD. No ADD can follow.
    let calls = bed.calls_until_check();
    restart(
        &mut bed.fabric,
        &json!({"ingress": "on", "plugin-dirs": []}),
    );
    bed.waits_for_given(0);
    wait_for(&bed.fabric, 0);
    let later = bed.calls().split_off(calls);
    let is_deleted = later.iter().all(|call| call.starts_with("DEL "));
    assert!(is_deleted && !later.is_empty(), "{later:?}");
    restart(&mut bed.fabric, &json!({"ingress": "off"}));
    bed.waits_for_given(0);
    wait_for(&bed.fabric, 0);
    bed.fabric.finish().unwrap();
}

#[test]
fn a_kill_at_any_point_leaves_nothing_and_keeps_the_address() {
    let mut bed = Delegated::fake();
    let kills = kills();
    bed.fabric.agent.stop().unwrap();
    for (mode, points) in [
        ("on", &["asked", "added", "given", "taken"][..]),
        ("off", &["left", "leaving", "deleted"]),
    ] {
        for point in points.iter().cycle().take(kills * points.len()) {
            let earlier = if mode == "on" { "off" } else { "on" };
            bed.begins_at_its_first_address();
            bed.restart(earlier);
            bed.waits_for_given(usize::from(mode == "off"));
            wait_for(&bed.fabric, if mode == "off" { 2 } else { 0 });
            bed.fabric.agent.stop().unwrap();
            bed.begins_at_its_first_address();
            configure(&bed.fabric, &bed.settings(mode));
            let fault = format!("ingress.{point}");
            let environment = [(FAULT_VARIABLE, fault.as_str())];
            bed.fabric
                .agent
                .start(&bed.fabric.node, &environment)
                .unwrap();
            bed.fabric.agent.wait_for_fault(START).unwrap();
            let given = bed.given();
            bed.fabric.start_agent().unwrap();
            let count = usize::from(mode == "on");
            let own = wait_for(&bed.fabric, 2 * count);
            bed.waits_for_given(count);
            if mode == "on" {
                assert_eq!(bed.given(), [own[&Family::V4]].into(), "{point}");
                if matches!(*point, "given" | "taken") {
                    assert_eq!(bed.given(), given, "{point}: another address");
                }
            }
            bed.fabric.agent.stop().unwrap();
        }
    }
    bed.fabric.start_agent().unwrap();
    bed.fabric.finish().unwrap();
}

/// The addresses that host-local has reserved.
fn reserved(data: &Path) -> Vec<String> {
    let files = fs::read_dir(data.join("pods")).into_iter().flatten();
    let names = files.map(|file| file.unwrap().file_name().into_string().unwrap());
    names
        .filter(|name| name.parse::<IpAddr>().is_ok())
        .collect::<Vec<_>>()
}

fn nothing_is_reserved(data: &Path, what: &str) {
    within(SOON, what, || {
        let reserved = reserved(data);
        check(reserved.is_empty(), || format!("{reserved:?}"))
    });
}

/// A range whose only address is taken, until that is released.
fn a_full_range_is_waited_for(bed: &mut Delegated, data: &Path) {
    let v4 = bed.address(Family::V4, 0);
    let only = bed.address(Family::V4, 3);
    let taken = data.join("pods").join(only.to_string());
    fs::write(&taken, "a-pod\r\neth0").unwrap();
    let range = json!([[{"subnet": format!("{v4}/28"), "rangeStart": only, "rangeEnd": only}]]);
    let full = json!({"type": "host-local", "ranges": range, "dataDir": data});
    bed.delegate("1.0.0", &full);
    bed.restart("on");
    bed.says("host-local ADD failed: failed to allocate for range 0: no IP addresses available");
    fs::remove_file(taken).unwrap();
    assert_eq!(wait_for(&bed.fabric, 1)[&Family::V4], only);
}

#[test]
fn host_local_serves_every_version_and_cleanup_gives_back() {
    let mut bed = Delegated::new(REFERENCE);
    let data = bed.fabric.file("host-local");
    let v4 = bed.address(Family::V4, 0);
    let ranges = json!([[{"subnet": format!("{v4}/28")}]]);
    fs::create_dir_all(&data).unwrap();
    bed.fabric
        .agent
        .configure(&json!({"ipam": {"families": ["ipv4"]}}))
        .unwrap();
    for version in ["0.3.1", "0.4.0", "1.0.0"] {
        bed.delegate(
            version,
            &json!({"type": "host-local", "ranges": ranges, "dataDir": data}),
        );
        bed.restart("on");
        let own = wait_for(&bed.fabric, 1);
        assert_eq!(reserved(&data), [own[&Family::V4].to_string()], "{version}");
        bed.restart("on");
        assert_eq!(wait_for(&bed.fabric, 1), own, "{version}");
        if version != "1.0.0" {
            bed.restart("off");
            wait_for(&bed.fabric, 0);
            nothing_is_reserved(&data, version);
        }
    }
    assert_eq!(own(&bed.fabric).unwrap().len(), 1);
    bed.restart("off");
    wait_for(&bed.fabric, 0);
    nothing_is_reserved(&data, "nothing is reserved");
    a_full_range_is_waited_for(&mut bed, &data);
    bed.fabric.agent.stop().unwrap();
    let cleaned = bed
        .fabric
        .agent
        .cli(&bed.fabric.node, &["cleanup", "--yes"])
        .unwrap();
    assert!(cleaned.status.success(), "{cleaned:?}");
    let left = reserved(&data);
    assert!(left.is_empty(), "{left:?}");
    bed.fabric.finish().unwrap();
}
