//! `prevResult`: what came out of the chain before this call.

use std::net::IpAddr;
use std::path::Path;

use serde_json::{Map, Value};

use crate::failure::{Code, Failure};
use crate::request::arguments;

/// A result of ADD. What is not ours in it stays as it came.
#[derive(Clone, Debug, PartialEq)]
pub struct PreviousResult(Map<String, Value>);

impl PreviousResult {
    /// The one of a configuration.
    ///
    /// # Errors
    /// When it is no object, or its lists are none.
    pub(super) fn of(config: &Map<String, Value>) -> Result<Option<Self>, Failure> {
        match config.get("prevResult") {
            None | Some(Value::Null) => Ok(None),
            Some(Value::Object(object)) => Self::new(object.clone(), "prevResult.").map(Some),
            Some(other) => Err(wrong("prevResult", other, "an object")),
        }
    }

    /// The answer of a delegated plugin.
    ///
    /// # Errors
    /// When its lists are none.
    pub fn new(object: Map<String, Value>, prefix: &str) -> Result<Self, Failure> {
        for key in ["interfaces", "ips", "routes"] {
            match object.get(key) {
                None | Some(Value::Null | Value::Array(_)) => {}
                Some(other) => return Err(wrong(&format!("{prefix}{key}"), other, "a list")),
            }
        }
        let result = Self(object);
        for ip in result.list("ips") {
            if address_of(ip).is_none() {
                return Err(wrong(&format!("{prefix}ips"), ip, "an object with address"));
            }
        }
        Ok(result)
    }

    /// One of its lists; absent is empty.
    #[must_use]
    pub fn list(&self, key: &str) -> &[Value] {
        self.0
            .get(key)
            .and_then(Value::as_array)
            .map_or(&[], Vec::as_slice)
    }

    /// One of its fields.
    #[must_use]
    pub fn get(&self, key: &str) -> Option<&Value> {
        self.0.get(key).filter(|value| !value.is_null())
    }

    /// Position of the container's interface: the one of this name in a sandbox, in the one of this
    /// path where several containers' are listed.
    #[must_use]
    pub fn interface(&self, name: &str, netns: &Path) -> Option<usize> {
        let of_name = |interface: &Value| {
            interface.get("name").and_then(Value::as_str) == Some(name)
                && sandbox(interface).is_some()
        };
        let interfaces = self.list("interfaces");
        let exact = interfaces.iter().position(|interface| {
            of_name(interface) && sandbox(interface).is_some_and(|path| Path::new(path) == netns)
        });
        exact.or_else(|| interfaces.iter().position(of_name))
    }

    /// The addresses of the interface at a position.
    #[must_use]
    pub fn addresses_of(&self, position: usize) -> Vec<IpAddr> {
        self.list("ips")
            .iter()
            .filter(|ip| {
                let interface = ip.get("interface").and_then(Value::as_u64);
                interface.is_some_and(|of| usize::try_from(of) == Ok(position))
            })
            .filter_map(address_of)
            .collect()
    }

    /// All addresses.
    #[must_use]
    pub fn addresses(&self) -> Vec<IpAddr> {
        self.list("ips").iter().filter_map(address_of).collect()
    }
}

fn sandbox(interface: &Value) -> Option<&str> {
    let path = interface.get("sandbox").and_then(Value::as_str);
    path.filter(|path| !path.is_empty())
}

fn address_of(ip: &Value) -> Option<IpAddr> {
    arguments::address(ip.get("address")?.as_str()?)
}

fn wrong(field: &str, value: &Value, allowed: &str) -> Failure {
    let message = format!("{field} is {value}: {allowed} is allowed");
    Failure::new(Code::InvalidConfig, message)
}
