//! The condition keys of one question.

use std::collections::BTreeMap;

use crate::world::Tags;

/// Values by condition key; keys are compared without regard to case.
#[derive(Clone, Debug, Default)]
pub(crate) struct Context(BTreeMap<String, Vec<String>>);

impl Context {
    /// Sets a key to one value.
    pub(crate) fn set(&mut self, key: &str, value: impl Into<String>) {
        self.0.insert(key.to_ascii_lowercase(), vec![value.into()]);
    }

    /// The tags of a resource that exists.
    pub(crate) fn resource_tags(&mut self, tags: &Tags) {
        for (key, value) in tags {
            self.set(&format!("aws:ResourceTag/{key}"), value);
            self.set(&format!("ec2:ResourceTag/{key}"), value);
        }
    }

    /// The tags that a call sets.
    pub(crate) fn request_tags(&mut self, tags: &Tags) {
        for (key, value) in tags {
            self.set(&format!("aws:RequestTag/{key}"), value);
        }
        if !tags.is_empty() {
            let keys = tags.keys().cloned().collect();
            self.0.insert("aws:tagkeys".to_owned(), keys);
        }
    }

    /// The values of a key.
    pub(crate) fn get(&self, key: &str) -> Option<&[String]> {
        self.0.get(&key.to_ascii_lowercase()).map(Vec::as_slice)
    }
}
