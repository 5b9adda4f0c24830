//! The scene: a VPC, a node with two ENIs, pods on both.

use std::sync::Arc;

use anyhow::{Context as _, Result};
use ipam::Family;
use ipnet::IpNet;
use serde_json::json;
use testkit::fabric::layout::{DIRECT, Host};
use testkit::fabric::world::Site;
use testkit::fabric::{Fabric, Pod, Spec, agent};
use testkit::interrupt;

use crate::flows;
use crate::text::Text;

/// The fabric and its pods.
pub(crate) struct Stage {
    pub(crate) fabric: Fabric,
    /// Two pods on ENI 0, two on ENI 1, the last of which is of the pool that skips masquerade.
    pub(crate) pods: Vec<Arc<Pod>>,
}

/// ENI and address index of each pod.
const PODS: [(u8, usize); 4] = [(0, 0), (0, 1), (1, 0), (1, DIRECT.start)];
/// Contents of the node's ip-masq-agent file.
const EXEMPT: &str = "nonMasqueradeCIDRs: [203.0.113.0/24, \"2001:db8:113::/64\"]\n";

impl Stage {
    pub(crate) fn set(text: &Text) -> Result<Self> {
        text.step(
            "A VPC: a router that drops foreign sources, a peer, a peering, the world, a node",
        );
        let native = Family::ALL.map(|family| Host::Outside.address(family));
        let mut fabric = Fabric::create(&Spec::with_world(json!({"masquerade": {
            "native-routing-cidrs": native.map(IpNet::from),
            "ip-masq-agent": {"enabled": true, "path": null}
        }})))?;
        let file = fabric.file("ip-masq-agent");
        let setting = "/masquerade/ip-masq-agent/path";
        fabric.agent.set(setting, &json!(file))?;
        std::fs::write(file, EXEMPT)?;
        interrupt::check()?;
        text.step("The agent starts on the node's CiliumNode document");
        if let Err(error) = fabric.start_agent() {
            eprintln!("{}", fabric.describe());
            return Err(error);
        }
        let mut pods = Vec::new();
        for (eni, index) in PODS {
            interrupt::check()?;
            let pod = fabric.add_pod(eni, index)?;
            text.pod(&pod, eni);
            pods.push(pod);
        }
        let mut stage = Self { fabric, pods };
        for (pod, site) in flows::untranslated(&stage)? {
            stage.fabric.allow_untranslated_to(pod, site)?;
        }
        Ok(stage)
    }

    pub(crate) fn pod(&self, index: usize) -> Result<&Pod> {
        let pod = self.pods.get(index).map(Arc::as_ref);
        pod.with_context(|| format!("the demo has no pod {index}"))
    }

    /// Leaves everything up, and prints how to enter it.
    pub(crate) fn leave_up(mut self, text: &Text) -> Result<()> {
        let towpath = format!(
            "{} --config {}",
            agent::binary()?.display(),
            self.fabric.agent.config_path().display()
        );
        self.fabric.keep()?;
        let node = self.fabric.node.path();
        let pod = self.pod(2)?;
        let peer = self.fabric.peer(Family::V4);
        let internet = Site::Internet.address(Family::V4);
        text.kept(&[
            ("ask the agent", format!("{towpath} status")),
            (
                "enter the node",
                format!("nsenter --net={} bash", node.display()),
            ),
            (
                "enter a pod",
                format!("nsenter --net={} bash", pod.netns.path().display()),
            ),
            (
                "ping the VPC from it",
                format!(
                    "nsenter --net={} ping {}",
                    pod.netns.path().display(),
                    peer.address
                ),
            ),
            (
                "ping the Internet from it",
                format!(
                    "nsenter --net={} ping {internet}",
                    pod.netns.path().display()
                ),
            ),
            (
                "see what the VPC dropped",
                format!(
                    "nsenter --net={} nft list counters",
                    self.fabric.vpc.router.path().display()
                ),
            ),
            (
                "remove it all",
                format!("{} --down", std::env::current_exe()?.display()),
            ),
        ]);
        // Its namespaces must not go with this value.
        std::mem::forget(self);
        Ok(())
    }
}
