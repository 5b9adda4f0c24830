//! Which ENIs a pool is bound to: annotations of a `CiliumPodIPPool`.

use std::collections::{BTreeMap, BTreeSet};

use super::Eni;

/// ENIs by their tags: `key=value`, several with commas between; an ENI has to have all of them.
const ENI_TAGS: &str = "ipam.towpath.dev/eni-tags";
/// ENIs by the ids of their subnets, several with commas between; any of them will do.
const SUBNET_IDS: &str = "ipam.towpath.dev/subnet-ids";
/// ENIs by the tags of their subnets, as those of ENIs.
const SUBNET_TAGS: &str = "ipam.towpath.dev/subnet-tags";
/// The security groups of the ENIs that the operator creates for the pool, as ids separated by
/// commas.
const SECURITY_GROUPS: &str = "ipam.towpath.dev/security-groups";
/// Security groups by their tags.
const SECURITY_GROUP_TAGS: &str = "ipam.towpath.dev/security-group-tags";
/// The tag of an ENI with the name of its pool. It counts more than other bindings.
pub const POOL_TAG: &str = "ipam.towpath.dev/pool";
/// Which pods may name the pool in an annotation; it binds nothing.
pub const RESTRICT: &str = "ipam.towpath.dev/restrict";
/// Prefix of our annotations.
const PREFIX: &str = "ipam.towpath.dev/";

/// Binding of a pool to ENIs: to those that meet all conditions, and to those whose tag
/// [`POOL_TAG`] has its name.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Binding {
    /// `eni-tags`.
    pub eni_tags: BTreeMap<String, String>,
    /// `subnet-ids`.
    pub subnet_ids: BTreeSet<String>,
    /// `subnet-tags`.
    pub subnet_tags: BTreeMap<String, String>,
    /// `security-groups`: those of ENIs that the operator creates for the pool.
    pub security_groups: BTreeSet<String>,
    /// `security-group-tags`.
    pub security_group_tags: BTreeMap<String, String>,
    /// True if its annotations cannot be read: it binds no ENI but by the tag.
    pub is_void: bool,
}

/// An annotation that does not say which ENIs are meant.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum BindingError {
    /// Nothing stands there. It would bind every ENI.
    #[error("{0}: empty; leave the annotation out to bind no ENI")]
    Empty(&'static str),
    /// A part is no tag.
    #[error("{annotation}: {part:?} is no tag; key=value is allowed, with commas between")]
    Tag {
        /// The annotation.
        annotation: &'static str,
        /// The part.
        part: String,
    },
    /// A tag stands twice with two values.
    #[error("{annotation}: tag {key} is a duplicate; each is allowed once")]
    Twice {
        /// The annotation.
        annotation: &'static str,
        /// The tag's key.
        key: String,
    },
    /// A part is no subnet's id.
    #[error("{SUBNET_IDS}: {0:?} is no subnet's id; subnet-… is allowed, with commas between")]
    SubnetId(String),
    /// A part is no security group's id.
    #[error(
        "{SECURITY_GROUPS}: {0:?} is no security group's id; sg-… is allowed, with commas between"
    )]
    GroupId(String),
    /// An annotation of ours that does not exist.
    #[error(
        "{0} is unknown; {ENI_TAGS}, {SUBNET_IDS}, {SUBNET_TAGS}, {SECURITY_GROUPS}, \
         {SECURITY_GROUP_TAGS} and {RESTRICT} are known"
    )]
    Unknown(String),
    /// The default pool is what ENIs serve that are bound to none.
    #[error("pool {0} serves what no pool is bound to, and is not bound itself")]
    DefaultPool(String),
}

impl Binding {
    /// Reads a pool's annotations; `None` if the pool is bound to no ENI.
    ///
    /// # Errors
    ///
    /// Names the annotation that cannot be read. The pool's intended ENIs are then unknown, so
    /// callers must not treat it as unbound.
    pub fn parse(annotations: &BTreeMap<String, String>) -> Result<Option<Self>, BindingError> {
        let known = [
            ENI_TAGS,
            SUBNET_IDS,
            SUBNET_TAGS,
            SECURITY_GROUPS,
            SECURITY_GROUP_TAGS,
        ];
        let mut ours = annotations.keys().filter(|key| key.starts_with(PREFIX));
        let is_known = |key: &str| known.contains(&key) || key == RESTRICT;
        if let Some(unknown) = ours.find(|key| !is_known(key)) {
            return Err(BindingError::Unknown(unknown.clone()));
        }
        let of = |annotation: &str| annotations.get(annotation).map(String::as_str);
        let binding = Self {
            eni_tags: tags(ENI_TAGS, of(ENI_TAGS))?,
            subnet_ids: ids(
                SUBNET_IDS,
                of(SUBNET_IDS),
                "subnet-",
                BindingError::SubnetId,
            )?,
            subnet_tags: tags(SUBNET_TAGS, of(SUBNET_TAGS))?,
            security_groups: ids(
                SECURITY_GROUPS,
                of(SECURITY_GROUPS),
                "sg-",
                BindingError::GroupId,
            )?,
            security_group_tags: tags(SECURITY_GROUP_TAGS, of(SECURITY_GROUP_TAGS))?,
            is_void: false,
        };
        let is_bound = known.iter().any(|key| annotations.contains_key(*key));
        Ok(is_bound.then_some(binding))
    }

