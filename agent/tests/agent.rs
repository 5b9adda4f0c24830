//! The whole agent on the real kernel: a node with two ENIs in network namespaces of its own.

#![expect(
    clippy::unwrap_used,
    reason = "a failure of a helper is a failure of the test"
)]

use std::fs::{self, File};
use std::path::PathBuf;
use std::process::{Child, Command, Output};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use serde_json::Value;
use tempfile::TempDir;

/// For what takes milliseconds, on a machine that is busy with other things.
const DEADLINE: Duration = Duration::from_secs(20);
/// Maximum time until an object that another program removed is back.
const HEALING: Duration = Duration::from_secs(1);

const DOCUMENT: &str = r#"
apiVersion: cilium.io/v2
kind: CiliumNode
metadata: {name: node}
spec:
  addresses:
    - {type: InternalIP, ip: 10.0.1.10}
    - {type: InternalIP, ip: "2001:db8:1::10"}
status:
  eni:
    enis:
      eni-a:
        id: eni-a
        ip: 10.0.1.10
        mac: "0a:11:22:33:44:00"
        number: 0
        subnet: {id: a, cidr: 10.0.1.0/24}
        vpc: {id: v, primary-cidr: 10.0.0.0/16}
        addresses: [10.0.1.20]
      eni-b:
        id: eni-b
        ip: 10.0.2.10
        mac: "0a:11:22:33:44:01"
        number: 1
        subnet: {id: b, cidr: 10.0.2.0/24}
        vpc: {id: v, primary-cidr: 10.0.0.0/16}
        prefixes: [10.0.2.16/28]
        ipv6-prefixes: ["2001:db8:2::/80"]
"#;

/// Runs a command that has to succeed.
fn run(command: &str) -> String {
    let output = output(command);
    assert!(
        output.status.success(),
        "{command}: {}",
        String::from_utf8_lossy(&output.stderr)
    );
    String::from_utf8(output.stdout).unwrap()
}

fn output(command: &str) -> Output {
    let mut words = command.split_whitespace();
    let program = words.next().unwrap();
    Command::new(program)
        .args(words)
        .output()
        .unwrap_or_else(|error| {
            panic!("{program}: {error}; needed: root, iproute2, iputils-ping, util-linux")
        })
}

/// Asks until the answer is yes; how long it took.
#[track_caller]
fn wait_for(what: &str, deadline: Duration, mut is_so: impl FnMut() -> bool) -> Duration {
    let start = Instant::now();
    while !is_so() {
        assert!(
            start.elapsed() < deadline,
            "not within {deadline:?}: {what}"
        );
        std::thread::sleep(Duration::from_millis(10));
    }
    start.elapsed()
}

/// A node with two ENIs, and a namespace that stands for the VPC.
struct Lab {
    folder: TempDir,
    name: String,
    agent: Option<Child>,
}

impl Lab {
    fn new() -> Self {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        let lab = Self {
            folder: tempfile::tempdir().unwrap(),
            name: format!("tp-agent-{}-{number}", std::process::id()),
            agent: None,
        };
        for role in ["node", "vpc", "web", "db"] {
            run(&format!("ip netns add {}", lab.netns(role)));
        }
        let (node, vpc) = (lab.netns("node"), lab.netns("vpc"));
        for eni in 0..2 {
            run(&format!(
                "ip link add eth{eni} netns {node} address 0a:11:22:33:44:0{eni} mtu 9001 \
                 type veth peer name gw{eni} netns {vpc} mtu 9001"
            ));
            run(&format!("ip -n {vpc} link set gw{eni} up"));
        }
        run(&format!("ip -n {node} link set lo up"));
        run(&format!("ip -n {node} link set eth0 up"));
        run(&format!("ip -n {node} address add 10.0.1.10/24 dev eth0"));
        run(&format!(
            "ip -n {node} address add 2001:db8:1::10/64 dev eth0 nodad"
        ));
        run(&format!("ip -n {node} route add default via 10.0.1.1"));
        fs::write(lab.path("node.yaml"), DOCUMENT).unwrap();
        let config = format!(
            "node: {{document: {}}}\nstate-dir: {}\nsocket: {}\ndatapath: {{pin-root: {}}}\n",
            lab.path("node.yaml").display(),
            lab.path("state").display(),
            lab.path("agent.sock").display(),
            lab.pins().display(),
        );
        fs::write(lab.path("config.yaml"), config).unwrap();
        lab
    }

    fn netns(&self, role: &str) -> String {
        format!("{}-{role}", self.name)
    }

    fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    fn pins(&self) -> PathBuf {
        PathBuf::from("/sys/fs/bpf").join(&self.name)
    }

    /// A command line of ours, in the node's network namespace. `ip netns exec` would give it a
    /// /sys of its own, whose pins go with it.
    fn towpath(&self, args: &str) -> String {
        format!(
            "nsenter --net=/run/netns/{} {} --config {} {args}",
            self.netns("node"),
            env!("CARGO_BIN_EXE_towpath"),
            self.path("config.yaml").display()
        )
    }

