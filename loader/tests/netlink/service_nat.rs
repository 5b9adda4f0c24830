//! Detection of the host's service NAT, as each program configures it.

use loader::netfilter::service_nat::Detector;

use crate::host::{in_netns, run};

/// The evidence in the calling thread's namespace, as text. A new detector and one that has run
/// before must agree.
fn seen(detector: &mut Detector) -> Option<String> {
    let words = |detector: &mut Detector| {
        let evidence = detector.evidence().expect("look");
        evidence.map(|evidence| evidence.to_string())
    };
    let again = words(detector);
    assert_eq!(words(&mut Detector::default()), again);
    again
}

fn nft(line: &str) {
    run(&format!("nft {line}"));
}

#[test]
fn chains_of_nftables_count_by_their_type_and_hook() {
    in_netns(async |_| {
        let mut detector = Detector::default();
        assert_eq!(seen(&mut detector), None);
        nft("add table ip kube-proxy");
        for chain in [
            "services",
            "filtering { type filter hook prerouting priority 0 ; }",
            "routing { type route hook output priority 0 ; }",
        ] {
            nft(&format!("add chain ip kube-proxy {chain}"));
            assert_eq!(seen(&mut detector), None, "{chain}");
        }
        for (hook, priority) in [
            ("prerouting", "dstnat"),
            ("input", "100"),
            ("postrouting", "srcnat"),
        ] {
            let chain = format!("{{ type nat hook {hook} priority {priority} ; }}");
            nft(&format!("add chain ip kube-proxy nat-{hook} {chain}"));
            let expected =
                format!("nftables chain ip kube-proxy nat-{hook} (type nat, hook {hook})");
            assert_eq!(seen(&mut detector), Some(expected));
            nft(&format!("delete chain ip kube-proxy nat-{hook}"));
            assert_eq!(seen(&mut detector), None);
        }
        for family in ["ip6", "inet"] {
            nft(&format!("add table {family} proxy"));
            nft(&format!(
                "add chain {family} proxy out {{ type nat hook output priority -100 ; }}"
            ));
            let expected = format!("nftables chain {family} proxy out (type nat, hook output)");
            assert_eq!(seen(&mut detector), Some(expected));
            nft(&format!("delete table {family} proxy"));
        }
        assert_eq!(seen(&mut detector), None);
    });
}

#[test]
fn the_newer_iptables_counts_by_its_chains() {
    for (program, family, address) in [
        ("iptables-nft", "ip", "10.2.0.2"),
        ("ip6tables-nft", "ip6", "fd02::2"),
    ] {
        in_netns(async move |_| {
            let mut detector = Detector::default();
            run(&format!("{program} -t nat -L -n"));
            assert_eq!(seen(&mut detector), None, "only looked at");
            run(&format!("{program} -A FORWARD -j ACCEPT"));
            assert_eq!(seen(&mut detector), None, "no NAT");
            run(&format!("{program} -t nat -A POSTROUTING -j MASQUERADE"));
            let expected =
                format!("nftables chain {family} nat POSTROUTING (type nat, hook postrouting)");
            assert_eq!(seen(&mut detector), Some(expected), "masquerade alone");
            for removal in ["-F POSTROUTING", "-X POSTROUTING"] {
                run(&format!("{program} -t nat {removal}"));
            }
            let rule = format!("-p tcp --dport 80 -j DNAT --to-destination {address}");
            run(&format!("{program} -t nat -A PREROUTING {rule}"));
            let expected =
                format!("nftables chain {family} nat PREROUTING (type nat, hook prerouting)");
            assert_eq!(seen(&mut detector), Some(expected));
        });
    }
}

#[test]
fn the_older_iptables_counts_by_its_table() {
    for (program, address) in [
        ("iptables-legacy", "10.2.0.2"),
        ("ip6tables-legacy", "fd02::2"),
    ] {
        in_netns(async move |_| {
            let mut detector = Detector::default();
            run(&format!("{program} -A FORWARD -j ACCEPT"));
            assert_eq!(seen(&mut detector), None, "no NAT");
            let rule = format!("-p tcp --dport 80 -j DNAT --to-destination {address}");
            run(&format!("{program} -t nat -A PREROUTING {rule}"));
            assert_eq!(seen(&mut detector), Some(format!("{program} table nat")));
        });
    }
}

#[test]
fn rules_that_change_all_the_time_are_no_error() {
    in_netns(async |_| {
        nft("add table inet busy");
        for number in 0..400 {
            nft(&format!("add chain inet busy quiet-{number}"));
        }
        let netns = std::fs::File::open("/proc/thread-self/ns/net").expect("the namespace");
        let changes = std::thread::spawn(move || {
            nix::sched::setns(netns, nix::sched::CloneFlags::CLONE_NEWNET).expect("enter it");
            for number in 0..20 {
                nft(&format!("add chain inet busy more-{number}"));
            }
        });
        let mut detector = Detector::default();
        while !changes.is_finished() {
            assert_eq!(seen(&mut detector), None);
        }
        changes.join().expect("the changes");
    });
}
