//! The initial `CiliumNode` of a node, and the correction of an existing one. Only the agent's own
//! fields are written. All others belong to the operator, or to Cilium.

use std::net::IpAddr;

use serde_json::{Map, Value, json};

use crate::node::node_pools::NodePools;
use crate::node::parameters::Parameters;

/// `apiVersion` of the resource.
pub const API_VERSION: &str = "cilium.io/v2";
/// `kind` of the resource.
pub const KIND: &str = "CiliumNode";
/// Suffix of the names of fields that hold tags.
const TAGS: &str = "-tags";
/// The types of addresses that are copied unchanged from the Node object.
const ADDRESS_TYPES: [&str; 2] = ["InternalIP", "ExternalIP"];

/// The answers of the instance's metadata service.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Instance {
    /// `i-…`.
    pub id: String,
    /// Such as `m5.large`.
    pub kind: String,
    /// `vpc-…`.
    pub vpc_id: String,
    /// The subnet of the primary ENI.
    pub subnet_id: String,
    /// Such as `eu-west-1a`.
    pub availability_zone: String,
}

/// The new `CiliumNode` of a Node. The Node object owns it, so that both are deleted together. Where
/// the node has blocks already, `claims` are on them.
#[must_use]
pub fn create(
    node: &Value,
    instance: Option<&Instance>,
    parameters: &Parameters,
    claims: Option<&NodePools>,
) -> Value {
    let metadata = &node["metadata"];
    let mut made = json!({
        "apiVersion": API_VERSION,
        "kind": KIND,
        "metadata": {
            "name": metadata["name"],
            "labels": metadata.get("labels").cloned().unwrap_or_else(|| json!({})),
            "ownerReferences": [owner(metadata)],
        },
        "spec": spec(node, instance, parameters, &[]),
    });
    if let Some(claims) = claims {
        made["spec"]["ipam"]["pools"] = json!(claims);
    }
    made
}

/// The merge patch that corrects the agent's fields in an existing object; `None` if there is no
/// change. It is valid only for this object.
#[must_use]
pub fn update(
    there: &Value,
    node: &Value,
    instance: Option<&Instance>,
    parameters: &Parameters,
) -> Option<Value> {
    let others: Vec<Value> = addresses_of(&there["spec"]["addresses"])
        .filter(|address| !is_of_node(address))
        .cloned()
        .collect();
    let wanted = spec(node, instance, parameters, &others);
    let mut patch = Map::new();
    let spec = difference(&wanted, &there["spec"]);
    patch.extend(spec.map(|spec| ("spec".to_owned(), spec)));
    let owner = owner(&node["metadata"]);
    let owners = there["metadata"]["ownerReferences"].as_array();
    let mut owners = owners.cloned().unwrap_or_default();
    let is_owned = owners.iter().any(|other| other["uid"] == owner["uid"]);
    let mut metadata = json!({
        "uid": there["metadata"]["uid"],
        "resourceVersion": there["metadata"]["resourceVersion"],
    });
    if !is_owned {
        // One of an earlier Node of that name would have the object collected.
        owners.retain(|other| other["kind"] != "Node");
        owners.push(owner);
        metadata["ownerReferences"] = owners.into();
    } else if patch.is_empty() {
        return None;
    }
    patch.insert("metadata".to_owned(), metadata);
    Some(patch.into())
}

fn owner(metadata: &Value) -> Value {
    json!({
        "apiVersion": "v1", "kind": "Node", "name": metadata["name"], "uid": metadata["uid"]
    })
}

