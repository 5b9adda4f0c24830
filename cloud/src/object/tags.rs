//! Tags: the memory that survives an operator.

use std::collections::BTreeMap;

use jiff::Timestamp;

use crate::{EniId, InstanceId};

/// Tags of an object.
pub type Tags = BTreeMap<String, String>;

/// The tag with the name of the cluster that an ENI was created for.
pub const CLUSTER: &str = "ipam.towpath.dev/cluster";
/// The tag with the id of the instance that an ENI was created for.
pub const INSTANCE: &str = "ipam.towpath.dev/instance";
/// The tag with the time of creation, which EC2 does not report for ENIs.
pub const CREATED_AT: &str = "ipam.towpath.dev/created-at";
/// The tag that keeps the VPC CNI away from an ENI.
pub const NO_MANAGE: &str = "node.k8s.amazonaws.com/no_manage";

/// The tags of an ENI that is created now. Extra tags never replace the own ones.
#[must_use]
pub fn of_creation(cluster: &str, instance: &InstanceId, now: Timestamp, extra: &Tags) -> Tags {
    let mut tags = extra.clone();
    tags.insert(CLUSTER.to_owned(), cluster.to_owned());
    tags.insert(INSTANCE.to_owned(), instance.to_string());
    let seconds = Timestamp::from_second(now.as_second()).unwrap_or(now);
    tags.insert(CREATED_AT.to_owned(), seconds.to_string());
    tags.insert(NO_MANAGE.to_owned(), "true".to_owned());
    tags
}

/// The instance that an operator of this cluster created the ENI for.
#[must_use]
pub fn instance_of(tags: &Tags, cluster: &str) -> Option<InstanceId> {
    if tags.get(CLUSTER).map(String::as_str) != Some(cluster) {
        return None;
    }
    InstanceId::parse(tags.get(INSTANCE)?)
}

/// The tag with the time of creation is missing or malformed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{eni}: tag {CREATED_AT}: {found:?} is no time, expected one such as 2026-01-31T12:00:00Z")]
pub struct CreatedAtError {
    /// The ENI.
    pub eni: EniId,
    /// Its tag's value, if it has the tag.
    pub found: Option<String>,
}

/// The time at which an ENI was created.
///
/// # Errors
/// When the tag is missing or is not a time.
pub fn created_at(eni: &EniId, tags: &Tags) -> Result<Timestamp, CreatedAtError> {
    let found = tags.get(CREATED_AT);
    let parsed = found.and_then(|text| text.parse().ok());
    parsed.ok_or_else(|| CreatedAtError {
        eni: eni.clone(),
        found: found.cloned(),
    })
}

/// Reports if `tags` has every pair of `wanted`, and `wanted` has any.
#[must_use]
pub fn match_all(tags: &Tags, wanted: &Tags) -> bool {
    !wanted.is_empty()
        && wanted
            .iter()
            .all(|(key, value)| tags.get(key) == Some(value))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn own_tags_win_and_say_whose_the_eni_is() {
        let extra = Tags::from([
            (CLUSTER.to_owned(), "another".to_owned()),
            ("team".to_owned(), "net".to_owned()),
        ]);
        let now = "2026-01-31T12:00:00.123Z".parse().unwrap();
        let tags = of_creation("blue", &"i-1".into(), now, &extra);
        assert_eq!(tags["team"], "net");
        assert_eq!(tags[NO_MANAGE], "true");
        assert_eq!(tags[CREATED_AT], "2026-01-31T12:00:00Z");
        assert_eq!(instance_of(&tags, "blue"), Some("i-1".into()));
        assert_eq!(instance_of(&tags, "another"), None);
    }

    #[test]
    fn a_missing_or_malformed_time_is_named() {
        let eni = EniId::from("eni-1");
        let tags = Tags::from([(CREATED_AT.to_owned(), "soon".to_owned())]);
        let error = created_at(&eni, &tags).unwrap_err();
        assert!(
            error
                .to_string()
                .contains(r#"eni-1: tag ipam.towpath.dev/created-at: Some("soon")"#)
        );
        assert!(created_at(&eni, &Tags::new()).is_err());
    }

    #[test]
    fn no_wanted_tags_match_nothing() {
        let tags = Tags::from([
            ("a".to_owned(), "1".to_owned()),
            ("b".to_owned(), "2".to_owned()),
        ]);
        assert!(!match_all(&tags, &Tags::new()));
        assert!(match_all(
            &tags,
            &Tags::from([("a".to_owned(), "1".to_owned())])
        ));
        assert!(!match_all(
            &tags,
            &Tags::from([("a".to_owned(), "2".to_owned())])
        ));
    }
}
