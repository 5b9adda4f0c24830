//! Pods' devices with the names by which policy engines look for them.

use std::sync::Arc;

use api::ids::PodRef;
use serde_json::{Value, json};
use testkit::fabric::{Fabric, Pod, Spec};

use crate::support::{End, PEER, carry_all, get, nothing_differs};

fn web() -> PodRef {
    PodRef {
        namespace: "default".into(),
        name: "web-0".into(),
        uid: None,
    }
}

/// A pod that its request names; the answer's device.
fn add(fabric: &mut Fabric, eni: u8, index: usize) -> (Arc<Pod>, String) {
    let pod = fabric.make_pod(eni, index).unwrap();
    let mut request = pod.request();
    request["pod"] = json!(web());
    let answer = fabric.agent.ask("PUT", "/v1/endpoints", Some(&request));
    let device = answer.unwrap()["host-device"].as_str().unwrap().to_owned();
    (pod, device)
}

/// A device by one of its names: the kernel's name and the alternative ones.
fn names(fabric: &Fabric, name: &str) -> (String, Value) {
    let text = fabric.node.run(&format!("ip -j link show dev {name}"));
    let links: Value = serde_json::from_str(&text.unwrap()).unwrap();
    let name = links[0]["ifname"].as_str().unwrap().to_owned();
    (name, links[0]["altnames"].clone())
}

#[track_caller]
fn works(fabric: &Fabric, pods: &[(&Pod, u8)]) {
    for (pod, eni) in pods {
        carry_all(fabric, End::Pod(pod), PEER, &[*eni]);
        carry_all(fabric, PEER, End::Pod(pod), &[*eni]);
    }
    nothing_differs(fabric).unwrap();
}

#[test]
fn engines_find_a_pod_by_its_name_whatever_the_setting_becomes() {
    for path in ["direct", "stack"] {
        let settings =
            |name: &str| json!({"datapath": {"path": path}, "endpoint": {"device-name": name}});
        let spec = Spec {
            settings: settings("eni"),
            ..Spec::default()
        };
        let mut fabric = Fabric::ready(&spec).unwrap();
        let expected = web().device("eni");
        let (first, device) = add(&mut fabric, 1, 0);
        assert_eq!(device, expected);
        let id = first.host_device();
        assert_eq!(names(&fabric, &id), (expected.clone(), json!([id])));
        let plain = fabric.add_pod(0, 0).unwrap();
        assert_eq!(names(&fabric, &plain.host_device()).0, plain.host_device());
        works(&fabric, &[(&first, 1), (&plain, 0)]);

        // The pod's next sandbox.
        let (next, device) = add(&mut fabric, 1, 1);
        assert_eq!(device, expected);
        assert_eq!(names(&fabric, &expected).1, json!([next.host_device()]));
        assert_eq!(names(&fabric, &id), (id.clone(), Value::Null));
        works(&fabric, &[(&first, 1), (&next, 1), (&plain, 0)]);

        for name in ["id", "cali"] {
            fabric.agent.configure(&settings(name)).unwrap();
            fabric.agent.kill().unwrap();
            fabric.agent.start(&fabric.node, &[]).unwrap();
            fabric.wait_until_ready().unwrap();
            works(&fabric, &[(&first, 1), (&next, 1), (&plain, 0)]);
            assert_eq!(names(&fabric, &next.host_device()).0, expected);
            let repairs = get(&fabric, "/v1/status")["repairs"]["total"].clone();
            assert_eq!(repairs, 0);
        }
        let endpoints = get(&fabric, "/v1/endpoints").to_string();
        assert!(endpoints.contains(&expected), "{endpoints}");
        fabric.delete_endpoint(&next).unwrap();
        assert!(
            fabric
                .node
                .run(&format!("ip link show dev {expected}"))
                .is_err()
        );
        fabric.finish().unwrap();
    }
}
