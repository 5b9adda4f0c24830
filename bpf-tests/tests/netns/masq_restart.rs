//! A thousand open connections outlive the agent, its restarts, and its programs' replacement.

use ipam::Family;
use nix::sys::resource::{Resource, getrlimit, setrlimit};
use serde_json::json;
use testkit::fabric::Fabric;
use testkit::fabric::state::program_ids;
use testkit::fabric::traffic::{Asker, Echo, Session};

use crate::masq::{internet, scene};

/// Connections of each pod in each family: two pods, two families.
const EACH: usize = 250;
/// Restarts.
const TIMES: usize = 3;

fn exchange_all(sessions: &mut [Session], askers: &[(Asker, std::net::SocketAddr)], when: &str) {
    let broken: Vec<_> = sessions
        .iter_mut()
        .filter_map(|session| session.exchange().err())
        .collect();
    assert!(
        broken.is_empty(),
        "{when}: {} broken, {:#}",
        broken.len(),
        broken[0]
    );
    for (asker, seen) in askers {
        assert_eq!(asker.ask(7).unwrap(), *seen, "{when}");
    }
}

fn programs(fabric: &Fabric) -> Vec<u32> {
    program_ids(&fabric.node, "eth1").unwrap()
}

#[test]
fn a_thousand_connections_outlive_the_agent() {
    // Both ends of each are this process's.
    let (_, most) = getrlimit(Resource::RLIMIT_NOFILE).unwrap();
    setrlimit(Resource::RLIMIT_NOFILE, most, most).unwrap();
    let (mut fabric, pods) = scene(json!({}));
    let mut sessions = Vec::new();
    let mut askers = Vec::new();
    let mut servers = Vec::new();
    for family in Family::ALL {
        let server = Echo::telling(internet(&fabric, family), 0).unwrap();
        for pod in &pods {
            for _ in 0..EACH {
                sessions.push(Session::open(pod.at(family), 0, server.address()).unwrap());
            }
            let asker = Asker::open(pod.at(family), 0, server.address()).unwrap();
            let seen = asker.ask(7).unwrap();
            askers.push((asker, seen));
        }
        servers.push(server);
    }
    assert_eq!(sessions.len(), 1000);
    exchange_all(&mut sessions, &askers, "before");
    for time in 0..TIMES {
        let last = programs(&fabric);
        if time == 1 {
            fabric.agent.kill().unwrap();
        } else {
            fabric.agent.stop().unwrap();
        }
        exchange_all(&mut sessions, &askers, "while the agent is away");
        fabric.start_agent().unwrap();
        assert_ne!(programs(&fabric), last, "the program is a new one");
        exchange_all(&mut sessions, &askers, "after a restart");
    }
    fabric.finish().unwrap();
}
