//! Shortages of conntrack entries, which pods and host share.

use std::net::IpAddr;

use super::nat::named;
use crate::actor::Actor;
use crate::host::kernel::Host;

impl<K: Host> Actor<K> {
    /// The shortage of conntrack entries, if there is one, with the pod that has the most.
    pub(crate) fn conntrack_shortage(&self) -> Option<String> {
        let shortage = self.observers.conntrack.shortage()?;
        let owner = |address: &IpAddr| {
            let mut endpoints = self.intent.endpoints.values();
            endpoints.find(|endpoint| endpoint.addresses.contains(address))
        };
        let top = shortage.top(|address| owner(address).is_some());
        let top = top.map(|top| owner(&top).map_or_else(|| top.to_string(), named));
        Some(text(shortage.most, shortage.is_full, top.as_deref()))
    }
}

/// A shortage as text, without figures that change from check to check.
fn text(most: u32, is_full: bool, top: Option<&str>) -> String {
    let problem = if is_full {
        format!(
            "conntrack is full (net.netfilter.nf_conntrack_max is {most}), and new connections are \
             dropped or evict others"
        )
    } else {
        format!("conntrack has more than 90% of net.netfilter.nf_conntrack_max ({most}) in use")
    };
    let top = top.map(|top| format!("; {top} has the most entries"));
    let top = top.unwrap_or_default();
    format!("{problem}{top}; raise the limit, or end what opens so many connections")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_shortage_names_limit_pod_and_remedy() {
        assert_eq!(
            text(1000, false, Some("pod default/busy")),
            "conntrack has more than 90% of net.netfilter.nf_conntrack_max (1000) in use; pod \
             default/busy has the most entries; raise the limit, or end what opens so many \
             connections"
        );
        assert_eq!(
            text(1000, true, None),
            "conntrack is full (net.netfilter.nf_conntrack_max is 1000), and new connections are \
             dropped or evict others; raise the limit, or end what opens so many connections"
        );
    }
}
