//! Reading the node's `CiliumNode`. It is created, or our fields in it are corrected, if that is
//! the agent's task.

use anyhow::{Context as _, Result};
use apiserver::client::in_time;
use apiserver::objects;
use kube::Client;
use kube::api::{Patch, PatchParams, PostParams};
use kubernetes::node::node_pools::NodePools;
use kubernetes::node::node_template;
use kubernetes::node::parameters::Parameters;
use serde_json::Value;
use tokio::sync::watch;

use super::instance::Looked;

/// Parameters of its creation.
#[derive(Clone)]
pub(in crate::cluster) struct Creation {
    pub(in crate::cluster) parameters: Parameters,
    /// The claims of the last object that was in force. Its successor has them from the start, so
    /// that no operator sees the node's blocks without a claim.
    pub(in crate::cluster) claims: Option<NodePools>,
    pub(in crate::cluster) instance: watch::Receiver<Looked>,
}

/// The object in its desired state.
///
/// # Errors
/// When the server does not answer in time, or refuses.
pub(in crate::cluster) async fn ensure(
    client: Client,
    name: String,
    creation: Option<Creation>,
) -> Result<Value> {
    let api = objects::cilium_nodes(&client);
    let Some(creation) = creation else {
        let there = in_time(api.get(&name)).await.context("read it")?;
        return Ok(objects::value(there)?);
    };
    let Creation {
        parameters,
        claims,
        mut instance,
    } = creation;
    // An object without the instance gets no ENIs, so the first read is awaited: some seconds at
    // most.
    let instance = match instance.wait_for(|looked| *looked != Looked::Asking).await {
        Ok(looked) => looked.instance().cloned(),
        // The sender is gone: the agent ends.
        Err(_closed) => None,
    };
    let nodes = objects::kubernetes_nodes(&client);
    let node = in_time(nodes.get(&name)).await;
    let node = objects::value(node.with_context(|| format!("read Node {name}"))?)?;
    let there = in_time(api.get_opt(&name)).await.context("read it")?;
    let Some(there) = there else {
        let object = node_template::create(&node, instance.as_ref(), &parameters, claims.as_ref());
        let object = serde_json::from_value(object)?;
        let made = in_time(api.create(&PostParams::default(), &object)).await;
        let made = made.context("make it")?;
        tracing::info!(name, "CiliumNode made");
        return Ok(objects::value(made)?);
    };
    let there = objects::value(there)?;
    let Some(patch) = node_template::update(&there, &node, instance.as_ref(), &parameters) else {
        return Ok(there);
    };
    let parameters = PatchParams::default();
    let changed = in_time(api.patch(&name, &parameters, &Patch::Merge(&patch))).await;
    Ok(objects::value(changed.context("change it")?)?)
}
