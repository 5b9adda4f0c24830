//! Events about the release of blocks.

use std::collections::BTreeSet;

use ipnet::IpNet;
use kubernetes::operation::report::Reason;

use super::Fleet;
use crate::input::Moment;
use crate::member::Ended;
use crate::work::{About, Event};

impl Fleet {
    /// Records an event about a node.
    pub(super) fn report(&mut self, name: &str, reason: Reason, text: String) {
        self.works.record(Event {
            about: About::Node(name.to_owned()),
            reason,
            text,
        });
    }

    /// Records the outcome of releases of blocks.
    pub(super) fn report_released(&mut self, name: &str, at: Moment) {
        let ended = self
            .nodes
            .members
            .get_mut(name)
            .map(|it| it.releases.take_ended());
        if !self.may_change(at.now) {
            return;
        }
        let Ended { released, returned } = ended.unwrap_or_default();
        if !released.is_empty() {
            let text = format!("EC2 took back {}, which no pod used", list(&released));
            self.report(name, Reason::BlocksReleased, text);
        }
        if !returned.is_empty() {
            let text = format!(
                "the agent claims {} again, which EC2 was about to take back: the node keeps it",
                list(&returned)
            );
            self.report(name, Reason::BlocksClaimedAgain, text);
        }
    }
}

fn list(blocks: &BTreeSet<IpNet>) -> String {
    let texts: Vec<String> = blocks.iter().map(ToString::to_string).collect();
    texts.join(", ")
}
