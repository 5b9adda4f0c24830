//! The operator by its manifests: pods of its image on the nodes, with the rights of its
//! `ServiceAccount`.

use anyhow::{Context as _, Result};
use serde_json::{Value, json};

use super::{Cluster, spec};
use crate::cloud::{CLUSTER, Site};
use crate::kubernetes::deploy;

/// Loads the image on each node, and applies the manifests with what users set in them.
pub(super) fn install(cluster: &Cluster) -> Result<()> {
    let archive = spec::operator_image()?;
    for worker in &cluster.workers {
        worker.bed.import(&archive)?;
    }
    let site = cluster.site.as_ref().context("there is no cloud")?;
    let folder = deploy().join("kubernetes/operator");
    let mut objects = cluster.kubectl()?.build(&folder)?;
    for object in &mut objects {
        match object["kind"].as_str() {
            Some("ConfigMap") => configure(object, site)?,
            Some("Deployment") => give_credentials(object)?,
            _ => (),
        }
    }
    cluster.apply(&objects)
}

/// Adds the name of the cluster, the endpoint of EC2 and the site's settings.
fn configure(object: &mut Value, site: &Site) -> Result<()> {
    let config = object["data"]["config.yaml"].as_str();
    let config = config.context("the operator's ConfigMap has no config.yaml")?;
    let ec2 = json!({"region": "eu-central-1", "endpoint": site.url()?});
    let settings = site.spec().operator.as_object().into_iter().flatten();
    let settings = settings.map(|(key, value)| format!("{key}: {value}\n"));
    let settings: String = settings.collect();
    let config = format!("{config}\ncluster-name: {CLUSTER}\nec2: {ec2}\n{settings}");
    object["data"]["config.yaml"] = json!(config);
    Ok(())
}

/// Gives the pods an access key by their environment: a cluster of EC2 has a role for them.
fn give_credentials(object: &mut Value) -> Result<()> {
    let environment = object.pointer_mut("/spec/template/spec/containers/0/env");
    let environment = environment.and_then(Value::as_array_mut);
    let environment = environment.context("the operator's container has no env")?;
    for name in ["AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"] {
        environment.push(json!({"name": name, "value": "any"}));
    }
    Ok(())
}
