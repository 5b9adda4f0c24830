//! The end of a cluster: its loose ENIs are deleted. EC2 is all that this needs.

use std::collections::BTreeSet;

use cloud::call::query::{Items, What};
use cloud::inventory::Scope;
use cloud::node::{Outcome, Step};
use cloud::object::tags;
use cloud::{Class, Eni, EniId, Failure};
use ec2::Ec2;
use serde::Serialize;

use crate::config::ClusterName;
use crate::reading::{patiently, read_all};

/// An ENI that the cluster's operator created.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Remnant {
    /// The ENI.
    pub eni: String,
    /// Its subnet.
    pub subnet: String,
    /// The instance that holds it.
    pub instance: Option<String>,
    /// The time of its creation.
    pub created: Option<String>,
    /// The end of it.
    pub fate: Fate,
}

/// The end of an ENI.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase", tag = "state", content = "cause")]
pub enum Fate {
    /// It is deleted.
    Deleted,
    /// It would be deleted.
    Deletable,
    /// An instance or another service holds it, so it stays.
    InUse,
    /// It could not be deleted.
    Failed(String),
}

/// Deletes the cluster's loose ENIs, or only lists them.
///
/// # Errors
/// When EC2 does not list them.
pub async fn cleanup(
    ec2: &dyn Ec2,
    cluster: &ClusterName,
    only_list: bool,
) -> Result<Vec<Remnant>, Failure> {
    let enis = read(ec2, Scope::All).await?;
    let is_ours =
        |eni: &Eni| eni.tags.get(tags::CLUSTER).map(String::as_str) == Some(cluster.as_str());
    let mut remnants = Vec::new();
    for eni in enis.iter().filter(|eni| is_ours(eni)) {
        let fate = if eni.attachment.is_some() {
            Fate::InUse
        } else if only_list {
            Fate::Deletable
        } else {
            delete(ec2, &eni.id, &is_ours).await
        };
        remnants.push(remnant(eni, fate));
    }
    Ok(remnants)
}

/// Deletes an ENI that a second read still shows as loose, since the listing can be old.
async fn delete(ec2: &dyn Ec2, id: &EniId, is_ours: &impl Fn(&Eni) -> bool) -> Fate {
    let now = match read(ec2, Scope::Ids(BTreeSet::from([id.clone()]))).await {
        Ok(now) => now,
        Err(failure) => return Fate::Failed(failure.to_string()),
    };
    match now.iter().find(|eni| eni.id == *id) {
        None => return Fate::Deleted,
        Some(eni) if eni.attachment.is_some() || !is_ours(eni) => return Fate::InUse,
        Some(_) => {}
    }
    let step = Step::Delete { eni: id.clone() };
    let sent = patiently(async || match ec2.step(&step).await {
        Outcome::Failed(failure) => Err(failure),
        _ => Ok(()),
    });
    match sent.await {
        Ok(()) => Fate::Deleted,
        Err(failure) if failure.class == Class::NotFound => Fate::Deleted,
        Err(failure) => Fate::Failed(failure.to_string()),
    }
}

async fn read(ec2: &dyn Ec2, scope: Scope) -> Result<Vec<Eni>, Failure> {
    match read_all(ec2, What::Enis(scope), BTreeSet::new()).await? {
        Items::Enis(enis) => Ok(enis),
        _ => Ok(Vec::new()),
    }
}

fn remnant(eni: &Eni, fate: Fate) -> Remnant {
    let instance = eni.attachment.as_ref().and_then(|it| it.instance.as_ref());
    Remnant {
        eni: eni.id.to_string(),
        subnet: eni.placement.subnet.to_string(),
        instance: instance.map(ToString::to_string),
        created: eni.tags.get(tags::CREATED_AT).cloned(),
        fate,
    }
}

#[cfg(test)]
mod tests;
