//! The node's parameters for its operator: from the agent's settings, and from the CNI
//! configuration file, which takes precedence.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use serde_json::Value;

/// Plugins whose sections `eni` and `ipam` are read from a CNI configuration file.
const PLUGINS: [&str; 2] = ["towpath-cni", "cilium-cni"];

/// The part of `spec.eni` that users choose.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields, rename_all = "kebab-case")]
pub struct EniParameters {
    /// Number of the first ENI whose addresses are for pods.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub first_interface_index: Option<u32>,
    /// Subnets that new ENIs are made in.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub subnet_ids: Vec<String>,
    /// Tags of those subnets, where no ids are given.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub subnet_tags: BTreeMap<String, String>,
    /// Security groups of new ENIs.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub security_groups: Vec<String>,
    /// Tags of those groups, where no ids are given.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub security_group_tags: BTreeMap<String, String>,
    /// ENIs with all of these tags are left alone.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub exclude_interface_tags: BTreeMap<String, String>,
    /// True if ENIs go with the instance.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub delete_on_termination: Option<bool>,
    /// True if an ENI's own address is for pods too.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub use_primary_address: Option<bool>,
    /// True if ENIs get single addresses only.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub disable_prefix_delegation: Option<bool>,
}

/// The part of `spec.ipam` that users choose; 0 stands for no choice.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields, rename_all = "kebab-case")]
pub struct IpamParameters {
    /// Least addresses that the node has.
    #[serde(skip_serializing_if = "is_zero")]
    pub min_allocate: u32,
    /// Most addresses that it has.
    #[serde(skip_serializing_if = "is_zero")]
    pub max_allocate: u32,
    /// Addresses to spare.
    #[serde(skip_serializing_if = "is_zero")]
    pub pre_allocate: u32,
    /// Number of addresses beyond those to spare that are kept.
    #[serde(skip_serializing_if = "is_zero")]
    pub max_above_watermark: u32,
    /// Tags of the public address that the node is to have.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub static_ip_tags: BTreeMap<String, String>,
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde asks for it")]
fn is_zero(count: &u32) -> bool {
    *count == 0
}

/// Both.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Parameters {
    /// `spec.eni`.
    pub eni: EniParameters,
    /// `spec.ipam`.
    pub ipam: IpamParameters,
}

/// A CNI configuration file cannot be used.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum CniError {
    /// It is no JSON.
    #[error("is not JSON: {0}")]
    Json(String),
    /// A field is not what it has to be.
    #[error("{plugin}: {section}: {message}")]
    Section {
        /// The plugin's type.
        plugin: String,
        /// The section.
        section: &'static str,
        /// The fault.
        message: String,
    },
}

impl Parameters {
    /// Gives precedence to the sections `eni` and `ipam` of a CNI configuration file, or of the
    /// first of our plugins in a list. `max-allocate` stands in the settings alone, as in Cilium.
    ///
    /// # Errors
    /// When it is no JSON, or a section has a field of a wrong type.
    pub fn overridden(mut self, cni: &str) -> Result<Self, CniError> {
        let file: Value =
            serde_json::from_str(cni).map_err(|error| CniError::Json(error.to_string()))?;
        let plugins = file["plugins"].as_array().map(Vec::as_slice);
        let plugins = plugins.unwrap_or(std::slice::from_ref(&file));
        let ours = plugins.iter().find_map(|plugin| {
            let kind = plugin["type"].as_str()?;
            PLUGINS.contains(&kind).then_some((kind, plugin))
        });
        let Some((kind, plugin)) = ours else {
            return Ok(self);
        };
        let error = |section, error: serde_json::Error| CniError::Section {
            plugin: kind.to_owned(),
            section,
            message: error.to_string(),
        };
        let eni = section(&plugin["eni"]).map_err(|e| error("eni", e))?;
        let ipam = section(&plugin["ipam"]).map_err(|e| error("ipam", e))?;
        self.eni.take(eni);
        self.ipam.take(ipam);
        Ok(self)
    }
}

/// A section, without fields that are not ours: the standard ones of CNI stand in `ipam` too.
fn section<T>(value: &Value) -> serde_json::Result<T>
where
    T: for<'de> Deserialize<'de> + Default + Serialize + Known,
{
    let Value::Object(fields) = value else {
        return Ok(T::default());
    };
    let fields = fields
        .iter()
        .filter(|(key, _)| T::KEYS.contains(&key.as_str()));
    let fields = fields.map(|(key, value)| (key.clone(), value.clone()));
    serde_json::from_value(fields.collect())
}

/// The names of a section's fields.
trait Known {
    const KEYS: &'static [&'static str];
}

impl Known for EniParameters {
    const KEYS: &'static [&'static str] = &[
        "first-interface-index",
        "subnet-ids",
        "subnet-tags",
        "security-groups",
        "security-group-tags",
        "exclude-interface-tags",
        "delete-on-termination",
        "use-primary-address",
        "disable-prefix-delegation",
    ];
}

