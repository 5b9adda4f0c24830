//! Delegated IPAM plugins.

use std::fs;
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use crate::support::{Agent, Answer, Call, World, willing};

/// A plugin that notes how it was called, and gives an address.
const NOTES: &str = r#"
folder=$(dirname "$0")
echo "$CNI_COMMAND $CNI_CONTAINERID $CNI_IFNAME ${CNI_NETNS:--}" >> "$folder/calls"
cat > "$folder/stdin-$CNI_COMMAND"
if [ "$CNI_COMMAND" = ADD ]; then
    echo '{"cniVersion": "1.0.0", "ips": [{"address": "10.0.1.77/24", "gateway": "10.0.1.1"}],
        "dns": {"nameservers": ["10.0.0.2"]}}'
fi
"#;

fn calls(world: &World) -> Vec<String> {
    let text = fs::read_to_string(world.plugins().join("calls")).unwrap_or_default();
    text.lines().map(str::to_owned).collect()
}

fn config(world: &World, version: &str) -> Value {
    let mut config = world.config(version);
    config["ipam"] = json!({"type": "other-ipam", "ranges": [[]]});
    config
}

#[test]
fn every_command_goes_to_the_delegated_plugin_with_the_whole_configuration() {
    let world = World::new();
    world.script("other-ipam", NOTES);
    let agent = Agent::start(&world, |request| {
        match (request.method.as_str(), request.path.as_str()) {
            ("GET", "/v1/endpoints/known/eth0") => Answer::Json(
                200,
                json!({"attachment": crate::support::attachment(&json!("10.0.1.77"))}),
            ),
            _ => willing(request),
        }
    });
    let mut config = config(&world, "1.1.0");
    let result = Call::new(&world, "ADD", &config).run().success();
    assert_eq!(result["ips"][0]["address"], "10.0.1.77/32");
    assert_eq!(result["dns"], json!({"nameservers": ["10.0.0.2"]}));
    let put = agent
        .requests()
        .into_iter()
        .find(|request| request.method == "PUT")
        .unwrap();
    assert_eq!(put.body.unwrap()["addresses"], json!(["10.0.1.77"]));

    config["prevResult"] = result;
    Call::new(&world, "CHECK", &config)
        .with("CNI_CONTAINERID", "known")
        .run()
        .success();
    Call::new(&world, "DEL", &config)
        .without("CNI_NETNS")
        .run()
        .success();
    config["cni.dev/valid-attachments"] = json!([]);
    Call::new(&world, "GC", &config).run().success();
    Call::new(&world, "STATUS", &config).run().success();
    assert_eq!(
        calls(&world),
        [
            "ADD 0a1b2c eth0 /run/netns/web",
            "CHECK known eth0 /run/netns/web",
            "DEL 0a1b2c eth0 -",
            "GC 0a1b2c eth0 /run/netns/web",
            "STATUS 0a1b2c eth0 /run/netns/web",
        ]
    );
    let given = fs::read(world.plugins().join("stdin-GC")).unwrap();
    assert_eq!(serde_json::from_slice::<Value>(&given).unwrap(), config);
}

#[test]
fn a_second_add_takes_what_the_owner_has() {
    let world = World::new();
    world.script("other-ipam", NOTES);
    let agent = Agent::start(&world, |request| {
        let attachment = crate::support::attachment(&json!("10.0.1.77"));
        match request.method.as_str() {
            "GET" => Answer::Json(200, json!({"attachment": attachment})),
            _ => Answer::Json(200, attachment),
        }
    });
    let result = Call::new(&world, "ADD", &config(&world, "1.0.0"))
        .run()
        .success();
    assert_eq!(result["ips"][0]["address"], "10.0.1.77/32");
    assert_eq!(calls(&world), Vec::<String>::new());
    let put = agent
        .requests()
        .into_iter()
        .find(|request| request.method == "PUT")
        .unwrap();
    assert_eq!(put.body.unwrap().get("addresses"), None);
}

#[test]
fn when_the_agent_refuses_the_delegated_plugin_is_told_to_delete() {
    let world = World::new();
    world.script("other-ipam", NOTES);
    let _agent = Agent::start(&world, |request| {
        if request.method == "GET" {
            return willing(request);
        }
        let error = json!({"code": "address-not-owned", "message": "no ENI owns 10.0.1.77"});
        Answer::Json(422, json!({"error": error}))
    });
    let (code, _text) = Call::new(&world, "ADD", &config(&world, "1.0.0"))
        .run()
        .failure();
    assert_eq!(code, 102);
    let expected = [
        "ADD 0a1b2c eth0 /run/netns/web",
        "DEL 0a1b2c eth0 /run/netns/web",
    ];
    assert_eq!(calls(&world), expected);
}

/// The address would go to another container.
#[test]
fn an_owner_that_may_have_an_endpoint_keeps_what_the_delegated_plugin_gave() {
    for answer in [
        Answer::Json(
            200,
            json!({"attachment": crate::support::attachment(&json!("10.0.1.77"))}),
        ),
        Answer::Close,
    ] {
        let world = World::new();
        world.script("other-ipam", NOTES);
        let mut looks = 0;
        let _agent = Agent::start(&world, move |request| {
            looks += u32::from(request.method == "GET");
            match (request.method.as_str(), looks) {
                ("GET", 1) => willing(request),
                _ => answer.clone(),
            }
        });
        Call::new(&world, "ADD", &config(&world, "1.0.0")).run();
        let added = ["ADD 0a1b2c eth0 /run/netns/web"];
        assert_eq!(calls(&world), added);
    }
}

