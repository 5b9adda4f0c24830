//! Fields of a JSON object, read so that an error names the field, its value and what is allowed.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::ops::RangeInclusive;
use std::path::PathBuf;

use serde_json::{Map, Value};

use crate::agent::wire::Family;
use crate::failure::{Code, Failure};
use crate::request::arguments;

/// An object's fields; `null` is as good as absent.
#[derive(Clone, Debug)]
pub(super) struct Fields<'a> {
    object: &'a Map<String, Value>,
    /// Prefix of a field's name in messages.
    prefix: String,
}

impl<'a> Fields<'a> {
    pub(super) fn new(object: &'a Map<String, Value>, prefix: impl Into<String>) -> Self {
        Self {
            object,
            prefix: prefix.into(),
        }
    }

    pub(super) fn to_value(&self) -> Value {
        Value::Object(self.object.clone())
    }

    pub(super) fn has(&self, key: &str) -> bool {
        self.value(key).is_some()
    }

    pub(super) fn is_true(&self, key: &str) -> bool {
        self.value(key) == Some(&Value::Bool(true))
    }

    /// The failure of a field whose value is not allowed.
    pub(super) fn wrong(&self, key: &str, allowed: &str) -> Failure {
        let value = self.value(key).unwrap_or(&Value::Null);
        let message = format!("{}{key} is {value}: {allowed}", self.prefix);
        Failure::new(Code::InvalidConfig, message)
    }

    pub(super) fn text(&self, key: &str) -> Result<Option<&'a str>, Failure> {
        self.read(key, "a string is allowed", Value::as_str)
    }

    pub(super) fn object(&self, key: &str) -> Result<Option<Self>, Failure> {
        let object = self.read(key, "an object is allowed", Value::as_object)?;
        Ok(object.map(|object| Self::new(object, format!("{}{key}.", self.prefix))))
    }

    pub(super) fn absolute_path(&self, key: &str) -> Result<Option<PathBuf>, Failure> {
        let allowed = "an absolute path is allowed";
        self.read(key, allowed, |value| {
            value
                .as_str()
                .map(PathBuf::from)
                .filter(|path| path.is_absolute())
        })
    }

    pub(super) fn seconds(
        &self,
        key: &str,
        range: RangeInclusive<u64>,
    ) -> Result<Option<u64>, Failure> {
        let allowed = format!("{} to {} seconds are allowed", range.start(), range.end());
        self.read(key, &allowed, |value| {
            value.as_u64().filter(|seconds| range.contains(seconds))
        })
    }

    pub(super) fn families(&self, key: &str) -> Result<Vec<Family>, Failure> {
        let allowed = "a list of ipv4 and ipv6, each at most once, is allowed";
        let families = self.read(key, allowed, |value| {
            let mut families = Vec::new();
            for item in value.as_array()? {
                let family = family(item.as_str()?)?;
                if families.contains(&family) {
                    return None;
                }
                families.push(family);
            }
            (!families.is_empty()).then_some(families)
        })?;
        Ok(families.unwrap_or_default())
    }

    pub(super) fn pools(&self, key: &str) -> Result<BTreeMap<Family, String>, Failure> {
        let allowed = "an object with a pool's name for ipv4, ipv6 or both is allowed";
        let pools = self.read(key, allowed, |value| {
            value
                .as_object()?
                .iter()
                .map(|(name, pool)| {
                    let pool = pool.as_str().filter(|pool| !pool.is_empty())?;
                    Some((family(name)?, pool.to_owned()))
                })
                .collect::<Option<_>>()
        })?;
        Ok(pools.unwrap_or_default())
    }

    pub(super) fn addresses(&self, key: &str) -> Result<Vec<IpAddr>, Failure> {
        let allowed = "a list of addresses, with a prefix length or without, is allowed";
        let addresses = self.read(key, allowed, |value| {
            value
                .as_array()?
                .iter()
                .map(|item| arguments::address(item.as_str()?))
                .collect::<Option<Vec<_>>>()
        })?;
        Ok(addresses.unwrap_or_default())
    }

    pub(super) fn value(&self, key: &str) -> Option<&'a Value> {
        self.object.get(key).filter(|value| !value.is_null())
    }

    fn read<T>(
        &self,
        key: &str,
        allowed: &str,
        read: impl FnOnce(&'a Value) -> Option<T>,
    ) -> Result<Option<T>, Failure> {
        self.value(key)
            .map(|value| read(value).ok_or_else(|| self.wrong(key, allowed)))
            .transpose()
    }
}

fn family(name: &str) -> Option<Family> {
    Family::ALL.into_iter().find(|family| family.name() == name)
}
