//! Addresses that the agent allocates, over its socket: both families, pools, restarts, crashes.

use std::fs::File;
use std::io::ErrorKind;
use std::net::IpAddr;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use ipam::Family;
use serde_json::{Value, json};
use testkit::fabric::agent::{FAULT_VARIABLE, START};
use testkit::fabric::command;
use testkit::fabric::eventually::check;
use testkit::fabric::traffic::Protocol;
use testkit::fabric::{Fabric, Netns, Place, Spec};

use crate::support::{CHANGE, within};

/// A pod whose addresses the agent chooses.
pub(crate) struct Guest {
    pub(crate) netns: Netns,
    pub(crate) addresses: Vec<IpAddr>,
}

impl Guest {
    pub(crate) fn new(fabric: &Fabric, name: &str) -> Self {
        let netns = Netns::create(&format!("{}-{name}", fabric.node.name())).unwrap();
        Self {
            netns,
            addresses: Vec::new(),
        }
    }

    fn path(&self) -> String {
        format!("/v1/endpoints/{}/eth0", self.netns.name())
    }

    pub(crate) fn request(&self, more: &Value) -> Value {
        let mut request = json!({
            "owner": {"container-id": self.netns.name(), "interface": "eth0"},
            "netns": format!("/run/netns/{}", self.netns.name()),
            "families": ["ipv4", "ipv6"],
            "network": "towpath",
            "pod": {"namespace": "tests", "name": self.netns.name()},
        });
        for (key, value) in more.as_object().unwrap() {
            request[key] = value.clone();
        }
        request
    }

    pub(crate) fn add(&mut self, fabric: &Fabric, more: &Value) -> Value {
        let request = self.request(more);
        let answer = fabric.agent.ask("PUT", "/v1/endpoints", Some(&request));
        let answer = answer.unwrap();
        let addresses = answer["addresses"].as_array().unwrap().iter();
        self.addresses = addresses
            .map(|a| a["address"].as_str().unwrap().parse().unwrap())
            .collect();
        answer
    }

    /// A new namespace replaces the old one, which goes with its last reference.
    fn replace_netns(&mut self) {
        let name = self.netns.name().to_owned();
        Netns::delete(&name).unwrap();
        self.netns = Netns::foreign(Path::new("/proc/self/ns/net")).unwrap();
        self.netns = Netns::create(&name).unwrap();
    }

    pub(crate) fn delete(&self, fabric: &Fabric) {
        fabric.agent.ask("DELETE", &self.path(), None).unwrap();
    }

    pub(crate) fn at(&self, family: Family) -> Place<'_> {
        let mut own = self.addresses.iter().copied();
        Place {
            netns: &self.netns,
            address: own.find(|a| Family::of(*a) == family).unwrap(),
        }
    }

    fn talks(&self, fabric: &Fabric) {
        for family in Family::ALL {
            let (from, to) = (self.at(family), fabric.peer(family));
            Protocol::Tcp.exchange(from, to).unwrap();
            Protocol::Icmp.exchange(to, from).unwrap();
        }
    }

    fn problems(&self, fabric: &Fabric) -> Vec<Value> {
        let check = fabric.agent.ask("GET", &self.path(), None).unwrap();
        check["problems"].as_array().unwrap().clone()
    }
}

fn listed(fabric: &Fabric) -> Value {
    fabric.agent.ask("GET", "/v1/addresses", None).unwrap()
}

fn count(list: &Value) -> usize {
    list.as_array().unwrap().len()
}

#[test]
fn a_pod_gets_an_address_of_each_family_and_a_check_sees_what_is_damaged() {
    let fabric = Fabric::ready(&Spec::default()).unwrap();
    fabric.agent.ask("GET", "/v1/ready", None).unwrap();
    let (mut one, mut two) = (Guest::new(&fabric, "one"), Guest::new(&fabric, "two"));
    let first = one.add(&fabric, &json!({}));
    assert_eq!(first["addresses"][0]["pool"], "default");
    two.add(&fabric, &json!({}));
    assert!(one.addresses.iter().all(|a| !two.addresses.contains(a)));
    one.talks(&fabric);
    two.talks(&fabric);
    assert_eq!(one.add(&fabric, &json!({})), first, "again the same");
    assert_eq!(one.problems(&fabric), Vec::<Value>::new());

    one.netns.ip("route del default").unwrap();
    one.netns.ip("link set eth0 mtu 1400").unwrap();
    one.netns.ip("neigh del 169.254.1.1 dev eth0").unwrap();
    let problems = Value::from(one.problems(&fabric)).to_string();
    for part in ["no route to 0.0.0.0/0", "169.254.1.1"] {
        assert!(problems.contains(part), "{problems}");
    }
    assert_eq!(one.problems(&fabric).len(), 2, "nothing is repaired");
    two.netns.ip("link set eth0 down").unwrap();
    let problems = Value::from(two.problems(&fabric)).to_string();
    assert!(problems.contains("eth0 is down"), "{problems}");

    for guest in [&one, &two] {
        guest.delete(&fabric);
        guest.delete(&fabric);
        let (status, gone) = fabric.agent.request("GET", &guest.path(), None).unwrap();
        assert_eq!(
            (status, &gone["error"]["code"]),
            (404, &json!("unknown-endpoint"))
        );
    }
    assert_eq!(count(&listed(&fabric)["leases"]), 0);
    fabric.finish().unwrap();
}

