//! The pool of a pod, for each family, in this order: its annotation, its namespace's annotation,
//! the pool whose selectors select it, the default pool.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;

use ipam::Family;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::Selector;
use crate::pool::restriction::{RESTRICT, Restriction, restriction};

/// The annotation that names the pool of both families.
const IP_POOL: &str = "ipam.cilium.io/ip-pool";
/// The annotation by which a pod has to be selected by a pool.
const REQUIRE: &str = "ipam.cilium.io/require-pool-match";
/// Labels that a pod has for selectors beside its own.
const POD_NAMESPACE: &str = "io.kubernetes.pod.namespace";
const POD_NAME: &str = "io.kubernetes.pod.name";

/// Metadata of a pod, or of a namespace, whose own namespace is empty then.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Metadata {
    /// Its namespace.
    pub namespace: String,
    /// Its name.
    pub name: String,
    /// Its uid.
    pub uid: String,
    /// Its labels.
    #[serde(deserialize_with = "nullable")]
    pub labels: BTreeMap<String, String>,
    /// Its annotations.
    #[serde(deserialize_with = "nullable")]
    pub annotations: BTreeMap<String, String>,
}

fn nullable<'de, D: serde::Deserializer<'de>>(
    deserializer: D,
) -> Result<BTreeMap<String, String>, D::Error> {
    Ok(Option::deserialize(deserializer)?.unwrap_or_default())
}

/// The selectors of a pool's object.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Candidate {
    /// The families that it has CIDRs of.
    pub families: BTreeSet<Family>,
    /// `spec.podSelector`.
    pub pods: Option<Selector>,
    /// `spec.namespaceSelector`.
    pub namespaces: Option<Selector>,
    /// Which pods may have it, beside that.
    pub restriction: Option<Restriction>,
}

/// The pool of a pod, and why.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Choice {
    /// The pool.
    pub pool: String,
    /// The reason for this one.
    pub why: Why,
}

/// The reason for a pool.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Why {
    /// This annotation of the pod.
    Pod(&'static str),
    /// This annotation of its namespace.
    Namespace(&'static str),
    /// The pool's selectors.
    Selectors,
    /// Nothing else says anything.
    Default,
}

impl fmt::Display for Why {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Pod(annotation) => write!(f, "annotation {annotation} of the pod"),
            Self::Namespace(annotation) => write!(f, "annotation {annotation} of its namespace"),
            Self::Selectors => f.write_str("selectors of the pool"),
            Self::Default => f.write_str("the default pool"),
        }
    }
}

/// Why a pod is of no pool.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ChoiceError {
    /// Selectors of several pools select it.
    #[error(
        "the selectors of pools {} all select pod {pod} for {family}; allowed: one of them, or an \
         annotation {IP_POOL} that names the pool",
        pools.join(" and ")
    )]
    Ambiguous {
        /// The pod.
        pod: String,
        /// The family.
        family: Family,
        /// The pools, in order of their names.
        pools: Vec<String>,
    },
    /// None does, and one has to.
    #[error(
        "no pool selects pod {pod} for {family}, and {REQUIRE} of {whose} asks for one; allowed: a \
         CiliumPodIPPool with {family} CIDRs whose selectors select the pod, or an annotation {IP_POOL}"
    )]
    NoMatch {
        /// The pod.
        pod: String,
        /// The family.
        family: Family,
        /// The object with the annotation: the pod or its namespace.
        whose: &'static str,
    },
    /// The pool that is named is not for it.
    #[error(
        "pool {pool} is refused to pod {pod}, for which {why} names it: {RESTRICT} of the pool admits \
         {restriction}; allowed: another pool, or a pod that it admits"
    )]
    Restricted {
        /// The pod.
        pod: String,
        /// The pool.
        pool: String,
        /// The place that names it.
        why: String,
        /// Whom the pool admits.
        restriction: Restriction,
    },
}

/// The pools' objects that can be read, and what is wrong with others.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Candidates {
    by_name: BTreeMap<String, Candidate>,
    problems: Vec<String>,
}

