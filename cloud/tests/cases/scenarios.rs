//! The lines of the table that are about a node over time, each run against a naive EC2.

use super::bed::{Bed, node};
use super::table::{self, Scenario};

fn bed(scenario: &Scenario) -> Bed {
    let mut node = node("one", scenario.instance_type);
    node.marks = cloud::want::Watermarks {
        pre: scenario.pre,
        min: scenario.min,
        max: scenario.max,
        above: scenario.above,
    };
    node.rules.prefixes = scenario.prefixes;
    Bed::with(node)
}

#[test]
fn nodes_get_what_their_use_asks_for() {
    for scenario in table::SCENARIOS {
        let mut bed = bed(scenario);
        bed.settle();
        let mut got = vec![(0, bed.available("one"))];
        for (used, _) in &scenario.steps[1..] {
            bed.set_used(*used);
            bed.settle();
            got.push((*used, bed.available("one")));
        }
        assert_eq!(got, scenario.steps, "{}", scenario.name);
        assert!(bed.loose().is_empty(), "{}", scenario.name);
    }
}

#[test]
fn a_raised_minimum_is_brought() {
    let scenario = table::SCENARIOS
        .iter()
        .find(|it| it.name == "m5.4xlarge")
        .unwrap();
    let mut bed = bed(scenario);
    bed.set_used(8);
    bed.settle();
    assert_eq!(bed.available("one"), 10);
    bed.one().marks.min = 20;
    bed.settle();
    assert_eq!(bed.available("one"), 20);
}

#[test]
fn an_excluded_eni_takes_an_adapter_and_is_left_alone() {
    let mut node = node("one", "m5.large");
    node.rules.exclude_tags = [("skip".to_owned(), "yes".to_owned())].into();
    let mut bed = Bed::with(node);
    let primary = bed.ec2.enis.values_mut().next().unwrap();
    primary.tags.insert("skip".to_owned(), "yes".to_owned());
    let primary = primary.clone();
    bed.settle();
    assert_eq!((bed.available("one"), bed.enis("one")), (8, 2));
    bed.set_used(7);
    bed.settle();
    assert_eq!((bed.available("one"), bed.enis("one")), (15, 3));
    assert_eq!(bed.ec2.enis[&primary.id], primary);
}

#[test]
fn the_last_addresses_of_a_subnet_are_single_ones() {
    let mut node = node("one", "m5.large");
    node.rules.prefixes = true;
    let mut bed = Bed::with(node);
    bed.settle();
    assert_eq!(bed.available("one"), 16);
    bed.set_used(12);
    bed.settle();
    assert_eq!(bed.available("one"), 32);
    bed.ec2.leave("own", 15);
    bed.set_used(25);
    bed.settle();
    assert_eq!(bed.available("one"), 33);
}
