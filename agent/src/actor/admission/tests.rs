//! Every decision, and the reason that it names.

use api::ids::EniNumber;
use loader::kernel::Observed;
use loader::kernel::fixture;
use loader::plan::plan;

use super::*;

/// The fixture's node on a fresh host, with its ENIs as ready as `set` makes them.
struct Case {
    intent: Intent,
    view: View,
    facts: Facts,
}

impl Case {
    fn new() -> Self {
        let intent = fixture::intent();
        let host = fixture::host();
        let mut view = plan(&intent, &host).view;
        for eni in view.enis.values_mut() {
            eni.readiness = Readiness::Ready;
            eni.device.as_mut().unwrap().mtu = 9001;
        }
        let facts = Facts::of(&host);
        Self {
            intent,
            view,
            facts,
        }
    }

    fn set(&mut self, number: u8, readiness: Readiness) {
        let eni = self.view.enis.get_mut(&EniNumber(number));
        eni.unwrap().readiness = readiness;
    }

    fn decide(&self, container: &str, addresses: &[&str]) -> Result<Decision, ApiError> {
        let endpoint = fixture::endpoint(container, addresses);
        Admission {
            intent: &self.intent,
            view: &self.view,
            mtu: None,
            facts: &self.facts,
        }
        .decide(EndpointRequest {
            owner: endpoint.owner,
            netns: endpoint.netns,
            addresses: endpoint.addresses,
            ask: Box::default(),
        })
    }

    #[track_caller]
    fn refuses(&self, address: &str, code: ErrorCode, reason: &str) {
        let error = self.decide("x", &[address]).unwrap_err();
        assert_eq!(
            (error.code, error.field.as_deref()),
            (code, Some("addresses"))
        );
        assert!(error.message.contains(reason), "{error}");
        assert!(error.message.contains(address), "{error}");
    }
}

#[test]
fn addresses_of_a_ready_eni_are_given_also_of_two() {
    let case = Case::new();
    for addresses in [
        &["10.0.1.66"][..],
        &["10.0.1.66", "2001:db8:0:1:a::66"],
        &["10.0.1.66", "2001:db8:0:2:a::66"],
        &["10.0.2.20"],
    ] {
        match case.decide("x", addresses).unwrap() {
            Decision::New(endpoint) => {
                let answer = attachment(&case.intent, None, &endpoint).unwrap();
                assert_eq!(answer.addresses.len(), addresses.len());
                assert_eq!(answer.mtu, 9001);
            }
            Decision::Existing(_) => panic!("{addresses:?}"),
        }
    }
}

#[test]
fn the_answer_has_each_addresss_own_eni() {
    let case = Case::new();
    let endpoint = fixture::endpoint("x", &["10.0.1.66", "2001:db8:0:2:a::66"]);
    let answer = attachment(&case.intent, None, &endpoint).unwrap();
    let enis: Vec<_> = answer
        .addresses
        .iter()
        .map(|a| a.eni.as_ref().unwrap().number.0)
        .collect();
    assert_eq!(enis, [1, 2]);
    let gateways: Vec<_> = answer
        .addresses
        .iter()
        .map(|a| a.gateway.unwrap().to_string())
        .collect();
    assert_eq!(gateways, ["10.0.1.1", "fe80:ec2::1"]);
    assert_eq!(answer.host_device, endpoint.id().device());
}

#[test]
fn the_mtu_is_the_smallest_that_anybody_asks_for() {
    let mut case = Case::new();
    let device = case
        .view
        .enis
        .get_mut(&EniNumber(2))
        .unwrap()
        .device
        .as_mut();
    device.unwrap().mtu = 1500;
    let mtu = |case: &Case, configured, addresses: &[&str]| {
        let endpoint = fixture::endpoint("x", addresses);
        let decision = Admission {
            intent: &case.intent,
            view: &case.view,
            mtu: configured,
            facts: &case.facts,
        }
        .decide(EndpointRequest {
            owner: endpoint.owner,
            netns: endpoint.netns,
            addresses: endpoint.addresses,
            ask: Box::default(),
        });
        match decision.unwrap() {
            Decision::New(endpoint) => endpoint.mtu,
            Decision::Existing(_) => panic!("it is new"),
        }
    };
    let both = ["10.0.1.66", "2001:db8:0:2:a::66"];
    assert_eq!(mtu(&case, None, &both), 1500);
    assert_eq!(mtu(&case, Some(1400), &both), 1400);
    assert_eq!(mtu(&case, Some(9001), &both), 1500);
    assert_eq!(mtu(&case, Some(8000), &both[..1]), 8000);
}

