//! The role of an ENI on its node.

use crate::object::tags;
use crate::{AttachState, Eni, InterfaceKind};

use super::EniRules;

/// The role of an ENI.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Role {
    /// It gives addresses to pods.
    Counted,
    /// It takes an index of its card, if it is attached, and gives nothing.
    Aside(Aside),
}

/// The reason that an ENI gives nothing.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Aside {
    /// Nothing holds it.
    #[error("not attached")]
    Loose,
    /// It goes.
    #[error("detaching")]
    Detaching,
    /// It is on another card than 0.
    #[error("on network card {0}")]
    Card(u16),
    /// Its index is below `first-interface-index`.
    #[error("its index is below first-interface-index")]
    Index,
    /// It has the tags of `exclude-interface-tags`.
    #[error("excluded by exclude-interface-tags")]
    Tags,
    /// It is no interface for pods: EFA-only, a trunk, a branch.
    #[error("an interface of kind {0}")]
    Kind(String),
}

impl Role {
    /// The role of an ENI by the rules of its node.
    #[must_use]
    pub fn of(eni: &Eni, rules: &EniRules) -> Self {
        let aside = aside(eni, rules);
        aside.map_or(Self::Counted, Self::Aside)
    }
}

fn aside(eni: &Eni, rules: &EniRules) -> Option<Aside> {
    let Some(attachment) = &eni.attachment else {
        return Some(Aside::Loose);
    };
    if attachment.state == AttachState::Detaching {
        return Some(Aside::Detaching);
    }
    if attachment.card != 0 {
        return Some(Aside::Card(attachment.card));
    }
    let kind = match &eni.kind {
        InterfaceKind::Standard => None,
        InterfaceKind::EfaOnly => Some("efa-only"),
        InterfaceKind::Trunk => Some("trunk"),
        InterfaceKind::Branch => Some("branch"),
        InterfaceKind::Other(word) => Some(word.as_str()),
    };
    if let Some(kind) = kind {
        return Some(Aside::Kind(kind.to_owned()));
    }
    if attachment.index < rules.first_index {
        return Some(Aside::Index);
    }
    tags::match_all(&eni.tags, &rules.exclude_tags).then_some(Aside::Tags)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::test_fixture::{attached, eni};

    #[test]
    fn each_reason_to_give_nothing_is_named() {
        let rules = EniRules {
            first_index: 1,
            exclude_tags: [("skip".to_owned(), "yes".to_owned())].into(),
            ..EniRules::default()
        };
        let role = |eni: &Eni| match Role::of(eni, &rules) {
            Role::Counted => "counted".to_owned(),
            Role::Aside(aside) => aside.to_string(),
        };
        let good = attached("eni-1", "i-1", 1);
        assert_eq!(role(&good), "counted");
        assert_eq!(role(&eni("eni-1")), "not attached");
        assert_eq!(
            role(&attached("eni-0", "i-1", 0)),
            "its index is below first-interface-index"
        );
        for (word, expected) in [
            ("efa", "counted"),
            ("efa-only", "an interface of kind efa-only"),
            ("trunk", "an interface of kind trunk"),
            ("branch", "an interface of kind branch"),
            ("nat_gateway", "an interface of kind nat_gateway"),
        ] {
            let mut other = good.clone();
            other.kind = InterfaceKind::parse(word);
            assert_eq!(role(&other), expected);
        }
        let mut other = good.clone();
        other.tags.insert("skip".to_owned(), "yes".to_owned());
        assert_eq!(role(&other), "excluded by exclude-interface-tags");
        let mut other = good.clone();
        other.attachment.as_mut().unwrap().card = 2;
        assert_eq!(role(&other), "on network card 2");
        let mut other = good;
        other.attachment.as_mut().unwrap().state = AttachState::Detaching;
        assert_eq!(role(&other), "detaching");
    }
}
