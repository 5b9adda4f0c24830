//! The benchmark of live traffic in its smallest form. Every datapath is set up, is checked to
//! carry packets correctly, and does every operation. The cost does not matter here.

use bench::live::nodes::site::Traffic;
use bench::live::operation::Operation;
use bench::live::rounds::Effort;
use bench::live::scene::{Datapath, Growth, compare, grow};

const EFFORT: Effort = Effort {
    passes: 1,
    rounds: 1,
    divisor: 20,
};

#[test]
fn every_way_does_every_operation() {
    let pods = 5;
    let samples = compare(&[pods], EFFORT).unwrap();
    let mut datapaths = vec![
        Datapath::Floor,
        Datapath::MasqueradingFloor,
        Datapath::CheckingFloor,
        Datapath::Direct,
        Datapath::Kernel(pods),
    ];
    for traffic in Traffic::ALL {
        datapaths.push(Datapath::VpcCni(pods, traffic));
        datapaths.extend([false, true].map(|service_nat| Datapath::Ours {
            service_nat,
            traffic,
        }));
    }
    for datapath in datapaths {
        for operation in Operation::ALL {
            let cost = samples.cost(datapath, operation).map(|cost| cost.median);
            assert!(
                cost > Some(0.0),
                "{datapath:?}, {}: {cost:?}",
                operation.name()
            );
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