/// A path does not identify the namespace that it leads to.
#[test]
fn a_namespace_in_the_place_of_another_is_not_the_pods() {
    let mut fabric = Fabric::ready(&Spec::default()).unwrap();
    let mut guest = Guest::new(&fabric, "guest");
    guest.add(&fabric, &json!({}));
    let held = File::open(guest.netns.path()).unwrap();
    guest.replace_netns();
    let again = guest.request(&json!({}));
    let answer = fabric.agent.request("PUT", "/v1/endpoints", Some(&again));
    let (status, answer) = answer.unwrap();
    assert_eq!(
        (status, &answer["error"]["code"]),
        (409, &json!("owner-conflict"))
    );
    assert_eq!(answer["error"]["field"], "netns", "{answer}");
    guest.delete(&fabric);
    guest.add(&fabric, &json!({}));
    guest.talks(&fabric);
    drop(held);

    // While the agent is down, the next container gets the path of a removed one.
    fabric.agent.kill().unwrap();
    guest.replace_netns();
    fabric.start_agent().unwrap();
    let owner = json!({"container-id": "next", "interface": "eth0"});
    let request = guest.request(&json!({"owner": owner}));
    fabric
        .agent
        .ask("PUT", "/v1/endpoints", Some(&request))
        .unwrap();
    let endpoints = fabric.agent.ask("GET", "/v1/endpoints", None).unwrap();
    assert_eq!(count(&endpoints), 1, "{endpoints}");
    assert_eq!(endpoints[0]["owner"], owner);
    fabric
        .agent
        .ask("DELETE", "/v1/endpoints/next/eth0", None)
        .unwrap();
    fabric.finish().unwrap();
}

/// Methods of requests, and points at which the agent is killed during them.
const KILLS: [(&str, &str); 9] = [
    ("PUT", "endpoint.add.leased"),
    ("PUT", "store.write"),
    ("PUT", "store.rename"),
    ("PUT", "store.renamed"),
    ("PUT", "endpoint.add.recorded"),
    ("DELETE", "addresses.write"),
    ("DELETE", "addresses.rename"),
    ("DELETE", "addresses.written"),
    ("DELETE", "endpoint.del.recorded"),
];

/// Kills the agent during a request of the guest. The next agent completes or reverts it.
fn kill_in_a_request(
    fabric: &mut Fabric,
    [stays, guest]: [&mut Guest; 2],
    (method, point): (&str, &str),
) {
    let fault = [(FAULT_VARIABLE, point)];
    if method == "DELETE" {
        fabric.agent.start(&fabric.node, &[]).unwrap();
        fabric.wait_until_ready().unwrap();
        guest.add(fabric, &json!({}));
    }
    fabric.agent.start(&fabric.node, &fault).unwrap();
    fabric.wait_until_ready().unwrap();
    let died = match method {
        "PUT" => {
            let request = guest.request(&json!({}));
            fabric.agent.ask("PUT", "/v1/endpoints", Some(&request))
        }
        _ => fabric.agent.ask("DELETE", &guest.path(), None),
    };
    died.unwrap_err();
    fabric
        .agent
        .wait_for_fault(Duration::from_secs(10))
        .unwrap();
    fabric.start_agent().unwrap();
    let leases = listed(fabric)["leases"].clone();
    let of_stays = leases.as_array().unwrap().iter();
    let owner = stays.netns.name();
    let of_stays = of_stays.filter(|l| l["owner"]["container-id"] == owner);
    assert_eq!(of_stays.count(), 2, "{point}: {leases}");
    // The client got no answer, and repeats its request.
    if method == "PUT" {
        guest.add(fabric, &json!({}));
        guest.talks(fabric);
    }
    guest.delete(fabric);
    let now = listed(fabric);
    assert_eq!(count(&now["leases"]), 2, "{point}: {now}");
    let cooling = now["cooling"].as_array().unwrap().iter();
    let cooling: Vec<_> = cooling.map(|c| c["address"].clone()).collect();
    for address in &guest.addresses {
        assert!(cooling.contains(&json!(address)), "{point}: {now}");
    }
    let endpoints = fabric.agent.ask("GET", "/v1/endpoints", None).unwrap();
    assert_eq!(count(&endpoints), 1, "{point}");
}

