use proptest::prelude::*;

use super::Release::{DoNotRelease, MarkedForRelease, ReadyForRelease, Released};
use super::*;

fn address(n: u8) -> IpAddr {
    IpAddr::from([10, 0, 1, n])
}

/// The present value, use by a pod, and membership in the pool; then the wanted value, and true if
/// the address is kept from pods.
type Row = (Option<Release>, bool, bool, Option<Release>, bool);

const VECTORS: &[Row] = &[
    (None, false, true, None, false),
    (None, true, true, None, false),
    (
        Some(MarkedForRelease),
        false,
        true,
        Some(ReadyForRelease),
        true,
    ),
    (
        Some(MarkedForRelease),
        true,
        true,
        Some(DoNotRelease),
        false,
    ),
    (
        Some(MarkedForRelease),
        false,
        false,
        Some(ReadyForRelease),
        true,
    ),
    (
        Some(ReadyForRelease),
        false,
        true,
        Some(ReadyForRelease),
        true,
    ),
    // An earlier agent agreed, and a pod still has the address.
    (Some(ReadyForRelease), true, true, Some(DoNotRelease), false),
    (Some(DoNotRelease), true, true, Some(DoNotRelease), false),
    (Some(DoNotRelease), false, true, Some(DoNotRelease), false),
    // The operator writes the status first, then the pool.
    (Some(Released), false, true, Some(Released), true),
    (Some(Released), true, true, Some(Released), true),
    (Some(Released), false, false, None, false),
    (Some(Released), true, false, None, false),
];

#[test]
fn every_state_has_its_answer() {
    for (number, (there, held, in_pool, expected, withheld)) in VECTORS.iter().enumerate() {
        let seen = Seen {
            pool: in_pool.then(|| address(1)).into_iter().collect(),
            release: there.map(|state| (address(1), state)).into_iter().collect(),
        };
        let mut handshake = Handshake::default();
        let answers = handshake.observe(&seen, |_| *held);
        assert_eq!(answers.get(&address(1)).copied(), *expected, "row {number}");
        assert_eq!(handshake.is_withheld(address(1)), *withheld, "row {number}");
        // The answers are stable: no write follows a write.
        let again = Seen {
            pool: seen.pool.clone(),
            release: answers.clone(),
        };
        assert_eq!(
            handshake.observe(&again, |_| *held),
            answers,
            "row {number}"
        );
    }
}

#[test]
fn states_have_upstream_names() {
    let names = [MarkedForRelease, ReadyForRelease, DoNotRelease, Released];
    assert_eq!(
        serde_json::to_value(names).unwrap(),
        serde_json::json!([
            "marked-for-release",
            "ready-for-release",
            "do-not-release",
            "released"
        ])
    );
}

#[test]
fn a_mark_that_is_taken_back_frees_the_address() {
    let mut handshake = Handshake::default();
    let mut seen = Seen {
        pool: [address(1)].into(),
        release: [(address(1), MarkedForRelease)].into(),
    };
    handshake.observe(&seen, |_| false);
    assert!(handshake.is_withheld(address(1)));
    seen.release.clear();
    assert!(handshake.observe(&seen, |_| false).is_empty());
    assert_eq!(handshake.withheld(), &BTreeSet::new());
}

/// The next event.
#[derive(Clone, Debug)]
enum Event {
    /// A pod requests an address.
    Add(u8),
    /// It goes.
    Delete(u8),
    /// The operator marks an address.
    Mark(u8),
    /// It takes a mark back.
    Unmark(u8),
    /// It acts on what it sees.
    Operate,
    /// The node sees the document and writes its answer.
    Node,
    /// The node sees the document, and its answer is lost.
    Lost,
    /// The node's agent restarts, and the pods stay.
    Restart,
}

fn events() -> impl Strategy<Value = Vec<Event>> {
    let address = 0..4u8;
    let event = prop_oneof![
        address.clone().prop_map(Event::Add),
        address.clone().prop_map(Event::Delete),
        address.clone().prop_map(Event::Mark),
        address.prop_map(Event::Unmark),
        Just(Event::Operate),
        Just(Event::Node),
        Just(Event::Lost),
        Just(Event::Restart),
    ];
    prop::collection::vec(event, 0..60)
}

proptest! {
    /// The operator takes an address from the ENI only while no pod has it.
    #[test]
    fn no_address_is_both_given_and_released(events in events()) {
        let mut document = Seen { pool: (0..4).map(address).collect(), release: BTreeMap::new() };
        let mut attached = document.pool.clone();
        let mut pods = BTreeSet::new();
        let mut handshake = Handshake::default();
        // The document that the node saw last. It allocates nothing before it has seen one.
        let mut known = None::<Seen>;
        for event in events {
            match event {
                Event::Add(n) => {
                    let address = address(n);
                    let is_known = known.as_ref().is_some_and(|seen| seen.pool.contains(&address));
                    if is_known && !handshake.is_withheld(address) {
                        prop_assert!(attached.contains(&address), "given although released");
                        pods.insert(address);
                    }
                }
                Event::Delete(n) => {
                    pods.remove(&address(n));
                }
                Event::Mark(n) => {
                    if attached.contains(&address(n)) {
                        document.release.entry(address(n)).or_insert(MarkedForRelease);
                    }
                }
                Event::Unmark(n) => {
                    if document.release.get(&address(n)) == Some(&MarkedForRelease) {
                        document.release.remove(&address(n));
                    }
                }
                Event::Operate => {
                    for (address, state) in &mut document.release {
                        if *state == ReadyForRelease {
                            prop_assert!(!pods.contains(address), "released although given");
                            attached.remove(address);
                            *state = Released;
                        }
                    }
                    document.release.retain(|_, state| *state != DoNotRelease);
                    document.pool.clone_from(&attached);
                }
                Event::Node => {
                    let held = |address| pods.contains(&address);
                    let answer = handshake.observe(&document, held);
                    document.release = answer;
                    known = Some(document.clone());
                }
                Event::Lost => {
                    handshake.observe(&document, |address| pods.contains(&address));
                    known = Some(document.clone());
                }
                Event::Restart => {
                    handshake = Handshake::default();
                    known = None;
                }
            }
        }
    }
}
