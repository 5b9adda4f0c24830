//! The benchmark of live traffic in its smallest form: every way is set up, is checked to carry
//! packets correctly, and does every operation. The cost does not matter here.

use bpf_tests::live::operation::Operation;
use bpf_tests::live::rounds::Effort;
use bpf_tests::live::scene::{Growth, Way, compare, grow};
use bpf_tests::live::site::Traffic;

const EFFORT: Effort = Effort {
    passes: 1,
    rounds: 1,
    divisor: 20,
};

#[test]
fn every_way_does_every_operation() {
    let pods = 5;
    let samples = compare(&[pods], EFFORT).unwrap();
    let mut ways = vec![
        Way::Floor,
        Way::MasqueradingFloor,
        Way::CheckingFloor,
        Way::Direct,
        Way::Kernel(pods),
    ];
    for traffic in Traffic::ALL {
        ways.push(Way::VpcCni(pods, traffic));
        ways.extend([false, true].map(|service_nat| Way::Ours {
            service_nat,
            traffic,
        }));
    }
    for way in ways {
        for operation in Operation::ALL {
            let cost = samples.cost(way, operation).map(|cost| cost.median);
            assert!(cost > Some(0.0), "{way:?}, {}: {cost:?}", operation.name());
        }
    }
}

#[test]
fn larger_nodes_do_every_operation() {
    let growths = [
        Growth::Endpoints(100),
        Growth::Enis(3),
        Growth::Cidrs(20),
        Growth::Flows(2_000),
    ];
    let samples = grow(&growths, EFFORT).unwrap();
    for growth in growths {
        for traffic in Traffic::ALL {
            for operation in Operation::ALL {
                let ratio = samples.ratio((growth, traffic), (Growth::None, traffic), operation);
                assert!(ratio.is_some(), "{growth:?}, {}", operation.name());
            }
        }
    }
}