/// An interrupted delete is repeated if its file still exists.
fn a_delete_is_repeated_from_its_file(fabric: &mut Fabric, guest: &mut Guest) {
    guest.add(fabric, &json!({}));
    fabric.agent.kill().unwrap();
    let folder = fabric.agent.pending_deletes();
    std::fs::create_dir_all(&folder).unwrap();
    let owner = guest.netns.name();
    let left = json!({"version": 1, "container-id": owner, "interface": "eth0"});
    std::fs::write(folder.join("x.json"), left.to_string()).unwrap();
    let fault = [(FAULT_VARIABLE, "pending-delete.done")];
    fabric.agent.start(&fabric.node, &fault).unwrap();
    fabric.agent.wait_for_fault(START).unwrap();
    assert!(folder.join("x.json").exists());
    fabric.start_agent().unwrap();
    assert!(!folder.join("x.json").exists());
    assert_eq!(count(&listed(fabric)["leases"]), 2);
}

/// After a kill at any step of an add or a delete, the next agent completes or reverts it: nothing
/// is leaked, nothing is allocated twice.
#[test]
fn a_kill_at_any_step_leaks_no_address() {
    let mut fabric = Fabric::ready(&Spec::default()).unwrap();
    let (mut stays, mut guest) = (Guest::new(&fabric, "stays"), Guest::new(&fabric, "guest"));
    stays.add(&fabric, &json!({}));
    let cooldown = json!(30);
    fabric.agent.set("/ipam/cooldown", &cooldown).unwrap();
    for kill in KILLS {
        kill_in_a_request(&mut fabric, [&mut stays, &mut guest], kill);
    }
    stays.talks(&fabric);
    a_delete_is_repeated_from_its_file(&mut fabric, &mut guest);
    fabric.finish().unwrap();
}

/// On a full disk an add fails and leaves nothing, and a delete succeeds.
#[test]
fn a_full_disk_leaks_nothing() {
    let mut fabric = Fabric::ready(&Spec::default()).unwrap();
    fabric.agent.kill().unwrap();
    let disk = Disk::mount(&fabric.agent.state_dir());
    fabric.agent.set("/ipam/cooldown", &json!(30)).unwrap();
    fabric.start_agent().unwrap();
    let (mut first, second) = (Guest::new(&fabric, "first"), Guest::new(&fabric, "second"));
    first.add(&fabric, &json!({}));
    disk.fill();
    let request = second.request(&json!({}));
    let (status, refused) = fabric
        .agent
        .request("PUT", "/v1/endpoints", Some(&request))
        .unwrap();
    assert_eq!(
        (status, &refused["error"]["code"]),
        (503, &json!("state-not-written"))
    );
    assert_eq!(count(&listed(&fabric)["leases"]), 2);
    assert_eq!(
        count(&fabric.agent.ask("GET", "/v1/endpoints", None).unwrap()),
        1
    );
    first.delete(&fabric);
    let now = listed(&fabric);
    assert_eq!(
        (count(&now["leases"]), count(&now["cooling"])),
        (0, 2),
        "{now}"
    );
    disk.free();
    within(CHANGE, "the cooldown is on disk", || {
        let status = fabric.agent.ask("GET", "/v1/status", None)?;
        let problems = &status["allocation"]["problems"];
        check(count(problems) == 0, || problems.to_string())
    });
    fabric.start_agent().unwrap();
    assert_eq!(count(&listed(&fabric)["cooling"]), 2);
    fabric.agent.kill().unwrap();
    drop(disk);
    fabric.finish().unwrap();
}

