//! The benchmark measures what it says: every path that its group `program` has becomes what it
//! should, or the run fails, and every target is there.

use std::process::Command;

use serde_json::Value;

/// The targets of the group, as users and `docs/performance.md` know them.
const TARGETS: [&str; 12] = [
    "masqueraded packet out, established",
    "masqueraded packet back, delivered",
    "exempt packet out",
    "ENI to pod",
    "local delivery",
    "new masqueraded flow, port kept",
    "new flow at 99% port use, mean",
    "masqueraded packet out, established: more with service NAT",
    "masqueraded packet back, delivered: more with service NAT",
    "exempt packet out: more with service NAT",
    "ENI to pod: more with service NAT",
    "local delivery: more with service NAT",
];

#[test]
fn every_path_can_be_measured_and_every_target_is_named() {
    let folder = tempfile::tempdir().unwrap();
    let (json, charts) = (
        folder.path().join("bench.json"),
        folder.path().join("charts"),
    );
    let output = Command::new(env!("CARGO_BIN_EXE_towpath-bench"))
        .args(["program", "--trial", "--json"])
        .arg(&json)
        .arg("--charts")
        .arg(&charts)
        .output()
        .unwrap();
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{said}");
    let text = std::fs::read_to_string(&json).unwrap();
    let document: Value = serde_json::from_str(&text).unwrap();
    let names = |list: &str| -> Vec<String> {
        let list = document[list].as_array().unwrap().iter();
        list.map(|row| row["name"].as_str().unwrap().to_owned())
            .collect()
    };
    assert_eq!(names("targets"), TARGETS);
    let rows = names("rows");
    for part in [
        "no-op program",
        "primitive: ",
        "floor: masqueraded out",
        "masqueraded back, icmp ipv6, port taken",
        "new flow, port taken, table nearly full",
        "stack flow, from the pod, udp ipv4, service NAT",
        "drop: no-port",
        "drop: stack-full",
        ", 100,000 flows",
    ] {
        assert!(
            rows.iter()
                .any(|row| row.starts_with(part) || row.ends_with(part)),
            "{part}: {rows:?}"
        );
    }
    let printed = String::from_utf8(output.stdout).unwrap();
    assert!(
        printed.trim_end().ends_with("of 12 targets are met"),
        "{printed}"
    );
    assert!(charts.join("program.svg").exists());
}
