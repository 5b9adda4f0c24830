//! Two nodes of a fabric with agents, whose instances are in a cloud that an operator serves.

use anyhow::Result;
use ipam::Family;
use serde_json::{Value, json};
use tempfile::TempDir;
use testkit::cloud::{Site, SiteSpec};
use testkit::fabric::layout::Host;
use testkit::fabric::{Fabric, Netns, Spec};
use testkit::kubernetes::{ApiServer, Component, MetadataService, ServerSpec};

use crate::bed::NODES;

/// A node with its agent.
pub(crate) struct Node {
    pub(crate) fabric: Fabric,
    _metadata: MetadataService,
}

/// The nodes and everything that they need.
pub(crate) struct Scene {
    pub(crate) site: Site,
    pub(crate) nodes: Vec<Node>,
    server: ApiServer,
    _folder: TempDir,
}

impl Scene {
    /// Nodes whose agents are ready, with these settings of agents.
    ///
    /// # Errors
    /// When a part of it does not start.
    pub(crate) fn create(site: SiteSpec, settings: &Value) -> Result<Self> {
        let folder = tempfile::tempdir()?;
        let mut site = Site::create(site, 2)?;
        let fabrics = fabrics(&site)?;
        fabrics[0].make_control()?;
        let control = fabrics[0].host(Host::Control, Family::V4);
        let spec = ServerSpec {
            address: control.address,
            ..ServerSpec::default()
        };
        let server = ApiServer::start_as(control.netns, folder.path(), spec)?;
        server.make_crds()?;
        let kubeconfig = server.admit(Component::Agent)?.kubeconfig;
        site.serve(&Netns::foreign(&control.netns.path())?)?;
        let mut nodes = Vec::new();
        for fabric in fabrics {
            let common = json!({"kubernetes": {
                "enabled": true, "node-name": fabric.name(), "kubeconfig": kubeconfig,
                "update-interval": 1, "metadata-endpoint": MetadataService::NODE_ENDPOINT
            }});
            fabric.agent.configure(&common)?;
            fabric.agent.configure(settings)?;
            nodes.push(Node::start(fabric, &server)?);
        }
        site.operate(&server)?;
        for node in &mut nodes {
            node.fabric.wait_until_ready()?;
        }
        Ok(Self {
            site,
            nodes,
            server,
            _folder: folder,
        })
    }

    /// The object of a node.
    ///
    /// # Errors
    /// When the API server does not have it.
    pub(crate) fn object(&self, node: &Node) -> Result<Value> {
        let path = format!("{NODES}/{}", node.fabric.name());
        self.server.admin().get(&path)?.expect(200)
    }

    /// Number of blocks in the release handshake, over all nodes.
    ///
    /// # Errors
    /// When the API server does not answer.
    pub(crate) fn marked(&self) -> Result<usize> {
        let marked = self.nodes.iter().map(|node| {
            let object = self.object(node)?;
            let release = object["status"]["ipam"]["release-ips"].as_object();
            let keys = release.into_iter().flatten().map(|(key, _)| key);
            Ok(keys.filter(|key| key.contains("/32")).count())
        });
        marked.sum()
    }

    /// The objects of nodes, and logs of the operator and of agents, for a failure.
    pub(crate) fn logs(&self) -> String {
        let agents = self.nodes.iter().map(|node| node.fabric.agent.log());
        let objects = self.nodes.iter().map(|node| {
            self.object(node).map_or_else(
                |error| format!("{error:#}"),
                |object| {
                    format!(
                        "{}: {}",
                        object["metadata"]["resourceVersion"], object["status"]["ipam"]
                    )
                },
            )
        });
        let logs = [self.site.log()].into_iter().chain(objects).chain(agents);
        let tail = |log: String| {
            let lines: Vec<&str> = log.lines().collect();
            lines[lines.len().saturating_sub(40)..].join("\n")
        };
        logs.map(tail).collect::<Vec<_>>().join("\n----\n")
    }

    /// Ends all of it. No ENI sent a packet with a source that it did not own.
    ///
    /// # Errors
    /// When one did, or when the cloud is inconsistent.
    pub(crate) fn finish(self) -> Result<()> {
        let Self {
            site,
            nodes,
            server,
            _folder,
        } = self;
        drop(server);
        site.finish()?;
        nodes.into_iter().try_for_each(|node| node.fabric.finish())
    }
}

fn fabrics(site: &Site) -> Result<Vec<Fabric>> {
    let spec = |node| -> Result<Spec> {
        Ok(Spec {
            instance: Some(site.instance(node)?.clone()),
            ..Spec::default()
        })
    };
    let first = Fabric::create(&spec(0)?)?;
    let second = first.join(1, &spec(1)?)?;
    let fabrics = vec![first, second];
    for fabric in &fabrics {
        site.join(fabric, Spec::default().mtu)?;
    }
    Ok(fabrics)
}

impl Node {
    /// Starts the agent of a node, which creates its object.
    fn start(mut fabric: Fabric, server: &ApiServer) -> Result<Self> {
        let name = fabric.name();
        let address = fabric.eni(0)?.own_address(Family::V4);
        let node = json!({
            "apiVersion": "v1", "kind": "Node", "metadata": {"name": name},
            "status": {"addresses": [{"type": "InternalIP", "address": address}]}
        });
        server.admin().post("/api/v1/nodes", &node)?.expect(201)?;
        let metadata = fabric
            .node
            .enter(|| MetadataService::start_on_node(&fabric))?;
        fabric.agent.start(&fabric.node, &[])?;
        Ok(Self {
            fabric,
            _metadata: metadata,
        })
    }
}