    fn start(&mut self) {
        let line = self.towpath("run");
        let mut words = line.split_whitespace();
        let log = File::options()
            .create(true)
            .append(true)
            .open(self.path("agent.log"))
            .unwrap();
        let agent = Command::new(words.next().unwrap())
            .args(words)
            .stderr(log)
            .spawn()
            .unwrap();
        self.agent = Some(agent);
        wait_for("the agent is ready", DEADLINE, || {
            output(&self.towpath("status")).status.success()
        });
    }

    /// Ends the agent; its exit code.
    fn stop(&mut self, signal: &str) -> Option<i32> {
        let mut agent = self.agent.take().unwrap();
        run(&format!("kill -{signal} {}", agent.id()));
        agent.wait().unwrap().code()
    }

    fn add(&self, pod: &str, addresses: &str) -> Value {
        let netns = self.netns(pod);
        let args = format!("endpoint add {pod} --netns {netns} {addresses} -o json");
        serde_json::from_str(&run(&self.towpath(&args))).unwrap()
    }

    fn rows(&self, list: &str) -> Vec<Value> {
        let text = run(&self.towpath(&format!("{list} -o json")));
        serde_json::from_str(&text).unwrap()
    }

    fn pings(&self, from: &str, to: &str) -> bool {
        let from = self.netns(from);
        output(&format!("ip netns exec {from} ping -c 1 -W 2 {to}"))
            .status
            .success()
    }

    /// Our rules, routes and addresses in the node's namespace, sorted for comparison. Those that
    /// the kernel adds and removes by itself are left out.
    fn kernel(&self) -> Vec<String> {
        let node = self.netns("node");
        let mut lists = vec!["-o -4 address".to_owned()];
        for family in ["-4", "-6"] {
            lists.push(format!("{family} rule"));
            let tables = [10, 11, 220].map(|table| format!("{family} route show table {table}"));
            lists.extend(tables);
        }
        let mut lines = Vec::new();
        for list in lists {
            // A table that was never used is an error.
            let text = output(&format!("ip -n {node} {list}")).stdout;
            let text = String::from_utf8(text).unwrap();
            lines.extend(text.lines().map(|line| format!("{list}: {line}")));
        }
        lines.sort();
        lines
    }

    /// Number of repairs that the agent has made.
    fn repairs(&self) -> u64 {
        let status = output(&self.towpath("status -o json")).stdout;
        let status: Value = serde_json::from_slice(&status).unwrap();
        status["repairs"]["total"].as_u64().unwrap()
    }

    /// True if a line of [`Self::kernel`] has these words.
    fn has(&self, words: &str) -> bool {
        self.kernel().iter().any(|line| line.contains(words))
    }
}

impl Drop for Lab {
    fn drop(&mut self) {
        if let Some(mut agent) = self.agent.take() {
            agent.kill().ok();
            agent.wait().ok();
        }
        if std::thread::panicking() {
            let log = fs::read_to_string(self.path("agent.log")).unwrap_or_default();
            eprintln!("the agent's log:\n{log}");
        }
        output(&self.towpath("cleanup --yes"));
        fs::remove_dir(self.pins()).ok();
        for role in ["node", "vpc", "web", "db"] {
            output(&format!("ip netns delete {}", self.netns(role)));
        }
    }
}

fn damages_are_healed(lab: &Lab, whole: &[String]) {
    let node = lab.netns("node");
    for damage in [
        format!("ip -n {node} rule delete priority 20"),
        format!("ip -n {node} route flush table 11"),
        format!("ip -n {node} address delete 10.0.2.10/32 dev eth1"),
        format!("ip -n {node} link set eth1 down"),
        // No event tells of this one.
        format!("nsenter --net=/run/netns/{node} sysctl -qw net.ipv4.conf.eth1.arp_ignore=0"),
    ] {
        let before = lab.repairs();
        run(&damage);
        let took = wait_for(&damage, HEALING, || {
            lab.repairs() > before && lab.kernel() == whole
        });
        println!("healed after {took:?}: {damage}");
    }
}

fn pods_outlive_the_agent(lab: &mut Lab, whole: &[String]) {
    assert_eq!(lab.stop("TERM"), Some(0));
    assert!(lab.pings("web", "10.0.2.20"), "without an agent");
    lab.start();
    assert_eq!(lab.rows("endpoints").len(), 2);
    lab.stop("KILL");
    assert!(lab.pings("web", "10.0.2.20"), "after a kill");
    lab.start();
    assert!(lab.rows("routes --differing").is_empty());
    assert_eq!(lab.kernel(), whole);
}