/// A disk that becomes read-only, as one with errors does, does no lasting damage.
#[test]
fn a_read_only_disk_refuses_by_name_and_heals() {
    let mut fabric = Fabric::ready(&Spec::default()).unwrap();
    fabric.agent.kill().unwrap();
    let disk = Disk::mount(&fabric.agent.state_dir());
    fabric.start_agent().unwrap();
    let (mut first, mut second) = (Guest::new(&fabric, "first"), Guest::new(&fabric, "second"));
    first.add(&fabric, &json!({}));
    for is_started_anew in [false, true] {
        disk.protect();
        if is_started_anew {
            fabric.agent.kill().unwrap();
            fabric.start_agent().unwrap();
        }
        let request = second.request(&json!({}));
        let refused = fabric.agent.request("PUT", "/v1/endpoints", Some(&request));
        let (status, refused) = refused.unwrap();
        let message = refused["error"]["message"].as_str().unwrap();
        assert_eq!(
            (status, &refused["error"]["code"]),
            (503, &json!("state-not-written")),
            "{refused}"
        );
        assert!(message.contains("Read-only file system"), "{message}");
        let refused = fabric.agent.request("DELETE", &first.path(), None);
        let (status, refused) = refused.unwrap();
        let message = refused["error"]["message"].to_string();
        assert!(status == 503 && message.contains("Read-only"), "{refused}");
        first.talks(&fabric);
        assert!(fabric.agent.is_running());

        disk.release();
        second.add(&fabric, &json!({}));
        second.talks(&fabric);
        second.delete(&fabric);
    }
    first.delete(&fabric);
    assert_eq!(count(&listed(&fabric)["leases"]), 0);
    fabric.agent.kill().unwrap();
    drop(disk);
    fabric.finish().unwrap();
}

/// A small disk mounted at a folder.
struct Disk(PathBuf);

impl Disk {
    fn mount(folder: &Path) -> Self {
        let run = command::run(Command::new("mount").args([
            "-t".as_ref(),
            "tmpfs".as_ref(),
            "-o".as_ref(),
            "size=256k".as_ref(),
            "tmpfs".as_ref(),
            folder.as_os_str(),
        ]));
        run.unwrap();
        Self(folder.to_owned())
    }

    fn fill(&self) {
        let full = std::fs::write(self.0.join("fill"), vec![0; 1 << 20]).unwrap_err();
        assert_eq!(full.kind(), ErrorKind::StorageFull);
    }

    /// Makes it read-only, by a mount over it, because the agent has a file open for writing.
    fn protect(&self) {
        let mount = |words: &[&str]| {
            let mut mount = Command::new("mount");
            command::run(mount.args(words).arg(&self.0)).unwrap();
        };
        mount(&["--bind", &self.0.display().to_string()]);
        mount(&["-o", "remount,bind,ro"]);
    }

    fn release(&self) {
        command::run(Command::new("umount").arg("-l").arg(&self.0)).unwrap();
    }

    fn free(&self) {
        std::fs::remove_file(self.0.join("fill")).unwrap();
    }
}

impl Drop for Disk {
    fn drop(&mut self) {
        if let Err(error) = command::run(Command::new("umount").arg("-l").arg(&self.0)) {
            eprintln!("{error:#}");
        }
    }
}

#[test]
fn a_released_address_rests_until_its_flows_are_gone_and_its_time_is_over() {
    let settings = json!({"ipam": {"cooldown": 3}});
    let spec = Spec {
        settings,
        ..Spec::with_world(json!({}))
    };
    let mut fabric = Fabric::ready(&spec).unwrap();
    let mut guest = Guest::new(&fabric, "guest");
    guest.add(&fabric, &json!({}));
    let site = testkit::fabric::world::Site::Internet;
    for family in Family::ALL {
        let to = fabric.world().unwrap().at(site, family);
        Protocol::Udp.exchange(guest.at(family), to).unwrap();
    }
    guest.delete(&fabric);
    fabric.start_agent().unwrap();
    let now = listed(&fabric);
    assert_eq!(count(&now["cooling"]), 2, "across a restart: {now}");
    let explicit = guest.addresses[0];
    let mut other = Guest::new(&fabric, "other");
    let mut request = other.request(&json!({"addresses": [explicit]}));
    request.as_object_mut().unwrap().remove("families");
    let put = |fabric: &Fabric| fabric.agent.request("PUT", "/v1/endpoints", Some(&request));
    let (status, refused) = put(&fabric).unwrap();
    assert_eq!(status, 409, "{refused}");
    assert_eq!(refused["error"]["code"], "address-cooling-down");
    assert_eq!(refused["error"]["retry"], true);
    within(
        Duration::from_secs(30),
        "the address can be given again",
        || {
            let (status, answer) = put(&fabric)?;
            check(status == 200, || answer.to_string())
        },
    );
    other.addresses = vec![explicit];
    other.delete(&fabric);
    fabric.finish().unwrap();
}