/// The agent's fields of `spec`.
fn spec(
    node: &Value,
    instance: Option<&Instance>,
    parameters: &Parameters,
    other_addresses: &[Value],
) -> Value {
    let of_node = addresses_of(&node["status"]["addresses"])
        .filter(|address| is_of_node(address))
        .filter_map(|address| {
            let ip: IpAddr = address["address"].as_str()?.parse().ok()?;
            Some(json!({"type": address["type"], "ip": ip}))
        });
    let addresses: Vec<Value> = of_node.chain(other_addresses.iter().cloned()).collect();
    let mut eni = to_map(&parameters.eni);
    // The operator takes a node without it for one of which it knows nothing.
    eni.entry("first-interface-index")
        .or_insert_with(|| 0.into());
    let mut spec = Map::new();
    if let Some(instance) = instance {
        for (key, value) in [
            ("instance-type", &instance.kind),
            ("vpc-id", &instance.vpc_id),
            ("node-subnet-id", &instance.subnet_id),
            ("availability-zone", &instance.availability_zone),
        ] {
            eni.insert(key.to_owned(), value.clone().into());
        }
        spec.insert("instance-id".to_owned(), instance.id.clone().into());
    }
    spec.insert("addresses".to_owned(), addresses.into());
    spec.insert("eni".to_owned(), eni.into());
    spec.insert("ipam".to_owned(), to_map(&parameters.ipam).into());
    spec.into()
}

fn addresses_of(value: &Value) -> impl Iterator<Item = &Value> {
    value.as_array().into_iter().flatten()
}

fn is_of_node(address: &Value) -> bool {
    let kind = address["type"].as_str();
    kind.is_some_and(|kind| ADDRESS_TYPES.contains(&kind))
}

fn to_map(parameters: &impl serde::Serialize) -> Map<String, Value> {
    match serde_json::to_value(parameters) {
        Ok(Value::Object(fields)) => fields,
        // Fields of texts, numbers and maps of texts have no other form.
        Ok(_) | Err(_) => Map::new(),
    }
}

/// The patch that gives `there` all of `wanted`; fields that `wanted` does not have stay.
fn difference(wanted: &Value, there: &Value) -> Option<Value> {
    match (wanted, there) {
        (Value::Object(wanted), Value::Object(there)) => {
            let fields = wanted.iter().filter_map(|(key, value)| {
                let there = there.get(key).unwrap_or(&Value::Null);
                let difference = if key.ends_with(TAGS) {
                    replacement(value, there)
                } else {
                    difference(value, there)
                };
                Some((key.clone(), difference?))
            });
            let fields: Map<_, _> = fields.collect();
            (!fields.is_empty()).then(|| fields.into())
        }
        (Value::Object(wanted), Value::Null) if wanted.is_empty() => None,
        (wanted, there) => (wanted != there).then(|| wanted.clone()),
    }
}

