//! The ENIs that an object's status shows.

use std::collections::{BTreeMap, BTreeSet};

use cloud::{EniId, blocks};
use ipnet::IpNet;
use serde_json::Value;

/// The ENIs in a status, with their blocks.
#[derive(Clone, Debug, Default)]
pub(crate) struct Published {
    pub(crate) enis: BTreeMap<EniId, BTreeSet<IpNet>>,
    /// False if the status is about another instance or object of the same name.
    pub(crate) is_believed: bool,
}

impl Published {
    pub(crate) fn read(object: &Value) -> Self {
        let enis = object["status"]["eni"]["enis"].as_object();
        let enis = enis.into_iter().flatten().filter_map(|(id, entry)| {
            let list = |key: &str| entry[key].as_array().into_iter().flatten();
            let texts = |key: &str| list(key).filter_map(Value::as_str);
            let own = entry["ip"].as_str().and_then(|text| text.parse().ok());
            let prefixes = texts("prefixes").chain(texts("ipv6-prefixes"));
            let prefixes = prefixes.filter_map(|text| text.parse().ok());
            let addresses = texts("addresses").filter_map(|text| text.parse().ok());
            Some((EniId::parse(id)?, blocks(own, prefixes, addresses)))
        });
        Self {
            enis: enis.collect(),
            is_believed: true,
        }
    }

    /// The status is about another instance or object.
    pub(crate) fn disbelieved(object: &Value) -> Self {
        let shown = Self::read(object);
        Self {
            is_believed: shown.enis.is_empty(),
            ..Self::default()
        }
    }

    /// Reports if the status has a block of an ENI.
    pub(crate) fn has(&self, eni: &EniId, block: &IpNet) -> bool {
        self.enis.get(eni).is_some_and(|it| it.contains(block))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn addresses_of_prefixes_and_the_own_one_are_no_blocks() {
        let entry = json!({
            "ip": "10.0.1.10", "addresses": ["10.0.1.10", "10.0.1.20", "10.0.1.64", "bad"],
            "prefixes": ["10.0.1.64/28"], "ipv6-prefixes": ["2001:db8::/80"]
        });
        let object = json!({"status": {"eni": {"enis": {"eni-1": entry, "": {}}}}});
        let published = Published::read(&object);
        let expected = ["10.0.1.20/32", "10.0.1.64/28", "2001:db8::/80"];
        let expected: BTreeSet<IpNet> = expected.map(|text| text.parse().unwrap()).into();
        assert_eq!(published.enis, [("eni-1".into(), expected)].into());
    }

    #[test]
    fn an_empty_status_of_another_object_is_as_good_as_believed() {
        let object = json!({"status": {"eni": {"enis": {"eni-1": {"id": "eni-1"}}}}});
        let published = Published::disbelieved(&object);
        assert!(published.enis.is_empty() && !published.is_believed);
        assert!(Published::disbelieved(&json!({})).is_believed);
    }
}