#[test]
fn what_no_ready_eni_owns_is_refused_with_the_reason() {
    let mut case = Case::new();
    case.refuses("10.0.9.9", ErrorCode::AddressNotOwned, "no ENI");
    case.refuses("2001:db8:9::9", ErrorCode::AddressNotOwned, "no ENI");
    // In the subnet, but the cloud does not deliver it here.
    case.refuses("10.0.1.99", ErrorCode::AddressNotOwned, "no ENI");
    case.set(1, Readiness::not_ready("no device has its MAC"));
    case.refuses("10.0.1.66", ErrorCode::EniNotReady, "no device has its MAC");
    case.set(
        1,
        Readiness::Excluded {
            reason: "tag cni=no".into(),
        },
    );
    case.refuses("10.0.1.66", ErrorCode::EniExcluded, "tag cni=no");
    case.view.enis.clear();
    case.refuses("10.0.1.66", ErrorCode::EniNotReady, "not been checked");
}

#[test]
fn what_somebody_has_is_refused() {
    let mut case = Case::new();
    case.refuses("10.0.1.65", ErrorCode::AddressInUse, "b/eth0");
    let taken = "10.0.1.66".parse().unwrap();
    case.facts.host.insert(taken, "br0".into());
    case.refuses("10.0.1.66", ErrorCode::AddressOfHost, "br0");
    case.facts.host.clear();
    case.refuses("169.254.20.10", ErrorCode::AddressOfHost, "host-addresses");
}

#[test]
fn an_owner_gets_back_what_it_has_and_nothing_else() {
    let mut case = Case::new();
    // Later changes of the ENI do not matter.
    case.set(1, Readiness::not_ready("gone"));
    let b = ["10.0.1.65", "2001:db8:0:1:a::65"];
    assert_eq!(
        case.decide("b", &b).unwrap(),
        Decision::Existing(fixture::endpoint("b", &b))
    );
    for (addresses, field) in [(&b[..1], "addresses"), (&["10.0.2.20"], "addresses")] {
        let error = case.decide("b", addresses).unwrap_err();
        assert_eq!(error.code, ErrorCode::OwnerConflict);
        assert_eq!(error.field.as_deref(), Some(field));
    }
    let b = case.intent.endpoints.get_mut(&fixture::id("b")).unwrap();
    b.netns = "/run/netns/elsewhere".into();
    let error = case.decide("b", &["10.0.1.65"]).unwrap_err();
    assert_eq!(error.field.as_deref(), Some("netns"));
    b_has_the_id_of_another(&mut case);
}

/// 48 bits can collide; the second owner is refused, and the first one keeps its endpoint.
fn b_has_the_id_of_another(case: &mut Case) {
    let b = case.intent.endpoints.get_mut(&fixture::id("b")).unwrap();
    b.owner.container_id = "other".into();
    let error = case.decide("b", &["10.0.1.65"]).unwrap_err();
    assert_eq!(error.code, ErrorCode::OwnerConflict);
    assert_eq!(error.field.as_deref(), Some("owner"));
}

#[test]
fn an_empty_host_is_no_reason_to_give() {
    let case = Case {
        intent: fixture::intent(),
        view: plan(&fixture::intent(), &Observed::default()).view,
        facts: Facts::default(),
    };
    let error = case.decide("x", &["10.0.1.66"]).unwrap_err();
    assert_eq!(error.code, ErrorCode::EniNotReady);
}

#[test]
fn addresses_of_plain_pools_are_given_where_they_can_be_masqueraded() {
    let mut case = Case::new();
    for block in ["10.99.0.0/28", "fd99::/120"] {
        let pools = &mut case.intent.node.pools;
        pools.insert(block.parse().unwrap(), "mars".to_owned());
    }
    case.intent.settings.masquerade.ipv4 = true;
    let Decision::New(endpoint) = case.decide("x", &["10.99.0.3"]).unwrap() else {
        panic!("it is new");
    };
    let answer = attachment(&case.intent, None, &endpoint).unwrap();
    let allocation = &answer.addresses[0];
    assert_eq!((&allocation.eni, allocation.gateway), (&None, None));
    assert_eq!(allocation.pool, None, "it came with its request");
    assert_eq!(allocation.policy.as_deref(), Some("mars"));
    case.refuses("fd99::3", ErrorCode::AddressNotOwned, "is not masqueraded");
    case.intent.settings.plain_is_native = true;
    assert!(case.decide("x", &["fd99::3"]).is_ok());
    case.view.primary = None;
    case.refuses("10.99.0.3", ErrorCode::EniNotReady, "the primary ENI");
}
