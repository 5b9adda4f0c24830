use std::time::Duration;

use super::measure_with;
use super::scene::Size;

/// Little of everything.
const SMOKE: Size = Size {
    endpoints: 4,
    serial: 2,
    bursts: &[(3, 1)],
    rounds: 1,
    loads: 1,
    expiring: 1000,
    rest: Duration::from_millis(100),
};

#[test]
fn the_agent_is_measured() {
    let rows = measure_with(&SMOKE).unwrap();
    for row in &rows {
        println!("{row:?}");
        assert!(row.value.is_finite() && row.value >= 0.0, "{row:?}");
    }
    let mut names: Vec<_> = rows.iter().map(|row| &row.name).collect();
    names.sort();
    names.dedup();
    assert_eq!(names.len(), rows.len(), "a name twice");
}