impl Known for IpamParameters {
    const KEYS: &'static [&'static str] = &[
        "min-allocate",
        "pre-allocate",
        "max-above-watermark",
        "static-ip-tags",
    ];
}

impl EniParameters {
    fn take(&mut self, other: Self) {
        let Self {
            first_interface_index,
            subnet_ids,
            subnet_tags,
            security_groups,
            security_group_tags,
            exclude_interface_tags,
            delete_on_termination,
            use_primary_address,
            disable_prefix_delegation,
        } = other;
        replace(&mut self.first_interface_index, first_interface_index);
        replace(&mut self.subnet_ids, subnet_ids);
        replace(&mut self.subnet_tags, subnet_tags);
        replace(&mut self.security_groups, security_groups);
        replace(&mut self.security_group_tags, security_group_tags);
        replace(&mut self.exclude_interface_tags, exclude_interface_tags);
        replace(&mut self.delete_on_termination, delete_on_termination);
        replace(&mut self.use_primary_address, use_primary_address);
        replace(
            &mut self.disable_prefix_delegation,
            disable_prefix_delegation,
        );
    }
}

impl IpamParameters {
    fn take(&mut self, other: Self) {
        let Self {
            min_allocate,
            max_allocate: _of_the_settings_alone,
            pre_allocate,
            max_above_watermark,
            static_ip_tags,
        } = other;
        replace(&mut self.min_allocate, min_allocate);
        replace(&mut self.pre_allocate, pre_allocate);
        replace(&mut self.max_above_watermark, max_above_watermark);
        replace(&mut self.static_ip_tags, static_ip_tags);
    }
}

/// Takes what says something.
fn replace<T: Default + PartialEq>(mine: &mut T, other: T) {
    if other != T::default() {
        *mine = other;
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn settings() -> Parameters {
        Parameters {
            eni: EniParameters {
                first_interface_index: Some(0),
                subnet_ids: vec!["subnet-1".to_owned()],
                ..EniParameters::default()
            },
            ipam: IpamParameters {
                min_allocate: 3,
                max_allocate: 30,
                ..IpamParameters::default()
            },
        }
    }

    #[test]
    fn the_file_counts_more_where_it_says_something() {
        // As in the fact sheet, with what CNI itself has in `ipam`.
        let plugin = json!({
            "cniVersion": "0.3.1", "type": "cilium-cni",
            "eni": {
                "first-interface-index": 1, "subnet-tags": {"usage": "pods"},
                "security-group-tags": {"k8s": "node"}, "exclude-interface-tags": {"cilium": "off"}
            },
            "ipam": {"type": "x", "pre-allocate": 5, "min-allocate": 0, "max-allocate": 99}
        });
        let list = json!({"plugins": [{"type": "portmap"}, plugin]});
        for file in [plugin.to_string(), list.to_string()] {
            let merged = settings().overridden(&file).unwrap();
            assert_eq!(merged.eni.first_interface_index, Some(1));
            assert_eq!(merged.eni.subnet_ids, ["subnet-1"]);
            assert_eq!(merged.eni.subnet_tags["usage"], "pods");
            assert_eq!(merged.eni.exclude_interface_tags["cilium"], "off");
            assert_eq!(merged.ipam.pre_allocate, 5);
            assert_eq!(merged.ipam.min_allocate, 3);
            assert_eq!(merged.ipam.max_allocate, 30);
        }
    }

    #[test]
    fn a_file_without_our_plugin_says_nothing() {
        let file = json!({"plugins": [{"type": "bridge", "eni": {"subnet-ids": ["other"]}}]});
        assert_eq!(
            settings().overridden(&file.to_string()).unwrap(),
            settings()
        );
    }

    #[test]
    fn what_cannot_be_read_names_plugin_and_section() {
        let file = json!({"type": "towpath-cni", "eni": {"subnet-ids": "subnet-1"}});
        let error = settings()
            .overridden(&file.to_string())
            .unwrap_err()
            .to_string();
        assert!(error.starts_with("towpath-cni: eni: "), "{error}");
        let error = settings().overridden("{").unwrap_err().to_string();
        assert!(error.starts_with("is not JSON: "), "{error}");
    }

    #[test]
    fn every_field_is_known_by_its_name() {
        let eni = EniParameters {
            first_interface_index: Some(1),
            subnet_ids: vec![String::new()],
            subnet_tags: [(String::new(), String::new())].into(),
            security_groups: vec![String::new()],
            security_group_tags: [(String::new(), String::new())].into(),
            exclude_interface_tags: [(String::new(), String::new())].into(),
            delete_on_termination: Some(true),
            use_primary_address: Some(true),
            disable_prefix_delegation: Some(true),
        };
        let value = serde_json::to_value(eni).unwrap();
        let keys: Vec<_> = value.as_object().unwrap().keys().collect();
        let mut known = EniParameters::KEYS.to_vec();
        known.sort_unstable();
        assert_eq!(keys, known);
    }
}
