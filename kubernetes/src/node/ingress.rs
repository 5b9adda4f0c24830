//! `spec.ingress` of a `CiliumNode`: the addresses of the node's agent for a gateway's listeners.

use std::collections::BTreeSet;
use std::net::IpAddr;

use serde_json::{Map, Value, json};

/// The merge patch that sets exactly these addresses; `None` if there is no change. It is valid
/// only for the object that it was computed from.
#[must_use]
pub fn patch(object: &Value, addresses: &BTreeSet<IpAddr>) -> Option<Value> {
    let there = object
        .pointer("/spec/ingress")
        .filter(|there| !there.is_null());
    let first = |is_v4| addresses.iter().find(|address| address.is_ipv4() == is_v4);
    let wanted = [("ipv4", first(true)), ("ipv6", first(false))];
    let is_there = |(key, wanted): &(&str, Option<&IpAddr>)| {
        let there = there
            .and_then(|there| there.get(key))
            .and_then(Value::as_str);
        there.filter(|text| !text.is_empty()) == wanted.map(ToString::to_string).as_deref()
    };
    let next = if addresses.is_empty() {
        there?;
        Value::Null
    } else {
        if wanted.iter().all(is_there) {
            return None;
        }
        // A family that is null goes.
        let fields = wanted.map(|(key, address)| (key.to_owned(), json!(address)));
        Value::Object(Map::from_iter(fields))
    };
    let metadata = &object["metadata"];
    Some(json!({
        "metadata": {"uid": metadata["uid"], "resourceVersion": metadata["resourceVersion"]},
        "spec": {"ingress": next},
    }))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn patched(there: &Value, addresses: &[&str]) -> Option<Value> {
        let object =
            json!({"metadata": {"uid": "u", "resourceVersion": "7"}, "spec": {"ingress": there}});
        let addresses = addresses.iter().map(|text| text.parse().unwrap()).collect();
        let patch = patch(&object, &addresses)?;
        assert_eq!(patch["metadata"], object["metadata"]);
        Some(patch["spec"]["ingress"].clone())
    }

    #[test]
    fn addresses_are_written_by_family_and_removed_with_the_last() {
        let (none, both) = (
            json!(null),
            json!({"ipv4": "10.0.1.5", "ipv6": "2001:db8::5"}),
        );
        let v4 = json!({"ipv4": "10.0.1.5"});
        assert_eq!(patched(&none, &[]), None);
        assert_eq!(patched(&v4, &["10.0.1.5"]), None);
        assert_eq!(patched(&both, &["10.0.1.5", "2001:db8::5"]), None);
        assert_eq!(
            patched(&json!({"ipv4": "10.0.1.5", "ipv6": ""}), &["10.0.1.5"]),
            None
        );
        assert_eq!(
            patched(&none, &["10.0.1.5", "2001:db8::5"]),
            Some(both.clone())
        );
        assert_eq!(
            patched(&both, &["10.0.1.5"]),
            Some(json!({"ipv4": "10.0.1.5", "ipv6": null}))
        );
        assert_eq!(
            patched(&v4, &["10.0.1.6"]),
            Some(json!({"ipv4": "10.0.1.6", "ipv6": null}))
        );
        assert_eq!(patched(&both, &[]), Some(Value::Null));
    }
}
