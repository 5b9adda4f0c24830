//! Security groups: which a node's ENIs have, and what is wrong with those that they have.

use std::collections::{BTreeMap, BTreeSet};

use crate::object::tags;
use crate::{Eni, EniId, GroupId, Tags, VpcId};

/// A security group.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Group {
    /// Its id.
    pub id: GroupId,
    /// Its VPC.
    pub vpc: VpcId,
    /// Its tags.
    pub tags: Tags,
}

/// Security groups by their id.
pub type Groups = BTreeMap<GroupId, Group>;

/// The groups that a node wishes, from `spec.eni`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Wish {
    /// `security-groups`.
    pub ids: BTreeSet<GroupId>,
    /// `security-group-tags`.
    pub tags: Tags,
    /// Tags that match nothing stand for the primary ENI's groups. Otherwise nothing is created.
    pub or_primary: bool,
}

/// No groups can be chosen.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum GroupsError {
    /// The tags match nothing.
    #[error("no security group of VPC {vpc} has the tags {tags}: expected at least one")]
    NoMatch {
        /// The VPC.
        vpc: VpcId,
        /// The tags.
        tags: String,
    },
    /// The primary ENI is not known, or it has none.
    #[error("the primary ENI's security groups are not known: set security-groups")]
    NoPrimary,
}

impl Wish {
    /// The groups of a node's ENIs: by id, by tags, or the primary ENI's.
    ///
    /// # Errors
    /// When tags match nothing, or the primary ENI has none.
    pub fn choose(
        &self,
        vpc: &VpcId,
        groups: &Groups,
        primary: Option<&Eni>,
    ) -> Result<BTreeSet<GroupId>, GroupsError> {
        if !self.ids.is_empty() {
            return Ok(self.ids.clone());
        }
        if !self.tags.is_empty() {
            let of_vpc = groups.values().filter(|group| group.vpc == *vpc);
            let matching = of_vpc.filter(|group| tags::match_all(&group.tags, &self.tags));
            let chosen: BTreeSet<GroupId> = matching.map(|group| group.id.clone()).collect();
            if !chosen.is_empty() {
                return Ok(chosen);
            }
            if !self.or_primary {
                let pairs: Vec<String> = self
                    .tags
                    .iter()
                    .map(|(key, value)| format!("{key}={value}"))
                    .collect();
                return Err(GroupsError::NoMatch {
                    vpc: vpc.clone(),
                    tags: pairs.join(","),
                });
            }
        }
        let primary = primary.map(|eni| eni.groups.clone());
        primary
            .filter(|it| !it.is_empty())
            .ok_or(GroupsError::NoPrimary)
    }
}

/// A fault of an ENI's groups.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Finding {
    /// They are not the chosen ones.
    #[error("{eni}: security groups {found} differ from the chosen {wanted}")]
    Drift {
        /// The ENI.
        eni: EniId,
        /// Its groups.
        found: String,
        /// The chosen ones.
        wanted: String,
    },
    /// Load balancer controllers need exactly one group with the cluster's tag.
    #[error("{eni}: {count} security groups have the tag {tag}, load balancers need exactly 1")]
    ClusterTag {
        /// The ENI.
        eni: EniId,
        /// The tag's key.
        tag: String,
        /// Groups that have it.
        count: usize,
    },
}

/// Finds drift, and ENIs that load balancer controllers cannot use. `cluster` is the name in the
/// tag `kubernetes.io/cluster/<name>`.
#[must_use]
pub fn findings<'a>(
    enis: impl IntoIterator<Item = &'a Eni>,
    wanted: &BTreeSet<GroupId>,
    groups: &Groups,
    cluster: &str,
) -> Vec<Finding> {
    let tag = format!("kubernetes.io/cluster/{cluster}");
    let mut findings = Vec::new();
    for eni in enis {
        if eni.groups != *wanted {
            findings.push(Finding::Drift {
                eni: eni.id.clone(),
                found: list(&eni.groups),
                wanted: list(wanted),
            });
        }
        let tagged = eni.groups.iter().filter_map(|id| groups.get(id));
        let count = tagged.filter(|group| group.tags.contains_key(&tag)).count();
        if count != 1 {
            findings.push(Finding::ClusterTag {
                eni: eni.id.clone(),
                tag: tag.clone(),
                count,
            });
        }
    }
    findings
}

fn list(groups: &BTreeSet<GroupId>) -> String {
    let ids: Vec<&str> = groups.iter().map(GroupId::as_str).collect();
    ids.join(",")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::test_fixture::eni;

    fn pair(key: &str, value: &str) -> Tags {
        [(key.to_owned(), value.to_owned())].into()
    }

    fn groups() -> Groups {
        let group = |id: &str, vpc: &str, tags: Tags| Group {
            id: id.into(),
            vpc: vpc.into(),
            tags,
        };
        let list = [
            group("sg-1", "vpc-1", pair("kubernetes.io/cluster/blue", "owned")),
            group("sg-2", "vpc-1", pair("tier", "pods")),
            group("sg-3", "vpc-2", pair("tier", "pods")),
        ];
        list.into_iter().map(|it| (it.id.clone(), it)).collect()
    }

    #[test]
    fn ids_then_tags_then_the_primary_enis() {
        let (vpc, primary) = (VpcId::from("vpc-1"), eni("eni-0"));
        let mut wish = Wish::default();
        let choose = |wish: &Wish| wish.choose(&vpc, &groups(), Some(&primary));
        assert_eq!(choose(&wish), Ok(["sg-1".into()].into()));
        wish.tags = pair("tier", "pods");
        assert_eq!(choose(&wish), Ok(["sg-2".into()].into()));
        wish.ids = ["sg-9".into()].into();
        assert_eq!(choose(&wish), Ok(["sg-9".into()].into()));
    }

    #[test]
    fn tags_that_match_nothing_are_named_unless_the_primary_enis_will_do() {
        let (vpc, primary) = (VpcId::from("vpc-1"), eni("eni-0"));
        let mut wish = Wish {
            tags: pair("tier", "none"),
            ..Wish::default()
        };
        let error = wish.choose(&vpc, &groups(), Some(&primary)).unwrap_err();
        assert!(
            error
                .to_string()
                .contains("VPC vpc-1 has the tags tier=none"),
            "{error}"
        );
        wish.or_primary = true;
        let chosen = wish.choose(&vpc, &groups(), Some(&primary));
        assert_eq!(chosen, Ok(["sg-1".into()].into()));
        assert_eq!(
            wish.choose(&vpc, &groups(), None),
            Err(GroupsError::NoPrimary)
        );
    }

    #[test]
    fn drift_and_a_wrong_number_of_cluster_tags_are_named() {
        let (mut one, mut two) = (eni("eni-1"), eni("eni-2"));
        let wanted: BTreeSet<GroupId> = ["sg-1".into()].into();
        assert_eq!(findings([&one], &wanted, &groups(), "blue"), []);
        one.groups = ["sg-2".into()].into();
        two.groups = ["sg-1".into(), "sg-2".into()].into();
        let texts: Vec<String> = findings([&one, &two], &wanted, &groups(), "blue")
            .iter()
            .map(ToString::to_string)
            .collect();
        assert_eq!(
            texts,
            [
                "eni-1: security groups sg-2 differ from the chosen sg-1",
                "eni-1: 0 security groups have the tag kubernetes.io/cluster/blue, load balancers \
                 need exactly 1",
                "eni-2: security groups sg-1,sg-2 differ from the chosen sg-1",
            ]
        );
    }
}
