//! Exclusion of ENIs from pods, by the rule that Cilium's agent and operator share.

use std::collections::BTreeMap;

use super::eni::Context;
use crate::fields::EniSpec;
use loader::intent::Problem;

/// The reason if the ENI's number excludes it.
pub(super) fn by_number(number: u32, spec: &EniSpec) -> Option<String> {
    let first = spec.first_interface_index.unwrap_or(0);
    (i64::from(number) < first)
        .then(|| format!("its number {number} is below spec.eni.first-interface-index {first}"))
}

/// The reason if the ENI's tags exclude it.
pub(super) fn by_tags(tags: &BTreeMap<String, String>, spec: &EniSpec) -> Option<String> {
    let excluding = &spec.exclude_interface_tags;
    if excluding.is_empty() || !excluding.iter().all(|(k, v)| tags.get(k) == Some(v)) {
        return None;
    }
    let pairs: Vec<String> = excluding.iter().map(|(k, v)| format!("{k}={v}")).collect();
    Some(format!(
        "its tags match spec.eni.exclude-interface-tags ({})",
        pairs.join(", ")
    ))
}

/// The unreadable part of the rule, if it leaves open whether pods may use an ENI with these tags.
/// An excluded ENI must not be used by mistake.
pub(super) fn doubt(
    number: u32,
    tags: &BTreeMap<String, String>,
    context: &Context<'_>,
) -> Option<Problem> {
    const TAGS: &str = "spec.eni.exclude-interface-tags";
    let concerns = |path: &str| match path.strip_prefix(TAGS) {
        Some("") => !tags.is_empty(),
        Some(key) => key
            .strip_prefix('.')
            .is_some_and(|key| tags.contains_key(key)),
        None => match path {
            "spec.eni.first-interface-index" => true,
            "spec.eni.use-primary-address" => number != 0,
            _ => false,
        },
    };
    let mut wrong = context.wrong.iter();
    wrong.find(|problem| concerns(&problem.path)).cloned()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn map(pairs: &[(&str, &str)]) -> BTreeMap<String, String> {
        pairs
            .iter()
            .map(|(k, v)| ((*k).to_owned(), (*v).to_owned()))
            .collect()
    }

    #[test]
    fn numbers_below_the_first_are_excluded() {
        let spec = EniSpec {
            first_interface_index: Some(2),
            ..EniSpec::default()
        };
        assert_eq!(
            by_number(1, &spec).as_deref(),
            Some("its number 1 is below spec.eni.first-interface-index 2")
        );
        assert_eq!(by_number(2, &spec), None);
        assert_eq!(by_number(0, &EniSpec::default()), None);
    }

    #[test]
    fn every_excluding_tag_has_to_match() {
        let spec = EniSpec {
            exclude_interface_tags: map(&[("a", "1"), ("b", "2")]),
            ..EniSpec::default()
        };
        assert_eq!(
            by_tags(&map(&[("a", "1"), ("b", "2"), ("c", "3")]), &spec).as_deref(),
            Some("its tags match spec.eni.exclude-interface-tags (a=1, b=2)")
        );
        for tags in [map(&[]), map(&[("a", "1")]), map(&[("a", "1"), ("b", "3")])] {
            assert_eq!(by_tags(&tags, &spec), None, "{tags:?}");
        }
    }
}