/// The patch of a map that is one value, as tags are: fields that `wanted` does not have go.
fn replacement(wanted: &Value, there: &Value) -> Option<Value> {
    let mut patch = wanted.clone();
    if let (Value::Object(patch), Value::Object(there)) = (&mut patch, there) {
        for key in there.keys() {
            patch.entry(key.clone()).or_insert(Value::Null);
        }
    }
    (wanted != there).then_some(patch)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::node::parameters::{EniParameters, IpamParameters};

    fn node() -> Value {
        json!({
            "metadata": {"name": "node-1", "uid": "u-1", "labels": {"zone": "a"}},
            "status": {"addresses": [
                {"type": "InternalIP", "address": "10.0.0.10"},
                {"type": "Hostname", "address": "node-1"},
                {"type": "ExternalIP", "address": "198.51.100.7"}
            ]}
        })
    }

    fn instance() -> Instance {
        Instance {
            id: "i-1".to_owned(),
            kind: "m5.large".to_owned(),
            vpc_id: "vpc-1".to_owned(),
            subnet_id: "subnet-1".to_owned(),
            availability_zone: "eu-west-1a".to_owned(),
        }
    }

    fn parameters() -> Parameters {
        Parameters {
            eni: EniParameters {
                security_groups: vec!["sg-1".to_owned()],
                ..EniParameters::default()
            },
            ipam: IpamParameters {
                pre_allocate: 4,
                ..IpamParameters::default()
            },
        }
    }

    #[test]
    fn a_new_object_has_what_the_operator_needs() {
        let made = create(&node(), Some(&instance()), &parameters(), None);
        assert_eq!(
            made,
            json!({
                "apiVersion": "cilium.io/v2", "kind": "CiliumNode",
                "metadata": {
                    "name": "node-1", "labels": {"zone": "a"},
                    "ownerReferences": [
                        {"apiVersion": "v1", "kind": "Node", "name": "node-1", "uid": "u-1"}
                    ]
                },
                "spec": {
                    "instance-id": "i-1",
                    "addresses": [
                        {"type": "InternalIP", "ip": "10.0.0.10"},
                        {"type": "ExternalIP", "ip": "198.51.100.7"}
                    ],
                    "eni": {
                        "first-interface-index": 0, "instance-type": "m5.large", "vpc-id": "vpc-1",
                        "node-subnet-id": "subnet-1", "availability-zone": "eu-west-1a",
                        "security-groups": ["sg-1"]
                    },
                    "ipam": {"pre-allocate": 4}
                }
            })
        );
    }

    #[test]
    fn a_new_object_claims_the_blocks_that_the_node_has() {
        let allocated = json!([{"pool": "default", "cidrs": ["10.0.0.16/28"]}]);
        let claims = serde_json::from_value(json!({"allocated": allocated})).unwrap();
        let made = create(&node(), None, &parameters(), Some(&claims));
        assert_eq!(made["spec"]["ipam"]["pools"]["allocated"], allocated);
        assert_eq!(made["spec"]["ipam"]["pre-allocate"], 4);
    }

    #[test]
    fn what_is_right_is_left_alone_and_what_is_others_stays() {
        let mut there = create(&node(), Some(&instance()), &parameters(), None);
        there["metadata"]["uid"] = json!("n-1");
        there["metadata"]["resourceVersion"] = json!("9");
        let addresses = there["spec"]["addresses"].as_array_mut().unwrap();
        addresses.push(json!({"type": "CiliumInternalIP", "ip": "10.0.1.9"}));
        there["spec"]["ipam"]["pool"] = json!({"10.0.1.9": {"resource": "eni-1"}});
        there["spec"]["eni"]["use-primary-address"] = json!(true);
        there["spec"]["azure"] = json!({});
        let again = |there: &Value, parameters: &Parameters| {
            update(there, &node(), Some(&instance()), parameters)
        };
        assert_eq!(again(&there, &parameters()), None);
        let mut changed = parameters();
        changed.ipam.min_allocate = 7;
        assert_eq!(
            again(&there, &changed).unwrap(),
            json!({
                "metadata": {"uid": "n-1", "resourceVersion": "9"},
                "spec": {"ipam": {"min-allocate": 7}}
            })
        );
        // The address of Cilium's own device stays where the node's change.
        there["spec"]["addresses"][0]["ip"] = json!("10.0.0.99");
        let patch = again(&there, &parameters()).unwrap();
        assert_eq!(
            patch["spec"],
            json!({"addresses": [
                {"type": "InternalIP", "ip": "10.0.0.10"},
                {"type": "ExternalIP", "ip": "198.51.100.7"},
                {"type": "CiliumInternalIP", "ip": "10.0.1.9"}
            ]})
        );
    }

    #[test]
    fn without_the_metadata_service_what_was_known_stays() {
        let mut there = create(&node(), Some(&instance()), &parameters(), None);
        there["metadata"]["uid"] = json!("n-1");
        assert_eq!(update(&there, &node(), None, &parameters()), None);
    }

    #[test]
    fn an_object_of_an_earlier_node_gets_its_new_owner() {
        let mut there = create(&node(), None, &parameters(), None);
        there["metadata"]["ownerReferences"] = json!([
            {"apiVersion": "v1", "kind": "Node", "name": "node-1", "uid": "u-0"},
            {"apiVersion": "v1", "kind": "ConfigMap", "name": "x", "uid": "c-0"}
        ]);
        let patch = update(&there, &node(), None, &parameters()).unwrap();
        let owners = patch["metadata"]["ownerReferences"].as_array().unwrap();
        let uids: Vec<_> = owners.iter().map(|owner| &owner["uid"]).collect();
        assert_eq!(uids, ["c-0", "u-1"]);
        assert_eq!(patch.get("spec"), None);
    }
}