#[test]
fn pods_are_added_reached_healed_kept_and_removed() {
    let mut lab = Lab::new();
    let before = lab.kernel();
    lab.start();

    let web = lab.add("web", "--address 10.0.1.20");
    assert_eq!(web["addresses"][0]["eni"]["id"], "eni-a");
    assert_eq!(web["mtu"], 9001);
    let db = lab.add("db", "--address 10.0.2.20 --address 2001:db8:2::20");
    assert_eq!(db["addresses"][1]["gateway"], "fe80:ec2::1");
    assert_eq!(
        lab.add("web", "--address 10.0.1.20"),
        web,
        "the same answer again"
    );
    for (from, to) in [
        ("node", "10.0.1.20"),
        ("node", "10.0.2.20"),
        ("node", "2001:db8:2::20"),
        ("web", "10.0.2.20"),
        ("db", "10.0.1.10"),
    ] {
        assert!(lab.pings(from, to), "{from} to {to}");
    }

    let whole = lab.kernel();
    damages_are_healed(&lab, &whole);
    pods_outlive_the_agent(&mut lab, &whole);

    run(&lab.towpath("endpoint del web"));
    run(&lab.towpath("endpoint del web"));
    assert!(!lab.has("10.0.1.20 dev tow"));
    assert_eq!(lab.rows("endpoints").len(), 1);

    let refused = output(&lab.towpath("cleanup --yes"));
    assert_eq!(refused.status.code(), Some(1), "the agent runs");
    lab.stop("TERM");
    let refused = output(&lab.towpath("cleanup"));
    assert_eq!(refused.status.code(), Some(1), "there is an endpoint");
    assert!(lab.has("10.0.2.20 dev tow"));
    run(&lab.towpath("cleanup --yes"));
    assert_eq!(lab.kernel(), before);
    assert!(run(&lab.towpath("cleanup -o json")).contains("\"objects\": []"));
}

fn a_second_agent_is_refused(lab: &Lab) {
    let second = output(&lab.towpath("run"));
    let error = String::from_utf8(second.stderr).unwrap();
    assert_eq!(second.status.code(), Some(1), "{error}");
    assert!(error.contains("another agent is running"), "{error}");
    // With other folders it would take every endpoint for one that was deleted.
    let config = fs::read_to_string(lab.path("config.yaml")).unwrap();
    for (from, to) in [("/state", "/other"), ("agent.sock", "other.sock")] {
        assert!(config.contains(from), "{config}");
        let config = config.replace("/state", "/other").replace(from, to);
        fs::write(lab.path("other.yaml"), config).unwrap();
        for command in ["run", "cleanup --yes"] {
            let line = lab.towpath(command).replace("config.yaml", "other.yaml");
            let third = output(&format!("timeout 10 {line}"));
            let error = String::from_utf8(third.stderr).unwrap();
            assert_eq!(third.status.code(), Some(1), "{error}");
            assert!(error.contains("another agent is running"), "{error}");
        }
    }
}

/// Starts an agent whose log nobody reads.
fn start_unread(lab: &mut Lab) {
    let line = lab.towpath("run");
    let mut words = line.split_whitespace();
    let mut agent = Command::new(words.next().unwrap());
    let (reader, writer) = std::io::pipe().unwrap();
    drop(reader);
    lab.agent = Some(agent.args(words).stderr(writer).spawn().unwrap());
}

#[test]
fn a_bad_document_stops_nothing_and_a_second_agent_is_refused() {
    let mut lab = Lab::new();
    lab.start();
    lab.add("web", "--address 10.0.1.20");
    let whole = lab.kernel();

    a_second_agent_is_refused(&lab);
    assert_eq!(lab.kernel(), whole);

    fs::write(
        lab.path("node.yaml"),
        DOCUMENT.replace("number: 1", "number: 0"),
    )
    .unwrap();
    let is_degraded = |lab: &Lab| output(&lab.towpath("status")).status.code() == Some(4);
    wait_for("the bad document shows", DEADLINE, || is_degraded(&lab));
    assert_eq!(lab.kernel(), whole);
    assert!(lab.pings("node", "10.0.1.20"));

    // A restarted agent leaves the objects of the earlier one unchanged. Its log is not read.
    lab.stop("TERM");
    start_unread(&mut lab);
    wait_for("the agent answers", DEADLINE, || is_degraded(&lab));
    let status: Value =
        serde_json::from_slice(&output(&lab.towpath("status -o json")).stdout).unwrap();
    assert_eq!(status["health"]["state"], "degraded", "{status}");
    assert_eq!(lab.kernel(), whole);
    assert!(lab.pings("node", "10.0.1.20"));
    let netns = lab.netns("db");
    let args = format!("endpoint add db --netns {netns} --address 10.0.2.20");
    let refused = output(&lab.towpath(&args));
    let error = String::from_utf8(refused.stderr).unwrap();
    assert!(error.contains("number"), "it names the field: {error}");

    fs::write(lab.path("node.yaml"), DOCUMENT).unwrap();
    wait_for("the good document is taken", DEADLINE, || {
        output(&lab.towpath("status")).status.success()
    });
    assert_eq!(lab.rows("endpoints").len(), 1);
}
