use std::sync::mpsc::{self, TryRecvError};

use super::*;

#[derive(Default)]
struct Lamp(Mutex<CompatLookups>);

impl LookupControl for Lamp {
    fn set(&self, lookups: CompatLookups) -> Result<()> {
        *lock(&self.0) = lookups;
        Ok(())
    }
}

struct Nothing;

impl FlowPolicy for Nothing {
    fn is_exempt(&self, _pod: IpAddr, _remote: IpAddr) -> bool {
        false
    }

    fn exit(&self, _pod: IpAddr, _remote: IpAddr, owner: u8) -> u8 {
        owner
    }
}

fn handle() -> (Arc<Lamp>, Handle) {
    let lamp = Arc::new(Lamp::default());
    let handle = Handle::new(lamp.clone()).unwrap();
    (lamp, handle)
}

fn is_on(lamp: &Lamp) -> bool {
    lookups(lamp) != CompatLookups::NONE
}

fn lookups(lamp: &Lamp) -> CompatLookups {
    *lock(&lamp.0)
}

fn sweep(handle: &Handle) {
    let (_, mark) = handle.begin();
    handle.needs(mark, CompatLookups::NONE).unwrap();
}

#[test]
fn flows_are_looked_up_until_a_whole_sweep_under_the_policy_finds_none() {
    let (lamp, handle) = handle();
    assert!(is_on(&lamp), "from the start");
    handle.passed(BTreeSet::new(), true);
    sweep(&handle);
    assert!(is_on(&lamp), "nobody has said what policy is");

    handle.policy_changes(Arc::new(Nothing)).unwrap();
    sweep(&handle);
    assert!(is_on(&lamp), "the maps do not hold it yet");
    handle.passed(BTreeSet::new(), false);
    sweep(&handle);
    assert!(is_on(&lamp), "nor after a pass with failures");
    handle.passed(BTreeSet::new(), true);
    sweep(&handle);
    assert!(!is_on(&lamp));

    let (_, mark) = handle.begin();
    handle.policy_changes(Arc::new(Nothing)).unwrap();
    handle.passed(BTreeSet::new(), true);
    handle.needs(mark, CompatLookups::NONE).unwrap();
    assert!(is_on(&lamp), "that sweep began under another policy");
    sweep(&handle);
    assert!(!is_on(&lamp));
}

#[test]
fn where_pods_are_hidden_flows_are_looked_up_for_ever() {
    struct Hiding;
    impl FlowPolicy for Hiding {
        fn is_exempt(&self, _pod: IpAddr, _remote: IpAddr) -> bool {
            false
        }

        fn exit(&self, _pod: IpAddr, _remote: IpAddr, owner: u8) -> u8 {
            owner
        }

        fn hides_pods(&self) -> bool {
            true
        }
    }
    let (lamp, handle) = handle();
    handle.policy_changes(Arc::new(Hiding)).unwrap();
    handle.passed(BTreeSet::new(), true);
    sweep(&handle);
    let exempt = CompatLookups {
        exempt: true,
        elsewhere: false,
    };
    assert_eq!(lookups(&lamp), exempt);
    handle.policy_changes(Arc::new(Nothing)).unwrap();
    handle.passed(BTreeSet::new(), true);
    sweep(&handle);
    assert!(!is_on(&lamp));
}

#[test]
fn each_look_up_ends_when_no_flow_needs_it_any_more() {
    let (lamp, handle) = handle();
    handle.policy_changes(Arc::new(Nothing)).unwrap();
    handle.passed(BTreeSet::new(), true);
    let elsewhere = CompatLookups {
        exempt: false,
        elsewhere: true,
    };
    for (found, left) in [
        (CompatLookups::ALL, CompatLookups::ALL),
        (elsewhere, elsewhere),
        // It does not come back without a change of policy.
        (CompatLookups::ALL, elsewhere),
        (CompatLookups::NONE, CompatLookups::NONE),
    ] {
        let (around, mark) = handle.begin();
        assert!(around.policy.is_some());
        handle.needs(mark, found).unwrap();
        assert_eq!(lookups(&lamp), left);
    }
    assert!(handle.begin().0.policy.is_none());
}

#[test]
fn a_sweep_that_began_before_the_maps_held_the_policy_does_not_count() {
    let (lamp, handle) = handle();
    handle.policy_changes(Arc::new(Nothing)).unwrap();
    let (_, mark) = handle.begin();
    handle.passed(BTreeSet::new(), true);
    handle.needs(mark, CompatLookups::NONE).unwrap();
    assert!(is_on(&lamp));
}

#[test]
fn the_sweeper_is_nudged_by_what_changed_and_not_by_what_did_not() {
    let (_lamp, handle) = handle();
    let soon = Duration::from_millis(1);
    let pods = BTreeSet::from([IpAddr::from([10, 0, 0, 1])]);
    assert!(!handle.wait(soon).at_once);
    handle.passed(pods.clone(), true);
    assert!(handle.wait(soon).at_once);
    let (around, _) = handle.begin();
    assert_eq!(around.endpoints.as_deref(), Some(&pods));
    handle.passed(pods, true);
    assert!(!handle.wait(soon).at_once);
    handle.passed(BTreeSet::new(), true);
    assert!(handle.wait(soon).at_once);
}

#[test]
fn what_is_asked_after_the_end_is_dropped() {
    let (_lamp, handle) = handle();
    let (sender, receiver) = mpsc::channel();
    handle.stop();
    handle.stats(Box::new(move |stats| drop(sender.send(stats))));
    assert_eq!(receiver.try_recv().err(), Some(TryRecvError::Disconnected));
    assert!(handle.wait(Duration::ZERO).stops);
}
