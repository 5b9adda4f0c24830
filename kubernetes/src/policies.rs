//! Selection of pods by `NetworkPolicy` objects. Their rules do not matter here: Towpath enforces
//! none. It reports pods whose packets bypass the programs that do.

use std::collections::{BTreeMap, BTreeSet};

use serde::Deserialize as _;
use serde_json::Value;

use crate::Selector;
use crate::pool::pool_selection::Metadata;

/// Facts about a policy.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Policy {
    /// Its namespace.
    pub namespace: String,
    /// Its name.
    pub name: String,
    /// Its uid.
    pub uid: String,
    /// The pods of its namespace that it is for.
    pods: Selector,
}

impl Policy {
    /// Reads a policy. One with an unreadable selector counts as selecting all pods of its
    /// namespace, since a missed report is worse than one too many.
    #[must_use]
    pub fn read(object: &Value) -> Self {
        let text = |key: &str| {
            let text = object["metadata"][key].as_str();
            text.unwrap_or_default().to_owned()
        };
        Self {
            namespace: text("namespace"),
            name: text("name"),
            uid: text("uid"),
            pods: Selector::deserialize(&object["spec"]["podSelector"]).unwrap_or_default(),
        }
    }

    fn selects(&self, pod: &Metadata) -> bool {
        pod.namespace == self.namespace && self.pods.matches(&pod.labels)
    }
}

/// A policy, and the pods that it selects.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Selected {
    /// The policy.
    pub policy: Policy,
    /// The names of the pods.
    pub pods: BTreeSet<String>,
}

/// The policies that select any of these pods, each with those.
#[must_use]
pub fn selecting<'a>(
    policies: impl IntoIterator<Item = &'a Policy>,
    pods: &[Metadata],
) -> Vec<Selected> {
    let mut by_namespace: BTreeMap<&str, Vec<&Metadata>> = BTreeMap::new();
    for pod in pods {
        by_namespace.entry(&pod.namespace).or_default().push(pod);
    }
    let selected = policies.into_iter().map(|policy| {
        let pods = by_namespace.get(policy.namespace.as_str());
        let pods = pods.into_iter().flatten().filter(|pod| policy.selects(pod));
        Selected {
            policy: policy.clone(),
            pods: pods.map(|pod| pod.name.clone()).collect(),
        }
    });
    selected
        .filter(|selected| !selected.pods.is_empty())
        .collect()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn pod(namespace: &str, name: &str, labels: &[(&str, &str)]) -> Metadata {
        let labels = labels.iter();
        Metadata {
            namespace: namespace.to_owned(),
            name: name.to_owned(),
            labels: labels
                .map(|(key, value)| ((*key).to_owned(), (*value).to_owned()))
                .collect(),
            ..Metadata::default()
        }
    }

    fn policy(namespace: &str, name: &str, selector: &Value) -> Policy {
        Policy::read(&json!({
            "metadata": {"namespace": namespace, "name": name, "uid": format!("uid-{name}")},
            "spec": {"podSelector": selector, "ingress": [{}]}
        }))
    }

    #[test]
    fn a_policy_selects_pods_of_its_namespace_by_their_labels() {
        let pods = [
            pod("shop", "web", &[("app", "web")]),
            pod("shop", "store", &[("app", "store")]),
            pod("other", "web", &[("app", "web")]),
        ];
        let web = json!({"matchLabels": {"app": "web"}});
        let in_none = json!({"matchExpressions": [{"key": "app", "operator": "DoesNotExist"}]});
        let policies = [
            policy("shop", "of-web", &web),
            policy("shop", "of-all", &json!({})),
            policy("shop", "absent", &json!(null)),
            policy("shop", "of-nobody", &in_none),
            policy("empty", "of-all", &json!({})),
            policy(
                "other",
                "unreadable",
                &json!({"matchExpressions": [{"key": "a", "operator": "?"}]}),
            ),
        ];
        let selected = selecting(&policies, &pods);
        let selected: Vec<(&str, Vec<&str>)> = selected
            .iter()
            .map(|one| {
                let pods = one.pods.iter().map(String::as_str);
                (one.policy.name.as_str(), pods.collect())
            })
            .collect();
        assert_eq!(
            selected,
            [
                ("of-web", vec!["web"]),
                ("of-all", vec!["store", "web"]),
                ("absent", vec!["store", "web"]),
                ("unreadable", vec!["web"]),
            ]
        );
        assert_eq!(policies[0].uid, "uid-of-web");
    }
}
