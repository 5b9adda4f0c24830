//! Any start converges, on the real kernel: whatever of ours is missing, changed or left over when
//! the agent starts, it comes to the same state, and what is not ours stays as it is.

use bpf_tests::fabric::eventually::check;
use bpf_tests::fabric::state::difference;
use bpf_tests::fabric::{Fabric, Pod, Spec};
use serde_json::json;

use crate::support::{CHANGE, End, PEER, carry_all, get, nothing_differs, within};

/// Starts for each way of attaching.
const STARTS: u64 = 12;

/// What others have, in shapes close to ours.
const FOREIGN: &str = "\
rule add priority 20 from 192.0.2.7 lookup 99
rule add priority 111 fwmark 0x80/0x80 lookup 10
-6 rule add priority 111 fwmark 0x80/0x80 lookup 10
rule add priority 112 from 10.0.1.10 to 192.0.2.9 lookup 11
rule add priority 512 to 192.0.2.10 lookup main
route add 192.0.2.128/25 via 10.0.0.1 dev eth0
route add 192.0.2.192/26 via 10.0.0.1 dev eth0 onlink table 97
addr add 192.0.2.5/32 dev eth0
link add towpath0 type bridge
link add tow-foreign type veth peer name tow-peer";

/// What is missing or changed, and what an older agent left behind.
fn damages(pod: &Pod) -> Vec<String> {
    let veth = pod.host_device();
    let v4 = pod.address(towpath::intent::Family::V4);
    let text = [
        "rule del priority 20 from all lookup 220",
        "-6 rule del priority 20",
        "rule del priority 110",
        "-6 rule del priority 110",
        "rule del priority 111 lookup 11",
        "-6 rule del priority 111 lookup 11",
        "rule add priority 111 fwmark 0x9000000/0x3f000000 lookup 18",
        "-6 rule add priority 111 fwmark 0x9000000/0x3f000000 lookup 18",
        "rule add priority 112 from 10.0.1.99 lookup 11",
        "route flush table 11",
        "-6 route flush table 10",
        "route replace default via 10.0.1.77 dev eth1 onlink table 11",
        "route add unreachable 10.0.1.200/32 metric 9000 table 220",
        "addr del 10.0.1.10/32 dev eth1",
        "link set eth1 mtu 1400",
        "link set eth1 down",
        "link set eth1 name ens7",
    ];
    let of_pod = [
        format!("route del {v4} dev {veth} table 220"),
        format!("neigh del {v4} dev {veth}"),
        format!("link del {veth}"),
    ];
    text.iter().map(ToString::to_string).chain(of_pod).collect()
}

/// xorshift64 (Marsaglia 2003): a sequence that can be had again from its seed.
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0
    }
}

fn any_start_converges(attach: &str) {
    let spec = Spec {
        settings: json!({"datapath": {"attach": attach}}),
        ..Spec::default()
    };
    let mut fabric = Fabric::create(&spec).unwrap();
    for line in FOREIGN.lines() {
        fabric.node.run(&format!("ip {line}")).unwrap();
    }
    fabric.start_agent().unwrap();
    let (pod, other) = (fabric.add_pod(1, 0).unwrap(), fabric.add_pod(0, 0).unwrap());
    within(CHANGE, "everything is there", || nothing_differs(&fabric));
    let mut whole = fabric.state().unwrap();
    for seed in 1..=STARTS {
        let mut random = Random(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15));
        fabric.agent.kill().unwrap();
        let mut done = Vec::new();
        for damage in damages(&pod) {
            // One may take the ground from under the next.
            if random.next().is_multiple_of(3) && fabric.node.run(&format!("ip {damage}")).is_ok() {
                done.push(damage);
            }
        }
        let what = format!("seed {seed}, after {done:#?}");
        let remade = done.iter().any(|damage| damage.starts_with("link del"));
        let renamed = done.iter().any(|damage| damage.contains(" name "));
        fabric.start_agent().unwrap();
        if renamed {
            within(CHANGE, &what, || nothing_differs(&fabric));
            let back = "link set ens7 down\nlink set ens7 name eth1\nlink set eth1 up";
            fabric.node.ip(back).unwrap();
        }
        within(CHANGE, &what, || {
            nothing_differs(&fabric)?;
            let [mut before, mut after] = [whole.clone(), fabric.state()?];
            if remade {
                // Another index: the maps and the pins' names have it.
                before.remove("maps");
                after.remove("maps");
            }
            let difference = difference(&before, &after);
            check(difference.is_empty(), || difference.clone())
        });
        whole = fabric.state().unwrap();
        // Nothing is left to be done: what is at rest stays at rest.
        let repairs = |fabric: &Fabric| get(fabric, "/v1/status")["repairs"]["total"].clone();
        let before = repairs(&fabric);
        carry_all(&fabric, End::Pod(&pod), PEER, &[1]);
        carry_all(&fabric, PEER, End::Pod(&other), &[0]);
        assert_eq!(repairs(&fabric), before, "{what}");
    }
    fabric.finish().unwrap();
}

#[test]
fn any_start_converges_with_tcx() {
    any_start_converges("tcx");
}

#[test]
fn any_start_converges_with_clsact() {
    any_start_converges("clsact");
}
