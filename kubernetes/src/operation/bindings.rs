//! `CiliumPodIPPool` objects as the operator reads them for ENIs: the bindings of pools.

use std::collections::BTreeMap;

use ipam::node::{Binding, BindingError};
use serde_json::Value;

use super::node::DEFAULT_POOL;

/// A pool's binding.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PoolBinding {
    /// The ENIs that it is bound to, and those that are created for it; none for a plain pool.
    pub binding: Option<Binding>,
    /// The reason that its annotations do not count as they are.
    pub problem: Option<String>,
}

/// Bindings of pools by name.
pub type PoolBindings = BTreeMap<String, PoolBinding>;

/// Reads all pools. Unreadable annotations leave a pool's last binding in force. Without a last one
/// the pool is unbound.
#[must_use]
pub fn read<'a>(objects: impl IntoIterator<Item = &'a Value>, last: &PoolBindings) -> PoolBindings {
    let named = objects.into_iter().filter_map(|object| {
        let name = object["metadata"]["name"].as_str()?;
        Some((name.to_owned(), read_one(name, object, last.get(name))))
    });
    named.collect()
}

fn read_one(name: &str, object: &Value, last: Option<&PoolBinding>) -> PoolBinding {
    let annotations = object["metadata"]["annotations"].as_object();
    let texts = annotations
        .into_iter()
        .flatten()
        .filter_map(|(key, value)| {
            let text = value.as_str()?;
            Some((key.clone(), text.to_owned()))
        });
    let refused =
        |error: &BindingError| Some(format!("pool {name}: metadata.annotations: {error}"));
    match Binding::parse(&texts.collect()) {
        Ok(Some(_)) if name == DEFAULT_POOL => PoolBinding {
            binding: None,
            problem: refused(&BindingError::DefaultPool(name.to_owned())),
        },
        Ok(binding) => PoolBinding {
            binding,
            problem: None,
        },
        Err(error) => {
            let last = last.map(|it| it.binding.clone());
            PoolBinding {
                binding: last.unwrap_or_else(|| Some(Binding::nothing())),
                problem: refused(&error),
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn pool(name: &str, annotations: &Value) -> Value {
        json!({"metadata": {"name": name, "annotations": annotations}})
    }

    #[test]
    fn annotations_that_cannot_be_read_leave_the_last_binding_in_force() {
        let good = pool("blue", &json!({"ipam.towpath.dev/subnet-ids": "subnet-1"}));
        let bad = pool("blue", &json!({"ipam.towpath.dev/subnet-ids": "vpc-1"}));
        let first = read([&good], &PoolBindings::new());
        let second = read([&bad], &first);
        assert_eq!(second["blue"].binding, first["blue"].binding);
        let problem = second["blue"].problem.as_deref().unwrap();
        assert!(
            problem.starts_with("pool blue: metadata.annotations: ipam.towpath.dev/subnet-ids")
        );
        let fresh = read([&bad], &PoolBindings::new());
        assert_eq!(fresh["blue"].binding, Some(Binding::nothing()));
    }

    #[test]
    fn a_plain_pool_and_the_default_one_are_not_bound() {
        let plain = pool("plain", &Value::Null);
        let default = pool("default", &json!({"ipam.towpath.dev/eni-tags": "a=b"}));
        let all = read([&plain, &default], &PoolBindings::new());
        assert_eq!(all["plain"], PoolBinding::default());
        assert_eq!(all["default"].binding, None);
        assert!(all["default"].problem.is_some());
    }
}