    /// The binding of a pool whose annotations cannot be read: it is no plain pool, and no ENI's.
    #[must_use]
    pub fn nothing() -> Self {
        Self {
            is_void: true,
            ..Self::default()
        }
    }

    /// True if the conditions bind an ENI, apart from its tag [`POOL_TAG`]; `None` if that depends
    /// on unknown tags of a subnet.
    #[must_use]
    pub fn binds(&self, eni: &Eni) -> Option<bool> {
        self.binds_tagged(&eni.tags, &eni.subnet.id, eni.subnet.tags.as_ref())
    }

    /// Judges an ENI with these tags, in a subnet with that id and those tags. A pool that says
    /// nothing but its security groups is bound by the tag alone.
    #[must_use]
    pub fn binds_tagged(
        &self,
        eni_tags: &BTreeMap<String, String>,
        subnet: &str,
        subnet_tags: Option<&BTreeMap<String, String>>,
    ) -> Option<bool> {
        let has_rule = !(self.eni_tags.is_empty()
            && self.subnet_ids.is_empty()
            && self.subnet_tags.is_empty());
        let of_subnet = self.subnet_ids.is_empty() || self.subnet_ids.contains(subnet);
        if self.is_void || !has_rule || !of_subnet || !all(&self.eni_tags, eni_tags) {
            return Some(false);
        }
        if self.subnet_tags.is_empty() {
            return Some(true);
        }
        Some(all(&self.subnet_tags, subnet_tags?))
    }
}

fn all(wanted: &BTreeMap<String, String>, found: &BTreeMap<String, String>) -> bool {
    wanted
        .iter()
        .all(|(key, value)| found.get(key) == Some(value))
}

/// The parts of an annotation; none where there is no annotation.
fn parts<'a>(
    annotation: &'static str,
    text: Option<&'a str>,
) -> Result<impl Iterator<Item = &'a str>, BindingError> {
    match text {
        Some(text) if text.trim().is_empty() => Err(BindingError::Empty(annotation)),
        _ => Ok(text.into_iter().flat_map(|t| t.split(',')).map(str::trim)),
    }
}

fn tags(
    annotation: &'static str,
    text: Option<&str>,
) -> Result<BTreeMap<String, String>, BindingError> {
    let mut tags = BTreeMap::new();
    for part in parts(annotation, text)? {
        let pair = part.split_once('=').map(|(k, v)| (k.trim(), v.trim()));
        let Some((key, value)) = pair.filter(|(key, _)| !key.is_empty()) else {
            return Err(BindingError::Tag {
                annotation,
                part: part.to_owned(),
            });
        };
        if tags.insert(key.to_owned(), value.to_owned()).is_some() {
            return Err(BindingError::Twice {
                annotation,
                key: key.to_owned(),
            });
        }
    }
    Ok(tags)
}

fn ids(
    annotation: &'static str,
    text: Option<&str>,
    prefix: &str,
    error: impl Fn(String) -> BindingError,
) -> Result<BTreeSet<String>, BindingError> {
    let mut ids = BTreeSet::new();
    for part in parts(annotation, text)? {
        if !part.starts_with(prefix) {
            return Err(error(part.to_owned()));
        }
        ids.insert(part.to_owned());
    }
    Ok(ids)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(pairs: &[(&str, &str)]) -> Result<Option<Binding>, BindingError> {
        let pairs = pairs.iter();
        Binding::parse(
            &pairs
                .map(|(k, v)| ((*k).to_owned(), (*v).to_owned()))
                .collect(),
        )
    }

    #[test]
    fn other_annotations_bind_nothing() {
        assert_eq!(
            parse(&[("ipam.cilium.io/skip-masquerade", "true")]),
            Ok(None)
        );
    }

    #[test]
    fn mistakes_are_named() {
        let error = |key: &str, value: &str| parse(&[(key, value)]).unwrap_err().to_string();
        assert_eq!(
            error(ENI_TAGS, " "),
            "ipam.towpath.dev/eni-tags: empty; leave the annotation out to bind no ENI"
        );
        assert_eq!(
            error(ENI_TAGS, "team=a,"),
            "ipam.towpath.dev/eni-tags: \"\" is no tag; key=value is allowed, with commas between"
        );
        assert_eq!(
            error(SUBNET_TAGS, "a=1,a=2"),
            "ipam.towpath.dev/subnet-tags: tag a is a duplicate; each is allowed once"
        );
        assert!(error(SUBNET_IDS, "subnet-1,vpc-2").contains("\"vpc-2\" is no subnet's id"));
        assert!(error(SECURITY_GROUPS, "sg-1,1").contains("\"1\" is no security group's id"));
        assert!(error("ipam.towpath.dev/eni-tag", "a=1").contains("eni-tag is unknown"));
    }
}