/// Makes a pool that is bound to ENI 1 and skips masquerading.
fn bind_blue(fabric: &Fabric) {
    let pool = json!({
        "apiVersion": "cilium.io/v2alpha1",
        "kind": "CiliumPodIPPool",
        "metadata": {
            "name": "blue",
            "annotations": {
                "ipam.towpath.dev/eni-tags": "team=blue",
                "ipam.cilium.io/skip-masquerade": "true",
            }
        },
        "spec": {}
    });
    let file = fabric.file("pools/blue.json");
    std::fs::write(file, pool.to_string()).unwrap();
    let id = fabric.eni(1).unwrap().id();
    let bind = |document: &mut Value| {
        document["status"]["eni"]["enis"][&id]["tags"] = json!({"team": "blue"});
    };
    fabric.publish_changed(bind).unwrap();
    within(CHANGE, "the pool has its ENI", || {
        let pools = fabric.agent.ask("GET", "/v1/pools", None)?;
        let rows = pools.as_array().unwrap();
        check(rows.iter().any(|row| row["pool"] == "blue"), || {
            pools.to_string()
        })
    });
}

#[test]
fn a_bound_pool_has_the_addresses_of_its_enis_and_no_other() {
    let fabric = Fabric::ready(&Spec::with_world(json!({}))).unwrap();
    bind_blue(&fabric);
    let (mut blue, mut plain) = (Guest::new(&fabric, "blue"), Guest::new(&fabric, "plain"));
    let answer = blue.add(&fabric, &json!({"pools": {"ipv4": "blue", "ipv6": "blue"}}));
    let other = plain.add(&fabric, &json!({}));
    for family in [0, 1] {
        let (blue, plain) = (&answer["addresses"][family], &other["addresses"][family]);
        assert_eq!(blue["eni"]["number"], 1, "{answer}");
        assert_eq!(
            (&blue["pool"], &blue["skip-masquerade"]),
            (&json!("blue"), &json!(true))
        );
        assert_eq!(plain["eni"]["number"], 0, "{other}");
        assert_eq!(plain["pool"], "default");
    }
    blue.talks(&fabric);
    // The policy is that of the pool of the address.
    let shown = fabric
        .agent
        .ask("GET", "/v1/endpoints", None)
        .unwrap()
        .to_string();
    assert!(shown.contains("\"pool\":\"blue\""), "{shown}");
    let explained = fabric.agent.ask(
        "GET",
        &format!(
            "/v1/masquerade/explain/tcp/{}/1.1.1.1",
            blue.at(Family::V4).address
        ),
        None,
    );
    assert_eq!(explained.unwrap()["why"], "skip-pool");
    let nobody = Guest::new(&fabric, "nobody");
    let request = nobody.request(&json!({"pools": {"ipv4": "green"}}));
    let (status, refused) = fabric
        .agent
        .request("PUT", "/v1/endpoints", Some(&request))
        .unwrap();
    assert_eq!(
        (status, &refused["error"]["code"]),
        (422, &json!("pool-unknown"))
    );
    fabric.finish().unwrap();
}

#[test]
fn an_eni_that_is_taken_away_leaves_orphans_that_nobody_gets() {
    let fabric = Fabric::ready(&Spec::default()).unwrap();
    let mut guest = Guest::new(&fabric, "guest");
    let eni = fabric.eni(1).unwrap().clone();
    let address = eni.pod_address(Family::V4, 0).unwrap();
    let mut request = guest.request(&json!({"addresses": [address]}));
    request.as_object_mut().unwrap().remove("families");
    fabric
        .agent
        .ask("PUT", "/v1/endpoints", Some(&request))
        .unwrap();
    guest.addresses = vec![address];
    fabric
        .publish_changed(|document| {
            let enis = document["status"]["eni"]["enis"].as_object_mut();
            enis.unwrap().remove(&eni.id());
        })
        .unwrap();
    within(CHANGE, "the orphan is named", || {
        let status = fabric.agent.ask("GET", "/v1/status", None)?;
        let orphans = &status["allocation"]["orphans"];
        check(count(orphans) == 1, || status["allocation"].to_string())
    });
    fabric.publish().unwrap();
    within(CHANGE, "the ENI is back", || {
        let status = fabric.agent.ask("GET", "/v1/status", None)?;
        check(count(&status["allocation"]["orphans"]) == 0, || {
            status.to_string()
        })
    });
    let mut other = Guest::new(&fabric, "other");
    other.add(&fabric, &json!({}));
    assert!(
        !other.addresses.contains(&address),
        "it is somebody's still"
    );
    guest.delete(&fabric);
    fabric.finish().unwrap();
}
