//! Points of ADD and DEL at which the agent and the plugin can be killed.

use towpath::fault_points;

/// Times that a point may be missed in a row: the agent processes the queue too.
pub(crate) const TRIES: usize = 5;

/// Operation during the kill.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Verb {
    Add,
    Del,
}

/// Process that is killed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Victim {
    Agent,
    Plugin,
}

/// A point for a kill.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Case {
    pub(crate) victim: Victim,
    pub(crate) verb: Verb,
    pub(crate) point: String,
}

impl Case {
    fn new(victim: Victim, verb: Verb, point: &str) -> Self {
        let point = point.to_owned();
        Self {
            victim,
            verb,
            point,
        }
    }

    /// Every case.
    pub(crate) fn all() -> Vec<Self> {
        let agent = agent_points().into_iter();
        let agent = agent.map(|(verb, point)| Self::new(Victim::Agent, verb, &point));
        let plugin = PLUGIN_POINTS.iter();
        let plugin = plugin.map(|(verb, point)| Self::new(Victim::Plugin, *verb, point));
        let queue = QUEUING.iter().chain(&CARRYING);
        let queue = queue.map(|point| Self::new(Victim::Plugin, Verb::Del, point));
        let pending = Self::new(Victim::Agent, Verb::Del, PENDING);
        agent.chain(plugin).chain(queue).chain([pending]).collect()
    }

    /// True if only a queued DEL reaches the point.
    pub(crate) fn is_of_queue(&self) -> bool {
        let point = self.point.as_str();
        QUEUING.contains(&point) || CARRYING.contains(&point) || point == PENDING
    }
}

/// Points of the agent that only ADD reaches, that only DEL reaches, and that neither reaches.
const OF_ADD: [&str; 7] = [
    "add-route",
    "add-neighbour",
    "attach",
    "create-endpoint-device",
    "put-map-entry",
    "set-up",
    "store.",
];
const OF_DEL: [&str; 4] = [
    "delete-map-entry",
    "delete-neighbour",
    "delete-route",
    "delete-device",
];
const ELSEWHERE: [&str; 9] = [
    "set-sysctl",
    "set-mtu",
    "-address",
    "-rule",
    "reserve-ports",
    // The plugin's installation.
    "cni.",
    // The agent's own addresses.
    "ingress.",
    "detach",
    // Reached by a queued DEL.
    PENDING,
];
const PENDING: &str = "pending-delete.done";

/// The agent's points that ADD or DEL of a container reaches. A new point counts for both, until it
/// is listed above.
fn agent_points() -> Vec<(Verb, String)> {
    let mut points = Vec::new();
    for point in fault_points::points().map(|point| point.to_string()) {
        let is_one = |words: &[&str]| words.iter().any(|word| point.contains(word));
        let is_add = is_one(&OF_ADD) || point.starts_with("endpoint.add");
        let is_del = is_one(&OF_DEL) || point.starts_with("endpoint.del");
        if is_one(&ELSEWHERE) {
            continue;
        }
        // Addresses that cool down are written with a DEL; an ADD may come before or after a check
        // of the cooldown.
        if !is_del && !point.starts_with("addresses") {
            points.push((Verb::Add, point.clone()));
        }
        if !is_add {
            points.push((Verb::Del, point));
        }
    }
    points
}

const PLUGIN_POINTS: [(Verb, &str); 8] = [
    (Verb::Add, "add.connect"),
    (Verb::Add, "add.sent"),
    (Verb::Add, "add.answered"),
    (Verb::Add, "print.begin"),
    (Verb::Add, "print.end"),
    (Verb::Del, "del.connect"),
    (Verb::Del, "del.sent"),
    (Verb::Del, "del.answered"),
];

/// Points of a DEL that is being queued.
pub(crate) const QUEUING: [&str; 3] = ["queue.write", "queue.rename", "queue.renamed"];
/// Points of a process that carries out a queued DEL.
const CARRYING: [&str; 4] = [
    "queued.connect",
    "queued.sent",
    "queued.answered",
    "queue.remove",
];