impl Candidates {
    /// Reads the `CiliumPodIPPool` objects. An unreadable part of one stays as it was `last`.
    /// Selectors that were never readable select nothing.
    #[must_use]
    pub fn read<'a>(objects: impl IntoIterator<Item = &'a Value>, last: Option<&Self>) -> Self {
        let mut all = Self::default();
        for object in objects {
            let Some(name) = object["metadata"]["name"].as_str() else {
                continue;
            };
            let last = last.and_then(|last| last.by_name.get(name));
            let candidate = Candidate::read(object, last, |reason| {
                all.problems.push(format!("pool {name}{reason}"));
            });
            all.by_name.insert(name.to_owned(), candidate);
        }
        all
    }

    /// Faults of pools.
    #[must_use]
    pub fn problems(&self) -> &[String] {
        &self.problems
    }

    /// True if a pool has an object.
    #[must_use]
    pub fn has(&self, pool: &str) -> bool {
        self.by_name.contains_key(pool)
    }

    /// Chooses the pool of a pod.
    ///
    /// # Errors
    /// When selectors decide, and do not say which pool.
    pub fn choose(
        &self,
        family: Family,
        pod: &Metadata,
        namespace: &Metadata,
        default: &str,
    ) -> Result<Choice, ChoiceError> {
        let annotations = [of_family(family), IP_POOL];
        for (metadata, why) in [
            (pod, Why::Pod as fn(&'static str) -> Why),
            (namespace, Why::Namespace),
        ] {
            for annotation in annotations {
                let pool = metadata.annotations.get(annotation);
                if let Some(pool) = pool.filter(|pool| !pool.is_empty()) {
                    let why = why(annotation);
                    self.admit(pool, pod, namespace, &why)?;
                    return Ok(Choice {
                        pool: pool.clone(),
                        why,
                    });
                }
            }
        }
        let named = || named(pod);
        let mut selecting = self.selecting(family, pod, namespace);
        match (selecting.len(), selecting.pop()) {
            (0 | 1, Some(pool)) => Ok(Choice {
                pool,
                why: Why::Selectors,
            }),
            (_, Some(last)) => {
                selecting.push(last);
                Err(ChoiceError::Ambiguous {
                    pod: named(),
                    family,
                    pools: selecting,
                })
            }
            (_, None) => match requires(pod, namespace) {
                Some(whose) => Err(ChoiceError::NoMatch {
                    pod: named(),
                    family,
                    whose,
                }),
                None => Ok(Choice {
                    pool: default.to_owned(),
                    why: Why::Default,
                }),
            },
        }
    }

    /// True if a pool is not for every pod.
    #[must_use]
    pub fn is_restricted(&self, pool: &str) -> bool {
        let candidate = self.by_name.get(pool);
        candidate.is_some_and(|candidate| candidate.restriction.is_some())
    }

    /// Checks that a pod may have the pool that is named for it.
    ///
    /// # Errors
    /// When the pool's restriction does not admit the pod.
    pub fn admit(
        &self,
        pool: &str,
        pod: &Metadata,
        namespace: &Metadata,
        why: &dyn fmt::Display,
    ) -> Result<(), ChoiceError> {
        let Some(candidate) = self.by_name.get(pool) else {
            return Ok(());
        };
        match &candidate.restriction {
            Some(restriction) if !candidate.admits(pod, namespace) => {
                Err(ChoiceError::Restricted {
                    pod: named(pod),
                    pool: pool.to_owned(),
                    why: why.to_string(),
                    restriction: restriction.clone(),
                })
            }
            Some(_) | None => Ok(()),
        }
    }

    fn selecting(&self, family: Family, pod: &Metadata, namespace: &Metadata) -> Vec<String> {
        let selects = |candidate: &Candidate| {
            let selects = candidate.selects(pod, namespace);
            selects && candidate.admits(pod, namespace)
        };
        let all = self.by_name.iter();
        all.filter(|(_, candidate)| candidate.families.contains(&family) && selects(candidate))
            .map(|(name, _)| name.clone())
            .collect()
    }
}

impl Candidate {
    fn read(object: &Value, last: Option<&Self>, mut note: impl FnMut(String)) -> Self {
        let spec = &object["spec"];
        let of = |key: &str, family| {
            let is_there = spec.get(key).is_some_and(Value::is_object);
            is_there.then_some(family)
        };
        let families = [of("ipv4", Family::V4), of("ipv6", Family::V6)];
        let families = families.into_iter().flatten().collect();
        let restriction = restriction(
            object,
            last.and_then(|last| last.restriction.as_ref()),
            &mut note,
        );
        let (pods, namespaces) = selectors(object).unwrap_or_else(|error| {
            // One without selectors may be one whose selectors never could be read.
            let last = last.filter(|last| last.pods.is_some() || last.namespaces.is_some());
            if let Some(last) = last {
                note(format!(
                    " selects the pods that it selected before: {error}"
                ));
                return (last.pods.clone(), last.namespaces.clone());
            }
            note(format!(" selects no pod: {error}"));
            (None, None)
        });
        Self {
            families,
            pods,
            namespaces,
            restriction,
        }
    }

    /// True if its selectors select a pod.
    fn selects(&self, pod: &Metadata, namespace: &Metadata) -> bool {
        if self.pods.is_none() && self.namespaces.is_none() {
            return false;
        }
        let mut labels = pod.labels.clone();
        labels.insert(POD_NAMESPACE.to_owned(), pod.namespace.clone());
        labels.insert(POD_NAME.to_owned(), pod.name.clone());
        let pods = self.pods.as_ref().is_none_or(|of| of.matches(&labels));
        let namespaces = self.namespaces.as_ref();
        pods && namespaces.is_none_or(|of| of.matches(&namespace.labels))
    }

    /// True if its restriction admits a pod.
    fn admits(&self, pod: &Metadata, namespace: &Metadata) -> bool {
        match &self.restriction {
            None => true,
            Some(Restriction::Selectors) => self.selects(pod, namespace),
            Some(Restriction::Namespaces(names)) => names.contains(&pod.namespace),
            Some(Restriction::Nobody(_)) => false,
        }
    }
}

fn named(pod: &Metadata) -> String {
    format!("{}/{}", pod.namespace, pod.name)
}

/// Checks that the selectors of a pool's object can be read.
///
/// # Errors
/// When one cannot: names the field.
pub fn check_selectors(object: &Value) -> Result<(), String> {
    selectors(object).map(drop)
}

fn selectors(object: &Value) -> Result<(Option<Selector>, Option<Selector>), String> {
    let of = |key| selector(&object["spec"], key);
    Ok((of("podSelector")?, of("namespaceSelector")?))
}

fn selector(spec: &Value, key: &str) -> Result<Option<Selector>, String> {
    match spec.get(key) {
        None | Some(Value::Null) => Ok(None),
        // A list would be read as the fields of a selector in their order.
        Some(value) if !value.is_object() => Err(format!(
            "spec.{key}: {value} is refused; allowed: a label selector"
        )),
        Some(value) => Selector::deserialize(value)
            .map(Some)
            .map_err(|error| format!("spec.{key}: {error}")),
    }
}

/// The annotation that names the pool of one family.
fn of_family(family: Family) -> &'static str {
    match family {
        Family::V4 => "ipam.cilium.io/ipv4-pool",
        Family::V6 => "ipam.cilium.io/ipv6-pool",
    }
}

/// The object that requires a pool that selects the pod.
fn requires(pod: &Metadata, namespace: &Metadata) -> Option<&'static str> {
    let asks = |metadata: &Metadata| {
        let value = metadata.annotations.get(REQUIRE);
        value.is_some_and(|value| value == "true")
    };
    match (asks(pod), asks(namespace)) {
        (true, _) => Some("the pod"),
        (false, true) => Some("its namespace"),
        (false, false) => None,
    }
}

#[cfg(test)]
mod tests;