/// A plugin that gives an owner one address, as host-local does, and takes its time.
const ONCE: &str = r#"
folder=$(dirname "$0")
echo "$CNI_COMMAND" >> "$folder/calls"
if [ "$CNI_COMMAND" = DEL ]; then rmdir "$folder/reserved"; exit 0; fi
if ! mkdir "$folder/reserved" 2> /dev/null; then
    echo '{"cniVersion": "1.0.0", "code": 100, "msg": "duplicate allocation is not allowed"}'; exit 1
fi
while ! [ -e "$folder/go" ]; do sleep 0.01; done
echo '{"cniVersion": "1.0.0", "ips": [{"address": "10.0.1.77/24"}]}'
"#;

#[test]
fn two_adds_for_one_owner_at_once_are_one() {
    let world = World::new();
    world.script("other-ipam", ONCE);
    let mut has_endpoint = false;
    let _agent = Agent::start(&world, move |request| {
        has_endpoint |= request.method == "PUT";
        match request.method.as_str() {
            "GET" if has_endpoint => {
                let attachment = crate::support::attachment(&json!("10.0.1.77"));
                Answer::Json(200, json!({"attachment": attachment}))
            }
            "PUT" => Answer::Json(200, crate::support::attachment(&json!("10.0.1.77"))),
            _ => willing(request),
        }
    });
    let config = config(&world, "1.0.0");
    std::thread::scope(|scope| {
        let add = || Call::new(&world, "ADD", &config).run().success();
        let both = [scope.spawn(add), scope.spawn(add)];
        // So long the second one may do harm, if it does.
        let deadline = Instant::now() + Duration::from_millis(500);
        while calls(&world).len() < 3 && Instant::now() < deadline {
            std::thread::sleep(Duration::from_millis(10));
        }
        fs::write(world.plugins().join("go"), "").unwrap();
        for one in both {
            assert_eq!(one.join().unwrap()["ips"][0]["address"], "10.0.1.77/32");
        }
    });
    assert_eq!(calls(&world), ["ADD"]);
    assert!(world.plugins().join("reserved").exists());
}

#[test]
fn the_delegated_plugins_own_failure_is_handed_on() {
    let world = World::new();
    let fails = r#"[ "$CNI_COMMAND" = DEL ] && exec touch "$(dirname "$0")/deleted"
        echo '{"cniVersion": "1.0.0", "code": 121, "msg": "range is full", "details": "d"}'; exit 1"#;
    world.script("other-ipam", fails);
    let agent = Agent::willing(&world);
    let (code, text) = Call::new(&world, "ADD", &config(&world, "1.0.0"))
        .run()
        .failure();
    assert_eq!((code, text.as_str()), (121, "other-ipam: range is full: d"));
    assert!(world.plugins().join("deleted").exists());
    assert!(!agent.calls().contains(&"PUT /v1/endpoints".to_owned()));
}

#[test]
fn a_plugin_that_is_no_plugin_is_named() {
    let world = World::new();
    let _agent = Agent::willing(&world);
    let add = |config: &Value| Call::new(&world, "ADD", config).run().failure();
    let (code, text) = add(&config(&world, "1.0.0"));
    assert_eq!(code, 105);
    assert!(
        text.starts_with("ipam.type is \"other-ipam\": there is no such plugin"),
        "{text}"
    );
    for (script, reason) in [
        ("echo nonsense", "its result is not a JSON object"),
        ("echo '{}'", "its result has no ips"),
        ("exit 3", "it ended with exit status: 3"),
    ] {
        world.script("other-ipam", script);
        let (code, text) = add(&config(&world, "1.0.0"));
        assert_eq!(code, 105);
        assert_eq!(text, format!("the IPAM plugin other-ipam failed: {reason}"));
    }
    let mut wrong = config(&world, "1.0.0");
    wrong["ipam"]["type"] = json!("../../bin/sh");
    assert_eq!(add(&wrong).0, 7);
}

#[test]
fn without_an_agent_the_delegated_plugin_is_not_called() {
    let world = World::new();
    world.script("other-ipam", NOTES);
    let (code, _text) = Call::new(&world, "ADD", &config(&world, "1.0.0"))
        .run()
        .failure();
    assert_eq!(code, 11);
    assert_eq!(calls(&world), Vec::<String>::new());
}

#[test]
fn pools_do_not_go_with_another_plugins_addresses() {
    let world = World::new();
    world.script("other-ipam", NOTES);
    let _agent = Agent::willing(&world);
    let mut config = config(&world, "1.0.0");
    let pool = Call::new(&world, "ADD", &config)
        .with("CNI_ARGS", "TOWPATH_POOL=blue")
        .run();
    assert_eq!(pool.failure().0, 7);
    config["families"] = json!(["ipv4"]);
    assert_eq!(Call::new(&world, "ADD", &config).run().failure().0, 7);
    assert_eq!(calls(&world), Vec::<String>::new());
}
