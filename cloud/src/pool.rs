//! Pools that are bound to ENIs, and the pool that an ENI serves. The agent uses the same rules,
//! but it does not know the tags of subnets.

use std::collections::{BTreeMap, BTreeSet};

use ipam::node::{Binding, POOL_TAG};

use crate::groups::Wish;
use crate::object::subnet::{Location, Subnets};
use crate::{Eni, GroupId, SubnetId, Tags};

/// The pool of ENIs that are bound to none.
pub const DEFAULT_POOL: &str = ipam::DEFAULT_POOL;

/// Bound pools by name.
pub type Pools = BTreeMap<String, Binding>;

/// The pool that an ENI serves.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Serves<'a> {
    /// The pool `default`.
    Default,
    /// A pool that is bound to it.
    Pool(&'a str),
    /// Pools that are all bound to it, so that it serves none of them.
    Nothing(Vec<&'a str>),
}

/// The pool that an ENI serves. Its tag counts more than other bindings.
#[must_use]
pub fn serves<'a>(eni: &Eni, pools: &'a Pools, subnets: &Subnets) -> Serves<'a> {
    let named = eni.tags.get(POOL_TAG);
    if named.is_some_and(|name| name == DEFAULT_POOL) {
        return Serves::Default;
    }
    if let Some((name, _)) = named.and_then(|name| pools.get_key_value(name)) {
        return Serves::Pool(name);
    }
    let subnet_tags = subnets.get(&eni.placement.subnet).map(|it| &it.tags);
    let bound = pools.iter().filter_map(|(name, binding)| {
        let verdict = binding.binds_tagged(&eni.tags, eni.placement.subnet.as_str(), subnet_tags);
        (verdict != Some(false)).then_some((name.as_str(), verdict))
    });
    let bound: Vec<_> = bound.collect();
    match bound[..] {
        [] => Serves::Default,
        [(name, Some(true))] => Serves::Pool(name),
        // A pool that is bound by tags of subnets may have each ENI of a subnet that is not known.
        _ => Serves::Nothing(bound.into_iter().map(|(name, _)| name).collect()),
    }
}

/// The tags of an ENI that is created for a pool.
#[must_use]
pub(crate) fn tags(name: &str, of_pool: &Tags, of_all: &Tags) -> Tags {
    let mut tags = of_all.clone();
    tags.extend(of_pool.clone());
    tags.insert(POOL_TAG.to_owned(), name.to_owned());
    tags
}

/// The place of a pool's ENIs on a node. A pool that names no subnet is content with the node's.
#[must_use]
pub(crate) fn place(binding: &Binding, node: &Location) -> Location {
    if binding.subnet_ids.is_empty() && binding.subnet_tags.is_empty() {
        return node.clone();
    }
    let ids = binding.subnet_ids.iter();
    let ids: BTreeSet<SubnetId> = ids.filter_map(|id| SubnetId::parse(id)).collect();
    Location {
        ids,
        tags: binding.subnet_tags.clone(),
        ..node.clone()
    }
}

/// The security groups of a pool's ENIs. A pool that names none is content with the node's.
#[must_use]
pub(crate) fn wish(binding: &Binding, node: &Wish) -> Wish {
    if binding.security_groups.is_empty() && binding.security_group_tags.is_empty() {
        return node.clone();
    }
    let ids = binding.security_groups.iter();
    Wish {
        ids: ids.filter_map(|id| GroupId::parse(id)).collect(),
        tags: binding.security_group_tags.clone(),
        or_primary: false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::test_fixture::{eni, subnet};

    fn map(pairs: &[(&str, &str)]) -> BTreeMap<String, String> {
        let pairs = pairs.iter();
        pairs
            .map(|(key, value)| ((*key).to_owned(), (*value).to_owned()))
            .collect()
    }

    fn pools() -> Pools {
        let by_ids = Binding {
            subnet_ids: ["subnet-1".to_owned()].into(),
            ..Binding::default()
        };
        let by_tags = Binding {
            subnet_tags: map(&[("tier", "pods")]),
            ..Binding::default()
        };
        let groups = Binding {
            security_groups: ["sg-9".to_owned()].into(),
            ..Binding::default()
        };
        let all = [("blue", by_ids), ("red", by_tags), ("green", groups)];
        all.map(|(name, it)| (name.to_owned(), it)).into()
    }

    #[test]
    fn a_tag_counts_before_bindings_and_two_bindings_are_none() {
        let tagged = |tags: &[(&str, &str)], subnet: &str| {
            let mut eni = eni("eni-1");
            eni.placement.subnet = subnet.into();
            eni.tags = map(tags);
            eni
        };
        let mut both = subnet("subnet-1", 9);
        let mut other = subnet("subnet-2", 9);
        both.tags = map(&[("tier", "pods")]);
        other.tags = map(&[("tier", "pods")]);
        let plain = subnet("subnet-3", 9);
        let subnets: Subnets = [both, other, plain].map(|it| (it.id.clone(), it)).into();
        let pools = pools();
        let of =
            |tags: &[(&str, &str)], subnet: &str| serves(&tagged(tags, subnet), &pools, &subnets);
        assert_eq!(of(&[], "subnet-1"), Serves::Nothing(vec!["blue", "red"]));
        assert_eq!(of(&[], "subnet-2"), Serves::Pool("red"));
        assert_eq!(of(&[], "subnet-3"), Serves::Default);
        assert_eq!(
            of(&[(POOL_TAG, "green")], "subnet-1"),
            Serves::Pool("green")
        );
        assert_eq!(of(&[(POOL_TAG, "default")], "subnet-1"), Serves::Default);
        assert_eq!(of(&[(POOL_TAG, "true")], "subnet-2"), Serves::Pool("red"));
        let unknown = of(&[], "subnet-9");
        assert_eq!(
            unknown,
            Serves::Nothing(vec!["red"]),
            "its tags are not known"
        );
    }
}
