//! Pools: followed for the fleet, and created where the settings say so.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use anyhow::Result;
use apiserver::client::{Connection, within};
use apiserver::follow::{LOOK_FOR, Resource, Trouble};
use apiserver::objects::POOL_VERSIONS;
use apiserver::retry::Retry;
use apiserver::write::Failure;
use apiserver::{cause, objects};
use fleet::{Input, Standing};
use ipnet::IpNet;
use kube::api::{DynamicObject, PostParams};
use kube::{Api, Client};
use serde_json::{Value, json};
use tokio::sync::watch;
use tokio::time::sleep;

use super::WRITE;
use super::actor::Inbox;
use super::follow::log_trouble;
use super::health::Beat;
use crate::config::NewPool;

/// Delay of removals: before the resource itself is removed, the API server removes its objects.
const SETTLE: Duration = Duration::from_secs(5);

/// Watches all pools. If the resource is removed, they stay in force: ENIs of bound pools must not
/// serve the default one, and nodes keep blocks of plain pools.
pub(super) async fn follow(connection: Connection, inbox: Inbox, beat: Beat) -> Result<()> {
    let versions = objects::pool_versions(&connection.client);
    let read = |all: Vec<Value>| Input::Pools(all);
    follow_all(
        (&connection, versions),
        ("CiliumPodIPPools", beat),
        inbox,
        read,
    )
    .await
}

/// Follows the CIDRs of services. Clusters before Kubernetes 1.31 have no such objects.
pub(super) async fn follow_services(
    connection: Connection,
    inbox: Inbox,
    beat: Beat,
) -> Result<()> {
    let versions = objects::service_cidrs(&connection.client);
    let read = |all: Vec<Value>| Input::Services(cidrs(&all));
    follow_all((&connection, versions), ("ServiceCIDRs", beat), inbox, read).await
}

fn cidrs(objects: &[Value]) -> BTreeSet<IpNet> {
    let lists = objects
        .iter()
        .filter_map(|it| it["spec"]["cidrs"].as_array());
    let texts = lists.flatten().filter_map(Value::as_str);
    texts.filter_map(|text| text.parse().ok()).collect()
}

/// Passes all objects of a resource to the fleet whenever they may have changed. An API server that
/// does not serve the resource has none. If it served the resource before, its last objects stay.
async fn follow_all(
    (connection, versions): (&Connection, Vec<Api<DynamicObject>>),
    (what, beat): (&'static str, Beat),
    inbox: Inbox,
    read: impl Fn(Vec<Value>) -> Input,
) -> Result<()> {
    let (sender, mut all) = watch::channel(Vec::new());
    let mut is_served = false;
    let resource = Resource {
        versions,
        lists: connection.lists.clone(),
        config: connection.watching(),
        absent: LOOK_FOR,
        settle: SETTLE,
    };
    let tell = move |known: Result<&BTreeMap<_, Value>, Trouble>| {
        match known {
            Ok(known) => {
                is_served = true;
                sender.send_replace(known.values().cloned().collect());
            }
            Err(Trouble::Absent) if !is_served => drop(sender.send_replace(Vec::new())),
            Err(trouble) => log_trouble(what, &trouble),
        }
        !sender.is_closed()
    };
    let give = async {
        while beat.rest(all.changed()).await.is_ok() {
            let objects = all.borrow_and_update().clone();
            if !inbox.give(read(objects)).await {
                return;
            }
        }
    };
    tokio::join!(resource.follow(Value::clone, tell), give);
    Ok(())
}

/// Creates pools once this operator leads. One that is there is left alone.
pub(super) async fn create(
    connection: Connection,
    pools: BTreeMap<String, NewPool>,
    mut standing: watch::Receiver<Standing>,
) -> Result<()> {
    let leads = |standing: &Standing| matches!(standing, Standing::Leading { .. });
    for (name, spec) in pools {
        let mut retry = Retry::default();
        loop {
            if standing.wait_for(leads).await.is_err() {
                return Ok(());
            }
            match create_one(&connection.client, &name, &spec).await {
                Ok(true) => {
                    tracing::info!("created CiliumPodIPPool {name}");
                    break;
                }
                Ok(false) => break,
                Err(error) => {
                    let wait = retry.failed(&error);
                    let cause = cause::chain(&error);
                    tracing::warn!("create CiliumPodIPPool {name}: {cause}; next try in {wait:?}");
                    sleep(wait).await;
                }
            }
        }
    }
    // A task that ends would end the operator.
    std::future::pending().await
}

/// Creates a pool in the newest version that the API server serves. Returns false if there is one
/// of this name.
async fn create_one(client: &Client, name: &str, spec: &NewPool) -> Result<bool, kube::Error> {
    let mut versions = POOL_VERSIONS.into_iter().peekable();
    while let Some(version) = versions.next() {
        let object = json!({
            "apiVersion": format!("cilium.io/{version}"), "kind": "CiliumPodIPPool",
            "metadata": {"name": name}, "spec": spec
        });
        let object = serde_json::from_value(object).map_err(kube::Error::SerdeError)?;
        let api = objects::pools_of(client, version);
        match within(WRITE, api.create(&PostParams::default(), &object)).await {
            Ok(_created) => return Ok(true),
            Err(error) => match Failure::from(&error) {
                Failure::Conflict => return Ok(false),
                Failure::Absent if versions.peek().is_some() => {}
                _ => return Err(error),
            },
        }
    }
    Ok(false)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cidrs_of_services_are_read() {
        let objects = [
            json!({"spec": {"cidrs": ["10.96.0.0/12", "fd00::/108"]}}),
            json!({"spec": {"cidrs": ["bad"]}}),
            json!({}),
        ];
        let expected = ["10.96.0.0/12", "fd00::/108"].map(|text| text.parse().unwrap());
        assert_eq!(cidrs(&objects), expected.into());
    }
}
